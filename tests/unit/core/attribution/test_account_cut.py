"""The open end of a rank's line, by each way in which a run is cut: a step is as its like, the rest a hang."""

from __future__ import annotations

import pytest

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Cause
from governor.core.attribution.rows import time_row, whole_of
from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, BootNs, MonoNs
from governor.core.engine.metering import charge_verdict
from governor.core.engine.node_journal import persist
from governor.core.events.inputs import Bye, Disconnected, PhaseChange, Step, TrainerExited
from governor.core.events.operators import OperatorHalt
from tests.unit.core.attribution.test_account import World, account_of, seconds, step, steps, sums_hold
from tests.unit.core.engine.test_step import a_step, hello, peer
from tests.unit.core.money.test_waste import a_world, until

TRAINED = {"data_starvation": 1.2, "productive": 10.8}  # Ten steps of a second, and two more at most.


def stood(ranks: int = 1) -> World:
    """Ten steps, and no word for a hundred seconds."""
    world = a_world()
    world.hear(world_size=ranks)
    for rank in range(1, ranks):
        world.play(hello(rank, 0, at=MonoNs(world.mono), world_size=ranks))
    steps(world, range(1, 11), began=1, ranks=ranks)
    until(world, 110)
    return world


def cut(world: World, way: str) -> None:
    now = MonoNs(world.mono)
    if way == "halt":
        world.play(OperatorHalt(now, "llama", "it hangs", uid=0))
    elif way == "ceiling":
        charge_verdict(world.node, world.node.runs["llama"], "budget", now)
    else:
        if way == "killed":
            world.play(Disconnected(now, a_step(1).connection))
        world.play(TrainerExited(now, "llama", exit_code=-15))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("way", ["halt", "ceiling", "killed", "seen to end"])
def test_a_run_that_stood_still_until_it_was_cut_has_hung(way: str, ranks: int) -> None:
    world = stood(ranks)
    before = {**TRAINED, "data_starvation": 1.0, "productive": 9.0, "not_told_yet": 2.0, "hang": 98.0}
    assert seconds(world) == before, "so far"
    cut(world, way)
    assert seconds(world) == {**TRAINED, "hang": 98.0}
    sums_hold(world)
    row = next(row for row in time_row(whole_of(account_of(world)))["causes"] if row["cause"] == "hang")
    who = "rank 0" if ranks == 1 else "ranks 0 and 1"
    assert row["evidence"].endswith(f"no step of {who} for 1m 40s")


def test_of_a_rank_that_was_killed_the_time_until_the_run_is_over_is_its_end() -> None:
    world = stood()
    world.play(Disconnected(MonoNs(world.mono), a_step(1).connection))
    until(world, 114)
    world.play(TrainerExited(MonoNs(world.mono), "llama", exit_code=-15))
    assert seconds(world) == {**TRAINED, "hang": 98.0, "shut_down": 4.0}
    sums_hold(world)


def test_a_connection_that_comes_back_was_not_lost() -> None:
    world = stood()
    world.play(Disconnected(MonoNs(world.mono), a_step(1).connection))
    until(world, 200)
    world.hear()
    until(world, 210)
    cut(world, "halt")
    assert seconds(world) == {**TRAINED, "hang": 198.0}


def test_nobody_knows_what_a_rank_did_whose_connection_was_long_gone() -> None:
    world = stood()
    world.play(Disconnected(MonoNs(world.mono), a_step(1).connection))
    until(world, 210)
    world.play(TrainerExited(MonoNs(world.mono), "llama", exit_code=1))
    assert seconds(world) == {**TRAINED, "hang": 98.0, "unknown": 100.0}


def test_a_hang_that_the_launcher_ends_by_another_attempt_is_no_restart() -> None:
    world = stood()
    world.play(Disconnected(MonoNs(world.mono), a_step(1).connection))
    until(world, 115)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 120)
    told = seconds(world)
    assert (told["hang"], told["restart"]) == (98.0, 10.0)
    sums_hold(world)


@pytest.mark.parametrize("seen_s", [110, 112, 114])
def test_what_follows_a_ranks_loss_is_of_the_restart_whenever_its_exit_was_seen(seen_s: int) -> None:
    world = stood()
    world.play(Disconnected(MonoNs(world.mono), a_step(1).connection))
    until(world, seen_s)
    world.play(TrainerExited(MonoNs(world.mono), "llama", exit_code=-9))
    until(world, 115)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 120)
    # From then until the next hello nobody holds the node.
    assert seconds(world) == {**TRAINED, "hang": 98.0, "restart": float(seen_s - 110 + 5)}
    sums_hold(world)


@pytest.mark.parametrize(("phase", "cause"), [("checkpoint", "checkpoint_stall"), ("eval", "evaluation")])
def test_a_phase_says_what_was_done(phase: str, cause: str) -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    world.play(PhaseChange(MonoNs(world.mono), a_step(1).connection, "llama", 0, phase))
    until(world, 110)
    cut(world, "halt")
    assert seconds(world) == {"data_starvation": 1.0, "productive": 9.0, cause: 100.0}


