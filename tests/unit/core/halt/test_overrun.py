"""A halt that ends above its ceiling says so, with every cause that was observed."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, UsdMicros, WallNs
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import PersistIncident
from governor.core.events.inputs import (
    BillingAnswer,
    BillingRead,
    ProcessesSeen,
    StopAnswer,
    StopReplied,
    TrainerExited,
)
from governor.core.events.operators import OperatorHalt
from governor.core.halt.incident import Incident
from governor.core.halt.overrun import causes, note_overrun
from governor.core.money.budgets import Cap
from governor.text.moments import moments
from tests.unit.core.engine.test_step import at, hello, make_node, peer, play, rule, tick

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


def by_hand(**seen: float) -> list[str]:
    """Causes told of an operator's halt at `verdict`; the provider declares 60 s, the ceiling is met at 366 s."""
    budget = Budget(ceiling_usd_micros=UsdMicros(10_000_000))
    facts = {"budget": budget, "stop_bound_ns": DurationNs(60 * NS_PER_S)}
    node = make_node(rule("nonfinite"), **facts)  # type: ignore[arg-type]
    play(node, tick(0), hello(0, 0, world_size=1, capabilities=frozenset()), tick(seen["verdict"]))
    effects = play(node, OperatorHalt(at(seen["verdict"]), "llama", "enough", 0))
    kept = [effect for effect in effects if isinstance(effect, PersistIncident)][-1]
    if "restored" in seen:
        snapshot = run_snapshot(node, node.runs["llama"], at(seen["verdict"]))
        node = make_node(rule("nonfinite"), boot=seen["restored"], **facts)  # type: ignore[arg-type]
        restore_runs(node, [snapshot], BootNs(at(seen["restored"])), at(seen["restored"]))
        restore_incidents(node, [kept.snapshot], at(seen["restored"]), WallNs(at(seen["restored"])))
    play(node, ProcessesSeen(at(seen["asked"]), INCIDENT, ()))
    play(node, StopReplied(at(seen["asked"]), INCIDENT, StopAnswer.ACCEPTED, False, "accepted"))
    play(node, tick(seen["stopped"]), BillingRead(at(seen["stopped"]), INCIDENT, BillingAnswer.ENDED, "stopped"))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.is_closed
    return told(incident)


def test_another_rules_verdict_that_came_within_the_reserve_is_said() -> None:
    assert by_hand(verdict=330, asked=331, stopped=380) == [
        "the verdict was another rule's, with less room than the reserve"
    ]


def test_a_governor_that_was_down_during_the_halt_is_said() -> None:
    assert by_hand(verdict=330, restored=350, asked=351, stopped=380) == [
        "the verdict was another rule's, with less room than the reserve",
        "the governor was down during the halt",
    ]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_neighbour_that_leaves_the_node_to_a_run_that_is_being_halted_is_a_cause(leaves: bool) -> None:
    """The reserve is of the verdict's moment: half of the node for all that the halt may take, which it takes."""
    budget = Budget(ceiling_usd_micros=UsdMicros(10_000_000))
    node = make_node(rule("budget", params={"budget": budget}), budget=budget, stop_bound_ns=DurationNs(60 * NS_PER_S))
    silent = {"world_size": 1, "capabilities": frozenset[str]()}
    other = hello(0, 200, run="other", connection=ConnectionId(9), peer=peer(900), **silent)
    play(node, tick(0), hello(0, 0, **silent), tick(200), other)
    verdict = next(second for second in range(201, 800) if play(node, tick(second)) and node.runs["llama"].incident)
    if leaves:
        play(node, TrainerExited(at(verdict), "other", 0))
    halt = node.runs["llama"].policy.halt
    ended = verdict + (halt.term_grace_ns + halt.kill_grace_ns) // NS_PER_S
    play(node, ProcessesSeen(at(ended), INCIDENT, ()))
    play(node, StopReplied(at(ended), INCIDENT, StopAnswer.ACCEPTED, False, "accepted"))
    stopped = ended + 60
    play(node, tick(stopped), BillingRead(at(stopped), INCIDENT, BillingAnswer.ENDED, "stopped"))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.is_closed
    expected = ["others left the node during the halt: its share rose from $49.16/h to $98.32/h"] if leaves else []
    assert told(incident) == expected


def test_where_no_cause_was_observed_the_reserve_is_blamed() -> None:
    """Of the budget's own verdict, below the ceiling, with a provider that kept its word."""
    _, incident = halted(first_tick=300, stopped=350)
    ceiling = UsdMicros(incident.spend_usd_micros - 1)
    assert causes(incident, ceiling, 60 * NS_PER_S, at(350)) == ["no cause was observed: the reserve was too small"]


def test_a_verdict_that_came_too_late_is_said() -> None:
    _, incident = halted(first_tick=380, stopped=390)
    assert told(incident) == ["the ceiling was passed before the verdict"]


def test_a_verdict_at_the_ceiling_itself_came_too_late_and_an_end_at_it_is_no_overrun() -> None:
    _, incident = halted(first_tick=300, stopped=330)
    at_verdict = incident.spend_at_verdict_usd_micros
    late, at_it, before = (causes(incident, UsdMicros(at_verdict + n), 60 * NS_PER_S, at(330)) for n in (-1, 0, 1))
    assert late == at_it != before
    noted = []
    for over in (0, 1):
        cap = Cap("run", UsdMicros(incident.spend_usd_micros - over), incident.spend_usd_micros)
        note_overrun(incident, cap, at(330), WallNs(0), stop_bound_ns=60 * NS_PER_S, rise=None)
        noted.append(len(told(incident)))
    assert noted == [0, 1]
