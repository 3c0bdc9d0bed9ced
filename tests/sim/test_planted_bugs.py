"""The simulator has teeth: every planted bug is caught within the seeds of one check."""

from __future__ import annotations

import pytest

from governor.core.halt.table import TRANSITIONS
from tests.sim.engine_driver import EngineDriver, engine_schedule
from tests.sim.governor import TableDriver
from tests.sim.planted_bugs import BUGS, SEEDS_MAX, Bug, hunt
from tests.sim.schedule import run_schedule


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    sound = dict(TRANSITIONS)
    caught = hunt(bug)
    assert caught is not None, f"survived {SEEDS_MAX} schedules"
    assert sound == TRANSITIONS
    # It was the bug: without it the same schedule passes.
    run_schedule(caught.seed, EngineDriver if bug.draw is engine_schedule else TableDriver, draw=bug.draw)
