"""Model FLOPs, communication, and the time of one optimizer step.

Model FLOPs are the minimum that training needs, by PaLM's appendix B with causal attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from governor.planner.model.compute import Constants, age, work_of
from governor.planner.model.setup import Framework, Offload, Setup
from governor.planner.model.shape import Shape
from governor.planner.model.sparse import TRAINING_PASSES, Sparse, dense_forward, sparse_forward
from governor.planner.model.sparse_advice import sparse_of


def model_flops_per_token(shape: Shape, seq_len: int, *, causal: bool = True, sparse: Sparse | None = None) -> float:
    """FLOPs per token, forward and backward, without recompute.

    The input embedding does not count, the LM head does (arXiv 2204.02311, B). Sparse attention counts only its
    selected pairs and the ranking.
    """
    forward = sparse_forward(shape, sparse, seq_len) if sparse else (2 - causal) * dense_forward(shape, seq_len)
    scores = TRAINING_PASSES * shape.attention_layers * forward
    states = 6 * shape.state_space_layers * (shape.hybrid.inner if shape.hybrid else 0) * 2 * 128
    return 6 * shape.matmul_params + scores + states


# Communication between ranks: seconds of a collective before any overlap.


HALF = 2
# per collective, as frameworks split them: 25 (DDP) to 1,000 MB (DeepSpeed)
BUCKET_BYTES = 100e6


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds per micro-batch on one rank; per step for what happens once per step."""

    tensor: float
    context: float
    experts: float
    stages: float
    gather: float  # ZeRO-3's parameters and gradients, per micro-batch
    reduce: float  # gradients and parameters of ZeRO-0 to 2, per step


def traffic_of(setup: Setup, c: Constants) -> Traffic:
    shape, tp = setup.shape, setup.tp
    tokens = setup.tokens_per_micro_batch / setup.cp
    state = HALF * tokens * shape.hidden
    layers = shape.layers / setup.pp
    link = _Links(setup, c)
    tensor = 8 * (tp - 1) / tp * state * layers / link.of_group(tp, 1) if tp > 1 else 0.0
    context = 0.0
    if setup.cp > 1:
        kv = HALF * tokens * 2 * shape.kv_heads * shape.head_dim / tp
        context = 3 * (setup.cp - 1) * kv * shape.attention_layers / setup.pp / link.of_group(setup.cp, tp)
    experts = 0.0
    if shape.experts and setup.ep > 1:
        # Dispatch and combine, forward and backward. The ranks of a tensor-parallel group hold different experts.
        copies = 4 * HALF * tokens * shape.experts.topk * shape.expert_width / tp * shape.moe_layers / setup.pp
        experts = link.all_to_all(copies, setup.ep)
    stages = 0.0
    if setup.pp > 1:
        # Megatron sends each tensor-parallel rank's part and gathers it at the receiver. DeepSpeed sends the whole from
        # each rank.
        part = 1 if setup.framework in (Framework.DEEPSPEED, Framework.MEGATRON_DEEPSPEED) else tp
        stages = 2 * setup.virtual_stages * state / part / link.between_stages()
    gather, reduce = _sharding(setup, link)
    return Traffic(tensor, context, experts, stages, gather, reduce)


