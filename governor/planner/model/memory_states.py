"""The constants of the memory model, each with its unit, meaning and source; and the model states of one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from governor.planner.model.setup import Framework, Precision, Setup

MIB = 2**20
GIB = 2**30


def _constant(value: float, unit: str, meaning: str, source: str) -> float:
    made: float = field(default=value, metadata={"unit": unit, "meaning": meaning, "source": source})
    return made


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """Constants with the source `fitted` are medians over published rows. The others come from the frameworks' code."""

    fragmentation: float = _constant(
        1.10, "1", "what the caching allocator reserves over what comes and goes in a step", "fitted"
    )
    fragmentation_expandable: float = _constant(
        1.03, "1", "the same with expandable segments, torchtitan's setting", "PyTorch's notes on the allocator"
    )
    headroom: float = _constant(
        1.20,
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


# Model states of one rank: weights, gradients and optimizer states, by pipeline stage, framework and ZeRO stage.


# Weights stay in fp32 and are cast when gathered.
KEEPS_FP32 = frozenset({Framework.FSDP, Framework.FSDP2, Framework.XLA})
DEEPSPEEDS = frozenset({Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED, Framework.MEGATRON_DEEPSPEED})

MASTER_AND_ADAM = 12.0  # fp32 master weight, first and second moment
BF16_MASTER_AND_ADAM = 6.0  # the same in bf16
# The two moments alone. The optimizer steps the weights themselves.
BF16_ADAM = 4.0


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One pipeline stage: its layers of each kind, and whether it has the embedding or the head."""

    layers: float
    moe_layers: float
    embeds: bool
    scores: bool

    @property
    def dense_layers(self) -> float:
        return self.layers - self.moe_layers


@dataclass(frozen=True, slots=True)
class Params:
    """Parameters of one rank before ZeRO shards them."""

    dense: float  # replicated over dp * cp
    experts: float  # replicated over the experts' own data parallelism
    largest_layer: float
    root: float  # embedding and head

    @property
    def total(self) -> float:
        return self.dense + self.experts

    def with_those_of(self, other: Params) -> Params:
        """Of a rank that has both stages."""
        largest = max(self.largest_layer, other.largest_layer)
        return Params(self.dense + other.dense, self.experts + other.experts, largest, self.root + other.root)


@dataclass(frozen=True, slots=True)
class States:
    """Bytes. `step` is the extra memory during the optimizer's step."""

    weights: float
    gradients: float
    optimizer: float
    step: float
    host: float

    def with_optimizer_halved(self) -> States:
        return replace(self, optimizer=self.optimizer / 2, step=self.step / 2)


def pipeline_stage_of(setup: Setup, index: int) -> PipelineStage:
    """The layers that Megatron and DeepSpeed put on it."""
    shape, pp = setup.shape, setup.pp
    layers = layers_of_stage(setup, index)
    moe = 0.0
    if shape.experts is not None:
        share = layers / shape.layers
        moe = shape.moe_layers * share if shape.hybrid else max(layers - _first_dense(setup, index, layers), 0)
    return PipelineStage(layers, moe, embeds=index == 0, scores=index == pp - 1)


def layers_of_stage(setup: Setup, index: int) -> int:
    """Layers are spread evenly. When they do not divide, an outer stage is one of those with more, but for two cases.

    Where they divide with the embedding and the head as a layer each, both outer stages have one fewer: Llama 3
    (arXiv 2407.21783 §3.3.2), BLOOM (2211.05100 §3.3), Megatron's --account-for-embedding-in-pipeline-split. The last
    stage of another mixture has what is left, as in Megatron-Bridge's layouts of DeepSeek-V3 and Kimi-K2.
    """
    layers, pp = setup.shape.layers, setup.pp
    most = math.ceil(layers / pp)
    if layers % pp and (layers + 2) % pp == 0:
        return most - (index in (0, pp - 1))
    left = layers - most * (pp - 1)
    if index == pp - 1 and left >= 1 and setup.shape.is_moe and setup.framework is Framework.MEGATRON:
        return left
    return most


def _first_dense(setup: Setup, index: int, layers: int) -> float:
    """Few dense layers come first. Many alternate with expert layers."""
    assert setup.shape.experts is not None
    dense = setup.shape.experts.first_dense
    if dense > setup.shape.layers // 4:
        return dense * layers / setup.shape.layers
    before = sum(layers_of_stage(setup, stage) for stage in range(index))
    return max(dense - before, 0)


def params_of(setup: Setup, stage: PipelineStage) -> Params:
    shape, tp = setup.shape, setup.tp
    share = stage.layers / shape.layers
    mixers = share * (
        shape.attention_layers * shape.attention_params + shape.state_space_layers * shape.state_space_params
    )
    mlp_layers = share * shape.mlp_layers
    dense_mlps = max(mlp_layers - stage.moe_layers, 0.0)
    shared = stage.moe_layers * shape.shared_expert_params
    norms = 2 * stage.layers * shape.hidden
    layers = (
        (mixers + dense_mlps * shape.dense_mlp_params + shared) / tp + norms + stage.moe_layers * shape.router_params
    )
    embedding = shape.head_params / tp
    root = embedding * (stage.embeds + stage.scores - (shape.tied and stage.embeds and stage.scores))
    root += shape.learned_positions * shape.hidden * stage.embeds
    experts = 0.0
    if shape.experts is not None:
        experts = stage.moe_layers * shape.experts.count * shape.expert_params / (setup.ep * setup.expert_tp)
    largest = (layers + experts) / max(stage.layers, 1)
    return Params(layers + root, experts, largest, root)


def states_of(setup: Setup, params: Params, c: MemoryConstants) -> States:
    """The states of one rank. Dense and expert parameters are sharded over different groups."""
    shards = setup.shards
    # Ranks that hold the same experts.
    expert_shards = max(shards * setup.tp // (setup.ep * setup.expert_tp), 1)
    weights, gradients, optimizer, host = (params.dense * each for each in _bytes_per_param(setup, shards))
    if params.experts:
        of_experts = _bytes_per_param(setup, expert_shards)
        weights, gradients, optimizer, host = (
            dense + params.experts * each
            for dense, each in zip((weights, gradients, optimizer, host), of_experts, strict=True)
        )
    weights -= params.root * _copies_of_root(setup)
    shard = params.dense / shards + params.experts / expert_shards if setup.zero_stage else params.total
    return States(weights, gradients, optimizer, _step_bytes(setup, shard, c), host)


def _step_bytes(setup: Setup, shard: float, c: MemoryConstants) -> float:
    """The extra bytes during the optimizer's step. ZeRO-3 goes through its `shard` (of parameters) in groups."""
    if setup.offload.moves_optimizer or setup.adapters:
        return 0.0
    if setup.unfused_optimizer:
        # Under ZeRO-3 the gradients of a shard are contiguous already.
        return (c.eager_adam + (0.0 if setup.zero_stage >= 3 else c.flattening)) * shard
    if setup.framework in DEEPSPEEDS and not setup.bf16_states:
        return c.deepspeed_step * (min(shard, c.sub_group_elements) if setup.zero_stage >= 3 else shard)
    return 0.0


def gathered_of(setup: Setup, params: Params, c: MemoryConstants) -> float:
    """Parameters and gradients that are whole for a while, and the buckets that carry them."""
    whole = params.total
    if setup.framework in DEEPSPEEDS and setup.zero_stage:
        bucket = 2.0 * min(c.bucket_elements, whole)
        if setup.zero_stage < 3:
            return 2 * bucket
        return bucket + 2.0 * min(c.live_elements + params.largest_layer, whole)
    if setup.zero_stage >= 3:
        # Two layers and the outermost unit in half precision; the gradients of one layer, as computed and as reduced.
        wide = 6.0 if setup.framework in KEEPS_FP32 else 2.0
        return 2.0 * (2 * params.largest_layer + params.root) + wide * params.largest_layer
    return 0.0


def _bytes_per_param(setup: Setup, shards: int) -> tuple[float, float, float, float]:
    """Bytes per parameter: weights, gradients, optimizer, on the host."""
    zero = setup.zero_stage
    # Weights are frozen. The adapters' own states are a hundredth of them.
    if setup.adapters:
        weights, gradients, optimizer = 2.0 / (shards if zero >= 3 else 1), 0.0, 0.0
    elif setup.bf16_states:
        weights, gradients, optimizer = _bf16_kept(setup, shards)
    elif setup.framework in KEEPS_FP32:
        weights, gradients, optimizer = _fp32_kept(zero, shards)
    else:
        weights, gradients, optimizer = _mixed(setup, shards)
    if _has_copies(setup):
        weights = _low_precision_weights(setup, weights)
    if not setup.offload.moves_optimizer:
        return weights, gradients, optimizer, 0.0
    # Gradients wait in fp32 for the CPU's Adam.
    host = 0.0 if setup.adapters else optimizer + 4.0 / (shards if zero else 1)
    kept = 0.0 if zero >= 2 else gradients
    if setup.offload.moves_params:
        return 0.0, kept, 0.0, host + weights
    return weights, kept, 0.0, host


def _bf16_kept(setup: Setup, shards: int) -> tuple[float, float, float]:
    zero = setup.zero_stage
    adam = BF16_MASTER_AND_ADAM if setup.framework in DEEPSPEEDS else BF16_ADAM
    return 2.0 / (shards if zero >= 3 else 1), 2.0 / (shards if zero >= 2 else 1), adam / (shards if zero else 1)


def _fp32_kept(zero: int, shards: int) -> tuple[float, float, float]:
    """FSDP and XLA: everything is fp32, and the casts live only while in use."""
    live = 2.0 if zero < 3 else 0.0
    return live + 4.0 / (shards if zero else 1), 4.0 / (shards if zero >= 2 else 1), 8.0 / (shards if zero else 1)


def _mixed(setup: Setup, shards: int) -> tuple[float, float, float]:
    """Half-precision weights with fp32 masters: Megatron and DeepSpeed."""
    zero = setup.zero_stage
    optimizer = MASTER_AND_ADAM / (shards if zero else 1)
    is_narrow = setup.precision is Precision.FP16 or setup.bf16_gradients
    wide = not is_narrow and (setup.framework is Framework.MEGATRON or (setup.framework in DEEPSPEEDS and setup.pp > 1))
    gradients = 4.0 if wide else 2.0
    if setup.framework is Framework.MEGATRON and not wide:
        optimizer += 4.0 / (shards if zero else 1)  # a second copy of the shard's gradients, in fp32
    return 2.0 / (shards if zero >= 3 else 1), gradients / (shards if zero >= 2 else 1), optimizer


def _copies_of_root(setup: Setup) -> float:
    """Bytes per parameter of the low-precision copies that embedding and head do not have: they stay as they are."""
    if not _has_copies(setup) or setup.zero_stage >= 3:
        return 0.0
    return 0.0 if setup.offload.moves_params else max(_low_precision_weights(setup, 2.0) - 2.0, 0.0)


def _has_copies(setup: Setup) -> bool:
    return setup.precision not in (Precision.BF16, Precision.FP16) and setup.framework is Framework.MEGATRON


def _low_precision_weights(setup: Setup, weights: float) -> float:
    """Extra bytes of low-precision weights.

    Transformer Engine caches each weight twice in the low precision: as stored, and transposed. Under ZeRO-3 it does so
    only while a layer is gathered.
    """
    copies = 2 * setup.precision.bits / 8
    if setup.zero_stage >= 3:
        return weights * (copies / 4 if setup.fp8_params else 1)
    return weights - 2.0 + copies + (0.0 if setup.fp8_params else 2.0)
