"""A machine of the fleet whose governor vanished: noted before it is stopped, and what came of it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.engine import step as engine
from governor.core.events.effects import Alarm, Record, StopOther
from governor.core.events.fleet_orders import SilentUsedUp
from governor.core.events.peers import OtherStopped
from tests.unit.core.engine.test_step import at, make_node

WANTED = SilentUsedUp(at(1), "gpu-2~b~l", "gpu-2", "aws", "i-2", "its grants are used up")


def test_it_is_noted_durably_and_then_stopped() -> None:
    record, stop = engine.step(make_node(), WANTED)
    assert isinstance(record, Record)
    assert (record.durable, record.data["instance"]) == (True, "i-2")
    assert isinstance(stop, StopOther)
    assert (stop.node, stop.instance_id) == ("gpu-2", "i-2")


@pytest.mark.parametrize(("stopped", "verified"), [(True, False), (True, True), (False, False)])
def test_what_came_of_it_is_noted_and_told(stopped: bool, verified: bool) -> None:
    node = make_node()
    [_, stop] = engine.step(node, WANTED)
    assert isinstance(stop, StopOther)
    answer = OtherStopped(at(3), stop.incident_id, "gpu-2", stopped, verified, "stopping")
    record, alarm = engine.step(node, answer)
    assert isinstance(record, Record)
    assert (record.data["stopped"], record.data["verified"]) == (stopped, verified)
    assert isinstance(alarm, Alarm)
    assert alarm.name == "fleet_swept"


def test_a_governor_that_observes_only_says_what_it_would_do() -> None:
    node = make_node()
    node.facts = replace(node.facts, observe=True)
    effects = engine.step(node, WANTED)
    assert [type(one) for one in effects] == [Alarm]
