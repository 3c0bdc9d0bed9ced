"""Which matmuls of a model run in NVFP4, FP8 or BF16, the recipe, and the expected speed-up.

The recipe is NVIDIA's (arXiv 2509.25149, Transformer Engine's NVFP4BlockScaling): a 12B hybrid over 10T tokens. Shares
are parts of a training step's FLOPs. Forward, data gradient and weight gradient cost the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from governor.planner.model.precision_facts import (
    ENGINES,
    FORMATS,
    FP8_GEMM,
    FP8_STEP,
    LATE_SWITCH_AT,
    MXFP8_GEMM,
    MXFP8_STEP,
    NVFP4_GEMM,
    NVFP4_STEP,
    Range,
)
from governor.planner.model.setup import Gpu, Precision
from governor.planner.model.shape import Shape
from governor.planner.model.sparse import dense_forward

# part of the blocks; the 12B run kept 10 of 62, Nemotron-3-Super 14 of 88
BF16_BLOCKS_FRAC: Final = 0.15
FIRST_BLOCKS: Final = 2  # The 12B run kept them too.
# Below it, quantising and Hadamard cost as much as the matmul saves.
HIDDEN_MIN: Final = 4096
# The expert width from which on no known measurement speaks against the precision, and the reason for the limit.
EXPERT_FFN_MIN: Final = {
    Precision.NVFP4: (4096, "0.88 to 1.04 over MXFP8 was measured at 2688"),
    Precision.MXFP8: (2048, "1.13 to 1.28 was measured at 2048"),  # DeepSeek-V3
    Precision.FP8: (4096, "1.25 was measured at 32768"),  # Grok-1
}
# Attention stays in BF16. Above this share, little is left to speed up.
ATTENTION_SHARE_MAX: Final = 0.3
# Tokens per matmul. With fewer, reading the weights takes most of the time.
TOKENS_MIN: Final = 4096
# of both dimensions of a matmul (torchtitan); Transformer Engine asks for 32
DIM_MULTIPLE: Final = 128


@dataclass(frozen=True, slots=True)
class Group:
    """Matmuls with the same precision."""

    name: str
    precision: Precision
    flops_share: float  # of the step
    why: str


@dataclass(frozen=True, slots=True)
class PrecisionPlan:
    model: str
    gpu: str
    precision: Precision  # of the low-precision matmuls; BF16 if the GPU has nothing lower
    fallbacks: tuple[Precision, ...]  # in the order in which a halt for divergence uses them
    groups: tuple[Group, ...]
    bf16_blocks: tuple[int, ...]  # numbered from 0
    speedup: Range  # of the whole step, over BF16
    ceiling: float  # the limit that the shares set, at the fastest measured matmul
    # None: published figures lie on both sides of 1, or there are objections.
    pays: bool | None
    objections: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def shares(self) -> dict[Precision, float]:
        """Parts of the step's FLOPs, by precision."""
        found: dict[Precision, float] = {}
        for group in self.groups:
            found[group.precision] = found.get(group.precision, 0.0) + group.flops_share
        return found

    @property
    def low_share(self) -> float:
        return sum(share for precision, share in self.shares.items() if precision is not Precision.BF16)


def precisions_of(gpu: Gpu) -> tuple[Precision, ...]:
    """The precisions to try, fastest first: NVFP4, MXFP8, BF16 on Blackwell; FP8, BF16 on Hopper, Ada and CDNA3."""
    order = (Precision.NVFP4, Precision.MXFP8, Precision.FP8, Precision.BF16)
    found = [precision for precision in order if gpu.supports(precision)]
    if Precision.MXFP8 in found:
        # MXFP8 has the same matmuls with finer scales, so one of the two is enough.
        found.remove(Precision.FP8)
    return tuple(found)


