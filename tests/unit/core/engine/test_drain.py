"""A node whose GPU failed is taken from its scheduler once, before its job ends; else the incident names it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.core.base.findings import Finding, Response, Verdict, firing
from governor.core.base.identity import SchedulerFacts
from governor.core.engine.halt_plan import bad_node
from governor.core.engine.incident_json import incident_of, incident_snapshot
from governor.core.engine.incidents import open_incident
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, DrainNode, StopCompute
from governor.core.events.hardware import GpuFigures
from governor.core.events.machine import GpuSample, NodeDrained
from governor.core.rules.condition import ALL
from governor.reports.incident import incident_markdown, next_attempt
from tests.unit.core.engine.test_step import at, hello, make_node, play, rule, tick

SLURM = SchedulerFacts(name="slurm", node="n1", drains=True)
LOST = firing("gpu_lost", "GPU 0 is lost", {"gpu": "0"})


def broken(scheduler: SchedulerFacts) -> tuple[Node, list[Any]]:
    """A run whose only GPU falls off the bus; all that came of it."""
    node = make_node(rule("gpu_fault", checkpoint="none"), scheduler=scheduler)
    effects = play(node, tick(0), hello(0, world_size=1, gpu_uuids=("GPU-0",)))
    for when, is_lost in ((1, False), (2, True), (3, True)):
        sample = GpuSample(at(when), None, (0.9,), uuids=("GPU-0",), figures=(GpuFigures(is_lost=is_lost),))
        effects += play(node, sample, tick(when))
    return node, effects


def test_a_lost_gpu_drains_the_node_before_anything_is_stopped() -> None:
    _, effects = broken(SLURM)
    drains = [one for one in effects if isinstance(one, DrainNode)]
    assert drains == [DrainNode("llama.node-a.1", "llama", "n1")]
    stops = [place for place, one in enumerate(effects) if isinstance(one, StopCompute)]
    assert all(effects.index(drains[0]) < place for place in stops)


@pytest.mark.parametrize("scheduler", [replace(SLURM, drains=False), replace(SLURM, name=""), SchedulerFacts()])
def test_nothing_is_drained_unless_it_was_asked_for(scheduler: SchedulerFacts) -> None:
    node, effects = broken(scheduler)
    assert node.runs["llama"].incident is not None
    assert not any(isinstance(one, DrainNode) for one in effects)


def test_no_other_halt_drains_a_node() -> None:
    facts = make_node(scheduler=SLURM).facts
    assert bad_node(facts, verdict_of("nonfinite", firing("loss", "NaN", {}))) == ""
    assert bad_node(facts, verdict_of("gpu_fault", LOST)) == "slurm:n1"
    both = firing("all", "both", {"all": [{"trigger": "hang"}, {"trigger": "gpu_fault", "gpu": "0"}]})
    assert bad_node(facts, verdict_of(ALL, both)) == "slurm:n1"


def verdict_of(trigger: str, finding: Finding) -> Verdict:
    return Verdict("llama", "p", "r", trigger, Response.HALT, True, finding, None, "none")


def test_the_hardware_of_another_node_is_not_ours() -> None:
    node = make_node(scheduler=SLURM)
    play(node, tick(0), hello(0, world_size=1))
    verdict = verdict_of("gpu_fault", LOST)
    effects = open_incident(node, node.runs["llama"], verdict, at(1), joined=("llama.node-b.1", "node-b"))
    assert not any(isinstance(one, DrainNode) for one in effects)
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.bad_node == ""


@pytest.mark.parametrize("is_drained", [True, False])
def test_what_became_of_it_is_noted_and_a_refusal_is_an_alarm(is_drained: bool) -> None:
    node, _ = broken(SLURM)
    answered = play(node, NodeDrained(at(4), "llama.node-a.1", is_drained, "permission_denied"))
    alarms = [one.name for one in answered if isinstance(one, Alarm)]
    assert alarms == ([] if is_drained else ["node_not_drained"])
    incident = node.runs["llama"].incident
    assert incident is not None
    snapshot = incident_snapshot(node, incident)
    assert incident_of(snapshot).bad_node == snapshot["bad_node"] == "slurm:n1"
    assert ("--exclude=n1" in str(next_attempt(snapshot))) is not is_drained
    assert ("--exclude=n1" in incident_markdown(snapshot)) is not is_drained


def test_without_draining_the_incident_says_what_to_leave_out() -> None:
    node, _ = broken(replace(SLURM, drains=False))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert "--exclude=n1" in incident_markdown(incident_snapshot(node, incident))
