"""Memory of one rank: what a run allocates, what the driver shows, and whether it fits. Bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass

from governor.core.planner.memory_activations import kept_of, logits_of
from governor.core.planner.memory_constants import GIB, USUAL_CONSTANTS, MemoryConstants
from governor.core.planner.memory_states import (
    DEEPSPEEDS,
    KEEPS_FP32,
    Params,
    States,
    params_of,
    stage_of,
    states_of,
)
from governor.core.planner.setup import Framework, Setup


@dataclass(frozen=True, slots=True)
class Memory:
    """The fullest pipeline stage at its fullest moment. The parts sum to `allocated`, `context` apart."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float  # gathered parameters, buckets, workspaces, and what the optimizer's step adds
    context: float  # outside the allocator: the CUDA context and NCCL
    reserved: float  # as nvidia-smi shows it
    capacity: float
    host: float  # of one node
    stage: int  # which pipeline stage it is
    last_stage: float  # `allocated` on the last stage: what Megatron's log shows, as its last rank writes it

    @property
    def allocated(self) -> float:
        """The peak of `torch.cuda.max_memory_allocated`."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.buffers

    @property
    def fits(self) -> bool:
        return self.reserved <= self.capacity

    @property
    def spare(self) -> float:
        return self.capacity - self.reserved


def memory_of(setup: Setup, c: MemoryConstants = USUAL_CONSTANTS) -> Memory:
    """Only the outer stages can be the fullest: the first holds the most micro-batches, the last the logits."""
    last = _on_stage(setup, setup.pp - 1, c)
    fullest, stage = last, setup.pp - 1
    if setup.pp > 1:
        first = _on_stage(setup, 0, c)
        if sum(first[:6]) > sum(last[:6]):
            fullest, stage = first, 0
    context = c.context + c.nccl_group * _groups(setup)
    weights, gradients, optimizer, activations, logits, buffers, host = fullest
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        logits=logits,
        buffers=buffers,
        context=context,
        reserved=c.fragmentation * sum(fullest[:6]) + context,
        capacity=_capacity(setup),
        host=host * min(setup.gpus, setup.gpu.gpus_per_node),
        stage=stage,
        last_stage=sum(last[:6]),
    )


Parts = tuple[float, float, float, float, float, float, float]


def _on_stage(setup: Setup, index: int, c: MemoryConstants) -> Parts:
    """Three moments can be the fullest: the loss, the backward pass of a recomputed layer, and the optimizer's step."""
    stage = stage_of(setup, index)
    params = params_of(setup, stage)
    states = states_of(setup, params, c)
    kept, working = kept_of(setup, stage, index, c)
    logits = logits_of(setup, stage, c)
    gathered = _gathered(setup, params, c)
    workspace = c.workspace_ampere if setup.gpu.arch == "Ampere" else c.workspace
    if stage.moe_layers and setup.framework is Framework.MEGATRON:
        workspace += c.grouped_workspace
    if working > logits:
        kept, logits = kept + working, 0.0
    buffers = gathered + workspace
    if states.step > kept + logits + gathered:
        kept, logits, buffers = 0.0, 0.0, states.step + workspace
    host = states.host * (0.0 if setup.offload.is_nvme else 1.0) + (c.pinned_nvme if setup.offload.is_nvme else 0.0)
    return states.weights, states.gradients, states.optimizer, kept, logits, buffers, host


def _gathered(setup: Setup, params: Params, c: MemoryConstants) -> float:
    """Parameters and gradients that are whole for a while, and the buckets that carry them."""
    whole = params.total
    if setup.framework in DEEPSPEEDS and setup.zero_stage:
        bucket = 2.0 * min(c.bucket_elements, whole)
        if setup.zero_stage < 3:
            return 2 * bucket
        return bucket + 2.0 * min(c.live_elements + params.largest_layer, whole)
    if setup.zero_stage >= 3:
        # Two layers and the outermost unit in half precision; one layer's gradients, as computed and as reduced.
        wide = 6.0 if setup.framework in KEEPS_FP32 else 2.0
        return 2.0 * (2 * params.largest_layer + params.root) + wide * params.largest_layer
    return 0.0


def _groups(setup: Setup) -> int:
    return sum(ranks > 1 for ranks in (setup.dp, setup.tp, setup.pp, setup.cp, setup.ep))


# The driver and its ECC keep a little: 79.2 of 80 GiB on an A100 or H100. From Blackwell Ultra on, the name is decimal.
USABLE = 0.99


def _capacity(setup: Setup) -> float:
    is_decimal = setup.gpu.arch == "Blackwell Ultra"
    return setup.gpu.hbm_gb * (1e9 if is_decimal else GIB) * USABLE


def states_and_params(setup: Setup, index: int, c: MemoryConstants = USUAL_CONSTANTS) -> tuple[Params, States]:
    params = params_of(setup, stage_of(setup, index))
    return params, states_of(setup, params, c)
