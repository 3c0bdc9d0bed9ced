"""The constants of the memory model: each with its unit, its meaning and where its value comes from."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 2**20
GIB = 2**30


def _constant(value: float, unit: str, meaning: str, source: str) -> float:
    made: float = field(default=value, metadata={"unit": unit, "meaning": meaning, "source": source})
    return made


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """Those whose source is `fitted` are medians over published rows; the others are read in the frameworks' code."""

    fragmentation: float = _constant(
        1.10, "1", "what the caching allocator reserves over what comes and goes in a step", "fitted"
    )
    fragmentation_expandable: float = _constant(
        1.03, "1", "the same with expandable segments, torchtitan's setting", "PyTorch's notes on the allocator"
    )
    headroom: float = _constant(
        1.14,
        "1",
        "of what is predicted to be reserved, what nine of ten runs keep to",
        "left-out rows",
    )
    context: float = _constant(
        1.2 * GIB, "B", "CUDA context, kernels and cuBLAS handles of a process, which no allocator counts", "fitted"
    )
    nccl_group: float = _constant(
        0.5 * GIB, "B", "NCCL's channels and buffers for one kind of group a rank belongs to", "fitted"
    )
    workspace: float = _constant(
        104 * MIB, "B", "cuBLAS and Transformer Engine workspaces, random states, masks", "Megatron-LM test runs"
    )
    workspace_ampere: float = _constant(
        72 * MIB, "B", "the same before Hopper, whose cuBLAS workspace is 32 MiB rather than 8", "Megatron-LM test runs"
    )
    grouped_workspace: float = _constant(
        128 * MIB, "B", "workspaces of the four streams of grouped matmuls", "Transformer Engine"
    )
    imbalance: float = _constant(
        1.25, "1", "of the mean, what the fullest expert rank gets where nothing forces balance", "fitted"
    )
    logits_fused: float = _constant(
        6.0,
        "B/logit",
        "half-precision logits and the softmax in fp32, in place",
        "Megatron vocab_parallel_cross_entropy",
    )
    logits_compiled: float = _constant(
        6.0, "B/logit", "half-precision logits, their gradient, and what the compiled loss keeps", "torchtitan"
    )
    logits_eager: float = _constant(
        14.0, "B/logit", "half-precision logits; in fp32 logits, log-softmax and gradient", "Hugging Face, torch loss"
    )
    eager_adam: float = _constant(
        12.0,
        "B/param",
        "gradients in fp32 (4), the square root (4) and the denominator (4) of an Adam of separate kernels",
        "torch.optim.AdamW, one tensor at a time",
    )
    flattening: float = _constant(
        2.0, "B/param", "half-precision gradients copied into one piece", "InternEvo hybrid_zero_optim.py"
    )
    deepspeed_step: float = _constant(
        6.0, "B/param", "a shard's gradients flattened (2) and in fp32 (4) while DeepSpeed steps", "stage_1_and_2.py"
    )
    sub_group_elements: float = _constant(1e9, "elements", "that ZeRO-3 steps at a time", "sub_group_size")
    bucket_elements: float = _constant(
        5e8, "elements", "of DeepSpeed's reduce and all-gather buckets", "DeepSpeed defaults"
    )
    live_elements: float = _constant(
        1e9, "elements", "of gathered parameters that ZeRO-3 lets live", "stage3_max_live_parameters"
    )
    pinned_nvme: float = _constant(
        5e9, "B", "host memory of a rank that swaps to NVMe: pinned buffers in flight", "DeepSpeed aio defaults"
    )


USUAL_CONSTANTS = MemoryConstants()
