"""docs/reference/sparse_attention.md and its drawing, computed by the planner's own model."""

from __future__ import annotations

from governor.cli.plan.sparse import drawings, length_name
from governor.planner.catalog import model_named
from governor.planner.model.shape import Shape
from governor.planner.model.sparse import NSA_EFFICIENCY, PLAIN, PUBLISHED, SMALL_INDEXER, TopK, flops_ratio
from governor.planner.model.sparse_advice import LENGTHS, PAYS_FROM, SPARSE_LIMITS, Advice, advise, start_length
from governor.planner.model.training_stages import STAGES, TrainingStage
from governor.text.svg import standalone

_HEAD = """# Sparse attention: what it would save, and when it does not pay

<!-- Drawn from governor/planner/model/sparse*.py by `make docs`: change it there. -->

DeepSeek Sparse Attention (DSA, [arXiv 2512.02556](https://arxiv.org/abs/2512.02556)) lets a small *indexer* score all
earlier tokens; full attention then reads the k best. Native Sparse Attention (NSA,
[arXiv 2502.11089](https://arxiv.org/abs/2502.11089)) reads compressed blocks, the best blocks whole, and a window. This
page is what `costgov plan sparse` computes for the four stages, on an H100. We measured none of it: it is
arithmetic on published sizes, with the constants below.

**DeepSpeed has neither.** A DeepSpeed run gets them only from a model that brings its own kernels and loss.

![FLOPs and step time over the sequence length](sparse_attention.svg)

## Per stage

k is 2048, as published, up to 128K, and beyond it a sixty-fourth of the length. The indexer is scaled with the model. It does a
sixteenth of dense attention's work for a pair of tokens.

"""

_COUNTS = f"""
## How it is counted

FLOPs per token and layer, forward, averaged over a causal sequence of L tokens, with heads n, query-key and value
dimensions d and d', indexer of H heads of dimension e:

| | |
|---|---|
| dense | `2 n (d + d') L/2` |
| DSA, L > k | `2 n (d + d') (k - k^2/2L) + 2 H e L/2`; MLA gathers in its latent, so d and d' are 576 and 512 there |
| DSA, L <= k | dense: everything is selected |
| NSA | `2 n (d + d')` times `L/2/16` compressed + 1,024 selected + 512 window |

A training step is three such passes. Two counts bound its time. The advice rests on the lower speed-up.

- *plain*: every FLOP alike, three passes over the indexer too, no projections;
- *executed*: index scores at the FP8 rate, their gradients over the selected tokens alone, the indexer's projections
  without a gradient of their (detached) input, attention scores once more as the target of the KL loss. Megatron-LM
  counts so (pull requests 6753, 7157).

Constants: sparse kernels are assumed to reach {PLAIN.kernel_efficiency} of FlashAttention's efficiency; NSA's {NSA_EFFICIENCY} (from the
paper's 9.0 times forward and 6.0 backward at 64K, over Triton's FlashAttention); a mixture's matmuls run at 0.45 of
dense ones in the executed count. Sparse attention pays from a speed-up of {PAYS_FROM} on. With a tenth of the step in exposed communication
that is 1.10.

Dense over DSA attention FLOPs, forward:

"""


def render() -> str:
    parts = [_HEAD, _stages(), "\nThe step's speed-up (lower count to higher), and whether it pays:\n\n", _speeds()]
    parts += [_COUNTS, _ratios(), _memory(), _limits()]
    return "".join(parts)


def drawn() -> str:
    return standalone(drawings([stage.shape for stage in STAGES], None))


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _stages() -> str:
    heads = ("stage", "trained at", "there", "k", "indexer", "DSA from", "sparsity there", "warm-up earned back after",
             "the whole stage there")  # fmt: skip
    return _table(heads, [_stage(stage) for stage in STAGES])


def _stage(stage: TrainingStage) -> tuple[str, ...]:
    here = advise(stage.shape, stage.seq_len)
    start = start_length(stage.shape)
    assert start is not None, "every stage's model has a length at which it pays"
    there = advise(stage.shape, start)
    assert there.break_even_tokens is not None
    return (
        f"{stage.name[-1]}: {stage.title}", length_name(stage.seq_len),
        f"dense ({here.speedup_low:.2f} x)" if not here.pays else f"DSA ({here.speedup_low:.2f} x)",
        str(there.sparse.k), str(there.sparse.indexer), length_name(start),
        f"{100 * there.sparsity:.0f} %", f"{there.break_even_tokens / 1e9:.1f}B tokens",
        f"{there.speedup_over(stage.tokens) or 0:.2f} x",
    )  # fmt: skip


def _speeds() -> str:
    heads = ("stage", *(length_name(length) for length in LENGTHS))
    rows = [(stage.title, *(_speed(advise(stage.shape, length)) for length in LENGTHS)) for stage in STAGES]
    return _table(heads, rows)


def _speed(advice: Advice) -> str:
    low, high = f"{advice.speedup_low:.2f}", f"{advice.speedup_high:.2f}"
    text = low if low == high else f"{low} to {high}"
    return f"**{text}**" if advice.pays else text


def _ratios() -> str:
    shapes: tuple[tuple[str, Shape, TopK], ...] = (
        ("671B MLA, 64 x 128", model_named("DeepSeek-V3"), PUBLISHED),
        ("8B, 64 x 128", model_named("Llama3-8B"), PUBLISHED),
        ("8B, 8 x 64", model_named("Llama3-8B"), TopK(PUBLISHED.k, SMALL_INDEXER)),
    )
    heads = ("length", *(name for name, _, _ in shapes))
    rows = [
        (length_name(length), *(f"{flops_ratio(shape, sparse, length):.2f}" for _, shape, sparse in shapes))
        for length in LENGTHS
    ]
    note = (
        "\nAn indexer of DeepSeek's size costs an 8B with grouped queries as much as its whole dense attention (16,384\n"
        "FLOPs a pair each): it never pays there.\n"
    )
    return _table(heads, rows) + note


def _memory() -> str:
    heads = ("stage 4 at", "indices kept", "indexer's activations", "one layer's scores, unfused", "saved")
    rows = []
    for length in (16384, 32768, 131072):
        added = advise(STAGES[-1].shape, length).added
        figures = (added.indices, added.indexer_activations, added.scores_unfused, added.saved)
        rows.append((length_name(length), *(f"{figure / 2**30:.1f} GiB" for figure in figures)))
    return (
        "\n## Memory: it adds\n\nFlashAttention keeps nothing that grows with the square of the length, so there is no relief. "
        "For a micro-batch of one\nsequence, all layers, before any parallelism (checkpointing recomputes the first two):\n\n"
        + _table(heads, rows)
    )


def _limits() -> str:
    return "\n## Limits\n\n" + "".join(f"- {limit.text} *({limit.source})*\n" for limit in SPARSE_LIMITS)
