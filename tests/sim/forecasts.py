"""Do the forecasts hold what they promise? Of seeded runs whose truth is known, 80 % are to lie inside the intervals.

A run's windows are first-order autoregressive in their time, or have a shape (`SHAPES`: saves, a trend, rare heavy
windows). It tells some of them, and the forecast is asked how long so many more take, and how many tokens the run has
trained when it meets its ceiling. Another run saves every so often,
and meets its ceiling where spend and a reserve that grows with the unsaved work reach it: when?
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
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
SHAPES_KNOWN = (10, 20, 50)
# The seconds of the known windows and of three times as many as are to come.
Shape = Callable[[random.Random, int, int], list[float]]


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


def saves(every: float, jitter: float = 0.0) -> Shape:
    """After so many windows, which are no whole number, one takes two and a half times as long."""

    def shape(dice: random.Random, known: int, future: int) -> list[float]:
        seconds, at = _even(dice, known + 3 * future), every * dice.random()
        while at < len(seconds):
            seconds[int(at)] += 1.5 * WINDOW_S
            at += every * max(0.1, 1 + dice.gauss(0, jitter))
        return seconds

    return shape


def by_chance(share: float, least_s: float, tail: float) -> Shape:
    """So many windows take so much longer, and a few of them far more (Pareto)."""

    def shape(dice: random.Random, known: int, future: int) -> list[float]:
        return [
            s + (least_s * dice.paretovariate(tail) if dice.random() < share else 0.0)
            for s in _even(dice, known + 3 * future)
        ]

    return shape


def drifts(by: float) -> Shape:
    """Evenly, over all windows."""

    def shape(dice: random.Random, known: int, future: int) -> list[float]:
        ends = known + future
        return [s + WINDOW_S * by * min(1.0, at / ends) for at, s in enumerate(_even(dice, known + 3 * future))]

    return shape


def shifts(by: float) -> Shape:
    """At once, somewhere in the middle of the known windows."""

    def shape(dice: random.Random, known: int, future: int) -> list[float]:
        since = known * dice.uniform(0.2, 0.8)
        return [s + WINDOW_S * by * (at >= since) for at, s in enumerate(_even(dice, known + 3 * future))]

    return shape


def swings(dice: random.Random, known: int, future: int) -> list[float]:
    begins = 2 * math.pi * dice.random()
    return [
        s + WINDOW_S * 0.1 * math.sin(begins + 2 * math.pi * at / 200)
        for at, s in enumerate(_even(dice, known + 3 * future))
    ]


def _even(dice: random.Random, count: int) -> list[float]:
    return [WINDOW_S + dice.gauss(0, 0.4 * NOISE_S) for _ in range(count)]


SHAPES: dict[str, Shape] = {
    "a save in each 4th window": saves(4),
    "a save in each 7th window": saves(7),
    "a save every 3.3 windows": saves(3.3),
    "a save every 9 windows or so": saves(9, 0.1),
    "a save in each 25th window": saves(25),
    "30 % slower in the end": drifts(0.3),
    "20 % faster in the end": drifts(-0.2),
    "5 % slower in the end": drifts(0.05),
    "30 % slower since a moment": shifts(0.3),
    "5 % faster since a moment": shifts(-0.05),
    "heavy windows, one in 10": by_chance(0.1, 30.0, 2.5),
    "heavy windows, one in 33": by_chance(0.03, 30.0, 2.5),
    "long stalls, one in 50": by_chance(0.02, 600.0, 50.0),
    "a rhythm of 200 windows": swings,
    "correlation 0.9": lambda dice, known, future: times(dice, known + 3 * future, 0.9),
}


@dataclass(frozen=True, slots=True)
class Coverage:
    """The shares of the runs whose truth lies inside."""

    known: int
    correlation: float
    runs: int
    hours_left: float
    ceiling_tokens: float
    half_width: float = 0.0  # Of the interval of the time left, as a part of its middle: the median.


def coverage(
    seed: int,
    known: int,
    future: int,
    correlation: float = 0.0,
    *,
    shape: Shape | None = None,
    runs: int = 1_000,
    start_up_s: float | None = None,
) -> Coverage:
    """Of runs that have told `known` windows and go on for `future` more; the first may have a start-up in it.

    Their ceilings lie so far that a run of usual speed would meet them when it is done.
    """
    dice, hours, tokens, widths = random.Random(seed), 0, 0, []
    for _ in range(runs):
        if shape is None:
            seconds = times(dice, known + 3 * future // 2 + 20, correlation)
        else:
            seconds = shape(dice, known, future)
        past, began = seconds[:known], None
        if start_up_s is not None:
            past, began = [WINDOW_S + start_up_s, *past], 0
        known_windows = windows(past)
        told = forecast(known_windows, future * MTOK, began)
        assert told is not None
        left = told.hours_left
        if left.low is not None and left.high is not None:
            hours += left.low <= sum(seconds[known : known + future]) / 3600 <= left.high
            widths.append((left.high - left.low) / 2 / left.mid)
        hit = ceiling_hit(
            ReserveGrowth().met(round(future * WINDOW_S * 1_000), RATE), tokens_total=0,
            speed=speed_of(known_windows, began), tokens_per_s=None, tokens_goal=None,
        )  # fmt: skip
        if hit.tokens_between is not None:
            tokens += hit.tokens_between[0] <= trained(seconds[known:], future * WINDOW_S) <= hit.tokens_between[1]
    return Coverage(known, correlation, runs, hours / runs, tokens / runs, statistics.median(widths))


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
    hours, tokens, width = (
        sum(getattr(one, name) * one.runs for one in cells) / runs
        for name in ("hours_left", "ceiling_tokens", "half_width")
    )
    return Coverage(cells[0].known, cells[0].correlation, runs, hours, tokens, width)


def coverage_table(told: Sequence[Coverage]) -> list[str]:
    """A line for each number of windows, and the sum, for people."""
    lines = [f"{'':15}TIME LEFT, BY CORRELATION   TOKENS AT THE CEILING", _line("KNOWN WINDOWS", *CORRELATIONS * 2)]
    for known in KNOWN:
        row = [one for one in told if one.known == known]
        shares = [*(one.hours_left for one in row), *(one.ceiling_tokens for one in row)]
        lines.append(_line(known, *(f"{share:.1%}" for share in shares)))
    whole = _together(told)
    return [*lines, _line("all", "", "", f"{whole.hours_left:.1%}", "", "", f"{whole.ceiling_tokens:.1%}")]


def all_shapes(runs: int, seed: int = 0) -> dict[str, list[Coverage]]:
    """Of so many runs for each shape and number of windows."""
    told: dict[str, list[Coverage]] = {name: [] for name in SHAPES}
    for index, ((name, shape), known) in enumerate(product(SHAPES.items(), SHAPES_KNOWN)):
        dice = random.Random(seed + index)
        cells = [
            coverage(seed + index + 1_000 * part, known, dice.randint(*FUTURES), shape=shape, runs=max(1, runs // 20))
            for part in range(20)
        ]
        told[name].append(_together(cells))
    return told


def shape_table(told: dict[str, list[Coverage]]) -> list[str]:
    lines = [f"{'':30}TIME LEFT, BY KNOWN WINDOWS   TOKENS  HALF WIDTH"]
    lines.append(
        f"{'':30}" + "".join(f"{known:8}" for known in SHAPES_KNOWN) + f"{SHAPES_KNOWN[-1]:12}{SHAPES_KNOWN[-1]:12}"
    )
    for name, row in told.items():
        shares = "".join(f"{one.hours_left:8.0%}" for one in row)
        lines.append(f"{name:30}{shares}{row[-1].ceiling_tokens:12.0%}{row[-1].half_width:12.1%}")
    return lines


def _line(first: object, *others: object) -> str:
    return f"{first:>13}" + "".join(f"{other:>8}" + "  " * (index == 2) for index, other in enumerate(others))


def miss(told: Sequence[Coverage]) -> bool:
    """Whether the runs together are not inside as often as promised."""
    whole = _together(told)
    return not all(CHANCES[0] <= share <= CHANCES[1] for share in (whole.hours_left, whole.ceiling_tokens))