def _sharding(setup: Setup, link: _Links) -> tuple[float, float]:
    shape = setup.shape
    ranks, shards = setup.dp * setup.cp, setup.shards
    if ranks == 1 or (setup.adapters and not setup.is_sharding_params):
        return 0.0, 0.0
    dense = (shape.dense_params / setup.pp + shape.embedding_params / min(setup.pp, 2)) / setup.tp
    routed = shape.routed_params / setup.pp / setup.ep
    # Experts have fewer replicas, farther apart.
    replicas = max(ranks * setup.tp // setup.ep, 1)
    spread = HALF * (
        dense / link.of_group(shards, setup.tp) + (routed / link.of_group(replicas, setup.ep) if replicas > 1 else 0)
    )
    across = 0.0
    if shards < ranks:  # The replicas of the shards synchronise once per step.
        across = 2 * HALF * dense / shards / link.of_group(ranks // shards, shards * setup.tp)
    if setup.is_sharding_params:
        hops = 3 * shape.layers / setup.pp * link.hops(shards)
        gathers = 4.0 if setup.framework is Framework.FSDP2 else 3.0  # torchtitan reduces gradients in fp32
        gathers -= setup.adapters  # no gradients to scatter
        # In a pipeline, FSDP2 keeps gathered parameters until the step's last micro-batch.
        often = setup.grad_accum if setup.pp > 1 and setup.framework is Framework.FSDP2 else 1
        return (gathers * spread + hops) / often, across
    gradients = 2.0 if setup.framework is Framework.MEGATRON else 1.0  # fp32 main gradients
    hops = HALF * (dense + routed) / BUCKET_BYTES * link.hops(shards) if setup.zero_stage else 0.0
    return 0.0, (1 + gradients) * spread + across + hops


class _Links:
    """Bytes per second for one rank of a group whose ranks are `stride` apart."""

    def __init__(self, setup: Setup, c: Constants) -> None:
        gpu = setup.gpu
        self._link = gpu.link_gbps * 1e9 * c.link_share
        # GPUs of one node without NVLink communicate through the host, not through the network.
        self._host = min(gpu.link_gbps, gpu.pcie_gbps) * 1e9 * c.link_share
        self._port = setup.node_bandwidth * 1e9 * c.node_share / gpu.gpus_per_node
        self._hop = c.hop_us * 1e-6
        self._all_to_all = c.all_to_all_share
        self._domain = max(gpu.scale_up_domain, 1)
        self._reach = max(self._domain, gpu.gpus_per_node)
        self._setup = setup

    def of_group(self, ranks: int, stride: int) -> float:
        """The rate of a ring. Neighbours within a node or a scale-up domain share the outgoing link."""
        inside = self._inside(ranks * stride)
        if self._is_inside(ranks * stride):
            return inside
        neighbours = max(min(self._reach // stride, ranks), 1)
        return min(self._port * neighbours, inside)

    def hops(self, ranks: int) -> float:
        """Seconds of a small message around the ring."""
        return 0.0 if self._is_inside(ranks) else (ranks - 1) * self._hop

    def all_to_all(self, size: float, ranks: int) -> float:
        """Seconds to send `size` bytes in equal parts to every rank, including itself."""
        within = min(self._reach, ranks) if not self._is_inside(ranks) else ranks
        inside, outside = (within - 1) / ranks, (ranks - within) / ranks
        return size * (inside / self._inside(within) + outside / (self._port * self._all_to_all))

    def between_stages(self) -> float:
        gpus = self._setup.gpus
        return self._inside(gpus) if self._is_inside(gpus) else self._port

    def _is_inside(self, ranks: int) -> bool:
        return min(ranks, self._setup.gpus) <= self._reach

    def _inside(self, ranks: int) -> float:
        """Between GPUs of one node or scale-up domain, in a group of this many ranks."""
        is_linked = min(ranks, self._setup.gpus) <= self._domain or self._reach == self._domain
        return self._link if is_linked else self._host


# The time of one optimizer step, by part, and the resulting tokens per second and MFU.


USUAL = Constants()
DEEPSPEEDS = (Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED, Framework.MEGATRON_DEEPSPEED)
STREAMED_BYTES = 24  # fp32 weight and two moments, to the GPU and back
# One way, one GPU's share of a node's drives: ZeRO-Infinity's DGX-2 (arXiv 2104.07857, figure 2b).
NVME_GBPS = 1.6
PARAM_READS = 2 * 2  # bytes of a bf16 weight, for the forward and the backward pass


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step. The parts sum to `total`."""

    matmul: float
    attention: float
    # element-wise kernels, norms, logits, routing, casts: memory-bound
    passes: float
    recompute: float
    host: float  # time in which the GPU waits for kernel launches
    communication: float  # exposed
    bubble: float
    optimizer: float
    overhead: float
    tokens_per_gpu_s: float
    mfu: float  # model FLOPs (causal, no recompute) over the dense bf16 peak

    @property
    def total(self) -> float:
        compute = self.matmul + self.attention + self.passes + self.recompute + self.host
        return compute + self.communication + self.bubble + self.optimizer + self.overhead


def step_time_of(setup: Setup, c: Constants = USUAL) -> StepTime:
    work, traffic = work_of(setup, c), traffic_of(setup, c)
    m = setup.grad_accum
    compute = work.total
    exposed = _exposed(setup, compute, traffic, c)
    one = compute + exposed
    bubble = c.bubble * _idle_micro_batches(setup) * one
    # The same compute does not hide two transfers at once.
    reduce = _left_over(traffic.reduce, min(c.reduce_overlap * compute, compute - _hidden(setup, compute, traffic, c)))
    optimizer = _optimizer(setup, c)
    overhead = c.step_overhead_s
    nodes = max(setup.gpus / setup.gpu.gpus_per_node, 1.0)
    busy = m * one + bubble + reduce + optimizer + overhead
    overhead += c.jitter * math.log2(nodes) * busy
    total = busy + overhead - c.step_overhead_s
    per_gpu = setup.tokens_per_step / setup.gpus / total
    flops = model_flops_per_token(setup.shape, setup.seq_len, sparse=sparse_of(setup))
    gpu_busy = work.matmul + work.attention + work.passes + work.recompute
    return StepTime(
        matmul=m * work.matmul,
        attention=m * work.attention,
        passes=m * work.passes,
        recompute=m * work.recompute,
        host=m * (compute - gpu_busy),
        communication=m * exposed + reduce,
        bubble=bubble,
        optimizer=optimizer,
        overhead=overhead,
        tokens_per_gpu_s=per_gpu,
        mfu=per_gpu * flops / (setup.gpu.peak_bf16 * 1e12),
    )


def _idle_micro_batches(setup: Setup) -> float:
    """How many micro-batches' time a stage of the pipeline waits in a step, ideally.

    DualPipe waits (pp/2 - 1) (F&B + B - 3W), where B is two forwards F and W one (arXiv 2412.19437, table 2).
    """
    if setup.is_dual_pipe:
        return (setup.pp / 2 - 1) * 2 / 3
    return (setup.pp - 1) / setup.virtual_stages


def tokens_per_gpu_s(setup: Setup) -> float:
    return step_time_of(setup).tokens_per_gpu_s


def _exposed(setup: Setup, compute: float, traffic: Traffic, c: Constants) -> float:
    """Seconds of a micro-batch's traffic beside `compute` seconds of work that nothing hides."""
    hidden = _hidden(setup, compute, traffic, c)
    gather = _gathered(setup, traffic) - (1 - c.contention) * hidden
    if setup.framework is Framework.DEEPSPEED and setup.is_sharding_params:
        gather += c.zero3_hooks * compute
    return (
        c.tensor_exposed * traffic.tensor
        + c.context_exposed * traffic.context
        + _all_to_all(setup, c) * traffic.experts
        + c.stages_exposed * traffic.stages
        + gather
    )


def _gathered(setup: Setup, traffic: Traffic) -> float:
    return traffic.gather + _read_from_drives(setup)


def _hidden(setup: Setup, compute: float, traffic: Traffic, c: Constants) -> float:
    """Seconds of a micro-batch's gathers beside its compute: less than either."""
    needed = _gathered(setup, traffic)
    return needed - _left_over(needed, c.gather_overlap * compute)


def _read_from_drives(setup: Setup) -> float:
    """Seconds per micro-batch in which a rank reads its share of the weights from NVMe.

    Host memory is fast by comparison.
    """
    if not (setup.offload.moves_params and setup.offload.is_nvme):
        return 0.0
    return PARAM_READS * setup.shape.params / setup.tp / setup.pp / setup.shards / (NVME_GBPS * 1e9)


def _all_to_all(setup: Setup, c: Constants) -> float:
    """The exposed share of the all-to-all."""
    if setup.overlapped_experts:
        return c.experts_overlapped
    return c.experts_exposed * math.pow(1 + c.yearly_moe, age(setup) / 2)


def _left_over(needed: float, hiding: float) -> float:
    """The exposed part of a transfer: a smooth maximum of its time and the hiding time, minus the hiding time."""
    return (needed**3 + hiding**3) ** (1 / 3) - hiding if needed else 0.0


def _optimizer(setup: Setup, c: Constants) -> float:
    if setup.adapters:
        return 0.0  # Adapters are a hundredth of the parameters.
    shape = setup.shape
    dense = (shape.dense_params + shape.embedding_params) / setup.tp / setup.pp
    routed = shape.routed_params / setup.pp / setup.ep
    ranks = setup.shards if setup.zero_stage else 1
    own = dense / ranks + routed / (max(ranks * setup.tp // setup.ep, 1) if setup.zero_stage else 1)
    seconds = c.optimizer_traffic * own / (setup.gpu.hbm_gbps * 1e9 * c.memory_share)
    if setup.offload is Offload.OPTIMIZER_STREAMED:
        seconds += STREAMED_BYTES * own / (setup.gpu.pcie_gbps * 1e9)
    elif setup.offload.moves_optimizer:
        drives = STREAMED_BYTES * own / (NVME_GBPS * 1e9) if setup.offload.is_nvme else 0.0
        seconds += max(own / c.cpu_adam_per_s, drives)
    if setup.framework in DEEPSPEEDS and 0 < setup.zero_stage < 3:
        seconds += c.bookkeeping_traffic * (dense + routed) / (setup.gpu.hbm_gbps * 1e9 * c.memory_share)
    return seconds
