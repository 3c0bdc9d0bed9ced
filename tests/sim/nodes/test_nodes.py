"""A run on several nodes under drawn faults: what must hold holds, and each planted bug is caught."""

from __future__ import annotations

import pytest

from tests.sim.nodes.histories import play
from tests.sim.nodes.planted_bugs import BUGS, hunt
from tests.sim.nodes.world import World
from tests.sim.test_sim import fresh_seeds

FIXED_SEEDS = range(60)
FRESH_SEEDS = 20  # Of the commit, so that the years search further than one range.


@pytest.mark.parametrize("seed", [*FIXED_SEEDS, *fresh_seeds()[:FRESH_SEEDS]])
def test_every_history_ends_as_it_must(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: type[World]) -> None:
    assert hunt(bug) is not None, f"no history catches it: {bug.__doc__}"