def precision_plan(
    shape: Shape,
    gpu: Gpu,
    seq_len: int,
    *,
    keep_first: bool = False,
    keep_attention_projections: bool = False,
    tokens: int | None = None,
    wanted: Precision | None = None,
) -> PrecisionPlan:
    """The plan for the `wanted` precision if the GPU has it, else for its lowest one.

    `tokens`: of a micro-batch, over the GPUs that share the experts. None: enough.
    """
    order = precisions_of(gpu)
    chosen = wanted if wanted in order else order[0]
    blocks = bf16_blocks(shape.layers, keep_first) if chosen is Precision.NVFP4 else ()
    groups = tuple(_groups(shape, seq_len, chosen, len(blocks) / shape.layers, keep_attention_projections))
    low = sum(group.flops_share for group in groups if group.precision is not Precision.BF16)
    objections = () if chosen is Precision.BF16 else tuple(_objections(shape, chosen, seq_len, tokens))
    speedup, ceiling = _speedup(shape, chosen, low, bool(objections))
    return PrecisionPlan(
        model=shape.name,
        gpu=gpu.name,
        precision=chosen,
        fallbacks=order[order.index(chosen) + 1 :],
        groups=groups,
        bf16_blocks=blocks,
        speedup=speedup,
        ceiling=ceiling,
        pays=False if speedup.high <= 1 else True if speedup.low > 1 else None,
        objections=objections,
        notes=tuple(_notes(gpu, chosen, wanted)),
    )


def advised(shape: Shape, gpu: Gpu, seq_len: int, tokens: int | None = None) -> Precision:
    """The lowest precision of the GPU that is known to pay, else BF16."""
    order = precisions_of(gpu)
    plans = (precision_plan(shape, gpu, seq_len, wanted=one, tokens=tokens) for one in order)
    return next((plan.precision for plan in plans if plan.pays), Precision.BF16)


def bf16_blocks(layers: int, keep_first: bool) -> tuple[int, ...]:
    """The last blocks, about 15 % of all. With `keep_first`, two of them are the first blocks."""
    kept = max(round(BF16_BLOCKS_FRAC * layers), 1)
    first = min(FIRST_BLOCKS, kept - 1) if keep_first else 0
    return (*range(first), *range(layers - (kept - first), layers))


def _groups(shape: Shape, seq_len: int, low: Precision, kept: float, keep_projections: bool) -> Iterator[Group]:
    """`kept`: part of the blocks that stays in BF16. Layers of each kind count as spread evenly over the blocks."""
    scores = shape.attention_layers * dense_forward(shape, seq_len)
    total = 2 * shape.matmul_params + scores
    bf16 = Precision.BF16

    def group(name: str, precision: Precision, flops: float, why: str) -> Group:
        return Group(name, precision, flops / total, why)

    projections = 2.0 * shape.attention_layers * shape.attention_params + 2.0 * shape.state_space_layers * (
        shape.state_space_params
    )
    routed = shape.experts.topk * shape.expert_params if shape.experts else 0
    mlp = 2.0 * (shape.dense_layers * shape.dense_mlp_params + shape.moe_layers * (shape.shared_expert_params + routed))
    yield group("attention scores and softmax", bf16, scores, "no low-precision kernel trains them safely")
    yield group("LM head", bf16, 2.0 * shape.head_params, "its errors reach the loss undamped")
    if shape.is_moe:
        yield group("router", bf16, 2.0 * shape.moe_layers * shape.router_params, "a flipped expert is a large error")
    if kept:
        of = (0.0 if keep_projections else projections) + mlp
        yield group("blocks kept whole", bf16, kept * of, "the last blocks are the most sensitive")
    if keep_projections:
        yield group("attention projections", bf16, projections, "kept on request")
    else:
        yield group("attention projections", low, (1 - kept) * projections, "")
    yield group("experts" if shape.is_moe else "MLP", low, (1 - kept) * mlp, "")


def _speedup(shape: Shape, precision: Precision, low_share: float, is_doubted: bool) -> tuple[Range, float]:
    """The speed-up measured end to end, where there is one, limited by the shares at the measured matmul rate."""
    if precision is Precision.BF16:
        return Range(1.0, 1.0, "BF16 is what is compared with"), 1.0
    gemm = {Precision.NVFP4: NVFP4_GEMM, Precision.MXFP8: MXFP8_GEMM}.get(precision, FP8_GEMM)
    steps = {Precision.NVFP4: NVFP4_STEP, Precision.MXFP8: MXFP8_STEP}.get(precision, FP8_STEP)
    measured = steps["moe" if shape.is_moe else "dense"]
    most = _amdahl(low_share, gemm.low)
    least = min(measured.low, most, 1.0) if is_doubted else min(measured.low, most)
    return Range(least, max(min(measured.high, most), least), measured.source), _amdahl(low_share, gemm.high)


