"""What lies ahead of a run, as status and metrics tell it: what is left, and when the ceiling will be met."""

from __future__ import annotations

from dataclasses import dataclass

from governor.core.forecast import CeilingHit, Forecast, ceiling_hit
from governor.core.node import Tracked
from governor.core.units import UsdMicros


@dataclass(frozen=True, slots=True)
class Outlook:
    """None is unknown: no window yet, no goal, no price, no ceiling. `left` is of the last window's end."""

    tokens_goal: int | None
    left: Forecast | None
    ceiling: CeilingHit | None


def outlook(tracked: Tracked) -> Outlook:
    run, budget = tracked.run, tracked.policy.budget
    goal = tokens_goal(tracked)
    hit = None
    if budget.ceiling_usd_micros is not None and run.spend_rate_usd_micros_per_hour is not None and run.alive:
        hit = ceiling_hit(
            spend_usd_micros=run.spend_usd_micros,
            reserve_usd_micros=run.reserve_usd_micros or UsdMicros(0),
            ceiling_usd_micros=budget.ceiling_usd_micros,
            rate_usd_micros_per_hour=run.spend_rate_usd_micros_per_hour,
            tokens_total=run.tokens_total,
            tokens_per_s=run.tokens_per_s,
            tokens_budget=goal,
        )
    return Outlook(goal, tracked.left if goal is not None else None, hit)


def tokens_goal(tracked: Tracked) -> int | None:
    """How many tokens the run is to train: its budget's, else its schedule's, where every step takes as many."""
    run = tracked.run
    if tracked.policy.budget.tokens is not None:
        return tracked.policy.budget.tokens
    if run.total_steps is not None and run.tokens_per_step is not None:
        return run.total_steps * run.tokens_per_step
    return None
