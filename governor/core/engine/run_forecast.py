"""The forecast of a run for status, metrics and alarms: what is left, and when the ceiling will be met."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from governor.core.base.units import (
    NS_PER_DAY,
    NS_PER_HOUR,
    MonoNs,
    UsdMicros,
    WallNs,
    format_usd,
    utc_text,
)
from governor.core.engine.halt_plan import reserve_growth
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm
from governor.core.money.budgets import Cap, ScopeKind
from governor.core.money.ceiling_forecast import CeilingHit, CeilingReport, Met, ceiling_hit
from governor.core.money.expected import ExpectedCost, burn_rate, window_rate
from governor.core.money.forecast import Forecast, Interval, forecast
from governor.core.money.token_price import TokenPrices, drift, whole_micros
from governor.core.money.token_windows import Window
from governor.core.runs.counting import tokens_at_last_step, tokens_of_steps
from governor.core.runs.stepless import stepless_ns


@dataclass(frozen=True, slots=True)
class Binding:
    """The ceiling that a run will meet first."""

    cap: Cap  # Of the run, or of a group of the run: then the spend of the whole group counts.
    rate_usd_micros_per_hour: UsdMicros  # Known, unlike that of any cap.
    met: Met | None  # None while nothing is spent.
    is_own: bool  # Only the run's own spend counts.

    @property
    def spend_max_usd_micros(self) -> int:
        """What may be spent in all before its halt."""
        return self._spent_after(self.met.after_ns if self.met is not None else None)

    @property
    def spend_max_at_least(self) -> int:
        """The same if it is met at the early end."""
        return self._spent_after(self.met.low_ns if self.met is not None else None)

    def _spent_after(self, ns: int | None) -> int:
        if ns is None:
            return self.cap.ceiling_usd_micros - self.cap.reserve_usd_micros
        return self.cap.spend_usd_micros + self.rate_usd_micros_per_hour * ns // NS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Pace:
    """A stretch of training beside its plan and its ceiling. None is unknown: no price, no plan, no ceiling."""

    drift_frac: float | None  # Of its steady price from the expected one.
    burn_rate: float | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """None is unknown: no window yet, no goal, no price, no ceiling. `left` is as of the last step."""

    tokens_goal: int | None
    left: Forecast | None
    cost_left: Interval | None  # In dollars, at the present rate.
    ceiling: CeilingHit | None  # When the binding ceiling is met.
    binding: Binding | None
    plan: ExpectedCost
    last: Window | None  # The last window that closed since the governor's start.
    last_prices: TokenPrices
    last_pace: Pace | None
    run_pace: Pace  # Of the recent windows; its burn rate is of all that was spent by the last tick.
    prices: TokenPrices
    drift_all_in_frac: float | None = None


def outlook(managed: ManagedRun, at: MonoNs) -> Outlook:
    goal, plan = tokens_goal(managed), plan_of(managed)
    bound = binding_ceiling(managed, at)
    last = managed.money.windows[-1] if managed.money.windows else None
    left, rate = forecast_of(managed, goal), managed.run.spend_rate_usd_micros_per_hour
    return Outlook(
        tokens_goal=goal,
        left=left,
        cost_left=left.cost_left(rate) if left is not None and rate is not None else None,
        ceiling=hit_of(managed, bound, goal) if bound is not None else None,
        binding=bound,
        plan=plan,
        last=last,
        last_prices=_window_prices(last) if last is not None else TokenPrices(),
        last_pace=_pace(last.steady_per_mtok, last.per_mtok, plan) if last is not None else None,
        run_pace=_run_pace(managed, plan),
        prices=_settled(managed),
        drift_all_in_frac=_drift_all_in_frac(managed, plan),
    )


def token_prices(managed: ManagedRun, spend_usd_micros: UsdMicros | None = None) -> TokenPrices:
    """What the run's tokens cost, of all that were counted by now. None: of its spend at the last tick."""
    run = managed.run
    return run.paid_tokens.prices(run.spend_usd_micros if spend_usd_micros is None else spend_usd_micros)


def _settled(managed: ManagedRun) -> TokenPrices:
    """The same as rules see it: unknown while tokens of its money may not have been told."""
    prices = token_prices(managed)
    is_settled = managed.run.unheard_ns is None
    return prices if is_settled else replace(prices, last=None, all_in=None, useful=None)


