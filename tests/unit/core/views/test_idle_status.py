"""What `costgov status` says of a node that nobody uses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.cli.status_table import idle_notes
from governor.core.views.status import idle_s, node_status
from tests.unit.core.engine.test_step import at
from tests.unit.idle_node import FACTS, Idle, seconds

IDLE_STOP = replace(FACTS, idle_stop_ns=seconds(900))


def told(world: Idle) -> list[str]:
    return [str(line) for line in idle_notes(node_status(world.node, at(world.now)))]


def test_an_idle_node_tells_since_when_what_follows_and_how_to_keep_it() -> None:
    world = Idle(facts=IDLE_STOP)
    world.until(242)
    assert told(world) == [
        "node: idle for 4m 0s, stops in 11m 0s (idle_stop of costgov.toml); "
        "keep it with: costgov hold @node 2h --reason …"
    ]
    assert idle_s(world.node, at(world.now)) == 240


def test_nothing_is_said_where_nothing_would_stop_it_or_somebody_is_there() -> None:
    world = Idle()
    world.until(100)
    assert told(world) == []
    world = Idle(facts=IDLE_STOP)
    world.until(10)
    world.begins()
    world.until(20)
    assert told(world) == []
    assert idle_s(world.node, at(world.now)) == 0


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("silent", "node: no run is here, but nobody can tell who else is: GPU sampler silent for 12 s"),
        ("held", "node: kept for another 59m 50s by an operator: by hand"),
        ("disk", "node: idle for 18.0s, and it is not stopped after 15m 0s (idle_stop of costgov.toml): what is on its "
         "disk would not outlive the stop"),
        ("observe", "node: idle for 18.0s, and would be stopped after 15m 0s (idle_stop of costgov.toml); observe mode "
         "only says so"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_named(change: str, line: str) -> None:
    facts = {"disk": {"survives_stop": False}, "observe": {"observe": True}}.get(change, {})
    world = Idle(facts=replace(IDLE_STOP, **facts))
    world.until(10)
    if change == "silent":
        world.problem = "GPU sampler silent for 12 s"
    if change == "held":
        world.holds(3600, "by hand")
    world.until(20)
    assert told(world) == [line]


def test_a_stop_that_is_under_way_names_its_incident() -> None:
    world = Idle(facts=replace(FACTS, idle_stop_ns=seconds(20)))
    world.until(23)
    assert told(world) == ["node: being stopped, STOPPING; costgov incident show @node.node-a.1"]
