"""Expected against actual cost of a stretch of training, beside its plan and its ceiling.

Ratios are exact fractions of integers; the display rounds them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, NS_PER_S, DurationNs, UsdMicros
from governor.core.money.token_price import over, per_mtok
from governor.core.money.token_windows import Window


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    """The plan of a run, from its present policy and schedule. None: not stated."""

    usd_micros_per_mtok: int | None = None  # While it trains.
    tokens_per_s: float | None = None  # Of the whole run.
    ceiling_usd_micros: int | None = None
    tokens_goal: int | None = None  # The run's total at its end.
    # Its total when metering began. The ceiling pays for the tokens after it.
    began_tokens: int = 0
    usd_micros_per_mtok_all_in: int | None = None  # With starts, pauses and halts.

    @property
    def tokens(self) -> int | None:
        """The tokens that the ceiling pays for; None also when the goal was reached before metering began."""
        if self.tokens_goal is None or self.tokens_goal <= self.began_tokens:
            return None
        return self.tokens_goal - self.began_tokens


def rate_of(window: Window) -> float | None:
    """Micro-dollars an hour, as the window was charged. None for one that took no time.

    Between two attempts the machine may have been nobody's, so the rest of the window speaks where there is any.
    """
    if window.has_start and window.steady_ns > 0:
        return window.steady_usd_micros * NS_PER_HOUR / window.steady_ns
    return window.usd_micros * NS_PER_HOUR / window.duration_ns if window.duration_ns else None


def burn_rate(price: Fraction | None, plan: ExpectedCost) -> Fraction | None:
    """$/1M tokens over what the ceiling allows for each. A run that stays at 1 ends exactly at its ceiling."""
    return over(price, per_mtok(plan.ceiling_usd_micros or 0, plan.tokens or 0))


@dataclass(frozen=True, slots=True)
class WindowRow:
    """A closed window with its plan, as the journal stores it: history needs no policy."""

    stage: str | None
    attempt: str
    window: Window
    plan: ExpectedCost


def window_row(row: WindowRow) -> dict[str, Any]:
    """The row as plain JSON; `row_of` reads it."""
    window, plan = row.window, row.plan
    return {
        "stage": row.stage,
        "attempt": row.attempt,
        "from_tokens": window.from_tokens,
        "to_tokens": window.to_tokens,
        "duration_ns": window.duration_ns,
        "usd_micros": window.usd_micros,
        "wasted_tokens": window.wasted_tokens,
        **(_start_row(window) if window.has_start else {}),
        "expected_usd_micros_per_mtok": plan.usd_micros_per_mtok,
        "expected_tokens_per_s": plan.tokens_per_s,
        "ceiling_usd_micros": plan.ceiling_usd_micros,
        "tokens_goal": plan.tokens_goal,
        "began_tokens": plan.began_tokens,
        **(
            {"expected_usd_micros_per_mtok_all_in": plan.usd_micros_per_mtok_all_in}
            if plan.usd_micros_per_mtok_all_in is not None
            else {}
        ),
        **({"unpriced": True} if window.is_unpriced else {}),
    }


def _start_row(window: Window) -> dict[str, int]:
    return {
        "start_ns": window.start_ns,
        "start_tokens": window.start_tokens,
        "start_usd_micros": window.start_usd_micros,
    }


def row_of(data: Mapping[str, Any]) -> WindowRow:
    """Read a row. KeyError, TypeError or ValueError when it is not a window row. Old rows carry no plan."""

    def whole(name: str) -> int | None:
        value = data.get(name)
        return None if value is None else int(value)

    speed = data.get("expected_tokens_per_s")
    stage = data["stage"]
    window = Window(
        from_tokens=int(data["from_tokens"]),
        to_tokens=int(data["to_tokens"]),
        duration_ns=DurationNs(int(data["duration_ns"])),
        usd_micros=UsdMicros(int(data["usd_micros"])),
        wasted_tokens=int(data["wasted_tokens"]),
        start_ns=DurationNs(whole("start_ns") or 0),
        start_tokens=whole("start_tokens") or 0,
        start_usd_micros=UsdMicros(whole("start_usd_micros") or 0),
        is_unpriced=bool(data.get("unpriced")),
    )
    if window.tokens <= 0:
        raise ValueError("a window without tokens")
    plan = ExpectedCost(
        usd_micros_per_mtok=whole("expected_usd_micros_per_mtok"),
        tokens_per_s=None if speed is None else float(speed),
        ceiling_usd_micros=whole("ceiling_usd_micros"),
        tokens_goal=whole("tokens_goal"),
        began_tokens=whole("began_tokens") or 0,
        usd_micros_per_mtok_all_in=whole("expected_usd_micros_per_mtok_all_in"),
    )
    return WindowRow(None if stage is None else str(stage), str(data["attempt"]), window, plan)


# The forecast: what is left of a run, in hours and dollars, with an interval; and when it meets its ceiling.
#
# The remaining tokens are counted as more windows like the recent ones (core.money.token_windows). The interval is
# Student's t for the difference between the mean of that many future windows and that of the past ones, 80 % two-sided.
# Neighbouring windows resemble each other, so both means vary as those of a first-order autoregressive series do (r:
# lag-1 correlation). Few windows show too small an r and too small a spread, and both are corrected for that. They say
# little of r all the same: of runs with four to ten windows 73 to 84 % lie inside where r is 0.3 or 0.6, and up to 89 %
# where windows are independent (simulated). Dollars are the hours at the present rate: a price that has changed counts
# at once.


# A run's speed of yesterday says little about the next hour; its last 50M tokens say more.
RECENT_WINDOWS: Final = 50
WINDOWS_MIN: Final = 3  # Two windows give no spread, so only the middle is given.
# A larger estimate comes from a speed that has changed for good more often than from a run that always wanders so.
CORRELATION_MAX: Final = 0.8
# The most that a frame can carry. A run of a million tokens per second needs 290,000 years for it.
TOKENS_MAX: Final = 2**63
# Student's t, 90th percentile, by degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2). In between it is nearly
# linear in their inverse.
_T_90: Final = (
    (1, 3.078), (2, 1.886), (3, 1.638), (4, 1.533), (5, 1.476), (6, 1.440), (7, 1.415), (8, 1.397), (9, 1.383),
    (10, 1.372), (12, 1.356), (15, 1.341), (20, 1.325), (30, 1.310), (60, 1.296), (120, 1.289),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """`low` to `high` with 80 % confidence; both None while there are too few windows."""

    mid: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Interval:
        low, high = (None if value is None else value * factor for value in (self.low, self.high))
        return Interval(self.mid * factor, low, high)


@dataclass(frozen=True, slots=True)
class Forecast:
    tokens_left: int
    hours_left: Interval
    windows: int  # The number of windows that it is made from.

    def cost_left(self, usd_micros_per_hour: int) -> Interval:
        """In dollars, at this rate."""
        return self.hours_left.times(usd_micros_per_hour / MICROS_PER_USD)

    @property
    def tokens_per_s(self) -> float | None:
        """Of the windows, with the pauses between them; None when nothing is left, or it takes no time."""
        hours = self.hours_left.mid
        return self.tokens_left / (hours * 3600) if self.tokens_left and hours > 0 else None


@dataclass(frozen=True, slots=True)
class CeilingHit:
    """When spend plus reserve meets the ceiling if nothing changes."""

    after_ns: DurationNs  # From now.
    tokens_total: int | None  # None: the run's speed is unknown or zero.
    # Whether the ceiling comes before the last token. None: the number of tokens is unknown.
    before_end: bool | None


@dataclass(frozen=True, slots=True)
class CeilingReport:
    """The last alarm that the ceiling comes before the end of the run (core.engine.run_forecast).

    Stored with the run, so that the next governor does not repeat the alarm.
    """

    ceiling_usd_micros: int
    tokens_goal: int | None
    rate_usd_micros_per_hour: int
    day: int | None = None  # Days since 1970, for a ceiling that resets each day.

    def row(self) -> list[int | None]:
        return [self.ceiling_usd_micros, self.tokens_goal, self.rate_usd_micros_per_hour, self.day]


def ceiling_report_of(row: Any) -> CeilingReport:
    """Read what `CeilingReport.row` wrote; TypeError or ValueError when it is something else."""
    ceiling, goal, rate, day = row if len(row) == 4 else (*row, None)  # Old journals have no day.
    return CeilingReport(
        int(ceiling), None if goal is None else int(goal), int(rate), None if day is None else int(day)
    )


def forecast(recent: Sequence[Window], tokens_left: int, began_tokens: int | None = None) -> Forecast | None:
    """None without a window. `recent` is oldest first; only the last RECENT_WINDOWS count.

    The run's first window begins at `began_tokens`. Its start-up comes once, so it is left out; while it is the only
    one, the steps after its first speak. None also where there are none. Time that nobody paid for is no part of it.
    """
    windows = [window for window in tuple(recent)[-RECENT_WINDOWS:] if window.tokens > 0]
    if not windows:
        return None
    later = [window for window in windows if window.from_tokens != began_tokens]
    if later or not windows[0].has_start:
        took = [(window.tokens, window.paid_ns) for window in later or windows]
    elif windows[0].steady_tokens:
        took = [(windows[0].steady_tokens, windows[0].steady_ns)]
    else:
        return None
    size = sum(tokens for tokens, _ in took) / len(took)
    future = max(0, tokens_left) / size
    hours = [duration_ns / NS_PER_HOUR / tokens * size for tokens, duration_ns in took]
    return Forecast(max(0, tokens_left), total_ahead(hours, future), len(took))


def total_ahead(per_window: Sequence[float], future: float) -> Interval:
    """The sum of a quantity over `future` more windows (not necessarily whole), from its values in past windows.

    Steps are windows too (core.rules.triggers.gate).
    """
    known = len(per_window)
    mean = statistics.fmean(per_window)
    if known < WINDOWS_MIN or future == 0:
        return Interval(mean * future, *((0.0, 0.0) if future == 0 else (None, None)))
    r = _correlation(per_window)
    ahead = max(1.0, future)
    inflated, inflated_ahead = _inflation(r, known), _inflation(r, ahead)
    # The last past windows resemble the first future ones.
    shared = 2 * r * (1 - r**known) * (1 - r**ahead) / (known * ahead * (1 - r) ** 2)
    # Windows that resemble each other lie closer together than those of a long series do.
    variance = statistics.variance(per_window) * (known - 1) / (known - inflated)
    spread = math.sqrt(variance * (inflated / known + inflated_ahead / ahead - shared)) * _t_90(known / inflated - 1)
    return Interval(mean * future, max(0.0, mean - spread) * future, (mean + spread) * future)


def _correlation(values: Sequence[float]) -> float:
    """Lag-1. That of a sample is below the true one by (1 + 3r)/n in the mean (Kendall 1954), which is taken back."""
    mean = statistics.fmean(values)
    around = [value - mean for value in values]
    square = sum(value * value for value in around)
    if square == 0:
        return 0.0
    lagged = sum(one * other for one, other in pairwise(around))
    known = len(values)
    return min(max((known * lagged / square + 1) / max(1, known - 3), 0.0), CORRELATION_MAX)


def _inflation(r: float, count: float) -> float:
    """How many times more the mean of so many neighbouring windows varies than that of independent ones."""
    faded: float = r**count
    return (1 + r) / (1 - r) - 2 * r * (1 - faded) / (count * (1 - r) ** 2)


def _t_90(freedom: float) -> float:
    above = next((row for row in _T_90 if row[0] >= freedom), _T_90[-1])
    below = next((row for row in reversed(_T_90) if row[0] <= freedom), _T_90[0])
    if above == below:
        return above[1]
    share = (1 / below[0] - 1 / freedom) / (1 / below[0] - 1 / above[0])
    return below[1] + share * (above[1] - below[1])


def after_growth_ns(room_usd_micros: int, rate_usd_micros_per_hour: int, reserve_grows_ns: int) -> DurationNs:
    """When this room is used up. The rate is above zero; for the growth see `ceiling_hit`."""
    alone_ns = max(0, room_usd_micros) * NS_PER_HOUR // rate_usd_micros_per_hour
    return DurationNs(max(alone_ns // 2, alone_ns - reserve_grows_ns))


def ceiling_hit(
    *,
    spend_usd_micros: UsdMicros,
    reserve_usd_micros: UsdMicros,
    ceiling_usd_micros: UsdMicros,
    rate_usd_micros_per_hour: UsdMicros,
    tokens_total: int | None,
    tokens_per_s: float | None,
    tokens_budget: int | None,
    reserve_grows_ns: int = 0,
) -> CeilingHit | None:
    """None when nothing is spent now: the ceiling is never met.

    Until `reserve_grows_ns` have passed, each moment adds to the reserve what it adds to the spend.
    """
    if rate_usd_micros_per_hour <= 0:
        return None
    room = ceiling_usd_micros - spend_usd_micros - reserve_usd_micros
    after_ns = after_growth_ns(room, rate_usd_micros_per_hour, reserve_grows_ns)
    if tokens_total is None or tokens_per_s is None:
        return CeilingHit(after_ns, None, None)
    ahead = tokens_per_s * after_ns / NS_PER_S
    # Step times can be as small as a float allows. NaN and infinity fail too.
    if not ahead < TOKENS_MAX:
        return CeilingHit(after_ns, None, None if tokens_budget is None else False)
    then = tokens_total + int(ahead)
    return CeilingHit(after_ns, then, None if tokens_budget is None else then < tokens_budget)
