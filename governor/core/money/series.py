"""What a series of windows shows: how much neighbours resemble each other, what comes back regularly, what goes on.

*Neighbours*: a first-order autoregressive series (r: lag-1 correlation).

*Cycle*: a run that saves or evaluates every so often has heavy windows at regular distances. To an autoregressive
series they are noise, and the interval was eight times too wide. So windows far above the median (by Hampel's rule: so
many times their median deviation) are set apart where their distances vary little, as in a renewal process: in the long
run the variance of a number of them is the windows over the mean distance, times the square of the distances' variation
(Cox, Renewal Theory, 1962, 4.2). Heavy windows that come by chance need nothing: what they do to the variance of single
windows is what a compound Poisson process has. Irregular ones stay, and with one or two it is not known which they are.

*Trend*: a straight line is fitted, and counts when its slope is too steep for chance, where neighbours resemble each
other as they do around it. Nobody knows whether it will go on or has ended with a new level. So it is the way from one
end of the interval to the other: from "it was chance" to "it goes on" (until the windows take twice or half as long).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

# A larger estimate comes from a speed that has changed for good more often than from a run that always wanders so.
CORRELATION_MAX: Final = 0.8
CYCLE_MIN: Final = 8  # Fewer windows show none.
TREND_MIN: Final = 12  # Fewer that resemble their neighbours look like one too often.
HEAVY: Final = 6.0  # Standard deviations above the median, told from the median deviation.
HEAVY_FRAC: Final = 0.01  # And at least so much of it: what is less makes no cycle worth telling.
BEATS_MIN: Final = 3  # Two heavy windows have one distance between them, which is always regular.
UNEVEN_MAX: Final = 0.1  # Square of the distances' variation. It is 1 where they come by chance.
ENDED: Final = 1.5  # So many distances without a heavy window end the cycle, or come before it.
ROUNDED: Final = 1 / 6  # The variance of whole windows around a distance that is none.
FOUR_FIFTHS: Final = 0.4  # To one side, of what is even over a width of one.
STEEP: Final = 2.3  # Standard errors. More with few windows, which show too small ones.
STEEP_FEW: Final = 4.0
# Of the end that a trend leads to: nobody is surprised at the other end, so 80 % are below it and not 90.
Z_80: Final = 0.842
Z_90: Final = 1.282
# Student's t, 90th percentile, by degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2). In between it is nearly
# linear in their inverse.
_T_90: Final = (
    (1, 3.078), (2, 1.886), (3, 1.638), (4, 1.533), (5, 1.476), (6, 1.440), (7, 1.415), (8, 1.397), (9, 1.383),
    (10, 1.372), (12, 1.356), (15, 1.341), (20, 1.325), (30, 1.310), (60, 1.296), (120, 1.289),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cycle:
    """Heavy windows that come regularly."""

    at: tuple[int, ...]  # Where, among the windows.
    gap: float  # From one to the next.
    size: float  # By so much one is above the others.
    ahead: float  # What the next ones take beyond their share, by where in the cycle the last window is.
    varies: float  # The variance that they add to each window's.

    def spread(self, known: int, future: float) -> float:
        """Of the sum of so many more windows, to one side."""
        by_chance = t_90(len(self.at) - 1) * math.sqrt(self.varies * future * (1 + future / known))
        # At the end a heavy one is in it or not; so were the first and the last, of which the distance is told.
        by_end = FOUR_FIFTHS * self.size
        by_gap = Z_90 * math.sqrt(ROUNDED) * self.size * future / self.gap / (self.at[-1] - self.at[0])
        return math.hypot(by_chance, by_end, by_gap)


def cycle_of(values: Sequence[float]) -> Cycle | None:
    known = len(values)
    if known < CYCLE_MIN:
        return None
    middle = statistics.median(values)
    usual = statistics.median(abs(value - middle) for value in values)
    limit = middle + max(HEAVY * 1.4826 * usual, HEAVY_FRAC * middle)
    at = tuple(index for index, value in enumerate(values) if value > limit)
    if len(at) < BEATS_MIN or 3 * len(at) > known:
        return None
    gaps = [later - earlier for earlier, later in pairwise(at)]
    gap, since = statistics.fmean(gaps), known - 1 - at[-1]
    uneven = max(0.0, variance(gaps) - ROUNDED) / gap**2
    if uneven > UNEVEN_MAX or max(at[0], since) > ENDED * gap:
        return None
    heavy = [values[index] for index in at]
    size = statistics.fmean(heavy) - statistics.fmean(without(values, at))
    varies = (variance(heavy) + uneven * size**2) / gap
    return Cycle(at, gap, size, size * (since - (gap - 1) / 2) / gap, varies)


def variance(values: Sequence[float]) -> float:
    """Of one more than these show (statistics.variance counts in fractions: exact, and ten times slower)."""
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def without(values: Sequence[float], at: Sequence[int]) -> list[float]:
    return [value for index, value in enumerate(values) if index not in at]


@dataclass(frozen=True, slots=True)
class Trend:
    slope: float  # So much longer does a window take than the one before.
    steepest: float  # That it may well be.
    deviation: float  # Of windows around the line, in a long series.
    r: float  # Their correlation.


def trend_of(points: Sequence[tuple[int, float]]) -> Trend | None:
    """None where chance is enough. The points are windows' places and values."""
    known = len(points)
    if known < TREND_MIN:
        return None
    place, mean = (statistics.fmean(values) for values in zip(*points, strict=True))
    square = sum((at - place) ** 2 for at, _ in points)
    slope = sum((at - place) * value for at, value in points) / square
    around = [value - mean - slope * (at - place) for at, value in points]
    # A line takes a mean's worth of correlation more away than a mean does.
    r = min(max(correlation(around, taken=2), 0.0), CORRELATION_MAX)
    inflated = inflation(r, known)
    deviates = sum(value * value for value in around) / max(1.0, known - 1 - inflated)
    error = math.sqrt(deviates * inflated / square)
    if abs(slope) <= STEEP * (1 + STEEP_FEW / known) * error:
        return None
    return Trend(slope, math.copysign(abs(slope) + Z_80 * error, slope), math.sqrt(deviates), r)


def correlation(values: Sequence[float], taken: int = 1) -> float:
    """Lag-1. That of a sample is below the true one by (1 + 3r)/n in the mean (Kendall 1954), which is taken back.

    Where a line was taken from them (`taken`: 2, a mean: 1), it is (2 + 4r)/n.
    """
    mean = statistics.fmean(values)
    around = [value - mean for value in values]
    square = sum(value * value for value in around)
    if square == 0:
        return 0.0
    lagged = sum(one * other for one, other in pairwise(around))
    known = len(values)
    return (known * lagged / square + taken) / max(1, known - taken - 2)


def inflation(r: float, count: float) -> float:
    """How many times more the mean of so many neighbouring windows varies than that of independent ones."""
    return (1 + r) / (1 - r) - 2 * r * (1 - faded(r, count)) / (count * (1 - r) ** 2)


def faded(r: float, count: float) -> float:
    """What is left of it after so many windows. A negative one alternates, between whole numbers smoothly."""
    left: float = abs(r) ** count
    return left if r >= 0 else left * math.cos(math.pi * count)


def t_90(freedom: float) -> float:
    above = next((row for row in _T_90 if row[0] >= freedom), _T_90[-1])
    below = next((row for row in reversed(_T_90) if row[0] <= freedom), _T_90[0])
    if above == below:
        return above[1]
    share = (1 / below[0] - 1 / freedom) / (1 / below[0] - 1 / above[0])
    return below[1] + share * (above[1] - below[1])
