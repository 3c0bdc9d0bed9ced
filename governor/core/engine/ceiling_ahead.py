"""The alarm before it happens: at this rate the ceiling is hit before the run is done.

It is said when even the lower end of the forecast's interval does not fit below the ceiling, beside the reserve for the
halt. One noisy window cannot do that: it widens the interval by more than it raises the middle. Where no interval is to
be had (no goal of tokens, too few windows) it is said when the ceiling is less than `HORIZON_NS` away and half of what
it leaves for training is spent. Once it is said, it is said again of the same scope only after a real change:

- the upper end of the interval fitted meanwhile, so that the run was on its way to make it;
- the ceiling or the goal is another one, or its day is;
- the run spends more than a quarter faster than when it was said: a dearer price, or neighbours that are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, MonoNs, format_usd
from governor.core.base.utc import NS_PER_DAY, utc_text
from governor.core.engine.node import Node, Tracked
from governor.core.engine.outlook import Binding, binding_ceiling, forecast_of, hit_of, tokens_goal
from governor.core.events.effects import Alarm
from governor.core.money.budgets import ScopeKind
from governor.core.money.forecast import CeilingHit, CeilingTold

HORIZON_NS: Final = NS_PER_HOUR  # Time enough to save, or to raise the ceiling. Parts of it are what `alert_at` is for.
USED_FRAC_MIN: Final = 0.5  # Who gives a run an hour's money knows so; until half is gone there is no news in it.
FASTER: Final = 1.25


def warn(node: Node, tracked: Tracked, at: MonoNs) -> list[Alarm]:
    """At every tick, of a run that lives and is not being halted."""
    bound = binding_ceiling(tracked)
    if bound is None:
        return []
    goal = tokens_goal(tracked)
    hit = hit_of(tracked, bound, goal)
    if hit is None or hit.after_ns == 0:
        return []  # It is there: the trigger's business.
    landing = _landing(tracked, bound, goal)
    day = node.wall(at) // NS_PER_DAY if bound.scope == ScopeKind.DAY.value else None
    told = tracked.ceilings_told.get(bound.scope)
    if told is not None and (told.day != day or _has_changed(told, bound, goal, landing)):
        del tracked.ceilings_told[bound.scope]
        told = None
    if told is not None or not _is_due(bound, hit, landing):
        return []
    rate = bound.rate_usd_micros_per_hour
    tracked.ceilings_told[bound.scope] = CeilingTold(bound.ceiling_usd_micros, goal, rate, day)
    return [Alarm("ceiling_ahead", tracked.run.run, _text(node, tracked, bound, hit, landing, at))]


@dataclass(frozen=True, slots=True)
class _Landing:
    """What the run will have spent at its goal, in micro-dollars, its reserve left out: 90 % of runs lie inside."""

    tokens_goal: int
    low: float
    mid: float
    high: float


def _landing(tracked: Tracked, bound: Binding, goal: int | None) -> _Landing | None:
    """By what the windows cost, and by how long they took at the present rate: where these differ, what lies between.

    A price that has just changed is in the rate and not yet in the windows; a share of the node that changes for a
    minute is in the rate alone. None without an interval.
    """
    left, meter = forecast_of(tracked, goal), tracked.meter
    if goal is None or left is None or meter is None:
        return None
    hours, cost = left.hours_left, left.cost_left
    if hours.low is None or hours.high is None or cost.low is None or cost.high is None:
        return None
    rate = bound.rate_usd_micros_per_hour
    low, mid, high = hours.low * rate, hours.mid * rate, hours.high * rate
    # Both are of the last window's end: what was spent since is no longer to come.
    since = meter.spent_ns * rate / NS_PER_HOUR
    if bound.is_own:  # Of several runs together, these windows tell the speed alone.
        since = bound.spend_usd_micros - meter.from_usd_micros
        low, high = min(low, cost.low * MICROS_PER_USD), max(high, cost.high * MICROS_PER_USD)
        mid = cost.mid * MICROS_PER_USD
    low, mid, high = (max(0.0, amount - since) for amount in (low, mid, high))
    spent = bound.spend_usd_micros
    return _Landing(goal, spent + low, spent + mid, spent + high)


def _is_due(bound: Binding, hit: CeilingHit, landing: _Landing | None) -> bool:
    room = bound.ceiling_usd_micros - bound.reserve_usd_micros
    if landing is not None:
        return landing.low > room
    is_near = hit.after_ns <= HORIZON_NS and bound.spend_usd_micros >= USED_FRAC_MIN * room
    return is_near and hit.before_end is not False


def _has_changed(told: CeilingTold, bound: Binding, goal: int | None, landing: _Landing | None) -> bool:
    fits = landing is not None and landing.high <= bound.ceiling_usd_micros - bound.reserve_usd_micros
    another = (told.ceiling_usd_micros, told.tokens_goal) != (bound.ceiling_usd_micros, goal)
    return fits or another or bound.rate_usd_micros_per_hour > FASTER * told.rate_usd_micros_per_hour


def _text(node: Node, tracked: Tracked, bound: Binding, hit: CeilingHit, landing: _Landing | None, at: MonoNs) -> str:
    whose = "" if bound.is_own else f" of {bound.scope}"
    when = utc_text(node.wall(at) + hit.after_ns)[:16].replace("T", " ")
    where = [place for place in (_step(tracked, hit), f"{when} UTC") if place]
    said = f"at this rate the ceiling {format_usd(bound.ceiling_usd_micros)}{whose} is hit at {', '.join(where)}"
    if landing is None:
        reserve = format_usd(bound.reserve_usd_micros)
        return f"{said}: {format_usd(bound.spend_usd_micros)} is spent, and {reserve} is reserved for the halt"
    low, mid, high = (format_usd(round(value)) for value in (landing.low, landing.mid, landing.high))
    between = "" if low == high else f" ({low} to {high})"
    return f"{said}, before the goal of {landing.tokens_goal:,} tokens, by which {mid}{between} would be spent"


def _step(tracked: Tracked, hit: CeilingHit) -> str | None:
    """Where the step would stand, as its steps are now; None while nobody knows how many tokens one has."""
    run = tracked.run
    if hit.tokens_total is None or run.tokens_total is None or run.step is None:
        return None
    if not run.step_tokens:
        return f"{hit.tokens_total:,} tokens"
    return f"step {run.step + (hit.tokens_total - run.tokens_total) // run.step_tokens:,}"
