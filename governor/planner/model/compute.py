"""What one GPU computes for one micro-batch: matmuls, attention, passes over memory. Seconds, forward and backward."""

from __future__ import annotations

import math
from dataclasses import dataclass

from governor.planner.model.constants import Constants
from governor.planner.model.hardware import Precision
from governor.planner.model.setup import Attention, Checkpointing, Framework, Setup
from governor.planner.model.sparse import dense_training, executed, sparse_training
from governor.planner.model.sparse_advice import fp8_rate, sparse_of

BACKWARD = 2.0  # of the forward's matmuls: one for the inputs, one for the weights
FLASH_BACKWARD = 2.5  # a fused backward computes the scores again (FlashAttention-2, arXiv 2307.08691)
FLASH_ATTENTION_2 = 2024.0  # the year in which trainers ran on it, half a year after the paper
TILE = 128  # elements of a matmul's tile on tensor cores (NVIDIA, Matrix Multiplication Background)
REFERENCE_YEAR = 2026.0
HALF = 2  # bytes of a bf16 or fp16 value


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds of one micro-batch on one rank's share of the layers, forward and backward."""

    matmul: float
    attention: float
    passes: float
    recompute: float
    launch: float  # the host's time to launch it all

    @property
    def total(self) -> float:
        """The GPU waits for the host where launching takes longer: a smooth maximum of the two."""
        busy = self.matmul + self.attention + self.passes + self.recompute
        return float((busy**4 + self.launch**4) ** 0.25)


def work_of(setup: Setup, c: Constants) -> Work:
    """Of the mean pipeline stage."""
    tokens = setup.tokens_per_micro_batch / setup.cp
    matmul = _matmul(setup, c, tokens)
    attention = _attention(setup, c, tokens)
    passes = _passes(setup, c, tokens)
    recompute = _recompute(setup, c, matmul, attention, passes)
    per_stage = 1.0 / setup.pp
    launch = _launch(setup, c)
    return Work(*(per_stage * part for part in (matmul, attention, passes, recompute, launch)))


def _matmul(setup: Setup, c: Constants, tokens: float) -> float:
    """All layers and the head, on one tensor-parallel rank."""
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
    """Of the forward pass: itself and the gradients of inputs; those of weights where weights are trained."""
    return 2 if setup.adapters else 3


def _widths(setup: Setup) -> float:
    """Elements a token that the matmuls of all layers read and write, on one tensor-parallel rank."""
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
    if setup.attention is Attention.UNFUSED:  # the mask hides nothing from a matmul
        flops = 2 * pairs * per_pair * (1 + BACKWARD) * shape.attention_layers
        scores = tokens * setup.seq_len * shape.heads / setup.tp * HALF * shape.attention_layers
        bandwidth = setup.gpu.hbm_gbps * 1e9 * c.memory_share
        seconds = flops / half_rate(setup, c) + c.attention_unfused * scores / bandwidth
        return seconds * (c.misaligned if shape.head_dim % 8 else 1.0)
    flops = pairs * per_pair * (1 + FLASH_BACKWARD) * shape.attention_layers
    width = (shape.qk_dim + shape.v_dim) / 2
    # Softmax and loads cost a narrow head as much, its matmuls less: 0.83 of the rate at 64 wide, 1.0 at 128.
    narrow = 1.25 * width / (width + 32)
    return _of_dense_attention(setup) * flops / (1e12 * attention_tflops(setup, c) * narrow)


def _of_dense_attention(setup: Setup) -> float:
    """What sparse attention takes of a dense one's time, indexer and gathers included: above 1 at short lengths."""
    if (sparse := sparse_of(setup)) is None:
        return 1.0
    shape, seq_len = setup.shape, setup.seq_len
    return sparse_training(shape, sparse, seq_len, executed(fp8_rate(setup.gpu))) / dense_training(shape, seq_len)


def attention_tflops(setup: Setup, c: Constants) -> float:
    """Of a fused kernel at heads 128 wide."""
    gpu = setup.gpu
    if setup.vintage < FLASH_ATTENTION_2:
        return gpu.reached_bf16 * (c.attention_early if gpu.arch == "Ampere" else c.attention_early_hopper)
    if setup.framework in (Framework.MEGATRON, Framework.XLA) and gpu.arch != "Ampere":
        return gpu.reached_bf16 * c.attention_cudnn
    if gpu.arch in ("Ampere", "Ada", "Volta"):
        return gpu.reached_bf16 * c.attention_flash2
    return gpu.reached_bf16 * c.attention_flash2_hopper if gpu.arch == "Hopper" else c.flash2_tflops


def age(setup: Setup) -> float:
    """Years by which the software is older than that on which the constants stand."""
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
        case Checkpointing.SELECTIVE:
            return c.selective * (matmul / matmul_times(setup) + attention / (1 + FLASH_BACKWARD) + passes / 3)
    return 0.0


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
