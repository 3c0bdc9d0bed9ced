"""What the trigger calls a step whose values are wrong is what a trainer, asked to save for it, knows by that name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from governor.core.base.units import MonoNs
from governor.core.events.inputs import Step
from governor.core.rules.trigger import defaults
from governor.core.rules.triggers import load
from governor.core.runs.state import Run
from trainer_shim.wire import REASONS_OF_VALUES

WRONG: dict[str, dict[str, Any]] = {
    "loss_nan": {"loss": math.nan},
    "loss_inf": {"loss": -math.inf},
    "gradient_nonfinite": {"loss": 2.0, "grad_norm": math.nan},
}


@pytest.mark.parametrize("reason", sorted({*REASONS_OF_VALUES, *WRONG}))
def test_each_reason_of_values_is_what_the_trigger_says(reason: str) -> None:
    kind = load()["nonfinite"]
    trigger = kind({**defaults(kind.KEYS), "gradient_streak": 1, "search_steps": 0})
    run = Run("r", 0, MonoNs(0), jsonl_only=True)
    right = {"loss": 2.0, "grad_norm": 1.0}
    for step, values in enumerate([*[right] * 30, WRONG[reason]]):
        trigger.observe(Step(MonoNs(step), None, "r", 0, step, applied=True, **values), run)
    assert trigger.judge(MonoNs(31), run).reason == reason
    assert reason in REASONS_OF_VALUES
