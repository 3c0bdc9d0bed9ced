"""What the ranks send one another: seconds that a collective takes alone, before anything hides it."""

from __future__ import annotations

from dataclasses import dataclass

from governor.planner.model.constants import Constants
from governor.planner.model.setup import Framework, Setup

HALF = 2
BUCKET_BYTES = 100e6  # of one collective, as frameworks cut them: 25 (DDP) to 1,000 MB (DeepSpeed)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds a micro-batch on one rank, and a step for what comes once a step."""

    tensor: float
    context: float
    experts: float
    stages: float
    gather: float  # ZeRO-3's parameters and gradients, a micro-batch
    reduce: float  # gradients and parameters of ZeRO-0 to 2, a step


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
        # Megatron sends a tensor-parallel rank's part and gathers it there; DeepSpeed sends the whole from each rank.
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
    # Experts are replicated on fewer ranks, farther apart.
    replicas = max(ranks * setup.tp // setup.ep, 1)
    spread = HALF * (
        dense / link.of_group(shards, setup.tp) + (routed / link.of_group(replicas, setup.ep) if replicas > 1 else 0)
    )
    across = 0.0
    if shards < ranks:  # replicas of the shards meet once a step
        across = 2 * HALF * dense / shards / link.of_group(ranks // shards, shards * setup.tp)
    if setup.is_sharding_params:
        hops = 3 * shape.layers / setup.pp * link.hops(shards)
        gathers = 4.0 if setup.framework is Framework.FSDP2 else 3.0  # torchtitan reduces gradients in fp32
        gathers -= setup.adapters  # no gradients to scatter
        # In a pipeline FSDP2 keeps what it gathered until the step's last micro-batch.
        often = setup.grad_accum if setup.pp > 1 and setup.framework is Framework.FSDP2 else 1
        return (gathers * spread + hops) / often, across
    gradients = 2.0 if setup.framework is Framework.MEGATRON else 1.0  # fp32 main gradients
    hops = HALF * (dense + routed) / BUCKET_BYTES * link.hops(shards) if setup.zero_stage else 0.0
    return 0.0, (1 + gradients) * spread + across + hops


class _Links:
    """Bytes a second that one rank of a group gets, where ranks of a group stand `stride` apart."""

    def __init__(self, setup: Setup, c: Constants) -> None:
        gpu = setup.gpu
        self._link = gpu.link_gbps * 1e9 * c.link_share
        # GPUs of one node that no NVLink joins meet over the host, and not over the network.
        self._host = min(gpu.link_gbps, gpu.pcie_gbps) * 1e9 * c.link_share
        self._port = setup.node_bandwidth * 1e9 * c.node_share / gpu.gpus_per_node
        self._hop = c.hop_us * 1e-6
        self._all_to_all = c.all_to_all_share
        self._domain = max(gpu.scale_up_domain, 1)
        self._reach = max(self._domain, gpu.gpus_per_node)
        self._setup = setup

    def of_group(self, ranks: int, stride: int) -> float:
        """Of a ring: neighbours within a node or a scale-up domain share what leaves it."""
        inside = self._inside(ranks * stride)
        if self._is_inside(ranks * stride):
            return inside
        neighbours = max(min(self._reach // stride, ranks), 1)
        return min(self._port * neighbours, inside)

    def hops(self, ranks: int) -> float:
        """Seconds that a small message takes around the ring."""
        return 0.0 if self._is_inside(ranks) else (ranks - 1) * self._hop

    def all_to_all(self, size: float, ranks: int) -> float:
        """Seconds to send `size` bytes in equal parts to every rank, the own one included."""
        within = min(self._reach, ranks) if not self._is_inside(ranks) else ranks
        inside, outside = (within - 1) / ranks, (ranks - within) / ranks
        return size * (inside / self._inside(within) + outside / (self._port * self._all_to_all))

    def between_stages(self) -> float:
        gpus = self._setup.gpus
        return self._inside(gpus) if self._is_inside(gpus) else self._port

    def _is_inside(self, ranks: int) -> bool:
        return min(ranks, self._setup.gpus) <= self._reach

    def _inside(self, ranks: int) -> float:
        """Between GPUs of one node or scale-up domain, in a group that spans so many ranks."""
        is_linked = min(ranks, self._setup.gpus) <= self._domain or self._reach == self._domain
        return self._link if is_linked else self._host
