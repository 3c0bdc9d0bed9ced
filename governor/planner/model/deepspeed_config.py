"""A set-up as DeepSpeed's JSON (keys of 0.19), and notes for what the JSON cannot express."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from governor.planner.model.memory_states import USUAL_CONSTANTS
from governor.planner.model.setup import (
    Attention,
    Checkpointing,
    Framework,
    ImpossibleSetupError,
    Offload,
    Precision,
    Setup,
)

Section = dict[str, Any]

TAKES_IT: Final = (Framework.DEEPSPEED, Framework.DEEPSPEED_COMPILED, Framework.MEGATRON_DEEPSPEED)
# Parameters at most -> peak learning rate: OLMo 1B (arXiv 2402.00838), Llama 3 (2407.21783, table 3).
LEARNING_RATES: Final = ((2e9, 4e-4), (20e9, 3e-4), (150e9, 1.5e-4), (math.inf, 8e-5))
# Warm-up steps of OLMo and Llama 2 (arXiv 2307.09288). A shorter run takes at most a twentieth of its steps.
WARMUP_STEPS: Final = 2_000
WARMUP_SHARE: Final = 0.05
DECAY_TO: Final = 0.1  # of the peak, by a cosine (Llama 2).
# The mount point of a machine's local NVMe disk. Users replace it with their own.
NVME_PATH: Final = "/local_nvme"


@dataclass(frozen=True, slots=True)
class Emitted:
    """`notes`: requirements on the model's code or its command line."""

    config: Mapping[str, Any]
    notes: tuple[str, ...]


def config_of(setup: Setup, tokens: float, nvme_path: str = NVME_PATH) -> Emitted:
    """The config for a set-up. `tokens`: of the whole run, for the schedule.

    Raises ImpossibleSetupError for a set-up that DeepSpeed does not train.
    """
    _check(setup)
    steps = max(math.ceil(tokens / setup.tokens_per_step), 1)
    config: Section = {
        "train_batch_size": setup.micro_batch * setup.grad_accum * setup.dp,
        "train_micro_batch_size_per_gpu": setup.micro_batch,
        "gradient_accumulation_steps": setup.grad_accum,
        "steps_per_print": 100,
        "gradient_clipping": 1.0,
        **_precision(setup),
        "zero_optimization": _zero(setup, nvme_path),
        "optimizer": _optimizer(setup),
        "scheduler": _schedule(steps),
        # A checkpoint is broken when its ranks use different tags. DeepSpeed only warns of that by default.
        "checkpoint": {"tag_validation": "Fail", "load_universal": False, "use_node_local_storage": False},
        "wall_clock_breakdown": False,  # Its timers synchronise the device at every step.
    }
    if setup.checkpointing is not Checkpointing.NONE:
        config["activation_checkpointing"] = {
            "partition_activations": setup.tp > 1,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
            "number_checkpoints": math.ceil(setup.shape.layers / setup.pp),
            "synchronize_checkpoint_boundary": False,
            "profile": False,
        }
    if setup.pp > 1:
        config["pipeline"] = {"activation_checkpoint_interval": int(setup.checkpointing is Checkpointing.FULL)}
    if setup.offload is Offload.OPTIMIZER_STREAMED:
        config["compile"] = {"deepcompile": True, "offload_opt_states": True}
    elif setup.offload.is_nvme:
        config["aio"] = {
            "block_size": 1_048_576, "queue_depth": 8, "intra_op_parallelism": 1,
            "single_submit": False, "overlap_events": True,
        }  # fmt: skip
    return Emitted(config, tuple(_notes(setup)))


def _check(setup: Setup) -> None:
    if setup.framework not in TAKES_IT:
        raise ImpossibleSetupError(
            f"{setup.framework} takes no DeepSpeed config; of the frameworks {', '.join(TAKES_IT)} do"
        )
    if setup.ep > 1 and setup.zero_stage > 2:
        raise ImpossibleSetupError(f"DeepSpeed's experts over {setup.ep} ranks take ZeRO 0 to 2; or ep 1")
    offload, zero = setup.offload, setup.zero_stage
    if offload.moves_optimizer and zero < 1:
        raise ImpossibleSetupError(f"offload {offload} needs ZeRO 1, 2 or 3, not {zero}")
    if (offload.moves_params or offload.is_nvme or offload is Offload.OPTIMIZER_STREAMED) and zero < 3:
        raise ImpossibleSetupError(f"offload {offload} needs ZeRO 3, not {zero}; optimizer_cpu works with it")
    if setup.shards < setup.dp * setup.cp and 0 < zero < 3:
        raise ImpossibleSetupError(f"shard-ranks {setup.shards} is hpZ to DeepSpeed, which needs ZeRO 3, not {zero}")
    if setup.bf16_states and (not zero or setup.precision is Precision.FP16):
        raise ImpossibleSetupError("states in bf16 need ZeRO 1, 2 or 3, and bf16")


