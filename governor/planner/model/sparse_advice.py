"""Known limits of sparse attention with their sources, and when it pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from governor.planner.model.setup import Attention, Gpu, Setup
from governor.planner.model.shape import Shape
from governor.planner.model.sparse import (
    PLAIN,
    PUBLISHED,
    AddedMemory,
    Blocks,
    Indexer,
    Sparse,
    TopK,
    added_memory,
    attention_share,
    dense_pairs,
    executed,
    flops_ratio,
    is_dense,
    pair_flops,
    selected_pairs,
    step_speedup,
    warmup_equivalent,
)


@dataclass(frozen=True, slots=True)
class Limit:
    text: str
    source: str


SPARSE_LIMITS: Final = (
    Limit(
        "Top-k has no gradient: the language-model loss cannot train the indexer. It learns from its own KL loss "
        "against the attention distribution summed over heads, on an input detached from the model. Forget to "
        "detach it, and the KL loss trains the model.",
        "arXiv 2512.02556 §2.1",
    ),
    Limit(
        "An untrained indexer selects at random. So first a dense warm-up with the model frozen: 1,000 steps of "
        "16 x 128K tokens (2.1B) at a learning rate of 1e-3. Then all parameters, sparse: 15,000 steps of 480 x "
        "128K (943.7B) at 7.3e-6, the KL loss on the selected tokens alone.",
        "arXiv 2512.02556 §2.1.1",
    ),
    Limit(
        "Sequences of at most k tokens are identical to dense: there is nothing to gain, and nothing for the "
        "indexer to learn from short documents.",
        "MaxText, SGLang and vLLM skip the indexer there",
    ),
    Limit(
        "Nobody has published DSA from the first token on. It continues a model trained dense: V3.2 from a "
        "finished one of 128K context, V4 after 1T dense tokens. A stage of 20B to 240B tokens has no precedent. "
        "NSA was trained from scratch (27B parameters, 3B active, 270B tokens; sizes from memory), but needs "
        "grouped queries that share one selection.",
        "arXiv 2512.02556; MaxText PR 5033; arXiv 2502.11089",
    ),
    Limit(
        "Published indexers are 64 x 128 (DeepSeek-V3.2) and 32 x 128 (GLM-5; 5.2 shares one selection among four "
        "layers), both over MLA. The small ones advised here for grouped queries are arithmetic: the warm-up's KL "
        "loss has to show that they rank well, before the model is made sparse.",
        "inference/config_671B_v3.2.json; arXiv 2602.15763",
    ),
    Limit(
        "A selection that differs between two computations of one step (activation checkpointing, another kernel "
        "at rollout) trains other tokens than it scored: use an exact, deterministic top-k.",
        "cudnn-frontend issue 831",
    ),
    Limit(
        "Naive implementations mask instead of skipping (MaxText, transformers): dense cost plus the indexer's. "
        "Kernels that skip are for Hopper and Blackwell (FlashMLA, DeepGEMM), in Megatron-LM behind "
        "--experimental-attention-variant dsa; for grouped queries its pull requests are still open.",
        "MaxText PR 2933; Megatron-LM PRs 2440, 6869, 7156",
    ),
    Limit(
        'DeepSpeed has no such attention. Its "sparse_attention" block was for fixed patterns of 2020, and is '
        "refused since it was removed. The model would have to bring its own kernels and KL loss; ZeRO neither "
        "helps nor hinders.",
        "deepspeed 0.19.8, runtime/config.py",
    ),
    Limit(
        "Memory is no reason: FlashAttention keeps nothing that grows with the square of the length. DSA adds the "
        "top-k indices (8 KiB a token and layer), the indexer's activations and, unfused, whole score matrices.",
        "arithmetic, see the table",
    ),
)


# Whether sparse attention pays for a model at a sequence length, and in what sizes.


# For compute alone. It is 1.10 for a whole step with a tenth of exposed communication. Less does not justify the dense
# warm-up and a second code path.
PAYS_FROM: Final = 1.12
# The indexer scores every pair. At a sixteenth of dense attention's work, the gain is at most 16. DeepSeek's indexer is
# a fifth of MLA's work. The same indexer would equal all attention of an 8B model with grouped queries.
INDEXER_SHARE: Final = 1 / 16
INDEXER_DIM: Final = 64
INDEXER_HEADS_MIN: Final = 4
# Part of the tokens that a query keeps: 2048 of 128K is the sparsest published.
LEAST_SHARE: Final = 1 / 64
LENGTHS: Final = (4096, 8192, 16384, 32768, 65536, 131072)
WARMUP_TOKENS: Final = 1000 * 16 * 131072  # DeepSeek-V3.2: 2.1B
# Small experts' matmuls reach 45 % of the dense rate: DeepSeek-V3 on H100, 338 of 720 to 760 TFLOP/s.
MOE_EFFICIENCY: Final = 0.45
# Architectures with kernels that skip unselected keys (FlashMLA, DeepGEMM, tilelang, cuDNN). Others mask them.
KERNEL_ARCHS: Final = ("Hopper", "Blackwell", "Blackwell Ultra")


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for one model at one length.

    Speed-ups are for the whole training step; the two counts give low and high.
    """

    model: str
    seq_len: int
    sparse: TopK
    sparsity: float  # part of dense attention's pairs that are skipped
    attention_share: float  # part of a dense step's FLOPs
    flops_ratio: float  # dense over sparse attention, forward
    speedup_low: float
    speedup_high: float
    speedup_nsa: float
    added: AddedMemory
    warmup_tokens: int
    # Tokens of sparse training that earn back the warm-up. None: never.
    break_even_tokens: float | None
    pays: bool
    why: str

    def speedup_over(self, tokens: float) -> float | None:
        """Speed-up of a stage of this many tokens, dense warm-up included. None if it never earns the warm-up back."""
        if self.break_even_tokens is None:
            return None
        saved = 1 - 1 / self.speedup_low
        lost = saved * self.break_even_tokens
        return tokens / (tokens * (1 - saved) + lost)


