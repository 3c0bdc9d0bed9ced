"""A hang begins where its rule has it begin: when the last rank moved. What was done before that is no hang."""

from __future__ import annotations

import re

import pytest

from governor.core.attribution.rows import time_row, whole_of
from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_S, MonoNs, UsdMicros
from governor.core.events.inputs import Beat, PhaseChange, TrainerExited
from governor.core.rules.trigger import defaults
from governor.core.rules.triggers import load
from tests.unit.core.attribution.test_account import World, account_of, seconds, step, steps, sums_hold
from tests.unit.core.engine.test_step import a_step, hello, make_node, peer, rule
from tests.unit.core.money.test_waste import until

LIMITS = dict.fromkeys(("start_limit", "start_limit_without_beats", "eval_limit", "between_limit"), 25 * NS_PER_S)


def a_world() -> World:
    hang = rule("hang", params=defaults(load()["hang"].KEYS) | LIMITS)
    world = World(make_node(hang, budget=Budget(), price_usd_micros_per_hour=UsdMicros(3_600_000), cloud="none"))
    world.tick()
    return world


def begin(world: World, attempt: str = "a1", first: int = 100) -> None:
    for rank in (0, 1):
        world.play(hello(rank, at=MonoNs(world.mono), attempt=attempt, peer=peer(first + rank)))


def enter(world: World, rank: int, phase: str, seq: int) -> None:
    connection = a_step(1, rank).connection
    world.play(PhaseChange(MonoNs(world.mono), connection, "llama", rank, phase, progress_seq=seq))


def beat(world: World, to_s: float, *seqs: int, phase: str, entered: tuple[int, ...] = ()) -> None:
    """Beats of ranks whose hooks do not move, for so long as the run is not halted."""
    since = MonoNs(world.mono)
    while world.mono < to_s * NS_PER_S and world.node.runs["llama"].incident is None:
        until(world, world.mono / NS_PER_S + 1)
        for rank, seq in enumerate(seqs):
            connection = a_step(1, rank).connection
            assert connection is not None
            world.play(
                Beat(MonoNs(world.mono), connection, "llama", rank, seq, phase, since, collective=_count(entered, rank))
            )


def _count(entered: tuple[int, ...], rank: int) -> dict[str, int] | None:
    return {"count": entered[rank]} if entered else None


def still_s(world: World) -> float:
    """As the verdict tells it."""
    incident = world.node.runs["llama"].incident
    assert incident is not None
    found = re.search(r"for ([0-9.]+)s", incident.text)
    assert found is not None
    return float(found[1])


def hangs_after_a_load(world: World, began: float) -> None:
    """Both ranks load for fifteen seconds without a hook. Then one goes on, and the other one never does."""
    beat(world, began + 15, 5, 5, phase="init")
    enter(world, 0, "compile", 6)
    beat(world, began + 90, 6, 5, phase="init")


def test_a_load_before_the_first_step_is_no_hang() -> None:
    world = a_world()
    begin(world)
    hangs_after_a_load(world, 0)
    assert seconds(world)["hang"] == pytest.approx(still_s(world), abs=1)
    assert seconds(world)["start_up"] == pytest.approx(15, abs=1.5)
    sums_hold(world)


def test_nor_is_it_in_a_later_attempt() -> None:
    world = a_world()
    begin(world)
    steps(world, range(1, 11), began=1, ranks=2)
    until(world, 12)
    begin(world, "a2", 200)
    hangs_after_a_load(world, 12)
    told = seconds(world)
    assert told["hang"] == pytest.approx(still_s(world), abs=1)
    assert told["restart"] == pytest.approx(17, abs=1.5)
    assert not {"not_told_yet", "unknown"} & told.keys()
    sums_hold(world)


def test_all_ranks_of_a_later_attempt_restart() -> None:
    world = a_world()
    begin(world)
    steps(world, range(1, 11), began=1, ranks=2)
    until(world, 12)
    begin(world, "a2", 200)
    for number in range(11, 21):
        until(world, 20 + number)
        for rank in (0, 1):
            step(world, number, rank)
    until(world, 41)
    told = seconds(world)
    assert told["restart"] == pytest.approx(20, abs=1)
    assert told.get("unknown", 0) == 0


def test_a_hang_behind_a_step_leaves_nothing_to_be_told() -> None:
    """The time between the last step and the evaluation in which it hung is a step's that was cut."""
    world = a_world()
    begin(world)
    steps(world, range(1, 11), began=1, ranks=2)
    until(world, 10.5)
    for rank in (0, 1):
        enter(world, rank, "eval", 1_000)
    beat(world, 12, 1_001, 1_001, phase="eval")
    beat(world, 14, 1_002, 1_001, phase="eval")
    beat(world, 200, 1_003, 1_001, phase="eval")
    told = seconds(world)
    assert told["hang"] == pytest.approx(still_s(world), abs=1)
    world.play(TrainerExited(MonoNs(world.mono), "llama", exit_code=-15))
    told = seconds(world)
    assert "not_told_yet" not in told
    rows = time_row(whole_of(account_of(world)))["causes"]
    (hang,) = (one for one in rows if one["cause"] == "hang")
    assert hang["confidence"] == "high", "a rule's limit has passed"
    (evaluation,) = (one for one in rows if one["cause"] == "evaluation")
    assert evaluation["confidence"] == "medium", "none of it has ended"
    assert "rank 1 " in hang["evidence"], "the other one waits for it"
    sums_hold(world)


@pytest.mark.parametrize(
    ("entered", "who"),
    [
        ((4, 3), "rank 1 "),  # Rank 0 waits for it.
        ((3, 4), "rank 0 "),
        ((), "ranks 0 and 1 "),  # Nobody knows.
    ],
)
def test_before_the_first_step_the_rank_is_named_for_which_the_other_waits(entered: tuple[int, ...], who: str) -> None:
    """Their last hooks are nearer to each other than two beats."""
    world = a_world()
    begin(world)
    for rank in (0, 1):
        enter(world, rank, "compile", 6)
    beat(world, 90, 7, 7, phase="compile", entered=entered)
    rows = time_row(whole_of(account_of(world), MonoNs(world.mono)))["causes"]
    (hang,) = (one for one in rows if one["cause"] == "hang")
    assert who in hang["evidence"]