def tokens_goal(managed: ManagedRun) -> int | None:
    """How many tokens the run is to train: by its budget or by its last step, whichever comes first.

    While steps vary, the second is an estimate that moves with each of them.
    """
    goals = (managed.policy.budget.tokens, tokens_at_last_step(managed.run))
    return min((goal for goal in goals if goal is not None), default=None)


def _metered_goal(managed: ManagedRun, goal: int) -> int:
    """The same in the meter's tokens: a goal is the present training's, and those of others are no part of it."""
    meter = managed.history.meter
    return goal if meter is None else goal + meter.earlier_tokens


def plan_of(managed: ManagedRun) -> ExpectedCost:
    expected, goal, meter = managed.policy.expected, tokens_goal(managed), managed.history.meter
    return ExpectedCost(
        usd_micros_per_mtok=expected.usd_micros_per_mtok,
        tokens_per_s=expected.tokens_per_s,
        ceiling_usd_micros=managed.policy.budget.ceiling_usd_micros,
        tokens_goal=_metered_goal(managed, goal) if goal is not None else None,
        began_tokens=meter.began_tokens if meter is not None else 0,
        lent_tokens=meter.lent_tokens if meter is not None else 0,
        usd_micros_per_mtok_all_in=expected.usd_micros_per_mtok_all_in,
    )


def binding_ceiling(managed: ManagedRun, at: MonoNs) -> Binding | None:
    """The ceiling that the run meets first.

    None if no ceiling is met before its period ends, while the price is unknown, and after the run has ended.
    """
    run, ceiling = managed.run, managed.policy.budget.ceiling_usd_micros
    caps = [cap for cap in run.caps if not cap.is_grant]  # A grant grows long before it is met.
    if ceiling is not None:
        reserve, rate = run.reserve_usd_micros or UsdMicros(0), run.spend_rate_usd_micros_per_hour
        reserved_at = managed.money.reserved_at
        growths = (reserve_growth(managed, at if reserved_at is None else reserved_at),)
        own = Cap(f"run:{run.run}", ceiling, run.spend_usd_micros, reserve, rate, growths=growths)
        caps.insert(0, own)
    if not caps or not run.alive:
        return None
    timed = [(cap, cap.met()) for cap in caps]
    cap, met = min(timed, key=lambda one: (one[1].after_ns if one[1] else float("inf"), one[0].room_usd_micros))
    rate = cap.rate_usd_micros_per_hour
    if rate is None or (rate and met is None):  # The day ends before its ceiling is met.
        return None
    return Binding(cap, rate, met, is_own=ceiling is not None and cap is caps[0])


def forecast_of(managed: ManagedRun, goal: int | None) -> Forecast | None:
    """What is left, as of the last step. None without a goal, and before the second step says how fast it trains.

    Lost tokens are trained again before there is progress. This takes and costs as much as the first time.
    """
    meter, speed = managed.history.meter, managed.money.speed
    if goal is None or meter is None:
        return None
    left = max(0, _metered_goal(managed, goal) - meter.last_total)
    if not managed.money.windows:
        begun = meter.open_window  # Begun with it, so that a start in it is left out.
        return forecast([begun], left, begun.from_tokens)
    return speed.ahead(left) if speed is not None else None


def hit_of(managed: ManagedRun, bound: Binding, goal: int | None) -> CeilingHit | None:
    """When the run meets this ceiling at the present rate; None while it spends nothing."""
    if bound.met is None:
        return None
    return ceiling_hit(
        bound.met,
        tokens_total=managed.run.tokens_total,
        speed=managed.money.speed,
        tokens_per_s=managed.run.tokens_per_s,
        tokens_goal=goal,
    )


def _window_prices(window: Window) -> TokenPrices:
    return TokenPrices(whole_micros(window.per_mtok), steady=whole_micros(window.steady_per_mtok))


def _run_pace(managed: ManagedRun, plan: ExpectedCost) -> Pace:
    """The pace of the whole run, its drift by the recent windows.

    Its burn rate is of all that it has spent by the last tick: it rises while the run hangs.
    """
    paid = managed.run.paid_tokens
    burnt = None if managed.run.unheard_ns is not None else paid.useful(managed.run.spend_usd_micros)
    return _pace(paid.steady(), burnt, plan)


def _pace(steady: Fraction | None, burnt: Fraction | None, plan: ExpectedCost) -> Pace:
    rate = burn_rate(burnt, plan)
    return Pace(_frac(drift(steady, plan.usd_micros_per_mtok)), _frac(rate))


