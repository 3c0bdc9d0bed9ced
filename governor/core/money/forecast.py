"""What is left of a run, in hours and dollars, with an interval; and how many tokens a time is enough for.

The remaining tokens are counted as more windows like the recent ones (core.money.token_windows). The interval is
Student's t for the difference between the mean of that many future windows and that of the past ones, 80 % two-sided.
Neighbouring windows resemble each other, so both means vary as those of a first-order autoregressive series do (r:
lag-1 correlation). Few windows show too small an r and too small a spread, and both are corrected for that. An r that
looks negative counts as such: with none below zero, chance could only widen. Simulated, 75 to 85 % of runs lie inside
for r of 0, 0.3 and 0.6 alike, from five windows on; three or four hardly tell one r from another (74 to 88 %). Saves
at regular distances and a trend are taken out before (core.money.series). Dollars are the hours at the present rate: a
price that has changed counts at once.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR
from governor.core.money.series import (
    CORRELATION_MAX,
    Cycle,
    Trend,
    correlation,
    cycle_of,
    faded,
    inflation,
    t_90,
    trend_of,
    variance,
    without,
)
from governor.core.money.token_windows import Window

# A run's speed of yesterday says little about the next hour; its last 50M tokens say more.
RECENT_WINDOWS: Final = 50
WINDOWS_MIN: Final = 3  # Two windows give no spread, so only the middle is given.
CORRELATION_MIN: Final = -0.5
# What the corrections leave: an interval from n windows is wider by this over n squared (fitted by simulation).
FEW_WIDER: Final = 3.0
# An end so many times beyond the middle says that nothing is known.
BEYOND_MAX: Final = 16
HALVINGS: Final = 20  # To a millionth of the interval.
# A trend goes on for so many times the windows that show it, until one takes so many times as long or so small a part.
FOLLOWED: Final = 4
TIMES_MAX: Final = 2.0


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


@dataclass(frozen=True, slots=True)
class Sample:
    """What a quantity of past windows says of as many more as one asks for, not necessarily a whole number."""

    known: int
    mean: float  # With what the cycle adds.
    r: float = 0.0
    # The half width is this times the root of a variance: of their mean and of that of the coming ones, less what both
    # share, since the last past windows resemble the first future ones. That of single windows is 1.
    width: float = 0.0
    own: float = 0.0
    shared: float = 0.0
    trend: Trend | None = None
    cycle: Cycle | None = None

    def total(self, future: float) -> Interval:
        """The sum over so many more windows."""
        if self.known < WINDOWS_MIN or future == 0:
            return Interval(self.mean * future, *((0.0, 0.0) if future == 0 else (None, None)))
        low, high = self._ends(future)
        return Interval(min(max(low, self.pace * future + self._ahead), high), low, high)

    def count_within(self, total: float) -> Interval:
        """How many more windows sum up to `total`: `total` is the high end of the fewest, and the low end of the most.

        The mean is above zero. Without both ends where the most may be any number.
        """
        usual = total / self.mean
        if self.known < WINDOWS_MIN or total <= 0:
            return Interval(max(0.0, usual), *((0.0, 0.0) if total <= 0 else (None, None)))
        middle = max(0.0, total - self._ahead) / self.pace
        beyond = max(usual, middle)
        while self._ends(beyond)[0] < total:
            beyond *= 2
            if beyond > BEYOND_MAX * usual:
                return Interval(middle)
        fewest = _where(lambda count: self._ends(count)[1] >= total, 0.0, middle)
        most = _where(lambda count: self._ends(count)[0] >= total, middle, beyond)
        return Interval(middle, fewest, most)

    @property
    def pace(self) -> float:
        """What one takes now: the mean, or where a trend has come to."""
        return self.mean + (0.0 if self.trend is None else self._within(self.trend.slope * self.known / 2))

    @property
    def _ahead(self) -> float:
        return 0.0 if self.cycle is None else self.cycle.ahead

    def _ends(self, future: float) -> tuple[float, float]:
        """Of the sum of so many more windows. A trend leads from one to the other."""
        middle, spread = self.mean * future + self._ahead, self._spread(future) * future
        if self.cycle is not None:
            spread = math.hypot(spread, self.cycle.spread(self.known, max(1.0, future)))
        below = above = 0.0
        if self.trend is not None:
            followed = min(future, FOLLOWED * self.known)
            share = followed / max(1.0, future)
            far = self._within(self.trend.steepest * (self.known / 2 + followed * (1 - share / 2))) * future
            below, above = min(0.0, far), max(0.0, far)
        return max(0.0, middle + below - spread), middle + above + spread

    def _within(self, rise: float) -> float:
        return min(max(rise, self.mean * (1 / TIMES_MAX - 1)), self.mean * (TIMES_MAX - 1))

    def _spread(self, future: float) -> float:
        """Of the mean of so many more windows around that of the past ones, to one side."""
        ahead = max(1.0, future)
        new = (1 - faded(self.r, ahead)) / ahead
        varies = ((1 + self.r) / (1 - self.r) - 2 * self.r * new / (1 - self.r) ** 2) / ahead
        return self.width * math.sqrt(self.own + varies - self.shared * new)


def patterned(per_window: Sequence[float]) -> Sample:
    """With a cycle and a trend, where they are seen."""
    known, cycle = len(per_window), cycle_of(per_window)
    at = () if cycle is None else cycle.at
    usual = without(per_window, at)
    trend = trend_of([(index, value) for index, value in enumerate(per_window) if index not in at])
    if trend is None:
        plain = sample_of(usual)
    else:
        plain = autoregressive(len(usual), statistics.fmean(usual), trend.deviation, trend.r)
    mean = plain.mean if cycle is None else plain.mean + cycle.size / cycle.gap
    return replace(plain, known=known, mean=mean, trend=trend, cycle=cycle)


def sample_of(per_window: Sequence[float], correlation_min: float = CORRELATION_MIN) -> Sample:
    known, mean = len(per_window), statistics.fmean(per_window)
    if known < WINDOWS_MIN:
        return Sample(known, mean)
    r = min(max(correlation(per_window), correlation_min), CORRELATION_MAX)
    # Windows that resemble each other lie closer together than those of a long series do.
    deviates = variance(per_window) * (known - 1) / (known - inflation(r, known))
    return autoregressive(known, mean, math.sqrt(deviates), r)


def autoregressive(known: int, mean: float, deviation: float, r: float) -> Sample:
    """Of windows with this deviation and lag-1 correlation in a long series."""
    inflated = inflation(r, known)
    width = deviation * (1 + FEW_WIDER / known**2) * t_90(known / max(1.0, inflated) - 1)
    return Sample(known, mean, r, width, inflated / known, 2 * r * (1 - faded(r, known)) / (known * (1 - r) ** 2))


def total_ahead(per_window: Sequence[float], future: float) -> Interval:
    """The sum of a quantity over `future` more windows, from its values in past ones.

    Steps are windows too (core.rules.triggers.gate). That asks again and again, so chance narrows no interval for it.
    """
    return sample_of(per_window, correlation_min=0.0).total(future)


@dataclass(frozen=True, slots=True)
class Speed:
    """Of recent windows, with the pauses between them."""

    window_tokens: float  # Of one of them.
    hours: Sample

    @property
    def tokens_per_s(self) -> float | None:
        """None when they took no time."""
        return self.window_tokens / (self.hours.pace * 3600) if self.hours.mean > 0 else None

    def ahead(self, tokens_left: int) -> Forecast:
        left = max(0, tokens_left)
        return Forecast(left, self.hours.total(left / self.window_tokens), self.hours.known)

    def tokens_within(self, hours: float) -> Interval | None:
        """What is trained in a time. None when the windows took none."""
        return self.hours.count_within(hours).times(self.window_tokens) if self.hours.mean > 0 else None


def speed_of(recent: Sequence[Window], began_tokens: int | None = None) -> Speed | None:
    """None without a window. `recent` is oldest first; only the last RECENT_WINDOWS count.

    Windows in which an attempt began are left out: a start is no speed, and how often another comes nobody knows. So is
    the run's first, which begins at `began_tokens`. While there is no other, the steps after the first of an attempt
    speak. None also where there are none. Time that nobody paid for is no part of it.
    """
    windows = [window for window in tuple(recent)[-RECENT_WINDOWS:] if window.tokens > 0]
    if len(windows) > 1 and windows[0].from_tokens == began_tokens:
        windows = windows[1:]
    took = [(window.tokens, window.duration_ns) for window in windows if not window.has_start]
    took = took or [(window.steady_tokens, window.steady_ns) for window in windows if window.steady_tokens]
    if not took:
        return None
    size = sum(tokens for tokens, _ in took) / len(took)
    return Speed(size, patterned([duration_ns / NS_PER_HOUR / tokens * size for tokens, duration_ns in took]))


def forecast(recent: Sequence[Window], tokens_left: int, began_tokens: int | None = None) -> Forecast | None:
    """Of so many tokens at the speed of these windows; None where that is unknown."""
    speed = speed_of(recent, began_tokens)
    return None if speed is None else speed.ahead(tokens_left)


def _where(is_beyond: Callable[[float], bool], low: float, high: float) -> float:
    """The count from which it is beyond, between one where it is not and one where it is."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_beyond(middle) else (middle, high)
    return high
