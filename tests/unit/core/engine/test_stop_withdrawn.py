"""A node's own stop that is under way when its operator turns it off: what was wanted then is wanted no longer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.policy import Mode, Policy, PolicySet
from governor.core.base.units import DurationNs
from governor.core.engine import step as engine
from governor.core.events.inputs import StopAnswer
from governor.reports.incident import summary
from tests.unit.idle_node import FACTS, Idle, seconds

LIMIT = 20
OPENED = 22


def refused(world: Idle) -> Idle:
    """The stop was asked for once, and is to be asked for again in a while."""
    world.until(OPENED + 1)
    assert world.stops() == [OPENED]
    world.replies(StopAnswer.REFUSED, retryable=True)
    return world


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"idle_stop_ns": DurationNs(0)}, "idle_stop is off by now"),
        ({"observe": True}, "observe mode is on by now"),
        ({}, None),
    ],
)
def test_a_governor_that_comes_back_with_other_settings_gives_the_stop_up(
    changes: dict[str, Any], why: str | None
) -> None:
    world = refused(Idle(facts=replace(FACTS, idle_stop_ns=seconds(LIMIT))))
    world.facts = replace(world.facts, **changes)
    world.restart()
    world.until(world.now + 3 * LIMIT)
    if why is None:
        assert len(world.stops()) > 1
        return
    assert world.stops() == [OPENED]
    assert world.stage() == "abandoned"
    assert f"{why}: the stop of this node is given up (incident " in world.said("node_stop_abandoned")
    told = world.incidents["@node.node-a.1"]
    assert told["timeline"][-1]["detail"] == {"was": "STOPPING", "why": why}
    assert told["halt"]["stage"] == "STOPPING", "nobody saw the machine stop"
    assert summary(told).endswith(f"(idle_stop of costgov.toml); {why}, before that.")


@pytest.mark.parametrize("now", [Policy(name="p"), Policy(name="p", mode=Mode.OBSERVE, node_idle_stop_ns=seconds(5))])
def test_policies_that_are_loaded_anew_without_it_give_the_stop_up(now: Policy) -> None:
    world = refused(Idle(policy=Policy(name="p", node_idle_stop_ns=seconds(LIMIT))))
    engine.reload(world.node, PolicySet((now,), "another"))
    world.until(world.now + 200)
    assert world.stops() == [OPENED]
    assert world.stage() == "abandoned"


def test_a_finished_runs_stop_does_not_ask_for_an_idle_time_that_was_never_set() -> None:
    world = Idle(policy=Policy(name="p", run_on_finish="stop"))
    world.begins()
    world.until(5)
    world.ends()
    world.until(100)
    world.replies(StopAnswer.REFUSED, retryable=True)
    world.until(200)
    assert len(world.stops()) > 1


@pytest.mark.parametrize("down", [300, 700])
def test_a_finished_runs_stop_that_was_refused_is_given_up_where_no_governor_was_here_for_long(down: int) -> None:
    """Who brings one back after a while mends something: within a minute it would be stopped under them."""
    world = Idle(policy=Policy(name="p", run_on_finish="stop"))
    world.begins()
    world.until(5)
    world.ends()
    world.until(100)
    before = world.stops()
    world.replies(StopAnswer.REFUSED, retryable=True)
    world.restart(down=down)
    world.until(world.now + 200)
    is_long = down >= 600
    assert (world.stops() == before) == is_long
    assert [name for _, name in world.alarms()].count("node_stop_abandoned") == is_long
    if is_long:
        assert "no governor was here for 11m 4" in world.said("node_stop_abandoned")