def _drift_all_in_frac(managed: ManagedRun, plan: ExpectedCost) -> float | None:
    """Of all that the run has spent by the last tick, and of all tokens that it has trained by now."""
    run = managed.run
    all_in = None if run.unheard_ns is not None else run.paid_tokens.all_in(run.spend_usd_micros)
    return _frac(drift(all_in, plan.usd_micros_per_mtok_all_in))


def _frac(ratio: Fraction | None) -> float | None:
    return None if ratio is None else float(ratio)


# --- the alarm in advance: at this rate the ceiling is hit before the run is done --------------------------------
#
# With an interval, the alarm is due when even the forecast's lower end does not fit below the ceiling and the halt's
# reserve. While no rhythm of saves is known, that is the reserve of a run that does not save: it is halted then. One
# noisy window cannot cause the alarm: it widens the interval by more than it raises the middle.
# Without an interval (no goal, too few windows), the alarm is due when the ceiling is less than `HORIZON_NS` away and
# half of its room for training is spent, unless the run is at its goal before.
# The alarm is repeated for the same scope only after a real change:
# - the upper end of the interval did fit meanwhile;
# - the ceiling, the goal or the day is another one;
# - the run spends more than a quarter faster than at the alarm: a higher price, or neighbours that are gone.


# Time enough to save, or to raise the ceiling. `alert_at` is for parts of the ceiling.
HORIZON_NS: Final = NS_PER_HOUR
# A run may be given only an hour's money on purpose. Until half is spent, the alarm would be no news.
USED_FRAC_MIN: Final = 0.5
FASTER: Final = 1.25


def warn_of_ceiling(node: Node, managed: ManagedRun, at: MonoNs) -> list[Alarm]:
    """Warn of the binding ceiling: called at every tick for a live run that is not being halted."""
    bound = binding_ceiling(managed, at)
    if bound is None or stepless_ns(managed.run, at) is not None:
        return []  # Of a run that makes no step nobody knows the rate.
    if managed.run.unheard_ns is not None:
        return []  # What is left is of before.
    if bound.met is None or not bound.met.after_ns:
        return []  # Nothing is spent; or the ceiling is reached, and the trigger acts on that.
    goal = tokens_goal(managed)
    landing, set_goal = _landing(managed, bound, goal), (managed.policy.budget.tokens, managed.run.total_steps)
    day = node.wall(at) // NS_PER_DAY if bound.cap.scope == ScopeKind.DAY.value else None
    told = managed.reported.ceilings.get(bound.cap.scope)
    if told is not None and (told.day != day or _has_changed(told, bound, set_goal, landing)):
        del managed.reported.ceilings[bound.cap.scope]
        told = None
    if told is not None or not _is_due(bound, landing):
        return []
    hit = hit_of(managed, bound, goal)
    if hit is None or (landing is None and _ends_before(managed, hit, at)):
        return []
    rate = bound.rate_usd_micros_per_hour
    managed.reported.ceilings[bound.cap.scope] = CeilingReport(
        bound.cap.ceiling_usd_micros, set_goal[0], rate, day, set_goal[1]
    )
    return [Alarm("ceiling_ahead", managed.run.run, _text(node, managed, bound, hit, landing, at))]


@dataclass(frozen=True, slots=True)
class _Landing:
    """What the run will have spent at its goal, in micro-dollars, without its reserve. 80 % of runs lie inside."""

    tokens_goal: int
    low: float
    mid: float
    high: float


def _landing(managed: ManagedRun, bound: Binding, goal: int | None) -> _Landing | None:
    """Forecast from the windows' time, at the present rate. None without an interval.

    The lower end waits for a window at that rate: what a neighbour paid for a minute ago may be the run's for a minute.
    It waits for the end of a slow one, too: until then its time, without a start, is a part of what was left before it.
    """
    left, meter, speed = forecast_of(managed, goal), managed.history.meter, managed.money.speed
    if goal is None or left is None or meter is None or speed is None:
        return None
    hours = left.hours_left
    if hours.low is None or hours.high is None:
        return None
    rate, spent = bound.rate_usd_micros_per_hour, bound.cap.spend_usd_micros
    at_window = speed.ahead(_metered_goal(managed, goal) - meter.from_tokens).hours_left.low or 0.0
    low = min(hours.low, max(0.0, at_window - meter.open_window.steady_ns / NS_PER_HOUR))
    seen = window_rate(managed.money.windows[-1]) if bound.is_own else None
    low_rate = rate if seen is None else min(rate, seen)
    return _Landing(goal, spent + low * low_rate, spent + hours.mid * rate, spent + hours.high * rate)


