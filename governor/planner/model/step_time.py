"""How long one optimizer step takes, by part, and what follows from it: tokens a second, MFU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from governor.planner.model.compute import Work, age, work_of
from governor.planner.model.constants import Constants
from governor.planner.model.flops import model_flops_per_token
from governor.planner.model.setup import Framework, Offload, Setup
from governor.planner.model.sparse_advice import sparse_of
from governor.planner.model.traffic import Traffic, traffic_of

USUAL = Constants()
DEEPSPEEDS = (Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED, Framework.MEGATRON_DEEPSPEED)
STREAMED_BYTES = 24  # of fp32 weight and two moments, to the GPU and back
NVME_GBPS = 1.6  # one way, of one GPU's share of a node's drives: ZeRO-Infinity's DGX-2 (arXiv 2104.07857, figure 2b)
PARAM_READS = 2 * 2  # bytes of a bf16 weight, for the forward pass and for the backward one


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step. The parts sum to `total`."""

    matmul: float
    attention: float
    passes: float  # element-wise kernels, norms, logits, routing, casts: bound by memory
    recompute: float
    host: float  # the GPU waits for kernels to be launched
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
    exposed = _exposed(setup, work, traffic, c)
    one = work.total + exposed
    bubble = c.bubble * (setup.pp - 1) / (setup.virtual_stages * m) * one * m if setup.pp > 1 else 0.0
    reduce = _left_over(traffic.reduce, c.reduce_overlap * work.total)
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
        host=m * (work.total - gpu_busy),
        communication=m * exposed + reduce,
        bubble=bubble,
        optimizer=optimizer,
        overhead=overhead,
        tokens_per_gpu_s=per_gpu,
        mfu=per_gpu * flops / (setup.gpu.peak_bf16 * 1e12),
    )


def _exposed(setup: Setup, work: Work, traffic: Traffic, c: Constants) -> float:
    needed = traffic.gather + _read_from_drives(setup)
    gather = _left_over(needed, c.gather_overlap * work.total)
    gather += c.contention * (needed - gather)
    if setup.framework is Framework.DEEPSPEED and setup.is_sharding_params:
        gather += c.zero3_hooks * work.total
    return (
        c.tensor_exposed * traffic.tensor
        + c.context_exposed * traffic.context
        + _all_to_all(setup, c) * traffic.experts
        + c.stages_exposed * traffic.stages
        + gather
    )


def _read_from_drives(setup: Setup) -> float:
    """Seconds a micro-batch in which a rank reads its share of the weights; a host's memory is fast beside it."""
    if not (setup.offload.moves_params and setup.offload.is_nvme):
        return 0.0
    return PARAM_READS * setup.shape.params / setup.tp / setup.pp / setup.shards / (NVME_GBPS * 1e9)


def _all_to_all(setup: Setup, c: Constants) -> float:
    """The share of it that nothing hides."""
    if setup.overlapped_experts:
        return c.experts_overlapped
    return c.experts_exposed * math.pow(1 + c.yearly_moe, age(setup) / 2)


def _left_over(needed: float, hiding: float) -> float:
    """What is left of a transfer beside the time that can hide it: a smooth maximum of the two, less the hiding."""
    return (needed**3 + hiding**3) ** (1 / 3) - hiding if needed else 0.0


def _optimizer(setup: Setup, c: Constants) -> float:
    if setup.adapters:
        return 0.0  # a hundredth of the parameters
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