def _precision(setup: Setup) -> Section:
    """DeepSpeed sees a run with fp8 or fp4 matmuls as bf16: the layers do those themselves."""
    if setup.precision is Precision.FP16:
        scaling = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2}  # dynamic
        return {"fp16": {"enabled": True, **scaling, "min_loss_scale": 1}, "communication_data_type": "fp16"}
    states = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True} if setup.bf16_states else {}
    return {"bf16": {"enabled": True, **states}, "communication_data_type": "bf16"}


def _zero(setup: Setup, nvme_path: str) -> Section:
    """The ZeRO section, with its bucket sizes.

    Up to stage 2, they are the ones that the memory model counts. For stage 3, they follow Hugging Face's rule by
    hidden size: a bucket holds one square matrix, and norms and biases stay whole.
    """
    zero: Section = {"stage": setup.zero_stage}
    if not setup.zero_stage:
        return zero
    zero |= {"contiguous_gradients": True, "overlap_comm": True, "reduce_scatter": True}
    bucket, hidden = int(USUAL_CONSTANTS.bucket_elements), setup.shape.hidden
    if setup.zero_stage < 3:
        zero |= {"reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    else:
        zero |= {
            "reduce_bucket_size": hidden * hidden,
            "stage3_prefetch_bucket_size": hidden * hidden * 9 // 10,
            "stage3_param_persistence_threshold": 10 * hidden,
            "stage3_max_live_parameters": int(USUAL_CONSTANTS.live_elements),
            "stage3_max_reuse_distance": int(USUAL_CONSTANTS.live_elements),
            "sub_group_size": 1_000_000_000,
        }
        if setup.shards < setup.dp * setup.cp:
            zero["zero_hpz_partition_size"] = setup.shards
    return zero | _offload(setup, nvme_path)


def _offload(setup: Setup, nvme_path: str) -> Section:
    offload = setup.offload
    if not offload.moves_optimizer or offload is Offload.OPTIMIZER_STREAMED:
        return {}
    where: Section = {"device": "nvme", "nvme_path": nvme_path} if offload.is_nvme else {"device": "cpu"}
    moved: Section = {"offload_optimizer": {**where, "pin_memory": True}}
    if offload.moves_params:
        moved["offload_param"] = {**where, "pin_memory": True}
    return moved


def _optimizer(setup: Setup) -> Section:
    peak = next(rate for params, rate in LEARNING_RATES if setup.shape.params <= params)
    return {"type": "AdamW", "params": {"lr": peak, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}


def _schedule(steps: int) -> Section:
    warmup = max(min(WARMUP_STEPS, math.ceil(WARMUP_SHARE * steps)), 2)
    return {
        "type": "WarmupCosineLR",
        "params": {
            "total_num_steps": steps,
            "warmup_min_ratio": 0.0,
            "warmup_num_steps": warmup,
            "warmup_type": "linear",
            "cos_min_ratio": DECAY_TO,
        },
    }


def _notes(setup: Setup) -> list[str]:
    notes = [f"sequences of {setup.seq_len} tokens: the data loader's affair", f"world size {setup.gpus}"]
    if setup.shape.experts is not None:
        notes.append(
            f"the model builds its mixtures as deepspeed.moe.layer.MoE(num_experts={setup.shape.experts.count}, "
            f"k={setup.shape.experts.topk}, ep_size={setup.ep})"
            if setup.zero_stage < 3
            else "the mixtures are leaves of ZeRO-3: deepspeed.utils.set_z3_leaf_modules(model, [their class])"
        )
    match setup.checkpointing:
        case Checkpointing.FULL:
            notes.append(
                "the model recomputes every layer: model.gradient_checkpointing_enable(), or deepspeed.checkpointing"
            )
        case Checkpointing.SELECTIVE:
            notes.append("the model recomputes the core of attention alone: DeepSpeed cannot choose for it")
    if setup.precision.bits < 16:
        notes.append(
            f"{setup.precision}: DeepSpeed has no path to it; the layers' library (Transformer Engine) brings it"
        )
    for size, what in (
        (setup.tp, "tensor parallelism"), (setup.cp, "context parallelism"), (setup.pp, "pipeline stages"),
    ):  # fmt: skip
        if size > 1:
            notes.append(f"{size} ranks of {what}: the model's code builds them (Megatron-DeepSpeed)")
    if setup.attention in (Attention.SPARSE, Attention.NATIVE_SPARSE):
        notes.append(f"{setup.attention}: DeepSpeed has no sparse attention; the model brings kernels and loss")
    if setup.fused_loss:
        notes.append("the model computes logits and loss in chunks, or fused")
    if setup.adapters:
        notes.append("LoRA: only the adapters go to deepspeed.initialize(model_parameters=...), at a rate of their own")
    if setup.framework is Framework.DEEPSPEED_COMPILED or setup.offload is Offload.OPTIMIZER_STREAMED:
        notes.append("engine.compile() after deepspeed.initialize")
    return notes
