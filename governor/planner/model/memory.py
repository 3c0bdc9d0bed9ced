"""The memory of one rank: what the forward pass keeps for the backward pass, then the total and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass

from governor.planner.model.memory_states import (
    DEEPSPEEDS,
    GIB,
    USUAL_CONSTANTS,
    MemoryConstants,
    PipelineStage,
    States,
    gathered_of,
    params_of,
    pipeline_stage_of,
    states_of,
)
from governor.planner.model.setup import Attention, Checkpointing, Framework, Precision, Setup
from governor.planner.model.sparse import TopK, added_memory
from governor.planner.model.sparse_advice import sparse_of

EAGER = frozenset({Framework.DEEPSPEED, Framework.DDP})
EAGER_SCORES = frozenset({Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED})  # softmax in fp32, then a cast


def kept_of(setup: Setup, stage: PipelineStage, index: int, tokens: float, c: MemoryConstants) -> tuple[float, float]:
    """Bytes that wait for the backward pass at the peak, and the working set of one recomputed layer.

    `tokens`: of one rank in a micro-batch. The working set is 0 without recomputation.
    """
    mixer, dense, moe = _mixer_bytes(setup), _mlp_bytes(setup), _moe_bytes(setup, c)
    if stage.moe_layers == 0:
        moe = 0.0
    shape = setup.shape
    share = stage.layers / shape.layers
    if setup.checkpointing is Checkpointing.FULL:
        layer_input = 2 * shape.hidden / (setup.tp if setup.sequence_parallel else 1)
        kept, working = stage.layers * layer_input, mixer + max(dense, moe) - layer_input
    else:
        mixers = share * shape.attention_layers * mixer + share * shape.state_space_layers * _state_space_bytes(setup)
        kept = mixers + max(share * shape.mlp_layers - stage.moe_layers, 0) * dense + stage.moe_layers * moe
        is_selective = setup.checkpointing is Checkpointing.SELECTIVE
        working = _score_bytes(setup) if is_selective and shape.attention_layers else 0.0
    if setup.pp > 1 and setup.framework in DEEPSPEEDS and not stage.scores:
        # DeepSpeed's pipeline keeps what it sent (pipe/engine.py); Megatron's frees it.
        kept += 2 * shape.hidden
    return kept * tokens * in_flight(setup, index), working * tokens


def in_flight(setup: Setup, index: int) -> float:
    """Micro-batches whose activations a pipeline stage holds (1F1B, or interleaved: arXiv 2104.04473 §2.2)."""
    pp, chunks, micro_batches = setup.pp, setup.virtual_stages, setup.grad_accum
    if pp == 1:
        return 1.0
    if setup.is_dual_pipe:
        return (pp + 1) / 2  # of each of the two stages that a rank has (arXiv 2412.19437, table 2)
    if chunks == 1:
        return float(min(pp - index, micro_batches))
    warm_up = 2 * (pp - index - 1) + (chunks - 1) * pp
    return min(warm_up + 1, micro_batches * chunks) / chunks


def logits_of(setup: Setup, stage: PipelineStage, tokens: float, c: MemoryConstants) -> float:
    """Bytes at the loss. The vocabulary is split over tp."""
    if not stage.scores or setup.fused_loss:
        return 0.0
    return tokens * setup.shape.vocab / setup.tp * _bytes_per_logit(setup, c)


def _bytes_per_logit(setup: Setup, c: MemoryConstants) -> float:
    match setup.framework:
        case Framework.MEGATRON | Framework.MEGATRON_DEEPSPEED | Framework.XLA | Framework.FSDP:
            # In Composer and nanotron too: flash-attention's in-place cross-entropy.
            return c.logits_fused
        case Framework.FSDP2 | Framework.DEEPSPEED_COMPILED:
            return c.logits_compiled
    return c.logits_eager


def _mixer_bytes(setup: Setup) -> float:
    """Bytes per token of one attention with its norm: inputs of norm and matmuls, queries, keys, values, output."""
    shape, tp = setup.shape, setup.tp
    queries = shape.heads * shape.qk_dim
    values = shape.heads * shape.v_dim
    keys_values = 4 * shape.kv_heads * shape.head_dim
    core = (2 * queries + keys_values + 2 * values) / tp
    if (latent := shape.latent) is not None:
        up = 2 * shape.heads * (latent.nope_dim + latent.value_dim) + 2 * queries  # as projected, and joined with RoPE
        core = (2 * queries + up + 2 * values) / tp + 4 * (latent.q_rank + latent.kv_rank) + 2 * latent.rope_dim
        if setup.recomputes_modules:
            core = 2 * values / tp + 4 * (latent.q_rank + latent.kv_rank) + 2 * latent.rope_dim
    core += _selection_bytes(setup)
    if setup.framework in EAGER:
        core += 2 * values / tp
    if setup.framework is Framework.FSDP2 and setup.checkpointing is Checkpointing.SELECTIVE:
        return 2 * shape.hidden + (2 * queries + keys_values / 2 + 2 * values) / tp
    if setup.checkpointing is Checkpointing.SELECTIVE:
        return _norm_bytes(setup) + core
    return _norm_bytes(setup) + core + _score_bytes(setup)


def _selection_bytes(setup: Setup) -> float:
    """Bytes of DSA's selected tokens and of its indexer's queries and keys."""
    if setup.attention is not Attention.SPARSE or not isinstance(sparse := sparse_of(setup), TopK):
        return 0.0
    added = added_memory(setup.shape, sparse, setup.seq_len)
    return (added.indices + added.indexer_activations) / (setup.shape.attention_layers * setup.seq_len)


def _norm_bytes(setup: Setup) -> float:
    """Bytes of a norm's input and output, and of the dropout mask after the block.

    Without sequence parallelism, each rank of tp keeps them whole. Eager code normalises in fp32 and keeps that too.
    """
    hidden = setup.shape.hidden
    wide = 8 if setup.framework in EAGER else 2 if setup.recomputes_modules else 4
    return (wide + setup.dropout) * hidden / (setup.tp if setup.sequence_parallel else 1)


def _score_bytes(setup: Setup) -> float:
    """Bytes of the scores of every key without a fused kernel: probabilities, and with dropout its mask and output."""
    if setup.attention is not Attention.UNFUSED:
        return 0.0
    per_score = (6 if setup.framework in EAGER_SCORES else 2) + 3 * setup.dropout
    return per_score * setup.shape.heads / setup.tp * setup.seq_len


def _mlp_bytes(setup: Setup) -> float:
    shape = setup.shape
    if shape.ffn == 0:
        return 0.0
    if setup.framework is Framework.FSDP2 and setup.checkpointing is Checkpointing.SELECTIVE:
        return 2 * shape.ffn / setup.tp
    return _norm_bytes(setup) + _ffn_bytes(setup, shape.ffn) / setup.tp


def _ffn_bytes(setup: Setup, width: int) -> float:
    """Bytes before and after the activation. Eager code keeps the activated gate too."""
    before = 4 if setup.shape.gated else 2
    if setup.recomputes_modules:
        # In fp8, as DeepSeek-V3 keeps them (arXiv 2412.19437 §3.3.3), and Megatron's --activation-func-fp8-input-store.
        return (before / 2 if _is_quantised(setup) else before) * width
    eager = 2 if setup.shape.gated and setup.framework in EAGER else 0
    after = 1 if _is_quantised(setup) else 2
    return (before + after + eager) * width


def _moe_bytes(setup: Setup, c: MemoryConstants) -> float:
    """Bytes of one mixture: tokens to and from their experts, the experts' inner tensors, the router's in fp32."""
    shape = setup.shape
    if (experts := shape.experts) is None:
        return 0.0
    # Sequence parallelism spreads tokens over tp. Experts split along tp gather them again.
    whole = 1 if setup.expert_tp > 1 or not setup.sequence_parallel else setup.tp
    # Dispatched tokens are kept as the experts' matmuls read them. Their results are, unless weighted before.
    moved = (1 if _is_quantised(setup) else 2) + (0 if setup.recomputes_modules else 2)
    routed = experts.topk * (moved * shape.expert_width / whole + _ffn_bytes(setup, experts.ffn) / setup.tp)
    if not setup.uniform_routing:
        routed *= c.imbalance
    shared = _ffn_bytes(setup, experts.shared_ffn) / setup.tp
    router = 12 * experts.count / (setup.tp if setup.sequence_parallel else 1)
    return _norm_bytes(setup) + routed + shared + router


def _state_space_bytes(setup: Setup) -> float:
    """Bytes of a Mamba-2 mixer: projections before and after the convolution, states per chunk, the gated output."""
    shape = setup.shape
    inner = shape.hybrid.inner if shape.hybrid else 0
    return _norm_bytes(setup) + 16 * inner / setup.tp


def _is_quantised(setup: Setup) -> bool:
    """Whether matmul inputs are kept in the low precision (Transformer Engine)."""
    return setup.precision not in (Precision.BF16, Precision.FP16) and setup.framework is Framework.MEGATRON


# Memory of one rank: the allocated bytes, what the driver shows, and whether it fits. Bytes throughout.


@dataclass(frozen=True, slots=True)
class Memory:
    """The fullest pipeline stage at its peak. The parts without `context` sum to `allocated`."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    # gathered parameters, buckets, workspaces, and the optimizer step's extra
    buffers: float
    context: float  # outside the allocator: the CUDA context and NCCL
    reserved: float  # as nvidia-smi shows it
    capacity: float
    host: float  # of one node
    stage: int  # index of this pipeline stage
    # A reliable fit needs the prediction to be below the capacity by this much.
    headroom: float
    # `allocated` on the last stage. Megatron's log shows it, because its last rank writes the log.
    last_stage: float

    @property
    def allocated(self) -> float:
        """The peak of `torch.cuda.max_memory_allocated`."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.buffers

    @property
    def fits(self) -> bool:
        """It fits more likely than not."""
        return self.reserved <= self.capacity

    @property
    def surely_fits(self) -> bool:
        """It fits with a probability of nine in ten."""
        return self.headroom * self.reserved <= self.capacity

    @property
    def spare(self) -> float:
        return self.capacity - self.reserved


def memory_of(setup: Setup, c: MemoryConstants = USUAL_CONSTANTS) -> Memory:
    """The memory of the fullest pipeline stage.

    It is one of three: the first holds the most micro-batches, the second may have a layer more, the last the logits.
    """
    last = _on_stage(setup, setup.pp - 1, c)
    fullest, stage = last, setup.pp - 1
    for index in range(min(2, setup.pp - 1)):
        one = _on_stage(setup, index, c)
        if one.allocated > fullest.allocated:
            fullest, stage = one, index
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


def memory_frac(setup: Setup) -> float:
    """The part of the GPU's memory that a set-up takes. Above 1 it does not fit."""
    memory = memory_of(setup)
    return memory.reserved / memory.capacity


