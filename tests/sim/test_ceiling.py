"""A ceiling is one: what had been spent when billing ended, by the provider's book, in simulated schedules.

`make sim-ceiling` plays 10,000 of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.ceiling import CeilingDriver, Outcome, play, summary
from tests.sim.ceiling_sizes import page, sizes_of
from tests.sim.forecasts import KNOWN, all_coverages, all_shapes
from tests.sim.moments import all_moments, outside
from tests.sim.test_sim import fresh_seeds

SEEDS = [*range(200), *fresh_seeds()[:100]]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return [play(seed) for seed in SEEDS]


def test_no_run_passes_its_ceiling_while_everybody_keeps_to_what_they_declared(outcomes: list[Outcome]) -> None:
    told = summary(outcomes)
    assert told.answered_for > len(SEEDS) // 4
    assert told.over == ()
    assert told.over_excused > 0, "no provider was slow enough to show that the world can take a run above it"
    assert told.silent == (), "above the ceiling, and the incident does not say why"
    assert told.over_by_price, "no price rose far enough to show that one can take a run above it"
    assert told.unnamed == (), "a price rose inside the reserve's window, and the incident does not say so"
    assert told.unused_by_reserve < 1, "a reserve that is never used is a lower ceiling than was asked for"


PAGE = Path(__file__).resolve().parents[2] / "docs" / "why" / "ceilings.md"


def test_small_ceilings_are_of_use_and_the_page_that_says_how_much_is_this_programs(
    outcomes: list[Outcome],
) -> None:
    sizes = sizes_of(outcomes)
    assert min(size.from_s for size in sizes) < 600
    assert max(size.to_s for size in sizes) > 12 * 3_600
    assert all(size.own_unused_p90_frac < 0.2 for size in sizes), "a fifth of a ceiling stays unused"
    written = PAGE.read_text(encoding="utf-8").splitlines()
    fresh = page(
        summary(outcomes), sizes, range(10_000), all_coverages(len(KNOWN)), all_shapes(1), all_moments(1)
    ).splitlines()
    words = [line for line in fresh if not any(sign in line for sign in "0123456789$")]
    assert [line for line in words if line not in written] == []
    assert any(line.startswith("python -m tests.sim --ceiling --from 0 --seeds 10000 ") for line in written)


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


def test_before_the_second_save_every_run_meets_its_ceiling_between_both_ends() -> None:
    told = all_moments(300, SEEDS[-1])
    assert outside(told) == []
    assert told["a save in ten times as long"].early > 0.8, "nearly none saves before"
    assert told["a save in half of it"].early < 0.05, "nearly all do"