def _is_due(bound: Binding, landing: _Landing | None) -> bool:
    room, met = bound.spend_max_usd_micros, bound.met
    if landing is not None:
        return landing.low > room
    return met is not None and met.after_ns <= HORIZON_NS and bound.cap.spend_usd_micros >= USED_FRAC_MIN * room


def _ends_before(managed: ManagedRun, hit: CeilingHit, at: MonoNs) -> bool:
    """Whether the run makes its last step before it meets the ceiling: by its tokens, else by the time of its steps.

    Where the goal lies between both ends, a run that does not save is halted before it: that is worth telling.
    """
    run = managed.run
    if hit.before_end is not None:
        return not hit.before_end
    if run.total_steps is None or run.step is None or run.step_at is None or run.first_step_at is None:
        return False
    if run.attempt_step <= 1:
        return False
    left, took_ns = max(0, run.total_steps - run.step), run.step_at - run.first_step_at
    return run.step_at + left * took_ns // (run.attempt_step - 1) <= at + hit.met.after_ns


def _has_changed(
    told: CeilingReport, bound: Binding, goal: tuple[int | None, int | None], landing: _Landing | None
) -> bool:
    """`goal`: in tokens and in steps, as they were set: an estimate moves with each step.

    A goal that was not known is no other one: a trainer tells its steps when it attaches.
    """
    fits = landing is not None and landing.high <= bound.spend_max_at_least
    was = (told.tokens_goal, told.steps_goal)
    another = any(old is not None and old != new for old, new in zip(was, goal, strict=True))
    another = another or told.ceiling_usd_micros != bound.cap.ceiling_usd_micros
    return fits or another or bound.rate_usd_micros_per_hour > FASTER * told.rate_usd_micros_per_hour


def _text(
    node: Node, managed: ManagedRun, bound: Binding, hit: CeilingHit, landing: _Landing | None, at: MonoNs
) -> str:
    whose = "" if bound.is_own else f" of {bound.cap.scope}"
    where = [place for place in (_step(managed, hit), _when(node.wall(at), hit)) if place]
    is_sure = landing is None or hit.before_end is True  # Else the goal lies within its interval.
    is_hit = f"{whose} {'is' if is_sure else 'may be'} hit at {', '.join(where)}"
    said = f"at this rate the ceiling {format_usd(bound.cap.ceiling_usd_micros)}{is_hit}"
    if landing is None:
        reserve = format_usd(bound.cap.reserve_usd_micros)
        return f"{said}: {format_usd(bound.cap.spend_usd_micros)} is spent, and {reserve} is reserved for the halt"
    low, mid, high = (format_usd(round(value)) for value in (landing.low, landing.mid, landing.high))
    between = "" if low == high else f" ({low} to {high})"
    goal, steps = landing.tokens_goal, managed.run.total_steps
    in_all = f"{goal:,} tokens" if goal == managed.policy.budget.tokens or steps is None else f"{steps:,} steps"
    return f"{said}, before the goal of {in_all}, by which {mid}{between} would be spent"


def _when(now: WallNs, hit: CeilingHit) -> str:
    met = hit.met
    low, mid, high = (utc_text(now + ns)[:16].replace("T", " ") for ns in (met.low_ns, met.after_ns, met.high_ns))
    return f"{mid} UTC" + ("" if low == high else f" ({low[-5:]} to {high[-5:]})")


def _step(managed: ManagedRun, hit: CeilingHit) -> str | None:
    """The step at which the ceiling is hit, by the tokens of the steps so far. None while the tokens are unknown."""
    run = managed.run
    if hit.tokens_total is None or run.tokens_total is None or run.step is None:
        return None
    ends = hit.tokens_between or (hit.tokens_total, hit.tokens_total)
    per_step = tokens_of_steps(run)
    if per_step is None or not run.step_tokens:
        low, mid, high = (f"{tokens:,}" for tokens in (ends[0], hit.tokens_total, ends[1]))
        return f"{mid} tokens" + ("" if low == high else f" ({low} to {high})")
    (tokens, steps), now, step = per_step, run.tokens_total, run.step
    low, mid, high = (f"{step + (total - now) * steps // tokens:,}" for total in (ends[0], hit.tokens_total, ends[1]))
    return f"step {mid}" + ("" if low == high else f" ({low} to {high})")