def test_behind_a_phase_it_trains_again_and_may_stand_still() -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    for moment, phase in ((10, "eval"), (30, "train")):
        until(world, moment)
        world.play(PhaseChange(MonoNs(world.mono), a_step(1).connection, "llama", 0, phase))
    until(world, 110)
    cut(world, "halt")
    assert seconds(world) == {**TRAINED, "evaluation": 20.0, "hang": 78.0}


def test_an_evaluation_whose_end_was_seen_only_later_lasted_until_then() -> None:
    """Behind the last step: it ended at 12, which was seen with the end of the training at 90."""
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    connection = a_step(1).connection
    assert connection is not None
    world.play(PhaseChange(MonoNs(world.mono), connection, "llama", 0, "eval"))
    until(world, 90)
    over = MonoNs(world.mono - 78 * NS_PER_S)
    for phase in ("train", "finish"):
        world.play(PhaseChange(MonoNs(world.mono), connection, "llama", 0, phase, since=over))
    world.play(Bye(MonoNs(world.mono), connection, "llama", 0, 9, completed=True))
    world.play(Disconnected(MonoNs(world.mono), connection))
    until(world, 110)
    cut(world, "seen to end")
    told = seconds(world)
    assert told == {"data_starvation": 1.0, "productive": 9.0, "evaluation": 2.0, "shut_down": 98.0}


def test_behind_a_bye_it_ends() -> None:
    world = stood()
    connection = a_step(1).connection
    assert connection is not None
    world.play(Bye(MonoNs(world.mono), connection, "llama", 0, 9, completed=True))
    world.play(Disconnected(MonoNs(world.mono), connection))
    cut(world, "seen to end")
    assert seconds(world) == {"data_starvation": 1.0, "productive": 9.0, "shut_down": 100.0}


def test_a_step_that_took_a_little_longer_is_no_hang() -> None:
    world = a_world()
    world.hear()
    steps(world, range(1, 11), began=1)
    until(world, 15)
    cut(world, "halt")
    assert seconds(world) == {**TRAINED, "unknown": 3.0}


def restarted(world: World, away_s: float) -> None:
    world.take([persist(world.node, MonoNs(world.mono), *world.node.runs.values())])
    world.pass_time("run", int(away_s * NS_PER_S))
    world.restart()
    world.tick()


def test_what_ended_with_its_governor_was_not_shut_down() -> None:
    """Killed together: nobody heard how it ended, and what its steps had told by then is not known any more."""
    world = a_world()
    world.hear()
    steps(world, range(1, 19), began=1)
    for away_s in (3, 30):
        restarted(world, away_s)
    until(world, 60)
    world.play(TrainerExited(MonoNs(world.mono), "llama", exit_code=None))
    told = seconds(world)
    assert not {"shut_down", "hang"} & told.keys()
    assert told["unknown"] >= 33
    sums_hold(world)


def test_a_hang_goes_on_over_a_restart_of_the_governor() -> None:
    """Its absence is nobody's. What an ordinary step takes it knows from before."""
    world = stood()
    restarted(world, 30)
    world.hear()
    step_ns = account_of(world).step_ns
    assert step_ns == NS_PER_S
    until(world, 240)
    cut(world, "halt")
    told = seconds(world)
    assert 30.0 < told["unknown"] < 35.0, "and an ordinary step, of which this governor saw none"
    assert told["hang"] > 190
    assert told["productive"] < 10
    sums_hold(world)


def test_a_training_that_goes_on_after_a_pause_has_no_hang() -> None:
    """A view is of the moment: the step says what the time was."""
    world = stood()
    step(world, 11, step_s=100.0, data_s=99.1)
    assert Cause.HANG not in account_of(world).now(MonoNs(world.mono))


def test_the_load_in_the_first_step_of_a_later_attempt_is_a_restart_also_where_that_step_was_trained_before() -> None:
    """Ten steps of a second. The next attempt begins at step 6, which waits thirty seconds for its data."""
    account, now = TimeAccount(), 0
    account.tick(MonoNs(0), BootNs(0), BootNs(0), 0, holds=True)

    def trains(first: int, last: int, data_s: float) -> None:
        nonlocal now
        account.rank_begins(0, MonoNs(now))
        for number in range(first, last + 1):
            more_s = data_s if number == first else 0.0
            now += round((1.0 + more_s) * NS_PER_S)
            account.tick(MonoNs(now), BootNs(now), BootNs(0), 0, holds=True, is_unbroken=True)
            passes = {"data_s": more_s, "forward_s": 0.5, "backward_s": 0.5}
            step = Step(MonoNs(now), ConnectionId(1), "run", 0, number, step_s=1.0 + more_s, **passes)
            account.step(0, step, MonoNs(now))

    trains(1, 10, 0.0)
    account.attempt_begins(MonoNs(now))
    trains(6, 15, 30.0)
    account.over(MonoNs(now), ended_well=True)
    told = {cause: round(one.ns / NS_PER_S, 3) for cause, one in account.by_cause.items() if one.ns}
    assert told == {Cause.PRODUCTIVE: 15.0, Cause.LOST_STEPS: 5.0, Cause.RESTART: 30.0}
