"""The halt under simulated faults: invariants in many schedules, every cell visited, the same seed the same journal."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path

from governor.core.halt.table import TRANSITIONS, Fact, HaltState
from tests.sim.engine_driver import run_engine_schedule
from tests.sim.schedule import Result, sound

ROOT = Path(__file__).parents[2]
FIXED_SEEDS = range(1_000)  # The same every time: a change of the code alone decides whether they pass.
# Other ones for every commit, so that the years search further than one range.
FRESH_SEEDS = max(0, int(os.environ.get("COSTGOV_SIM_SEEDS", "2000")) - len(FIXED_SEEDS))

TELL = """
from tests.sim.engine_driver import run_engine_schedule
from tests.sim.schedule import run_schedule
for run, seeds in ((run_schedule, 40), (run_engine_schedule, 20)):
    for seed in range(seeds):
        print(*run(seed).log, sep="\\n")
"""
ENGINE_SEEDS = 100  # Of each range.

_ASKING = (HaltState.ASKED, HaltState.SAVING, HaltState.WAITING)
_REPLIES = (Fact.STOP_ACCEPTED, Fact.STOP_BUSY, Fact.STOP_REFUSED, Fact.STOP_UNKNOWN)
UNREACHABLE = {
    "an incident is opened and its verdict fed in one step": set(
        product([HaltState.ARMED], set(Fact) - {Fact.VERDICT, Fact.VERDICT_NO_ASK})
    ),
    "no stop is sent before STOPPING, and nothing goes back": set(
        product([*_ASKING, HaltState.TERMED, HaltState.KILLED], _REPLIES)
    ),
    "hands look for newcomers from the first SIGTERM on": set(
        product(_ASKING, [Fact.RESPAWNED]),
    ),
}


def fresh_seeds() -> range:
    """From COSTGOV_SIM_SEED, else from the commit; a failure names the seed that failed, whichever it was."""
    base = os.environ.get("COSTGOV_SIM_SEED")
    if base is None:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        base = str(int(commit.stdout[:12], 16)) if commit.returncode == 0 else "1000000"
    return range(int(base), int(base) + FRESH_SEEDS)


@cache
def played() -> tuple[Result, ...]:
    return tuple(sound(seed) for seeds in (FIXED_SEEDS, fresh_seeds()) for seed in seeds)


def test_every_invariant_holds_in_every_schedule() -> None:
    results = played()
    assert {result.stage for result in results if not result.dark} == {HaltState.HALTED}
    assert any(result.dark for result in results), "no schedule took the governor's own machine down"


def test_every_reachable_cell_is_visited_and_no_other() -> None:
    visited = set().union(*(result.cells for result in played()))
    unreachable = set().union(*UNREACHABLE.values())
    unvisited = {(stage.name, fact.name) for stage, fact in TRANSITIONS.keys() - unreachable - visited}
    assert not unvisited, f"the world never produces {sorted(unvisited)}: it cannot judge these cells"
    surprising = {(stage.name, fact.name) for stage, fact in visited & unreachable}
    assert not surprising, f"listed as unreachable, and reached: {sorted(surprising)}"


def test_the_engine_keeps_every_invariant_too() -> None:
    """Fewer schedules: each step writes and reads real snapshots. The table's own search is above."""
    seeds = [*FIXED_SEEDS[:ENGINE_SEEDS], *fresh_seeds()[:ENGINE_SEEDS]]
    results = [run_engine_schedule(seed) for seed in seeds]
    assert {result.stage for result in results if not result.dark} == {HaltState.HALTED}


def test_the_same_seed_writes_the_same_journal_whatever_the_hash_seed() -> None:
    journals = [
        subprocess.run(
            [sys.executable, "-c", TELL],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert journals[0] == journals[1]
    assert journals[0].count("VERIFYING -> HALTED") > 10
