"""The constants of the step-time model, each with its unit, meaning and source; and the compute time of a GPU.

Fitted constants are least squares over published measurements, regularised towards a physical guess.
`benchmarks/planner/speed_fit.py` has the guesses and repeats the fit. A constant is the cost of one kind of work, never
of a single row or source. The fit keeps its meaning: a share is at most 1, and what takes longer takes at least 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

from governor.planner.model.setup import Attention, Checkpointing, Framework, Kernel, Precision, Setup
from governor.planner.model.sparse import dense_training, executed, sparse_training
from governor.planner.model.sparse_advice import fp8_rate, sparse_of

FITTED: Final = "fitted"


def _known(
    value: float, unit: str, meaning: str, source: str, *, least: float = 0.0, most: float = math.inf
) -> float:  # fmt: skip
    told = {"unit": unit, "meaning": meaning, "source": source, "least": least, "most": most}
    made: float = field(default=value, metadata=told)
    return made


def _fitted(value: float, unit: str, meaning: str) -> float:
    return _known(value, unit, meaning, FITTED)


def _share(value: float, meaning: str) -> float:
    return _known(value, "1", meaning, FITTED, most=1.0)


def _factor(value: float, meaning: str) -> float:
    return _known(value, "1", meaning, FITTED, least=1.0)


@dataclass(frozen=True, slots=True)
class Constants:
    """Shares are relative to the hardware table."""

    matmul_share: float = _share(0.868, "of the best matmul rate, what the matmuls of a layer reach")
    matmul_share_fp8: float = _share(0.918, "the same in fp8 of one scale a tensor or row")
    matmul_share_mx: float = _share(0.69, "the same in mxfp8, with a scale every 32 values")
    matmul_share_fp4: float = _share(0.461, "of the fp4 peak, in nvfp4")
    grouped_share: float = _share(0.741, "of the dense matmul rate, in the grouped matmuls of experts")
    operand_traffic: float = _share(1.0, "of the traffic of a matmul's activations, what the matmul does not hide")
    weight_traffic: float = _fitted(
        6.42, "B/param", "a micro-batch: weights read thrice and their gradient added to, less what caches keep"
    )
    attention_early: float = _share(0.422, "of the best bf16 matmul rate, in flash attention of before 2024 on Ampere")
    attention_early_hopper: float = _share(0.223, "the same on Hopper, whose units those kernels did not know")
    attention_flash2: float = _share(0.467, "the same in FlashAttention 2 on Ampere")
    attention_flash2_hopper: float = _share(0.289, "the same on Hopper, whose units it does not know either")
    attention_flash2_blackwell: float = _known(
        0.143, "1", "the same on data-centre Blackwell",
        "250 of a B200's 1,745 TFLOP/s: an H100's instructions (fitted: 230) on a faster chip",
    )  # fmt: skip
    attention_amd: float = _share(0.153, "the same in FlashAttention 2's port on AMD's GPUs")
    attention_flex: float = _known(
        0.86, "1", "of FlashAttention 2's rate, what FlexAttention reaches forward and backward",
        "PyTorch's blog, 2024-08-07: 0.90 forward, 0.85 backward",
    )  # fmt: skip
    attention_cudnn: float = _share(0.728, "the same under cuDNN or FlashAttention 3 on Hopper and later")
    attention_unfused: float = _fitted(
        16.5, "passes", "over the scores in memory, without a fused kernel, forward and backward"
    )
    ragged: float = _factor(1.55, "longer matmuls where the hidden size is no multiple of 128: part-filled tiles")
    misaligned: float = _factor(1.76, "longer attention where a head is no multiple of 8 wide: no tensor cores")
    passes_hidden: float = _fitted(
        28.0, "passes", "over tensors of the hidden size a layer, forward and backward, fused"
    )
    passes_hugging_face: float = _fitted(
        211.0, "passes", "the same of Hugging Face's eager models: norms in fp32, rotations, residuals"
    )
    passes_ffn: float = _fitted(6.51, "passes", "over tensors of the MLP's width a layer, forward and backward")
    passes_routing: float = _fitted(31.5, "passes", "over the copies of tokens that go to experts and back")
    passes_logits: float = _fitted(11.3, "passes", "over the logits (2 bytes each), forward and backward")
    passes_quantise: float = _fitted(9.4, "passes", "over the inputs of matmuls to scale and cast them")
    passes_state_space: float = _fitted(278.0, "passes", "over the inner width of a state-space mixer")
    eager: float = _factor(1.6, "passes of unfused eager kernels over those of fused ones")
    compiled: float = _factor(1.1, "passes of compiled kernels over those of hand-fused ones")
    memory_share: float = _known(0.8, "1", "of the memory's bandwidth, what kernels reach", "measured: 0.75-0.9 STREAM")
    launch_us: float = _known(6.0, "us", "of the host for one kernel", "measured: 5-7 us of PyTorch eager")
    layer_sync_ms: float = _fitted(
        11.4, "ms", "a layer and micro-batch of Megatron-DeepSpeed, for its host synchronisations"
    )
    kernels_fused: float = _fitted(60.8, "kernels", "a layer, forward and backward, fused")
    kernels_eager: float = _fitted(
        254.0, "kernels", "a layer, forward and backward, of eager Hugging Face code and ZeRO's hooks"
    )
    kernels_moe: float = _fitted(161.0, "kernels", "more in a layer with experts")
    link_share: float = _known(
        0.75, "1", "of the scale-up link, what collectives reach", "measured: 361-367 of 450 GB/s"
    )
    hop_us: float = _fitted(2.94, "us", "of one hop in a ring across nodes")
    node_share: float = _known(0.7, "1", "of the node's network, what collectives reach", "measured: 0.74 plateau")
    all_to_all_share: float = _share(1.0, "of what rings reach across nodes, in all-to-all")
    tensor_exposed: float = _share(0.642, "of tensor-parallel traffic, what nothing hides")
    experts_exposed: float = _share(0.458, "of all-to-all traffic, what nothing hides")
    context_exposed: float = _share(0.393, "of context-parallel traffic, what nothing hides")
    stages_exposed: float = _share(0.342, "of pipeline traffic, what nothing hides")
    gather_overlap: float = _share(1.0, "of a micro-batch's compute, what can hide ZeRO-3's gathers")
    contention: float = _share(0.0941, "of a hidden gather, what it takes from the compute beside it")
    zero3_hooks: float = _known(
        0.05, "1", "of the compute, what fetching and releasing modules adds in eager ZeRO-3",
        "LLaMA-7B on 8 A800: ZeRO-2 1.01 to 1.08 times as fast (gist chenyaofo/d4cd6a20, 2024)",
    )  # fmt: skip
    reduce_overlap: float = _share(0.594, "of the last micro-batch's compute, what can hide a step's reduction")
    bubble: float = _known(1.0, "1", "of the ideal pipeline bubble, what is seen", "Narayanan 2021, arXiv 2104.04473")
    bookkeeping_traffic: float = _fitted(108.0, "B/param", "DeepSpeed's copies into flat buffers and norms, a step")
    optimizer_traffic: float = _known(
        36.0, "B/param", "Adam's reads and writes", "16 states read, 14 written, 4 gradient"
    )
    cpu_adam_per_s: float = _fitted(2.87e8, "params/s", "of a GPU's share of the host, Adam on the CPU")
    step_overhead_s: float = _fitted(0.0368, "s", "a step: loader, norm, logging, synchronisation")
    jitter: float = _share(0.00392, "longer steps for each doubling of nodes")
    selective: float = _share(0.374, "of the forward pass, what selective checkpointing computes again")
    yearly: float = _share(0.0608, "of the time in passes over memory, what each year of software before 2026 adds")
    yearly_moe: float = _share(0.259, "of the time to route tokens to experts, the same")
    routing_skew: float = _known(
        1.12, "1", "longer expert time under real routing over forced balance", "ModelZoo pairs: 4-20 %"
    )
    experts_overlapped: float = _known(
        0.15, "1", "of all-to-all traffic beside another micro-batch's computation, what it still costs",
        "DeepSeek-V3 (arXiv 2412.19437 §3.2): all of it hidden, at 20 of an H800's 132 SMs",
    )  # fmt: skip


# The compute time of one GPU for one micro-batch: matmuls, attention, memory passes. Seconds, forward and backward.


# times the forward's matmuls: one for the inputs, one for the weights
BACKWARD = 2.0
# A fused backward pass recomputes the scores (FlashAttention-2, arXiv 2307.08691).
FLASH_BACKWARD = 2.5
# The year in which trainers adopted it, half a year after the paper.
FLASH_ATTENTION_2 = 2024.0
# Elements of a matmul tile on tensor cores (NVIDIA, Matrix Multiplication Background).
TILE = 128
REFERENCE_YEAR = 2026.0
HALF = 2  # bytes of a bf16 or fp16 value
# The most that fp8 is published to gain over bf16: Llama-2-70B, MaxText, H100 (dgxc v25.01). Others: 1.10 to 1.53.
FP8_GAIN_MAX = 1.62


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one micro-batch on one rank's share of the layers, forward and backward."""

    matmul: float
    attention: float
    passes: float
    recompute: float
    launch: float  # the host's time for all launches

    @property
    def total(self) -> float:
        """A smooth maximum of GPU and host time: the GPU waits where launches take longer."""
        busy = self.matmul + self.attention + self.passes + self.recompute
        return float((busy**4 + self.launch**4) ** 0.25)


