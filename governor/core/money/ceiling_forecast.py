"""When a run meets its ceiling at the present rate, and how many tokens it has trained by then: 80 % intervals.

The moment is arithmetic, but for what is reserved for the halt: that grows with the work that is not saved, and falls
back at each save. As long as no save is due before, it is met at one moment. Else it lies somewhere between two saves,
and since the reserve grows as fast as the spend, in the later half of what the reserve grows to: uniformly from half of
it to all of it (or at its bound, which cannot be passed).

While no rhythm of saves is known, both ends are told, and all moments lie between them: the early one if no save comes
before, the late one if a save comes just before. The early one is its middle, too: what is certain to be left. Of a run
that can save nothing it is the only one.

The tokens are those that windows like the recent ones train until then (core.money.forecast). Both uncertainties are
independent, so their squares add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from governor.core.base.units import COUNT_MAX, NS_PER_HOUR, NS_PER_S, DurationNs
from governor.core.money.forecast import WINDOWS_MIN, Interval, Speed


@dataclass(frozen=True, slots=True)
class Met:
    """When a ceiling is met, from now. Where it is one moment, `low_ns` and `high_ns` are that moment, too."""

    after_ns: DurationNs
    low_ns: DurationNs
    high_ns: DurationNs


AT_ONCE: Final = Met(DurationNs(0), DurationNs(0), DurationNs(0))


@dataclass(frozen=True, slots=True)
class ReserveGrowth:
    """How the part of a reserve goes on that pays for the work of one run since its last save."""

    most_ns: int = 0  # How much longer it may still become without a save.
    held_ns: int = 0  # How long it is now.
    save_in_ns: int | None = None  # Until the next save, by the run's rhythm; 0: overdue. None: no rhythm is known.
    cycle_ns: int = 0  # From one save to the next.
    behind_ns: int = 0  # How much longer a halt of the group takes than this run's: so much of it grows unseen.
    least_ns: int | None = None  # How long it is right after a save. None: this run can save nothing.

    def met(self, room_usd_micros: int, rate_usd_micros_per_hour: int) -> Met:
        """When this room is used up, as the reserve will be then. The rate is above zero."""
        alone_ns = max(0, room_usd_micros) * NS_PER_HOUR // rate_usd_micros_per_hour + self.behind_ns
        # Each moment adds to the reserve what it adds to the spend.
        unsaved_ns = max(alone_ns // 2, alone_ns - self.most_ns)
        if self.save_in_ns is None and self.least_ns is not None:
            saved_ns = alone_ns + max(0, self.held_ns - self.least_ns)
            return Met(DurationNs(unsaved_ns), DurationNs(unsaved_ns), DurationNs(saved_ns))
        if self.save_in_ns is None or unsaved_ns <= self.save_in_ns:
            return Met(*(DurationNs(unsaved_ns),) * 3)
        bound_ns = self.held_ns + self.most_ns
        # One end is the bound itself where more than a tenth of all halts come there.
        shares = (100, 50, 20) if bound_ns * 10 <= self.cycle_ns * 9 else (90, 50, 10)
        grown = (min(bound_ns, (min(bound_ns, self.cycle_ns) + self.cycle_ns * share // 100) // 2) for share in shares)
        low, mid, high = (max(self.save_in_ns, alone_ns + self.held_ns - ns) for ns in grown)
        # Nobody knows when a save comes that is overdue.
        return Met(DurationNs(mid), DurationNs(low if self.save_in_ns else min(low, unsaved_ns)), DurationNs(high))


@dataclass(frozen=True, slots=True)
class CeilingHit:
    """When spend plus reserve meet the ceiling if nothing changes."""

    met: Met
    tokens_total: int | None = None  # None: the run's speed is unknown or zero.
    tokens_between: tuple[int, int] | None = None  # None: too few windows.
    # Whether the ceiling comes before the last token: with an interval, where all of it lies on one side. None: it does
    # not, or the number of tokens is unknown.
    before_end: bool | None = None


def ceiling_hit(
    met: Met, *, tokens_total: int | None, speed: Speed | None, tokens_per_s: float | None, tokens_goal: int | None
) -> CeilingHit:
    """`tokens_per_s`: of the last steps, which counts until there are windows enough."""
    within = None
    if speed is not None and speed.hours.known >= WINDOWS_MIN and speed.tokens_per_s is not None:
        tokens_per_s, within = speed.tokens_per_s, speed.tokens_within(met.after_ns / NS_PER_HOUR)
    if tokens_total is None or tokens_per_s is None:
        return CeilingHit(met)
    ahead = tokens_per_s * met.after_ns / NS_PER_S if within is None else within.mid
    # Step times can be as small as a float allows. NaN and infinity fail too.
    if not ahead < COUNT_MAX:
        return CeilingHit(met, before_end=None if tokens_goal is None else False)
    then = tokens_total + int(ahead)
    between = None if within is None else _between(within, tokens_per_s, met)
    if between is None:
        # Where there are windows enough and no interval, they say nothing of the end.
        ends = [tokens_total + int(tokens_per_s * ns / NS_PER_S) for ns in (met.low_ns, met.high_ns)]
        return CeilingHit(met, then, None, _side(ends, tokens_goal) if within is None else None)
    low, high = (tokens_total + int(end) for end in between)
    return CeilingHit(met, then, (low, high), _side((low, high), tokens_goal))


def _side(ends: Iterable[int], tokens_goal: int | None) -> bool | None:
    """Whether all of it lies before the goal. None: the goal lies inside, or there is none."""
    sides = set() if tokens_goal is None else {end < tokens_goal for end in ends}
    return sides.pop() if len(sides) == 1 else None


def _between(ahead: Interval, tokens_per_s: float, met: Met) -> tuple[float, float] | None:
    if ahead.low is None or ahead.high is None:
        return None
    earlier, later = (tokens_per_s * ns / NS_PER_S for ns in (met.after_ns - met.low_ns, met.high_ns - met.after_ns))
    low, high = math.hypot(ahead.mid - ahead.low, earlier), math.hypot(ahead.high - ahead.mid, later)
    return (max(0.0, ahead.mid - low), ahead.mid + high) if ahead.mid + high < COUNT_MAX else None


@dataclass(frozen=True, slots=True)
class CeilingReport:
    """The last alarm that the ceiling comes before the end of the run (core.engine.run_forecast).

    Stored with the run, so that the next governor does not repeat the alarm.
    """

    ceiling_usd_micros: int
    tokens_goal: int | None  # Of the policy. What a schedule of steps comes to is an estimate.
    rate_usd_micros_per_hour: int
    day: int | None = None  # Days since 1970, for a ceiling that resets each day.
    steps_goal: int | None = None  # Of the trainer.

    def row(self) -> list[int | None]:
        goal = self.tokens_goal
        return [self.ceiling_usd_micros, goal, self.rate_usd_micros_per_hour, self.day, self.steps_goal]


def ceiling_report_of(row: Any) -> CeilingReport:
    """Read what `CeilingReport.row` wrote; TypeError or ValueError when it is something else."""
    ceiling, goal, rate, day, steps = (*row, None, None)[:5]  # Old journals have no steps, and older ones no day.
    goal, day, steps = (None if value is None else int(value) for value in (goal, day, steps))
    return CeilingReport(int(ceiling), goal, int(rate), day, steps)
