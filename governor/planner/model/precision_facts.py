"""Low-precision training: published measurements, the recipe, and the sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from governor.planner.model.setup import Precision


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    high: float
    source: str


# Speed-up of matmuls alone over BF16, quantising included (low) and excluded (high).
NVFP4_GEMM: Final = Range(
    2.03, 3.55, "Transformer Engine's GEMM benchmark, B300, 5B shapes; high: inputs pre-quantised"
)
MXFP8_GEMM: Final = Range(1.44, 2.0, "the same; high: the ratio of the peaks")
FP8_GEMM: Final = Range(1.61, 2.0, "the same, delayed scaling; high: the ratio of the peaks")

# Speed-up of whole training steps over BF16.
FP8_STEP: Final = {
    "dense": Range(1.10, 1.53, "H100: dgxc v25.01 Llama 8B, 70B 1.34, 405B 1.53; torchao rowwise FSDP2 8B 1.10"),
    "moe": Range(1.0, 1.25, "H100: dgxc v25.01 Grok-1 1.25; smaller experts gain less"),
}
MXFP8_STEP: Final = {
    "dense": Range(1.20, 1.53, "B200, power-limited, 8B 1.20; upper end as FP8's on H100"),
    "moe": Range(1.13, 1.28, "DeepSeek-V3: GB300 1.13, GB200 1.28"),
}
NVFP4_STEP: Final = {
    # MXFP8's 1.20 times the smallest further gain, 1.19 (Llama3-70B, GB200).
    "dense": Range(1.43, 1.6, "MXFP8's, times 1.19 (Megatron-Bridge, Llama3-70B, GB200); NVIDIA says up to about 1.6"),
    # MXFP8's range times Nemotron-3-Super's 0.88 to 1.04.
    "moe": Range(0.99, 1.33, "MXFP8's, times Nemotron-3-Super's 0.88 to 1.04 over it (Megatron-Bridge 26.02 on)"),
}

LATE_SWITCH_AT: Final = 0.82  # part of the tokens: 8.2T of 10T (arXiv 2509.25149, appendix D)


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the recipe."""

    name: str
    text: str
    source: str


RECIPE: Final = (
    Rule(
        "format",
        "E2M1 values in blocks of 16 with an E4M3 scale, and an FP32 scale a tensor: 4.5 bits a value.",
        "arXiv 2509.25149 §2",
    ),
    Rule(
        "weights",
        "Scaled in squares of 16 x 16, so that forward and backward see the same quantised weight; rounded to nearest.",
        "arXiv 2509.25149 §4.3",
    ),
    Rule(
        "activations and gradients",
        "Scaled in rows of 1 x 16 along the sum.",
        "arXiv 2509.25149 §4.3",
    ),
    Rule(
        "stochastic rounding",
        "Of gradients alone, in both backward matmuls. On activations or weights it harms.",
        "arXiv 2509.25149 §4.4",
    ),
    Rule(
        "random Hadamard",
        "16 x 16, one vector of signs for the whole run. Of both inputs of the weight gradient: there it cancels.",
        "arXiv 2509.25149 §4.2",
    ),
    Rule(
        "kept in BF16 or FP32",
        "Attention scores and softmax, norms, embeddings, LM head, router, optimizer states, master weights, and about "
        "15 % of the blocks, the last ones.",
        "arXiv 2509.25149 §4.1",
    ),
    Rule(
        "late switch",
        "From 82 % of the tokens on, shortly before the learning rate falls, the forward matmuls in BF16: the gap in "
        "loss shrinks from 1.5 % to 0.5 % with 6 % of the compute in BF16. Switching the backward ones alone does "
        "nothing. Simplest: save, and start again in BF16.",
        "arXiv 2509.25149 appendix D; torchtitan",
    ),
)

PRECISION_LIMITS: Final = (
    Rule(
        "DeepSpeed",
        "It has no NVFP4 path. Its config says bf16 or fp16; FP8 or NVFP4 come with the model's own layers "
        "(Transformer Engine's), which ZeRO then shards as BF16 parameters. Megatron-LM, Megatron-Bridge, torchtitan "
        "and MaxText have the whole recipe.",
        "deepspeed 0.19.8; Megatron-LM --fp4-format; torchtitan PR 3914",
    ),
    Rule(
        "GPUs",
        "Transformer Engine trains in NVFP4 on SM 10.0 and 10.3 alone: B200, GB200, B300, GB300. Not on Hopper, Ada or "
        "RTX 50 (12.0).",
        "Transformer Engine",
    ),
    Rule(
        "memory",
        "Weights, master weights and optimizer states stay as large as they are; saved inputs of matmuls shrink.",
        "Transformer Engine; --fp4-param-gather is another matter",
    ),
    Rule(
        "loss",
        "1 to 1.5 % above FP8's during training; MMLU-Pro 62.58 against 62.62 at its end (12B, 10T tokens). MXFP4 "
        "needs 36 % more tokens for the same loss (8B, 1T).",
        "arXiv 2509.25149 §3, §5",
    ),
    Rule(
        "mixtures of experts",
        "No public figure of a gain: Nemotron-3-Super's 0.88 to 1.04 over MXFP8. Every expert's matmul quantises its "
        "own few tokens.",
        "Megatron-Bridge performance summaries 26.02 to 26.04.01",
    ),
)


@dataclass(frozen=True, slots=True)
class Engine:
    """The settings for Transformer Engine and Megatron-LM. {first} and {last}: numbers of BF16 blocks."""

    recipe: str  # of transformer_engine.common.recipe
    megatron: str
    source: str


ENGINES: Final = {
    Precision.NVFP4: Engine(
        "NVFP4BlockScaling",
        "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4 --first-last-layers-bf16 --num-layers-at-start-in-bf16 {first} "
        "--num-layers-at-end-in-bf16 {last}",
        "Transformer Engine 2.7 and newer",
    ),
    Precision.MXFP8: Engine(
        "MXFP8BlockScaling", "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", "Transformer Engine 2.0 and newer"
    ),
    Precision.FP8: Engine(
        "Float8BlockScaling",
        "--bf16 --fp8-format e4m3 --fp8-recipe blockwise",
        "as DeepSeek-V3 was trained, arXiv 2412.19437 §3.3",
    ),
}

# Rounding and scales for each kind of tensor.
FORMATS: Final = {
    Precision.NVFP4: {
        "values": "E2M1",
        "scales": "E4M3 a block, FP32 a tensor",
        "weights": "16 x 16 blocks, to nearest",
        "activations": "1 x 16 blocks, to nearest",
        "gradients": "1 x 16 blocks, stochastic",
        "hadamard": "16 x 16 with random signs, inputs of the weight gradient",
    },
    Precision.MXFP8: {"values": "E4M3", "scales": "E8M0 a block", "all": "1 x 32 blocks, to nearest"},
    Precision.FP8: {
        "values": "E4M3",
        "scales": "FP32 a block",
        "weights": "128 x 128 blocks, to nearest",
        "activations": "1 x 128 blocks, to nearest",
        "gradients": "1 x 128 blocks, to nearest",
    },
    Precision.BF16: {"values": "BF16"},
}