def work_of(setup: Setup, c: Constants) -> Work:
    """For the mean pipeline stage. fp8 gains no more than was ever published."""
    work = _work(setup, c)
    if setup.precision is not Precision.FP8:
        return work
    least = _work(setup.but(precision=Precision.BF16), c).total / FP8_GAIN_MAX
    return replace(work, matmul=work.matmul + max(least - work.total, 0.0))


def _work(setup: Setup, c: Constants) -> Work:
    tokens = setup.tokens_per_micro_batch / setup.cp
    matmul = _matmul(setup, c, tokens)
    attention = _attention(setup, c, tokens)
    passes = _passes(setup, c, tokens)
    recompute = _recompute(setup, c, matmul, attention, passes)
    per_stage = 1.0 / setup.pp
    launch = _launch(setup, c)
    return Work(*(per_stage * part for part in (matmul, attention, passes, recompute, launch)))


def _matmul(setup: Setup, c: Constants, tokens: float) -> float:
    """All layers and the head, on one tensor-parallel rank. Seconds."""
    shape, tp = setup.shape, setup.tp
    low, half = matmul_rate(setup, c), half_rate(setup, c)
    bandwidth = setup.gpu.hbm_gbps * 1e9 * c.memory_share
    experts = shape.experts
    dense = shape.dense_params / tp
    times = matmul_times(setup)
    total = times * (2 * tokens * dense / low + c.operand_traffic * HALF * tokens * _widths(setup) / bandwidth)
    weights = dense + shape.head_params / tp
    if experts:
        copies = tokens * experts.topk / tp * shape.moe_layers
        skew = 1.0 if setup.uniform_routing else c.routing_skew
        moved = HALF * copies * (2 * shape.expert_width + shape.matrices_per_mlp * experts.ffn)
        flops = 2 * copies * shape.expert_params
        total += times * skew * (flops / low / c.grouped_share + c.operand_traffic * moved / bandwidth)
        weights += shape.routed_params / setup.ep
    total += c.weight_traffic * (0.5 if setup.adapters else 1.0) * weights / bandwidth
    total += times * (2 * tokens * shape.head_params / tp / half)
    return total


