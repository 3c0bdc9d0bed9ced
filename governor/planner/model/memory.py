"""Memory of one rank: what a run allocates, what the driver shows, and whether it fits. Bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass

from governor.planner.model.memory_activations import kept_of, logits_of
from governor.planner.model.memory_constants import GIB, USUAL_CONSTANTS, MemoryConstants
from governor.planner.model.memory_states import DEEPSPEEDS, KEEPS_FP32, Params, States, params_of, stage_of, states_of
from governor.planner.model.setup import Framework, Setup


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
    headroom: float  # by which the prediction has to stay below the capacity, to be relied on
    last_stage: float  # `allocated` on the last stage: what Megatron's log shows, as its last rank writes it

    @property
    def allocated(self) -> float:
        """The peak of `torch.cuda.max_memory_allocated`."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.buffers

    @property
    def fits(self) -> bool:
        """More likely than not."""
        return self.reserved <= self.capacity

    @property
    def surely_fits(self) -> bool:
        """Nine times of ten: not by a hair."""
        return self.headroom * self.reserved <= self.capacity

    @property
    def spare(self) -> float:
        return self.capacity - self.reserved


def memory_of(setup: Setup, c: MemoryConstants = USUAL_CONSTANTS) -> Memory:
    """Only the outer stages can be the fullest: the first holds the most micro-batches, the last the logits."""
    last = _on_stage(setup, setup.pp - 1, c)
    fullest, stage = last, setup.pp - 1
    if setup.pp > 1:
        first = _on_stage(setup, 0, c)
        if first.allocated > last.allocated:
            fullest, stage = first, 0
    context = c.context + c.nccl_group * _groups(setup)
    is_stepping = fullest.step > fullest.forward
    return Memory(
        weights=fullest.states.weights,
        gradients=fullest.states.gradients,
        optimizer=fullest.states.optimizer,
        activations=0.0 if is_stepping else fullest.activations,
        logits=0.0 if is_stepping else fullest.logits,
        buffers=fullest.workspace + (fullest.step if is_stepping else fullest.gathered),
        context=context,
        reserved=_reserved(setup, fullest, c) + context,
        capacity=_capacity(setup),
        host=_host(setup, fullest.states, c) * min(setup.gpus, setup.gpu.gpus_per_node),
        stage=stage,
        headroom=c.headroom,
        last_stage=last.allocated,
    )


@dataclass(frozen=True, slots=True)
class _OnStage:
    """Bytes of one pipeline stage. Three moments can be its fullest: the loss, the backward pass of a layer that is
    computed again, and the optimizer's step."""

    states: States
    workspace: float
    activations: float
    logits: float
    gathered: float
    step: float

    @property
    def forward(self) -> float:
        return self.activations + self.logits + self.gathered

    @property
    def static(self) -> float:
        return self.states.weights + self.states.gradients + self.states.optimizer + self.workspace

    @property
    def allocated(self) -> float:
        return self.static + max(self.forward, self.step)


def _on_stage(setup: Setup, index: int, c: MemoryConstants) -> _OnStage:
    stage = stage_of(setup, index)
    params = params_of(setup, stage)
    states = states_of(setup, params, c)
    kept, working = kept_of(setup, stage, index, c)
    logits = logits_of(setup, stage, c)
    workspace = c.workspace_ampere if setup.gpu.arch == "Ampere" else c.workspace
    if stage.moe_layers and setup.framework is Framework.MEGATRON:
        workspace += c.grouped_workspace
    if working > logits:
        kept, logits = kept + working, 0.0
    return _OnStage(states, workspace, kept, logits, _gathered(setup, params, c), states.step)


def _reserved(setup: Setup, stage: _OnStage, c: MemoryConstants) -> float:
    """States lie still and leave no gaps; what comes and goes does. The step's long tensors find no room among the
    freed activations, and so come on top of them, unless segments can grow."""
    if setup.framework is Framework.FSDP2:
        return stage.static + c.fragmentation_expandable * max(stage.forward, stage.step)
    return stage.static + c.fragmentation * (stage.forward + stage.step)


def _host(setup: Setup, states: States, c: MemoryConstants) -> float:
    """Of one rank."""
    return c.pinned_nvme if setup.offload.is_nvme else states.host


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
