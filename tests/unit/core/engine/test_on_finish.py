"""`on_finish = "stop"`: which ends are good ones, and who keeps the node all the same. Driven from a list."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Policy, PolicySet
from governor.core.events.effects import Confirm, PersistRuns, Record
from governor.core.events.inputs import Bye, CommandExited, CommandLaunched, TrainerExited
from governor.core.events.operators import OperatorHalt
from governor.core.halt.table import HaltState
from governor.core.runs.life import LifeFact
from tests.unit.core.engine.test_step import at, hello, peer
from tests.unit.idle_node import FACTS, Idle

STOP_WELL = Policy(name="p", run_on_finish="stop")


def trained(world: Idle, *, well: bool = True, ranks: int = 2) -> int:
    """A run of some seconds; returns the second in which its ranks were gone."""
    world.until(4)
    for rank in range(ranks):
        world.begins(rank=rank, world_size=ranks)
    world.until(10)
    world.ends(well=well, ranks=ranks)
    return world.now


def test_a_run_that_ended_well_has_its_node_stopped_after_a_minute() -> None:
    world = Idle(policy=STOP_WELL)
    ended = trained(world)
    world.until(ended + 1)
    assert [name for _, name in world.alarms()] == ["node_idle"]
    assert 'on_finish = "stop"' in world.said("node_idle")
    world.until(ended + 59)
    assert world.stops() == []
    world.until(ended + 62)
    assert len(world.stops()) == 1
    assert (world.incident.rule, world.incident.reason) == ("on_finish", "run_finished")


def test_a_run_that_did_not_end_well_leaves_its_node_to_whoever_looks_after_it() -> None:
    world = Idle(policy=STOP_WELL)
    trained(world, well=False)
    world.until(400)
    assert (world.stops(), world.alarms()) == ([], [])


def test_one_rank_that_did_not_complete_is_enough() -> None:
    world = Idle(policy=STOP_WELL)
    world.until(4)
    for rank in range(2):
        world.begins(rank=rank, world_size=2)
    world.ends(ranks=1)  # The other one just went.
    world.until(400)
    assert world.stops() == []


def test_a_finished_runs_stop_waits_for_what_it_left_on_the_gpu_and_is_given_up_for_anybody_else() -> None:
    world = Idle(policy=STOP_WELL)
    world.pids = frozenset({100})
    ended = trained(world)
    world.until(ended + 30)
    world.pids = frozenset()
    world.until(ended + 30 + 58)
    assert world.stops() == []
    world.until(ended + 30 + 64)
    assert len(world.stops()) == 1

    world = Idle(policy=STOP_WELL)
    world.pids = frozenset({100, 7})
    ended = trained(world)
    world.until(ended + 70)
    assert "a GPU process (pid 7, 100) is here: the node goes on" in world.said("node_kept")
    world.pids = frozenset()
    world.until(ended + 600)
    assert world.stops() == []


def test_a_run_that_comes_within_the_minute_keeps_the_node_for_good() -> None:
    world = Idle(policy=STOP_WELL)
    ended = trained(world)
    world.until(ended + 50)
    world.begins("next")
    world.until(ended + 55)
    world.ends("next", well=False)
    world.until(ended + 600)
    assert world.stops() == []


def test_a_restart_within_the_minute_goes_on_with_it_from_the_beginning() -> None:
    world = Idle(policy=STOP_WELL)
    ended = trained(world)
    world.until(ended + 50)
    world.restart()
    world.until(ended + 50 + 59)
    assert world.stops() == []
    world.until(ended + 50 + 66)
    assert len(world.stops()) == 1


def test_a_governor_that_was_away_for_long_leaves_the_node_to_whoever_brings_it_back() -> None:
    world = Idle(policy=STOP_WELL)
    ended = trained(world)
    world.until(ended + 5)
    world.restart(down=700)
    world.until(world.now + 200)
    assert world.stops() == []
    assert 'on_finish = "stop", but no governor was here for most of 11m 45s since: the node' in world.said("node_kept")


def test_ranks_that_said_so_before_a_restart_have_ended_well_when_they_are_gone_after_it() -> None:
    world = Idle(policy=STOP_WELL)
    world.until(4)
    world.begins()
    world.until(10)
    kept, record, confirmed = world.tell(Bye(at(10), ConnectionId(1), "llama", 0, 9, completed=True))
    assert isinstance(kept, PersistRuns)
    assert kept.durable
    assert isinstance(record, Record)
    assert record.durable, "before it is confirmed: no rank says it again"
    assert isinstance(confirmed, Confirm)
    world.restart()
    world.tell(TrainerExited(at(world.now), "llama", None))
    world.until(world.now + 66)
    assert len(world.stops()) == 1


@pytest.mark.parametrize("down", [500, 700])
def test_a_run_that_ended_well_while_no_governor_was_here_for_long_leaves_the_node_to_who_brings_one_back(
    down: int,
) -> None:
    """That its ranks had said so is known, that they are gone is seen only then: its end is not of that moment."""
    world = Idle(policy=STOP_WELL)
    world.until(4)
    world.begins()
    world.until(10)
    world.tell(Bye(at(10), ConnectionId(1), "llama", 0, 9, completed=True))
    world.restart(down=down)
    world.tell(TrainerExited(at(world.now), "llama", None))
    world.until(world.now + 200)
    is_long = down >= 600
    assert (world.stops() == []) == is_long
    assert [name for _, name in world.alarms()].count("node_kept") == is_long


@pytest.mark.parametrize(("exit_code", "stops"), [(0, 1), (3, 0)])
def test_beside_a_command_its_exit_code_says_whether_it_ended_well(exit_code: int, stops: int) -> None:
    world = Idle(facts=replace(FACTS, exclusive=True), policy=STOP_WELL)
    world.tell(CommandLaunched(at(0), "llama", 1000, (peer(100).process,)))
    trained(world)
    world.until(200)
    assert world.stops() == [], "the ranks are done, the command is not"
    world.tell(CommandExited(at(200), "llama", exit_code))
    world.until(280)
    assert len(world.stops()) == stops


def test_a_run_that_was_halted_did_not_end_well() -> None:
    world = Idle(facts=replace(FACTS, exclusive=True), policy=STOP_WELL)
    world.tell(CommandLaunched(at(0), "llama", 1000, (peer(100).process,)))
    world.until(4)
    world.begins()
    world.tell(OperatorHalt(at(4), "llama", "enough", 0))
    world.until(10)
    halted = world.node.runs["llama"].incident
    assert halted is not None
    halted.halt = replace(halted.halt, stage=HaltState.HALTED, deadline=None)
    world.node.runs["llama"].run.move(LifeFact.GONE, at(10))
    world.tell(CommandExited(at(10), "llama", 0))
    world.until(300)
    assert world.stops() == []


def test_beside_a_command_the_policy_of_the_run_that_it_trained_counts() -> None:
    """Also where the command goes on for a while behind it, and somebody has to stand in for that."""
    world = Idle(facts=replace(FACTS, exclusive=True))
    stage = replace(STOP_WELL, name="stage", match={"stage": ("s1",)})
    world.node.policies = PolicySet((stage, Policy(name="every")), "digest")
    world.tell(CommandLaunched(at(0), "llama", 1000, (peer(100).process,)))
    world.tell(hello(0, 2, stage="s1", world_size=1))
    world.until(10)
    world.ends(ranks=1)
    world.until(30)
    assert world.stops() == []
    world.tell(CommandExited(at(30), "llama", 0))
    world.until(100)
    assert len(world.stops()) == 1
    assert world.incident.policy == "stage"


def test_what_cannot_follow_from_a_good_end_is_said_at_once_and_waited_for_by_nobody() -> None:
    world = Idle(facts=replace(FACTS, cloud="none", can_stop=False), policy=STOP_WELL)
    ended = trained(world)
    assert world.alarms() == [(ended, "node_stays_billed")]
    assert world.node.idle.finish is None


def test_a_sampler_that_stays_silent_does_not_keep_costgov_run_waiting_for_ever() -> None:
    world = Idle(policy=STOP_WELL)
    ended = trained(world)
    world.problem = "GPU sampler silent for 12 s"
    world.until(ended + 599)
    assert world.node.idle.finish is not None
    world.until(ended + 601)
    assert "nobody can tell who is here (GPU sampler silent for 12 s)" in world.said("node_kept")
    assert world.stops() == []