def matmul_times(setup: Setup) -> int:
    """Matmuls for each one of the forward pass: itself, the input gradients, and the weight gradients if weights are
    trained.
    """
    return 2 if setup.adapters else 3


def _widths(setup: Setup) -> float:
    """Elements per token that the matmuls of all layers read and write, on one tensor-parallel rank."""
    shape, tp = setup.shape, setup.tp
    attention = 4 * shape.hidden / tp + shape.heads * shape.v_dim / tp * 2 + 2 * shape.kv_heads * shape.head_dim / tp
    mlp = 2 * shape.hidden / tp + shape.matrices_per_mlp * shape.ffn / tp
    shared = shape.matrices_per_mlp * shape.experts.shared_ffn / tp if shape.experts else 0.0
    mixers = shape.state_space_layers * (2 * shape.hidden + 4 * (shape.hybrid.inner if shape.hybrid else 0)) / tp
    return shape.attention_layers * attention + shape.dense_layers * mlp + shape.moe_layers * shared + mixers


def _attention(setup: Setup, c: Constants, tokens: float) -> float:
    shape = setup.shape
    pairs = tokens * setup.seq_len / 2  # causal
    per_pair = 2 * shape.heads / setup.tp * (shape.qk_dim + shape.v_dim)
    if setup.attention is Attention.UNFUSED:  # Its matmuls compute masked pairs too.
        flops = 2 * pairs * per_pair * (1 + BACKWARD) * shape.attention_layers
        scores = tokens * setup.seq_len * shape.heads / setup.tp * HALF * shape.attention_layers
        bandwidth = setup.gpu.hbm_gbps * 1e9 * c.memory_share
        seconds = flops / half_rate(setup, c) + c.attention_unfused * scores / bandwidth
        return seconds * (c.misaligned if shape.head_dim % 8 else 1.0)
    flops = pairs * per_pair * (1 + FLASH_BACKWARD) * shape.attention_layers
    width = (shape.qk_dim + shape.v_dim) / 2
    # A narrow head has the same softmax and loads and fewer matmuls: 0.83 of the rate at 64 wide, 1.0 at 128.
    narrow = 1.25 * width / (width + 32)
    return _of_dense_attention(setup) * flops / (1e12 * attention_tflops(setup, c) * narrow)