@dataclass(frozen=True, slots=True)
class _OnPipelineStage:
    """Bytes of one pipeline stage at its three possible peaks.

    They are the loss, the backward pass of a recomputed layer, and the optimizer's step.
    """

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


def _on_stage(setup: Setup, index: int, c: MemoryConstants) -> _OnPipelineStage:
    stage = pipeline_stage_of(setup, index)
    params = params_of(setup, stage)
    states = states_of(setup, params, c)
    gathered = gathered_of(setup, params, c)
    tokens = setup.tokens_per_micro_batch / setup.cp
    kept, working = kept_of(setup, stage, index, tokens, c)
    if setup.is_dual_pipe:
        # A rank has the stage at the other end as well. The two ranks that have both share its optimizer.
        opposite = setup.pp - 1 - index
        other = pipeline_stage_of(setup, opposite)
        kept += kept_of(setup, other, opposite, tokens, c)[0]
        states = states_of(setup, params.with_those_of(params_of(setup, other)), c).with_optimizer_halved()
    logits = logits_of(setup, stage, tokens, c)
    workspace = c.workspace_ampere if setup.gpu.arch == "Ampere" else c.workspace
    if stage.moe_layers and setup.framework is Framework.MEGATRON:
        workspace += c.grouped_workspace
    if working > logits:
        kept, logits = kept + working, 0.0
    return _OnPipelineStage(states, workspace, kept, logits, gathered, states.step)


def _reserved(setup: Setup, stage: _OnPipelineStage, c: MemoryConstants) -> float:
    """The reserved bytes of the allocator.

    States are static and leave no gaps; temporary tensors do. The optimizer step's long tensors find no room among the
    freed activations. They come on top of those unless segments can grow.
    """
    if setup.framework is Framework.FSDP2:
        return stage.static + c.fragmentation_expandable * max(stage.forward, stage.step)
    return stage.static + c.fragmentation * (stage.forward + stage.step)


def _host(setup: Setup, states: States, c: MemoryConstants) -> float:
    """For one rank."""
    return c.pinned_nvme if setup.offload.is_nvme else states.host


def _groups(setup: Setup) -> int:
    return sum(ranks > 1 for ranks in (setup.dp, setup.tp, setup.pp, setup.cp, setup.ep))


# The driver and ECC take a little: 79.2 of 80 GiB remain on an A100 or H100. From Blackwell Ultra on, the name is in
# decimal GB.
USABLE = 0.99


def _capacity(setup: Setup) -> float:
    is_decimal = setup.gpu.arch == "Blackwell Ultra"
    return setup.gpu.hbm_gb * (1e9 if is_decimal else GIB) * USABLE