def indexer_for(shape: Shape) -> Indexer:
    """An indexer for the model: a power of two of 64-element heads, a sixteenth of dense attention's work."""
    if shape.latent is not None:
        return PUBLISHED.indexer
    heads = INDEXER_HEADS_MIN
    while Indexer(2 * heads, INDEXER_DIM).pair_flops <= INDEXER_SHARE * pair_flops(shape):
        heads *= 2
    return Indexer(heads, INDEXER_DIM)


def target_for(shape: Shape, seq_len: int) -> TopK:
    """2048 tokens, as published. More only past 128K, where 2048 would be sparser than any published model."""
    return TopK(max(PUBLISHED.k, round(seq_len * LEAST_SHARE)), indexer_for(shape))


def sparse_of(setup: Setup) -> Sparse | None:
    """The sparse attention of a set-up, in the recommended sizes.

    None if it is dense or no kernel of the GPU skips keys.
    """
    match setup.attention:
        case Attention.SPARSE if setup.gpu.arch in KERNEL_ARCHS:
            return target_for(setup.shape, setup.seq_len)
        case Attention.NATIVE_SPARSE:
            return Blocks()
    return None


def advise(shape: Shape, seq_len: int, gpu: Gpu | None = None, sparse: TopK | None = None) -> Advice:
    """`gpu` None: an H100's ratio of rates. `sparse` None: the recommended sizes."""
    sparse = sparse or target_for(shape, seq_len)
    counting = executed(fp8_rate(gpu))
    linear = MOE_EFFICIENCY if shape.is_moe else 1.0
    speeds = (
        step_speedup(shape, sparse, seq_len),
        step_speedup(shape, sparse, seq_len, counting, linear),
    )
    low, high = min(speeds), max(speeds)
    cost = WARMUP_TOKENS * warmup_equivalent(shape, sparse, seq_len, counting)
    pays, why = _verdict(shape, seq_len, sparse, low, gpu)
    return Advice(
        model=shape.name,
        seq_len=seq_len,
        sparse=sparse,
        sparsity=1 - selected_pairs(seq_len, sparse.k) / dense_pairs(seq_len),
        attention_share=attention_share(shape, seq_len),
        flops_ratio=flops_ratio(shape, sparse, seq_len),
        speedup_low=low,
        speedup_high=high,
        speedup_nsa=step_speedup(shape, Blocks(), seq_len, PLAIN, linear),
        added=added_memory(shape, sparse, seq_len),
        warmup_tokens=WARMUP_TOKENS,
        break_even_tokens=cost / (1 - 1 / low) if low > 1 else None,
        pays=pays,
        why=why,
    )


def start_length(shape: Shape, gpu: Gpu | None = None) -> int | None:
    """The shortest usual length at which it pays. None: no length up to 128K."""
    return next((length for length in LENGTHS if advise(shape, length, gpu).pays), None)


def fp8_rate(gpu: Gpu | None) -> float:
    """The FP8 matmul rate over the BF16 rate. 1 if the GPU has no FP8."""
    if gpu is None:
        return 1.765  # H100: 1402.6 over 794.5 TFLOP/s, measured matmuls
    return gpu.reached_fp8 / gpu.reached_bf16 if gpu.reached_fp8 else 1.0


def _verdict(shape: Shape, seq_len: int, sparse: TopK, low: float, gpu: Gpu | None) -> tuple[bool, str]:
    if shape.attention_layers == 0:
        return False, "it has no attention layers"
    if is_dense(sparse, seq_len):
        return False, f"a query of {seq_len} tokens selects all of them (k {sparse.k}): identical to dense"
    if gpu is not None and gpu.arch not in KERNEL_ARCHS:
        return False, f"no kernel for {gpu.arch} skips what is not selected: it would be masked, at dense cost and more"
    share = 100 * attention_share(shape, seq_len)
    if low < 1:
        return False, f"a loss: attention is {share:.0f} % of the step's FLOPs, less than indexer and gathers take"
    if low < PAYS_FROM:
        return False, f"{low:.2f} x is below {PAYS_FROM:.2f}, at which the warm-up and a second code path are worth it"
    return True, f"attention is {share:.0f} % of the step's FLOPs"
