"""A ceiling is one: what had been spent when billing ended, by the provider's book, in simulated schedules.

`make sim-ceiling` plays 10,000 of them.
"""

from __future__ import annotations

from tests.sim.ceiling import CeilingDriver, play, summary
from tests.sim.test_sim import fresh_seeds

SEEDS = [*range(200), *fresh_seeds()[:100]]


def test_no_run_passes_its_ceiling_while_everybody_keeps_to_what_they_declared() -> None:
    told = summary(play(seed) for seed in SEEDS)
    assert told.answered_for > len(SEEDS) // 4
    assert told.over == ()
    assert told.over_excused > 0, "no provider was slow enough to show that the world can take a run above it"
    assert told.silent == (), "above the ceiling, and the incident does not say why"
    assert told.over_by_price, "no price rose far enough to show that one can take a run above it"
    assert told.unnamed == (), "a price rose inside the reserve's window, and the incident does not say so"
    assert told.unused_by_reserve < 1, "a reserve that is never used is a lower ceiling than was asked for"


def test_not_even_where_everything_takes_as_long_as_it_may() -> None:
    told = summary(play(seed, slowest=True) for seed in SEEDS[:40])
    assert told.answered_for == told.runs
    assert told.over == ()
    assert told.unused_by_reserve < 0.01, "the slowest halt uses nearly all of its reserve"


class Forgetful(CeilingDriver):
    forgotten_ns = 1_000_000_000


def test_a_reserve_that_is_a_second_short_is_noticed() -> None:
    told = summary(play(seed, slowest=True, make_driver=Forgetful) for seed in SEEDS[:40])
    assert len(told.over) > 30


class WithoutDisks(CeilingDriver):
    forgets_disks = True


def test_a_reserve_that_leaves_a_line_out_is_noticed() -> None:
    told = summary(play(seed, slowest=True, make_driver=WithoutDisks) for seed in SEEDS[:40])
    assert len(told.over) > 10
