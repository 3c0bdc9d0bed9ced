"""What lies ahead of a run, as status, metrics and alarms tell it: what is left, and when the ceiling will be met."""

from __future__ import annotations

from dataclasses import dataclass

from governor.core.base.units import UsdMicros
from governor.core.engine.node import Tracked
from governor.core.money.budgets import Cap
from governor.core.money.expected import Plan, burn_rate, drift, per_mtok
from governor.core.money.forecast import CeilingHit, Forecast, ceiling_hit, forecast
from governor.core.money.token_windows import Window


@dataclass(frozen=True, slots=True)
class Binding:
    """The ceiling that a run will meet first, and what counts towards it."""

    ceiling_usd_micros: UsdMicros
    spend_usd_micros: UsdMicros
    reserve_usd_micros: UsdMicros
    rate_usd_micros_per_hour: UsdMicros
    scope: str  # "run:NAME", or that of a group which the run is in: then what all of them spend counts.
    is_own: bool = True  # What counts is the run's own spend alone.


@dataclass(frozen=True, slots=True)
class Pace:
    """What a stretch of training came to. None is unknown: no price, no plan, no ceiling."""

    usd_micros_per_mtok: int | None
    drift_frac: float | None
    burn_rate: float | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """None is unknown: no window yet, no goal, no price, no ceiling. `left` is of the last window's end."""

    tokens_goal: int | None
    left: Forecast | None
    ceiling: CeilingHit | None  # Of the one that binds.
    binding: Binding | None
    plan: Plan
    last: Window | None  # That one closed last, since the governor's start.
    last_pace: Pace | None
    run_pace: Pace | None  # From the first metered token to the last window's end.


def outlook(tracked: Tracked) -> Outlook:
    goal, plan = tokens_goal(tracked), plan_of(tracked)
    bound = binding_ceiling(tracked)
    last = tracked.windows[-1] if tracked.windows else None
    return Outlook(
        tokens_goal=goal,
        left=forecast_of(tracked, goal),
        ceiling=hit_of(tracked, bound, goal) if bound is not None else None,
        binding=bound,
        plan=plan,
        last=last,
        last_pace=None if last is None else _pace(last.usd_micros, last.usd_micros, last.tokens, plan),
        run_pace=_run_pace(tracked, plan),
    )


def tokens_goal(tracked: Tracked) -> int | None:
    """How many tokens the run is to train: its budget's, else its schedule's, where every step takes as many."""
    run = tracked.run
    if tracked.policy.budget.tokens is not None:
        return tracked.policy.budget.tokens
    if run.total_steps is not None and run.tokens_per_step is not None:
        return run.total_steps * run.tokens_per_step
    return None


def plan_of(tracked: Tracked) -> Plan:
    expected = tracked.policy.expected
    return Plan(
        usd_micros_per_mtok=expected.usd_micros_per_mtok,
        tokens_per_s=expected.tokens_per_s,
        ceiling_usd_micros=tracked.policy.budget.ceiling_usd_micros,
        tokens_goal=tokens_goal(tracked),
        began_tokens=tracked.meter.began_tokens if tracked.meter is not None else 0,
    )


def binding_ceiling(tracked: Tracked) -> Binding | None:
    """None without one that is met before it begins anew, while the price is unknown, and once the run has ended."""
    run, ceiling = tracked.run, tracked.policy.budget.ceiling_usd_micros
    caps = list(run.caps)
    if ceiling is not None:
        reserve, rate = run.reserve_usd_micros or UsdMicros(0), run.spend_rate_usd_micros_per_hour
        caps.insert(0, Cap(f"run:{run.run}", ceiling, run.spend_usd_micros, reserve, rate))
    if not caps or not run.alive:
        return None
    cap = min(caps, key=lambda cap: (cap.hours_left, cap.room_usd_micros))
    rate = cap.rate_usd_micros_per_hour
    if rate is None or (rate and cap.hours_left == float("inf")):  # Of a day that ends before.
        return None
    is_own = ceiling is not None and cap is caps[0]
    return Binding(cap.ceiling_usd_micros, cap.spend_usd_micros, cap.reserve_usd_micros, rate, cap.scope, is_own=is_own)


def forecast_of(tracked: Tracked, goal: int | None) -> Forecast | None:
    """What is left, as of the last window's end; None without a goal, and before the first window."""
    meter, left = tracked.meter, tracked.left
    if goal is None or meter is None or not tracked.windows:
        return None
    tokens_left = max(0, goal - meter.from_tokens)
    # Another goal than when that window closed: it counts from now on, and not from the next one's end.
    return left if left is not None and left.tokens_left == tokens_left else forecast(tracked.windows, tokens_left)


def hit_of(tracked: Tracked, bound: Binding, goal: int | None) -> CeilingHit | None:
    """When the run meets this ceiling at the present rate; None while it spends nothing."""
    left = forecast_of(tracked, goal)
    # The windows' speed has the pauses in it; that of the last steps has to do until there are enough windows.
    speed = left.tokens_per_s if left is not None and left.hours_left.low is not None else None
    return ceiling_hit(
        spend_usd_micros=bound.spend_usd_micros,
        reserve_usd_micros=bound.reserve_usd_micros,
        ceiling_usd_micros=bound.ceiling_usd_micros,
        rate_usd_micros_per_hour=bound.rate_usd_micros_per_hour,
        tokens_total=tracked.run.tokens_total,
        tokens_per_s=speed if speed is not None else tracked.run.tokens_per_s,
        tokens_budget=goal,
    )


def _run_pace(tracked: Tracked, plan: Plan) -> Pace | None:
    """Beside the windows' money the burn rate has what the run spent before its first metered token: it is gone too."""
    meter = tracked.meter
    if meter is None or meter.from_tokens <= meter.began_tokens:
        return None
    spent = meter.from_usd_micros
    return _pace(spent - tracked.paid_before, spent, meter.from_tokens - meter.began_tokens, plan)


def _pace(usd_micros: int, against_ceiling: int, tokens: int, plan: Plan) -> Pace:
    price = per_mtok(usd_micros, tokens)
    over, burnt = drift(usd_micros, tokens, plan.usd_micros_per_mtok), burn_rate(against_ceiling, tokens, plan)
    return Pace(
        usd_micros_per_mtok=None if price is None else int(price),
        drift_frac=None if over is None else float(over),
        burn_rate=None if burnt is None else float(burnt),
    )
