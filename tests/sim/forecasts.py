"""Do the forecasts hold what they promise? Of seeded runs whose truth is known, 80 % are to lie inside the intervals.

A run's windows are first-order autoregressive in their time. It tells some of them, and the forecast is asked how long
so many more take, and how many tokens the run has trained when it meets its ceiling. Another run saves every so often,
and meets its ceiling where spend and a reserve that grows with the unsaved work reach it: when?
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from governor.core.base.units import MTOK, NS_PER_HOUR, NS_PER_S, DurationNs, UsdMicros
from governor.core.money.ceiling_forecast import Met, ReserveGrowth, ceiling_hit
from governor.core.money.forecast import forecast, speed_of
from governor.core.money.token_windows import Window

WINDOW_S, NOISE_S = 60.0, 3.0
KNOWN = (4, 6, 8, 10, 20, 50)
CORRELATIONS = (0.0, 0.3, 0.6)
RATE = UsdMicros(NS_PER_HOUR // 1_000_000)  # A micro-dollar each millisecond.
FUTURES = (20, 100)
CHANCES = (0.75, 0.85)  # What counts as 80 %.


def windows(seconds: Iterable[float], usd_micros_per_s: int = 1000) -> list[Window]:
    """Of a million tokens each."""
    return [
        Window(low, low + MTOK, DurationNs(int(s * NS_PER_S)), UsdMicros(int(s * usd_micros_per_s)), 0)
        for low, s in ((index * MTOK, s) for index, s in enumerate(seconds))
    ]


def times(dice: random.Random, count: int, correlation: float) -> list[float]:
    level, seconds = dice.gauss(0, NOISE_S / (1 - correlation**2) ** 0.5), []
    for _ in range(count):
        seconds.append(WINDOW_S + level)
        level = correlation * level + dice.gauss(0, NOISE_S)
    return seconds


@dataclass(frozen=True, slots=True)
class Coverage:
    """The shares of the runs whose truth lies inside."""

    known: int
    correlation: float
    runs: int
    hours_left: float
    ceiling_tokens: float


def coverage(
    seed: int, known: int, future: int, correlation: float, *, runs: int = 1_000, start_up_s: float | None = None
) -> Coverage:
    """Of runs that have told `known` windows and go on for `future` more; the first may have a start-up in it.

    Their ceilings lie so far that a run of usual speed would meet them when it is done.
    """
    dice, hours, tokens = random.Random(seed), 0, 0
    for _ in range(runs):
        seconds = times(dice, known + 3 * future // 2 + 20, correlation)
        past, began = seconds[:known], None
        if start_up_s is not None:
            past, began = [WINDOW_S + start_up_s, *past], 0
        known_windows = windows(past)
        told = forecast(known_windows, future * MTOK, began)
        assert told is not None
        left = told.hours_left
        if left.low is not None and left.high is not None:
            hours += left.low <= sum(seconds[known : known + future]) / 3600 <= left.high
        hit = ceiling_hit(
            room_usd_micros=round(future * WINDOW_S * 1_000), rate_usd_micros_per_hour=RATE, tokens_total=0,
            speed=speed_of(known_windows, began), tokens_per_s=None, tokens_goal=None, growth=ReserveGrowth(),
        )  # fmt: skip
        assert hit is not None
        if hit.tokens_between is not None:
            tokens += hit.tokens_between[0] <= trained(seconds[known:], future * WINDOW_S) <= hit.tokens_between[1]
    return Coverage(known, correlation, runs, hours / runs, tokens / runs)


def trained(seconds: Iterable[float], within_s: float) -> float:
    """How many tokens are trained in this time."""
    done = 0.0
    for took in seconds:
        if took >= within_s:
            return (done + within_s / took) * MTOK
        within_s, done = within_s - took, done + 1
    raise AssertionError("the simulated run is too short")


@dataclass(frozen=True, slots=True)
class Saver:
    """It saves about every `cycle_s`. A halt waits for a save as long as the last one is ago, at most `bound_s`."""

    cycle_s: float
    bound_s: float
    jitter: float  # Of a cycle, as a part of it.

    def met_s(self, dice: random.Random, last_save_s: float, room_s: float) -> float:
        """When spend and reserve reach the ceiling, which alone lasts for `room_s`."""
        begun = last_save_s
        while True:
            ends = begun + self.cycle_s * (1 + dice.gauss(0, self.jitter))
            # Spend and reserve grow alike from `begun` on, until the reserve has its bound.
            at = max((room_s + begun) / 2, room_s - self.bound_s)
            if at < ends:
                return max(at, begun)
            begun = ends


def met_coverage(seed: int, saver: Saver, cycles_ahead: float, runs: int = 1_000) -> tuple[float, float]:
    """The share of runs that meet their ceiling inside the told interval, and the mean width in cycles."""
    dice, inside, width_s = random.Random(seed), 0, 0.0
    for _ in range(runs):
        ago_s = saver.cycle_s * dice.random()
        room_s = saver.cycle_s * (cycles_ahead + dice.random()) + 2 * saver.bound_s
        told = told_met(saver, ago_s, room_s)
        # A room of whole micro-dollars ends within two milliseconds.
        low_s, high_s = told.low_ns / NS_PER_S - 0.002, told.high_ns / NS_PER_S + 0.002
        inside += low_s <= saver.met_s(dice, -ago_s, room_s) <= high_s
        width_s += high_s - low_s
    return inside / runs, width_s / runs / saver.cycle_s


def told_met(saver: Saver, ago_s: float, room_s: float) -> Met:
    """What the governor says where the last save was so long ago."""
    held_s = min(saver.bound_s, ago_s)
    most_s = saver.bound_s - held_s
    ns = [round(s * NS_PER_S) for s in (most_s, held_s, saver.cycle_s - ago_s, saver.cycle_s)]
    return ReserveGrowth(*ns).met(round((room_s - held_s) * 1_000), RATE)


def all_coverages(runs: int, seed: int = 0) -> list[Coverage]:
    """In all so many runs, over the numbers of known windows and the correlations."""
    cells = list(product(KNOWN, CORRELATIONS, FUTURES))
    bounds = [runs * index // len(cells) for index in range(len(cells) + 1)]
    told = [
        coverage(seed + index, known, future, correlation, runs=max(1, high - low))
        for index, ((known, correlation, future), (low, high)) in enumerate(zip(cells, pairwise(bounds), strict=True))
    ]
    return [_together(pair) for pair in zip(told[::2], told[1::2], strict=True)]


def _together(cells: Sequence[Coverage]) -> Coverage:
    runs = sum(one.runs for one in cells)
    hours, tokens = (
        sum(getattr(one, name) * one.runs for one in cells) / runs for name in ("hours_left", "ceiling_tokens")
    )
    return Coverage(cells[0].known, cells[0].correlation, runs, hours, tokens)


def coverage_table(told: Sequence[Coverage]) -> list[str]:
    """A line for each number of windows, and the sum, for people."""
    lines = [f"{'':15}TIME LEFT, BY CORRELATION   TOKENS AT THE CEILING", _line("KNOWN WINDOWS", *CORRELATIONS * 2)]
    for known in KNOWN:
        row = [one for one in told if one.known == known]
        shares = [*(one.hours_left for one in row), *(one.ceiling_tokens for one in row)]
        lines.append(_line(known, *(f"{share:.1%}" for share in shares)))
    whole = _together(told)
    return [*lines, _line("all", "", "", f"{whole.hours_left:.1%}", "", "", f"{whole.ceiling_tokens:.1%}")]


def _line(first: object, *others: object) -> str:
    return f"{first:>13}" + "".join(f"{other:>8}" + "  " * (index == 2) for index, other in enumerate(others))


def miss(told: Sequence[Coverage]) -> bool:
    """Whether the runs together are not inside as often as promised."""
    whole = _together(told)
    return not all(CHANCES[0] <= share <= CHANCES[1] for share in (whole.hours_left, whole.ceiling_tokens))
