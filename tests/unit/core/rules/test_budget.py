"""The budget trigger alone: at which token and which micro-dollar it fires."""

from __future__ import annotations

import pytest

from governor.core.base.findings import Reading
from governor.core.base.policy import Budget
from governor.core.base.units import MonoNs, UsdMicros, usd
from governor.core.rules.triggers.budget import TOKENS_REACHED, BudgetReached
from governor.core.runs.state import Run


def judged(run: Run, budget: Budget, at_frac: float = 1.0) -> tuple[Reading, str]:
    finding = BudgetReached({"budget": budget, "at_frac": at_frac}).judge(MonoNs(1), run)
    return finding.reading, finding.reason


@pytest.mark.parametrize(("tokens", "is_reached"), [(999_999, False), (1_000_000, True), (1_000_001, True)])
def test_the_last_token_of_the_budget_ends_the_run(tokens: int, is_reached: bool) -> None:
    run = Run("r", 0, MonoNs(0), tokens_total=tokens, attempt_step=1)
    reading, reason = judged(run, Budget(tokens=1_000_000))
    assert (reading is Reading.FIRING, reason == TOKENS_REACHED) == (is_reached, is_reached)


@pytest.mark.parametrize(("spent", "is_reached"), [(6_999_999, False), (7_000_000, True)])
@pytest.mark.parametrize(("ceiling", "at_frac"), [(8, 1.0), (10, 0.8)])
def test_the_ceiling_is_reached_with_the_micro_dollar_that_the_halt_needs(
    spent: int, is_reached: bool, ceiling: float, at_frac: float
) -> None:
    """A dollar is reserved for the halt."""
    run = Run("r", 0, MonoNs(0))
    run.set_money(UsdMicros(spent), usd(36), usd(1))
    assert (judged(run, Budget(usd(ceiling)), at_frac)[0] is Reading.FIRING) is is_reached
