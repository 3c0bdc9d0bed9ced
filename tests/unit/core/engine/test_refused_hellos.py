"""Who is refused is told why each time, and people once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.shares import UidRange
from governor.core.engine.alarms import REFUSALS_REMEMBERED_MAX
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Effect, Refuse
from governor.core.events.inputs import BadHello, CommandLaunched
from tests.unit.core.engine.test_step import at, hello, make_node, peer, play
from tests.unit.idle_node import FACTS, Idle, seconds


def refused(node: Node, pid: int = 100, why: str = "hello.signal 15 cannot be used") -> list[Effect]:
    return play(node, BadHello(at(0), ConnectionId(1), peer(pid), why))


def test_a_bad_hello_is_refused_with_its_fault_and_said_once_per_process_and_reason() -> None:
    node = make_node()
    told, said = refused(node)
    assert isinstance(told, Refuse)
    assert "cannot be used" in told.reason
    assert isinstance(said, Alarm)
    assert said.text.startswith("pid 100 trains UNWATCHED")
    assert told.reason in said.text
    assert [type(effect) for effect in refused(node)] == [Refuse]
    assert [type(effect) for effect in refused(node, why="another")] == [Refuse, Alarm]
    assert [type(effect) for effect in refused(node, 101)] == [Refuse, Alarm]
    assert node.frames_lost_total == 4


def test_who_was_refused_is_remembered_up_to_a_bound() -> None:
    node = make_node()
    for pid in range(REFUSALS_REMEMBERED_MAX + 10):
        refused(node, pid)
    assert len(node.refusals) == REFUSALS_REMEMBERED_MAX


def test_a_flood_of_one_user_makes_nobody_else_forgotten() -> None:
    node = make_node()
    node.uid_ranges = (UidRange(100_000, 65_536, 2001),)
    refused(node, 1)
    for pid in range(2, REFUSALS_REMEMBERED_MAX + 100):
        play(node, BadHello(at(0), ConnectionId(1), peer(pid, 100_000 + pid), "not a name"))
    assert len(node.refusals) == REFUSALS_REMEMBERED_MAX
    assert peer(1).process in node.refusals


@pytest.mark.parametrize("before_any_tick", [True, False])
def test_who_is_refused_before_the_first_tick_trains_here_all_the_same(before_any_tick: bool) -> None:
    """A restarted governor hears its trainers before it has looked around; who was refused asks again in 30 s."""
    world = Idle(facts=replace(FACTS, idle_stop_ns=seconds(20)))
    world.until(0 if before_any_tick else 3)
    world.tell(BadHello(at(world.now), ConnectionId(1), peer(100), "hello.signal 15 cannot be used"))
    world.until(world.now + 89)
    assert world.stops() == []
    world.until(world.now + 25)
    assert len(world.stops()) == 1


def test_a_rank_that_is_older_than_the_launched_command_is_of_an_earlier_launch() -> None:
    """Its steps were shown as the new launch's, and it took the name back."""
    node = make_node()
    play(node, CommandLaunched(at(0), "llama", 1000, (ProcessId(4321, 1_005, "boot-1"),)))  # Rank 0 began at 1,000.
    told = [effect for effect in play(node, hello(0)) if isinstance(effect, Refuse)]
    assert [refusal.reason for refusal in told] == [
        "it is older than the command that was launched as llama: a rank of an earlier launch"
    ]
    assert node.runs["llama"].run.ranks == {}
    assert not any(isinstance(effect, Refuse) for effect in play(node, hello(1)))  # At 1,010.
    assert not any(isinstance(effect, Refuse) for effect in play(node, hello(0, run="beside")))