def _of_dense_attention(setup: Setup) -> float:
    """Time of sparse attention over dense attention, with indexer and gathers. Above 1 at short lengths."""
    if (sparse := sparse_of(setup)) is None:
        return 1.0
    shape, seq_len = setup.shape, setup.seq_len
    return sparse_training(shape, sparse, seq_len, executed(fp8_rate(setup.gpu))) / dense_training(shape, seq_len)


def attention_tflops(setup: Setup, c: Constants) -> float:
    """TFLOP/s of a fused kernel with heads 128 wide."""
    gpu, reached = setup.gpu, setup.gpu.reached_bf16
    flash2 = reached * _flash2(gpu.arch, c)
    if setup.vintage < FLASH_ATTENTION_2 and setup.kernel is Kernel.USUAL:
        early = c.attention_early if gpu.arch == "Ampere" else c.attention_early_hopper
        return min(reached * early, flash2)
    if setup.kernel is Kernel.FLEX:
        return flash2 * c.attention_flex
    has_it = setup.framework in (Framework.MEGATRON, Framework.XLA) and setup.kernel is Kernel.USUAL
    is_stated = setup.kernel in (Kernel.FLASH_3, Kernel.FLASH_4, Kernel.CUDNN)
    if (has_it or is_stated) and gpu.arch != "Ampere":
        return max(reached * c.attention_cudnn, flash2)
    return flash2


def _flash2(arch: str, c: Constants) -> float:
    match arch:
        case "Hopper":
            return c.attention_flash2_hopper
        case "Blackwell" | "Blackwell Ultra":
            return c.attention_flash2_blackwell
        case _ if arch.startswith("CDNA"):
            return c.attention_amd
    return c.attention_flash2


def age(setup: Setup) -> float:
    """Years by which the software is older than the software behind the constants."""
    return max(REFERENCE_YEAR - setup.vintage, -1.0)


