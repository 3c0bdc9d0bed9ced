"""What a provider says of the end of billing is believed only where it has also said that the machine runs."""

from __future__ import annotations

import json
from typing import Any

from governor.core.base.units import BootNs, WallNs
from governor.core.engine.node import Node
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import Effect, Page, PersistIncident, PersistRuns, ReadBilling, StopCompute
from governor.core.events.inputs import BillingAnswer, BillingRead, ProcessesSeen, StopAnswer, StopReplied
from governor.core.halt.table import HaltState
from tests.unit.core.engine.test_step import a_step, ack, at, make_node, only, play, tick, training

INCIDENT = "llama.node-a.1"
NAN = float("nan")


def stopping(node: Node) -> list[Effect]:
    """A run goes NaN, its processes end, and the machine's stop is sent."""
    training(node)
    said = play(node, a_step(31, loss=NAN), ack("failed", 31), ProcessesSeen(at(32), INCIDENT, ()))
    assert any(isinstance(effect, StopCompute) for effect in said)
    return said


def state(node: Node) -> HaltState:
    incident = node.runs["llama"].incident
    assert incident is not None
    return incident.halt.stage


def billing(answer: BillingAnswer, when: float) -> BillingRead:
    return BillingRead(at(when), INCIDENT, answer, "exit_0")


def accepted(when: float) -> StopReplied:
    return StopReplied(at(when), INCIDENT, StopAnswer.ACCEPTED, retryable=False, reason="accepted")


def test_ended_from_a_source_that_never_said_running_is_no_end() -> None:
    node = make_node(said_running=False)
    stopping(node)
    play(node, accepted(33), billing(BillingAnswer.ENDED, 35))
    assert state(node) is HaltState.VERIFYING
    assert node.runs["llama"].incident is not None
    assert "verified" not in [entry["what"] for entry in node.runs["llama"].incident.timeline]


def test_ended_after_running_is_the_end() -> None:
    node = make_node(said_running=False)
    stopping(node)
    play(node, accepted(33), billing(BillingAnswer.RUNNING, 34), billing(BillingAnswer.ENDED, 36))
    assert state(node) is HaltState.HALTED


def test_a_source_that_was_not_heard_is_asked_before_anything_is_stopped() -> None:
    for said_running in (True, False):
        node = make_node(said_running=said_running)
        training(node)
        effects = play(node, a_step(31, loss=NAN))
        assert any(isinstance(effect, ReadBilling) for effect in effects) is not said_running
    play(node, billing(BillingAnswer.RUNNING, 31.5), ack("failed", 31.6), ProcessesSeen(at(32), INCIDENT, ()))
    play(node, accepted(33), billing(BillingAnswer.ENDED, 34))
    assert state(node) is HaltState.HALTED


def resumed(node: Node, effects: list[Effect], **facts: object) -> Node:
    """Another governor takes up what was persisted. Its own first question may find the machine gone already."""
    runs: dict[str, Any] = {}
    opened = None
    for effect in effects:
        runs |= effect.runs if isinstance(effect, PersistRuns) else {}
        opened = effect.snapshot if isinstance(effect, PersistIncident) else opened
    again = make_node(boot=40, said_running=False, **facts)
    restore_runs(again, json.loads(json.dumps(list(runs.values()))), BootNs(at(40)), at(40))
    restore_incidents(again, [json.loads(json.dumps(opened))], at(40), WallNs(10**18))
    return again


def test_what_was_heard_outlives_the_governor_and_another_check_begins_anew() -> None:
    for source, state_after in (("aws", HaltState.HALTED), ("command 12ab", HaltState.VERIFYING)):
        node = make_node(billing_source="aws")
        effects = play(node, tick(0)) + stopping(node) + play(node, accepted(33), tick(45))
        again = resumed(node, effects, billing_source=source)
        play(again, billing(BillingAnswer.ENDED, 41))
        assert state(again) is state_after


def test_running_is_persisted_when_it_is_first_heard() -> None:
    node = make_node(said_running=False, billing_source="aws")
    effects = stopping(node) + play(node, accepted(33), billing(BillingAnswer.RUNNING, 34), tick(34.25))
    again = resumed(node, effects, billing_source="aws")
    play(again, billing(BillingAnswer.ENDED, 41))
    assert state(again) is HaltState.HALTED


def test_a_provider_that_answers_no_stop_pages_once_within_a_minute_and_is_asked_on() -> None:
    node = make_node()
    stopping(node)
    said = [(when, play(node, tick(32 + when))) for when in range(1, 121)]
    pages = [when for when, effects in said if any(isinstance(effect, Page) for effect in effects)]
    assert len(pages) == 1
    assert 60 <= pages[0] <= 61
    assert sum(isinstance(effect, StopCompute) for _, effects in said for effect in effects) >= 3
    assert state(node) is HaltState.STOPPING


def test_a_provider_that_says_not_now_is_left_its_attempts() -> None:
    node = make_node()
    stopping(node)
    busy = StopReplied(at(33), INCIDENT, StopAnswer.REFUSED, retryable=True, reason="http_503")
    assert not [effect for effect in play(node, busy) if isinstance(effect, Page)]
    said = [effect for when in range(34, 100) for effect in play(node, tick(when))]
    assert not [effect for effect in said if isinstance(effect, Page)]
    assert only(play(node, accepted(100)), ReadBilling)
