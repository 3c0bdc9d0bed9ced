"""Who is refused is told why each time, and people once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.engine.alarms import REFUSALS_REMEMBERED_MAX
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Effect, Refuse
from governor.core.events.inputs import BadHello
from tests.unit.core.engine.test_step import at, make_node, peer, play
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
