"""The physical constants of the step-time model: each with its unit, its meaning and where its value comes from.

Fitted ones are least squares over published measurements, pulled towards a physical guess: `benchmarks/planner_fit.py`
holds the guesses and repeats the fit. A constant stands for what one kind of work costs, never for a row or a source.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FITTED: Final = "fitted"


def _known(value: float, unit: str, meaning: str, source: str) -> float:
    made: float = field(default=value, metadata={"unit": unit, "meaning": meaning, "source": source})
    return made


def _fitted(value: float, unit: str, meaning: str) -> float:
    return _known(value, unit, meaning, FITTED)


@dataclass(frozen=True, slots=True)
class Constants:
    """Shares are of what the hardware table says."""

    matmul_share: float = _fitted(0.871, "1", "of the best matmul rate, what the matmuls of a layer reach")
    matmul_share_fp8: float = _fitted(0.949, "1", "the same in fp8 of one scale a tensor or row")
    matmul_share_mx: float = _fitted(0.739, "1", "the same in mxfp8, with a scale every 32 values")
    matmul_share_fp4: float = _fitted(0.469, "1", "of the fp4 peak, in nvfp4")
    grouped_share: float = _fitted(0.745, "1", "of the dense matmul rate, in the grouped matmuls of experts")
    operand_traffic: float = _fitted(
        1.16, "1", "of the traffic of a matmul's activations, what the matmul does not hide"
    )
    weight_traffic: float = _fitted(
        6.51, "B/param", "a micro-batch: weights read thrice and their gradient added to, less what caches keep"
    )
    attention_early: float = _fitted(
        0.423, "1", "of the best bf16 matmul rate, in flash attention of before 2024 on Ampere"
    )
    attention_early_hopper: float = _fitted(0.223, "1", "the same on Hopper, whose units those kernels did not know")
    attention_flash2: float = _fitted(0.466, "1", "the same in FlashAttention 2 on Ampere")
    attention_flash2_hopper: float = _fitted(0.287, "1", "the same on Hopper, whose units it does not know either")
    flash2_tflops: float = _fitted(123.0, "TFLOP/s", "of FlashAttention 2 on Blackwell, of its port on AMD's GPUs")
    attention_cudnn: float = _fitted(0.718, "1", "the same under cuDNN or FlashAttention 3 on Hopper and later")
    attention_unfused: float = _fitted(
        16.6, "passes", "over the scores in memory, without a fused kernel, forward and backward"
    )
    ragged: float = _fitted(1.55, "1", "longer matmuls where the hidden size is no multiple of 128: part-filled tiles")
    misaligned: float = _fitted(1.77, "1", "longer attention where a head is no multiple of 8 wide: no tensor cores")
    passes_hidden: float = _fitted(
        27.2, "passes", "over tensors of the hidden size a layer, forward and backward, fused"
    )
    passes_hugging_face: float = _fitted(
        215.0, "passes", "the same of Hugging Face's eager models: norms in fp32, rotations, residuals"
    )
    passes_ffn: float = _fitted(6.52, "passes", "over tensors of the MLP's width a layer, forward and backward")
    passes_routing: float = _fitted(28.7, "passes", "over the copies of tokens that go to experts and back")
    passes_logits: float = _fitted(11.1, "passes", "over the logits (2 bytes each), forward and backward")
    passes_quantise: float = _fitted(9.88, "passes", "over the inputs of matmuls to scale and cast them")
    passes_state_space: float = _fitted(279.0, "passes", "over the inner width of a state-space mixer")
    eager: float = _fitted(1.59, "1", "passes of unfused eager kernels over those of fused ones")
    compiled: float = _fitted(1.1, "1", "passes of compiled kernels over those of hand-fused ones")
    memory_share: float = _known(0.8, "1", "of the memory's bandwidth, what kernels reach", "measured: 0.75-0.9 STREAM")
    launch_us: float = _known(6.0, "us", "of the host for one kernel", "measured: 5-7 us of PyTorch eager")
    layer_sync_ms: float = _fitted(
        11.3, "ms", "a layer and micro-batch of Megatron-DeepSpeed, for its host synchronisations"
    )
    kernels_fused: float = _fitted(60.9, "kernels", "a layer, forward and backward, fused")
    kernels_eager: float = _fitted(
        255.0, "kernels", "a layer, forward and backward, of eager Hugging Face code and ZeRO's hooks"
    )
    kernels_moe: float = _fitted(161.0, "kernels", "more in a layer with experts")
    link_share: float = _known(
        0.75, "1", "of the scale-up link, what collectives reach", "measured: 361-367 of 450 GB/s"
    )
    hop_us: float = _fitted(3.89, "us", "of one hop in a ring across nodes")
    node_share: float = _known(0.7, "1", "of the node's network, what collectives reach", "measured: 0.74 plateau")
    all_to_all_share: float = _fitted(1.25, "1", "of what rings reach across nodes, in all-to-all")
    tensor_exposed: float = _fitted(0.656, "1", "of tensor-parallel traffic, what nothing hides")
    experts_exposed: float = _fitted(0.552, "1", "of all-to-all traffic, what nothing hides")
    context_exposed: float = _fitted(0.39, "1", "of context-parallel traffic, what nothing hides")
    stages_exposed: float = _fitted(0.366, "1", "of pipeline traffic, what nothing hides")
    gather_overlap: float = _fitted(1.32, "1", "of a micro-batch's compute, what can hide ZeRO-3's gathers")
    contention: float = _fitted(0.0986, "1", "of a hidden gather, what it takes from the compute beside it")
    zero3_hooks: float = _known(
        0.05, "1", "of the compute, what fetching and releasing modules adds in eager ZeRO-3",
        "LLaMA-7B on 8 A800: ZeRO-2 1.01 to 1.08 times as fast (gist chenyaofo/d4cd6a20, 2024)",
    )  # fmt: skip
    reduce_overlap: float = _fitted(0.603, "1", "of the last micro-batch's compute, what can hide a step's reduction")
    bubble: float = _known(1.0, "1", "of the ideal pipeline bubble, what is seen", "Narayanan 2021, arXiv 2104.04473")
    bookkeeping_traffic: float = _fitted(111.0, "B/param", "DeepSpeed's copies into flat buffers and norms, a step")
    optimizer_traffic: float = _known(
        36.0, "B/param", "Adam's reads and writes", "16 states read, 14 written, 4 gradient"
    )
    cpu_adam_per_s: float = _fitted(2.85e8, "params/s", "of a GPU's share of the host, Adam on the CPU")
    step_overhead_s: float = _fitted(0.0269, "s", "a step: loader, norm, logging, synchronisation")
    jitter: float = _fitted(0.0042, "1", "longer steps for each doubling of nodes")
    selective: float = _fitted(0.36, "1", "of the forward pass, what selective checkpointing computes again")
    yearly: float = _fitted(
        0.0602, "1", "of the time in passes over memory, what each year of software before 2026 adds"
    )
    yearly_moe: float = _fitted(0.263, "1", "of the time to route tokens to experts, the same")
    routing_skew: float = _known(
        1.12, "1", "longer expert time under real routing over forced balance", "ModelZoo pairs: 4-20 %"
    )
    experts_overlapped: float = _known(
        0.15, "1", "of all-to-all traffic beside another micro-batch's computation, what it still costs",
        "DeepSeek-V3 (arXiv 2412.19437 §3.2): all of it hidden, at 20 of an H800's 132 SMs",
    )  # fmt: skip
