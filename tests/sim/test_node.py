"""The node's own stop under people who come and go: what must hold does, and the planted bugs are caught."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from random import Random

import pytest

from governor.core.events.effects import StopCompute
from tests.sim.node_bugs import BUGS, Bug, hunt
from tests.sim.node_invariants import Judge, play
from tests.sim.node_world import World
from tests.sim.test_sim import ROOT

FIXED = range(100)  # What the schedules must meet, these meet by themselves.
FRESH = 50


def fresh() -> list[int]:
    """Others at each commit, the same for all who look at it."""
    commit = os.environ.get("COSTGOV_SEED") or subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout  # fmt: skip
    rng = Random(commit)
    return [rng.randrange(10**6, 10**9) for _ in range(FRESH)]


@cache
def played() -> tuple[tuple[World, Judge], ...]:
    return tuple(play(seed) for seed in (*FIXED, *fresh()))


def test_nobody_who_is_here_is_stopped_and_a_node_with_nobody_is() -> None:
    worlds = [world for world, _ in played()]
    assert sum(not world.is_billed or world.boot > 1 for world in worlds) > len(worlds) // 3


def test_the_schedules_meet_what_they_are_for() -> None:
    """Else the invariants would hold of nothing."""
    judges = [judge for _, judge in played()]
    snapshots = [text for world, _ in played() for text, _ in world.incidents.values()]
    assert sum(judge.repeated > 0 for judge in judges) > 10, "stops that are repeated"
    assert sum('"halt_stage": "abandoned"' in text for text in snapshots) > 10
    assert sum('"what": "restored"' in text for text in snapshots) > 5
    assert sum('"what": "came_late"' in text for text in snapshots) > 0
    assert sum('"halt_stage": "superseded_by_reboot"' in text for text in snapshots) > 5
    assert sum('"rule": "on_finish"' in text for text in snapshots) > 5
    assert any(isinstance(effect, StopCompute) and effect.rung == 1 for world, _ in played() for _, effect in world.log)


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_every_planted_bug_is_caught_by_what_is_there_to_catch_it(bug: Bug) -> None:
    caught = hunt(bug)
    assert caught is not None, "it survived every schedule"
    assert caught.startswith(bug.caught_by), caught