def _amdahl(share: float, times: float) -> float:
    return 1 / (1 - share + share / times)


def _notes(gpu: Gpu, chosen: Precision, wanted: Precision | None) -> Iterator[str]:
    if wanted is not None and wanted is not chosen:
        yield f"{gpu.name} has no {wanted} matmuls that training uses: {chosen} is the lowest that it has"
    elif chosen is Precision.BF16 and wanted is None:
        yield f"{gpu.name} has no matmuls below BF16 that training uses"


def _objections(shape: Shape, chosen: Precision, seq_len: int, tokens: int | None) -> Iterator[str]:
    if shape.hidden < HIDDEN_MIN:
        yield f"hidden {shape.hidden} is below {HIDDEN_MIN}: quantising costs what the matmul saves"
    least, known = EXPERT_FFN_MIN[chosen]
    if shape.experts and shape.experts.ffn < least:
        yield f"experts {shape.experts.ffn} wide gain little: {known}"
    attention = shape.attention_layers * dense_forward(shape, seq_len)
    share = attention / (attention + 2 * shape.matmul_params)
    if share > ATTENTION_SHARE_MAX:
        yield f"attention scores are {100 * share:.0f} % of the FLOPs at {seq_len} tokens, and stay in BF16"
    if tokens is not None and (met := _tokens_a_matmul(shape, tokens)) < TOKENS_MIN:
        yield f"a matmul takes about {met:.0f} tokens: below {TOKENS_MIN} reading the weights is its time"
    if odd := [f"{name} {size}" for name, size in _dims(shape) if size % DIM_MULTIPLE]:
        yield f"{', '.join(odd)}: no multiple of {DIM_MULTIPLE}; those matmuls run in BF16, or not at all"


def _tokens_a_matmul(shape: Shape, tokens: int) -> float:
    """Tokens of a micro-batch per matmul. An expert gets its share as if it were alone on its GPU's tokens."""
    return tokens * shape.experts.topk / shape.experts.count if shape.experts else float(tokens)


def _dims(shape: Shape) -> Iterator[tuple[str, int]]:
    yield "hidden", shape.hidden
    if shape.dense_layers:
        yield "ffn", shape.ffn
    if shape.experts:
        yield "expert ffn", shape.experts.ffn
    yield "heads x head_dim", shape.heads * shape.v_dim


def late_switch_tokens(tokens: float) -> float:
    """The token count from which on the forward matmuls run in BF16."""
    return LATE_SWITCH_AT * tokens


# A precision plan as a file, for a model builder, Transformer Engine and Megatron-LM.


# In every plan: these have no matmul, or their errors are not damped.
ALWAYS_KEPT = ("embeddings", "norms", "master weights", "gradient sums", "optimizer states")


def recipe(plan: PrecisionPlan, tokens: float | None = None, fallback: str | None = None) -> dict[str, Any]:
    """`tokens`: of the whole training, for the late switch. `fallback`: the file of the next plan."""
    engine = ENGINES.get(plan.precision)
    is_low = plan.precision is not Precision.BF16
    low = [group.name for group in plan.groups if is_low and group.precision is plan.precision]
    blocks = plan.bf16_blocks
    first = sum(1 for number, block in enumerate(blocks) if number == block)
    switch = plan.precision is Precision.NVFP4 and tokens is not None
    return {
        "model": plan.model,
        "gpu": plan.gpu,
        "precision": plan.precision.value,
        "labels": {"precision": plan.precision.value},
        "low_precision": low,
        "kept": [group.name for group in plan.groups if group.name not in low] + list(ALWAYS_KEPT),
        "bf16_blocks": list(blocks),
        "format": dict(FORMATS[plan.precision]),
        "forward_in_bf16_from_tokens": round(late_switch_tokens(tokens or 0)) if switch else None,
        "transformer_engine": engine.recipe if engine else None,
        "megatron_lm": engine.megatron.format(first=first, last=len(blocks) - first) if engine else "--bf16",
        "deepspeed": {"bf16": {"enabled": True}},
        "fallback": fallback,
    }
