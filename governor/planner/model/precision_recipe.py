"""A precision plan as a file: what a model builder, Transformer Engine and Megatron-LM have to be told."""

from __future__ import annotations

from typing import Any

from governor.planner.model.hardware import Precision
from governor.planner.model.precision_facts import ENGINES, FORMATS
from governor.planner.model.precision_plan import PrecisionPlan, late_switch_tokens

# Whatever the plan: no matmul, or one whose errors nothing damps.
ALWAYS_KEPT = ("embeddings", "norms", "master weights", "gradient sums", "optimizer states")


def recipe(plan: PrecisionPlan, tokens: float | None = None, fallback: str | None = None) -> dict[str, Any]:
    """`tokens`: of the whole training, for the late switch. `fallback`: the file of the plan that comes after it."""
    engine = ENGINES.get(plan.precision)
    is_low = plan.precision is not Precision.BF16
    low = [group.name for group in plan.groups if is_low and group.precision is plan.precision]
    blocks = plan.bf16_blocks
    first = sum(1 for number, block in enumerate(blocks) if number == block)
    switch = plan.precision is Precision.NVFP4 and tokens is not None
    return {
        "model": plan.model,
        "gpu": plan.gpu,
        "precision": plan.precision.value,
        "labels": {"precision": plan.precision.value},
        "low_precision": low,
        "kept": [group.name for group in plan.groups if group.name not in low] + list(ALWAYS_KEPT),
        "bf16_blocks": list(blocks),
        "format": dict(FORMATS[plan.precision]),
        "forward_in_bf16_from_tokens": round(late_switch_tokens(tokens or 0)) if switch else None,
        "transformer_engine": engine.recipe if engine else None,
        "megatron_lm": engine.megatron.format(first=first, last=len(blocks) - first) if engine else "--bf16",
        "deepspeed": {"bf16": {"enabled": True}},
        "fallback": fallback,
    }
