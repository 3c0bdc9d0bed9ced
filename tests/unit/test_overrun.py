"""A halt that ends above its ceiling says so, with every cause that was observed."""

from __future__ import annotations

from governor.core.events import BillingAnswer, BillingRead, ProcessesSeen, StopAnswer, StopReplied
from governor.core.incident import Incident
from governor.core.node import Node
from governor.core.policy import Budget
from governor.core.snapshots import incident_snapshot
from governor.core.units import NS_PER_S, DurationNs, UsdMicros
from governor.report_moments import moments
from tests.unit.test_engine import at, hello, make_node, play, rule, tick

INCIDENT = "llama.node-a.1"


def halted(*, first_tick: float, stopped: float, refused: bool = False) -> tuple[Node, Incident]:
    """$98.32/h, a ceiling of $10: 366 s. The run has nobody to ask; the provider declares 60 s."""
    budget = Budget(ceiling_usd_micros=UsdMicros(10_000_000))
    rules = rule("budget", params={"budget": budget}, checkpoint="none")
    node = make_node(rules, budget=budget, stop_bound_ns=DurationNs(60 * NS_PER_S))
    play(node, tick(0), hello(0, 0, world_size=1, capabilities=frozenset()), tick(first_tick))
    play(node, ProcessesSeen(at(first_tick + 1), INCIDENT, ()))
    if refused:
        play(node, StopReplied(at(first_tick + 2), INCIDENT, StopAnswer.REFUSED, True, "http_429"))
    play(node, StopReplied(at(first_tick + 3), INCIDENT, StopAnswer.ACCEPTED, False, "accepted"))
    play(node, tick(stopped), BillingRead(at(stopped), INCIDENT, BillingAnswer.ENDED, "stopped"))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.is_closed
    return node, incident


def told(incident: Incident) -> list[str]:
    return [
        cause
        for entry in incident.timeline
        if entry["what"] == "ceiling_exceeded"
        for cause in entry["detail"]["because"]
    ]


def test_a_halt_below_its_ceiling_has_nothing_to_say() -> None:
    _, incident = halted(first_tick=300, stopped=330)
    assert told(incident) == []


def test_a_provider_slower_than_it_declares_is_named_with_both_figures() -> None:
    node, incident = halted(first_tick=300, stopped=400)
    assert told(incident) == ["the stop took 1m 39s, and the provider declares 1m 0s"]
    [line] = [moment.text for moment in moments(incident_snapshot(node, incident), None) if moment.label == "OVER"]
    assert line == "$0.9244 above $10.00: the stop took 1m 39s, and the provider declares 1m 0s"


def test_a_refusal_is_a_cause_of_its_own() -> None:
    _, incident = halted(first_tick=300, stopped=400, refused=True)
    assert told(incident)[0] == "the provider refused a stop"


def test_a_verdict_that_came_too_late_is_said() -> None:
    _, incident = halted(first_tick=380, stopped=390)
    assert told(incident) == ["the ceiling was passed before the verdict"]
