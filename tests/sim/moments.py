"""When is a ceiling met? Between both ends that were told: with a rhythm of saves in eight of ten runs, without in all.

Spend and a reserve that grows with the unsaved work reach the ceiling. Of runs that save at all, and at any moments.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from governor.core.base.units import NS_PER_S
from governor.core.money.ceiling_forecast import Met, ReserveGrowth
from tests.sim.forecasts import RATE, Saver, met_coverage

LEAST_S = 1.0  # A halt waits for an answer so long, right after a save too.
JITTER_MAX = 0.1  # Saves that come less regularly have no rhythm.
GRID_S = 0.002  # A room of whole micro-dollars ends within two milliseconds.
BOUND_S = 100.0
SAVERS: dict[str, Saver] = {
    "a save in each tenth of the longest halt": Saver(BOUND_S / 10, BOUND_S, 0.05),
    "a save in half of it": Saver(BOUND_S / 2, BOUND_S, 0.05),
    "a save in all of it": Saver(BOUND_S, BOUND_S, 0.05),
    "a save in twice as long": Saver(2 * BOUND_S, BOUND_S, 0.05),
    "a save in ten times as long": Saver(10 * BOUND_S, BOUND_S, 0.05),
    "saves at any moment": Saver(BOUND_S, BOUND_S, 0.5),
}


@dataclass(frozen=True, slots=True)
class Moments:
    """The shares of the runs that meet their ceiling inside, and the interval's width over the longest halt."""

    rhythm: float | None  # None: the saves have none.
    rhythm_width: float
    unknown: float  # While no rhythm of the saves is known.
    unknown_width: float
    early: float  # Of these, at the early end, as no save came before.


def without_rhythm(room_s: float, ago_s: float, bound_s: float) -> Met:
    """What the governor says before the second save, where the room has the reserve of now in it."""
    held_s = min(bound_s, max(LEAST_S, ago_s))
    most, held, least = (round(s * NS_PER_S) for s in (bound_s - held_s, held_s, LEAST_S))
    return ReserveGrowth(most, held, least_ns=least).met(round((room_s - held_s) * 1_000), RATE)


def met_s(saver: Saver, dice: random.Random, ago_s: float, room_s: float) -> float:
    """When spend and the reserve, which is never below the least, reach the ceiling. It has room for a halt now."""
    begun = -ago_s
    while True:
        ends = begun + max(saver.cycle_s * (1 + dice.gauss(0, saver.jitter)), LEAST_S)
        at = min(room_s - LEAST_S, max((room_s + begun) / 2, room_s - saver.bound_s))
        if at < max(0.0, ends):
            return max(0.0, at, begun)
        begun = max(0.0, ends)


def moments(seed: int, saver: Saver, runs: int) -> Moments:
    dice, inside, early, width_s = random.Random(seed), 0, 0, 0.0
    for _ in range(runs):
        ago_s = saver.cycle_s * dice.random()
        room_s = saver.bound_s * (1 + 10 * dice.random())
        told = without_rhythm(room_s, ago_s, saver.bound_s)
        low_s, high_s = told.low_ns / NS_PER_S, told.high_ns / NS_PER_S
        truth_s = met_s(saver, dice, ago_s, room_s)
        inside += low_s - GRID_S <= truth_s <= high_s + GRID_S
        early += abs(truth_s - low_s) <= GRID_S
        width_s += high_s - low_s
    rhythm, cycles = met_coverage(seed, saver, 3.0, runs)
    of_bound = saver.cycle_s / saver.bound_s
    known = rhythm if saver.jitter <= JITTER_MAX else None
    return Moments(known, cycles * of_bound, inside / runs, width_s / runs / saver.bound_s, early / runs)


def all_moments(runs: int, seed: int = 0) -> dict[str, Moments]:
    return {name: moments(seed + place, saver, runs) for place, (name, saver) in enumerate(SAVERS.items())}


def moment_table(told: dict[str, Moments]) -> list[str]:
    lines = [
        f"{'':41}WITH A RHYTHM      BEFORE THE SECOND SAVE",
        f"{'':41}INSIDE   WIDTH     INSIDE   WIDTH   AT THE EARLY END",
    ]
    lines += [
        f"{name:41}"
        + (f"{one.rhythm:6.1%}  {one.rhythm_width:6.2f}" if one.rhythm is not None else f"{'-':>6}  {'-':>6}")
        + f"    {one.unknown:7.1%}  {one.unknown_width:6.2f}{one.early:19.1%}"
        for name, one in told.items()
    ]
    return lines


def outside(told: dict[str, Moments]) -> Sequence[str]:
    """Of which savers a run without a rhythm has met its ceiling elsewhere than between both ends."""
    return [name for name, one in told.items() if one.unknown < 1]