def _passes(setup: Setup, c: Constants, tokens: float) -> float:
    shape, tp = setup.shape, setup.tp
    bandwidth = setup.gpu.hbm_gbps * 1e9 * c.memory_share
    spread = tp if setup.sequence_parallel else 1
    experts = shape.experts
    ffn = shape.dense_layers * shape.ffn
    copies = 0.0
    if experts:
        ffn += shape.moe_layers * (experts.topk * experts.ffn + experts.shared_ffn)
        copies = shape.moe_layers * experts.topk * shape.expert_width
    layers = shape.attention_layers + shape.mlp_layers + shape.state_space_layers
    inner = shape.state_space_layers * (shape.hybrid.inner if shape.hybrid else 0)
    hidden = c.passes_hugging_face if setup.framework is Framework.DEEPSPEED else c.passes_hidden * fusion(setup, c)
    elements = hidden * layers / 2 * shape.hidden / spread
    elements += fusion(setup, c) * (c.passes_ffn * ffn + c.passes_state_space * inner) / tp
    elements *= math.pow(1 + c.yearly, age(setup))
    elements += c.passes_routing * copies / tp * math.pow(1 + c.yearly_moe, age(setup))
    elements += c.passes_logits * shape.vocab / tp
    if setup.precision.bits < 16:
        cast = shape.attention_layers * (shape.hidden + shape.heads * shape.v_dim) / tp
        cast += shape.mlp_layers * shape.hidden / tp + ffn / tp + copies / tp
        elements += c.passes_quantise * cast
    return HALF * tokens * elements / bandwidth


def _recompute(setup: Setup, c: Constants, matmul: float, attention: float, passes: float) -> float:
    match setup.checkpointing:
        case Checkpointing.FULL:
            waits = setup.framework is Framework.MEGATRON_DEEPSPEED
            sync = c.layer_sync_ms * 1e-3 * setup.shape.layers if waits else 0.0
            return matmul / matmul_times(setup) + attention / (1 + FLASH_BACKWARD) + passes / 3 + sync
        case Checkpointing.SELECTIVE if setup.recomputes_modules:
            # No matmul but MLA's up-projections.
            return _up_projected(setup) * matmul / matmul_times(setup) + passes / 3
        case Checkpointing.SELECTIVE:
            return c.selective * (matmul / matmul_times(setup) + attention / (1 + FLASH_BACKWARD) + passes / 3)
    return 0.0


def _up_projected(setup: Setup) -> float:
    """Of the forward pass's matmuls, MLA's projections out of its latents."""
    shape = setup.shape
    if (latent := shape.latent) is None:
        return 0.0
    up = latent.q_rank * shape.qk_dim + latent.kv_rank * (latent.nope_dim + latent.value_dim)
    return shape.attention_layers * shape.heads * up / shape.matmul_params


def _launch(setup: Setup, c: Constants) -> float:
    shape = setup.shape
    is_eager = setup.framework in (Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED)
    kernels = (c.kernels_eager if is_eager else c.kernels_fused) * shape.layers
    kernels += c.kernels_moe * shape.moe_layers * math.pow(1 + c.yearly_moe, age(setup))
    if setup.checkpointing is Checkpointing.FULL:
        kernels *= 4 / 3
    return kernels * c.launch_us * 1e-6


def fusion(setup: Setup, c: Constants) -> float:
    match setup.framework:
        case Framework.DEEPSPEED | Framework.FSDP | Framework.DDP:
            return c.eager
        case Framework.DEEPSPEED_COMPILED | Framework.FSDP2 | Framework.XLA:
            return c.compiled
    return 1.0


def half_rate(setup: Setup, c: Constants) -> float:
    """FLOP/s of matmuls in bf16 or fp16."""
    return setup.gpu.reached_bf16 * 1e12 * c.matmul_share / _raggedness(setup, c)


def matmul_rate(setup: Setup, c: Constants) -> float:
    """FLOP/s of the matmuls that run in the set-up's precision."""
    gpu, ragged = setup.gpu, _raggedness(setup, c)
    match setup.precision:
        case Precision.FP8:
            return (gpu.reached_fp8 or gpu.reached_bf16) * 1e12 * c.matmul_share_fp8 / ragged
        case Precision.MXFP8:
            return (gpu.reached_fp8 or gpu.reached_bf16) * 1e12 * c.matmul_share_mx / ragged
        case Precision.NVFP4:
            return (gpu.peak_fp4 or gpu.peak_bf16) * 1e12 * c.matmul_share_fp4 / ragged
    return half_rate(setup, c)


def _raggedness(setup: Setup, c: Constants) -> float:
    return c.ragged if setup.shape.hidden % TILE else 1.0
