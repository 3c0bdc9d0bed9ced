"""Alarms and halts as alerts: what they say, how urgent they are, what is the same one, what repeats itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from governor.core.alerts.catalogue import (
    DEFAULT_SEVERITY,
    KEYS_MAX,
    LABEL_CHARS_MAX,
    REPEAT_NS,
    SEVERITIES,
    TEXT_CHARS_MAX,
    Alert,
    Repeats,
    Route,
    Severity,
    State,
    of_alarm,
    of_incident,
    of_test,
    severity_of,
)
from governor.core.base.policy import Budget
from governor.core.base.units import MonoNs, UsdMicros, WallNs
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node
from tests.unit.core.engine.test_launched_command import launched
from tests.unit.core.engine.test_step import a_step, hello, make_node, peer, play, rule, training

WALL = WallNs(1_800_000_000 * 10**9)


def halted() -> tuple[Node, dict[str, Any]]:
    node = make_node(rule(), budget=Budget(ceiling_usd_micros=UsdMicros(300_000_000)))
    training(node, 30)
    play(node, a_step(31, loss=float("nan")))
    incident = node.runs["llama"].incident
    assert incident is not None
    return node, incident_snapshot(node, incident)


def test_an_alarm_says_whose_it_is_and_what_was_spent() -> None:
    node = make_node(rule(), budget=Budget(ceiling_usd_micros=UsdMicros(300_000_000)))
    training(node, 30)
    told = of_alarm(node, "unwatched", "llama", "run llama is not heard", WALL, 1)
    assert (told.name, told.state, told.severity, told.node) == ("unwatched", State.EVENT, Severity.WARNING, "node-a")
    assert told.spend_usd_micros == node.runs["llama"].run.spend_usd_micros > 0
    assert told.ceiling_usd_micros == 300_000_000
    assert (told.run, told.incident, told.wall) == ("llama", None, WALL)


def test_an_alarm_of_no_run_has_no_money() -> None:
    told = of_alarm(make_node(rule()), "price_stale", None, "the price is old", WALL, 1)
    assert (told.run, told.spend_usd_micros, told.ceiling_usd_micros) == (None, None, None)


def test_spend_without_a_price_is_unknown_and_not_nothing() -> None:
    node = make_node(rule())
    training(node, 3)
    run = node.runs["llama"].run
    run.spend_usd_micros, run.spend_rate_usd_micros_per_hour = UsdMicros(0), None
    assert of_alarm(node, "unwatched", "llama", "text", WALL, 1).spend_usd_micros is None


def test_alarms_have_ids_of_their_own() -> None:
    node = make_node(rule())
    ids = {
        of_alarm(node, name, run, "text", wall, number).alert_id
        for name in ("a", "b")
        for run in (None, "llama")
        for wall in (WALL, WallNs(WALL + 1))
        for number in (1, 2)
    }
    assert len(ids) == 16
    assert all("." not in one and one.startswith("msg_") for one in ids)


def test_a_halt_is_one_alert_from_its_verdict_to_its_end() -> None:
    node, snapshot = halted()
    opened = of_incident(node, snapshot)
    ended = of_incident(node, {**snapshot, "halt_stage": "HALTED", "closed_wall_ns": int(WALL)})
    assert (opened.state, ended.state) == (State.FIRING, State.RESOLVED)
    assert opened.key == ended.key
    assert opened.alert_id != ended.alert_id
    assert (opened.severity, ended.severity) == (Severity.CRITICAL, Severity.CRITICAL)
    assert opened.wall == ended.wall == snapshot["opened_wall_ns"]
    assert ended.ended_wall == WALL
    assert "is being halted, now ASKED: " in opened.text
    assert "is halted" in ended.text
    assert snapshot["text"] in opened.text
    assert opened.see == f"costgov incident show {snapshot['incident_id']}"
    assert opened.ceiling_usd_micros == 300_000_000
    assert opened.incident is not None
    assert (opened.incident.halt_stage, opened.incident.reason) == ("ASKED", snapshot["reason"])


def test_a_governor_that_resumes_the_halt_tells_the_same_alert() -> None:
    node, snapshot = halted()
    after_a_restart = make_node(rule())  # It may not know the run any more.
    assert of_incident(node, snapshot).alert_id == of_incident(after_a_restart, snapshot).alert_id


def test_a_governor_that_resumes_the_halt_says_no_less_than_the_verdict_did() -> None:
    node, snapshot = halted()
    told = of_incident(node, {**snapshot, "spend_usd_micros": snapshot["spend_at_verdict_usd_micros"] - 1})
    assert told.spend_usd_micros == snapshot["spend_at_verdict_usd_micros"] > 0


def test_a_halt_that_needs_a_person_says_so_and_goes_on_firing() -> None:
    node, snapshot = halted()
    told = of_incident(node, {**snapshot, "halt_stage": "NEEDS_HUMAN"})
    assert told.state is State.FIRING
    assert "needs a person, and keeps trying" in told.text


def test_a_halt_says_what_stays_billed() -> None:
    node, snapshot = halted()
    told = of_incident(
        node,
        {**snapshot, "halt_stage": "HALTED", "closed_wall_ns": int(WALL), "stays_billed": ["vol-1", "the address"]},
    )
    assert told.text.endswith("stays billed: vol-1; the address")


def halted_beside_a_command() -> tuple[Node, dict[str, Any]]:
    node = launched()
    play(node, hello(0, 1, run="theirs", world_size=1, peer=peer(900, 2001)))
    play(node, a_step(1, run="theirs", when=2, loss=2.0), a_step(2, run="theirs", when=3, loss=float("nan")))
    incident = node.runs["theirs"].incident
    assert incident is not None
    return node, incident_snapshot(node, incident)


@pytest.mark.parametrize("stage", ["ASKED", "NEEDS_HUMAN", "HALTED"])
def test_a_strangers_halt_beside_a_command_is_a_warning_of_its_own_that_says_whose_it_is(stage: str) -> None:
    node, snapshot = halted_beside_a_command()
    told = of_incident(node, {**snapshot, "halt_stage": stage, "stays_billed": ["this machine"]})
    assert (told.name, told.severity) == ("stranger_halt", Severity.WARNING)
    assert told.text.startswith("run theirs (of uid 2001, beside the command) is ")
    assert "stays billed" not in told.text
    assert "needs a person" not in told.text
    assert not Route(only=("halt",)).wants(told)
    of_the_service = of_incident(node, {key: value for key, value in snapshot.items() if key != "strangers"})
    assert (of_the_service.name, of_the_service.severity) == ("halt", Severity.CRITICAL), (
        "every halt there is its user's"
    )


def test_no_alarm_of_a_stranger_beside_a_command_is_urgent_or_told_as_the_commands() -> None:
    node, _ = halted_beside_a_command()
    told = of_alarm(node, "checkpoint_nonfinite", "theirs", "its weights are not finite", WALL, 1)
    assert told.severity is Severity.WARNING
    assert told.text == "run theirs (of uid 2001, beside the command): its weights are not finite"
    own = of_alarm(node, "checkpoint_nonfinite", "job", "its weights are not finite", WALL, 1)
    assert (own.severity, own.text) == (Severity.CRITICAL, "its weights are not finite")


def test_a_node_that_is_stopped_is_no_run() -> None:
    node, snapshot = halted()
    assert of_incident(node, {**snapshot, "run": "@node"}).text.startswith("the node is being halted, now ASKED: ")


def test_a_text_is_bounded_and_fit_for_json() -> None:
    told = of_alarm(make_node(rule()), "a", None, "/caf\udce9 " + "x" * 10_000, WALL, 1)
    assert told.text.startswith(r"/caf\udce9 x")
    assert len(told.text) <= TEXT_CHARS_MAX + 5


def test_labels_are_bounded_and_fit_for_json() -> None:
    node = make_node(rule())
    training(node, 3)
    node.runs["llama"].run.labels = {"team": "x" * 500, "owner": "caf\udce9"}
    labels = of_alarm(node, "unwatched", "llama", "text", WALL, 1).labels
    assert labels == {"team": "x" * LABEL_CHARS_MAX, "owner": r"caf\udce9"}


def test_a_name_that_is_not_in_the_table_has_the_default() -> None:
    assert severity_of("rule_anything") is DEFAULT_SEVERITY is Severity.WARNING
    assert severity_of("needs_human") is Severity.CRITICAL
    assert all(name == name.lower() for name in SEVERITIES)


def an_alert(name: str, severity: Severity) -> Alert:
    return replace(of_test("node-a", WALL), name=name, severity=severity)


@pytest.mark.parametrize(
    ("route", "wanted"),
    [
        (Route(), {"halt", "rule_nan", "price_stale"}),
        (Route(only=("halt",)), {"halt"}),
        (Route(only=("rule_*",)), {"rule_nan"}),
        (Route(only=("rule",)), set()),
        (Route(only=("*",)), {"halt", "rule_nan", "price_stale"}),
        (Route(min_severity=Severity.WARNING), {"halt", "rule_nan"}),
        (Route(min_severity=Severity.CRITICAL), {"halt"}),
        (Route(only=("rule_*", "halt"), min_severity=Severity.CRITICAL), {"halt"}),
    ],
)
def test_a_receiver_gets_what_it_wants(route: Route, wanted: set[str]) -> None:
    told = [
        an_alert("halt", Severity.CRITICAL),
        an_alert("rule_nan", Severity.WARNING),
        an_alert("price_stale", Severity.INFO),
    ]
    assert {one.name for one in told if route.wants(one)} == wanted


T0 = MonoNs(7)


def later(duration_ns: int) -> MonoNs:
    return MonoNs(T0 + duration_ns)


def test_an_alarm_that_repeats_itself_is_one_alert_and_its_last_word_is_told_once() -> None:
    repeats = Repeats()
    assert repeats.is_new("unwatched", "r", "first", T0)
    assert not repeats.is_new("unwatched", "r", "second", later(1))
    assert not repeats.is_new("unwatched", "r", "third", later(REPEAT_NS - 1))
    assert list(repeats.due(later(REPEAT_NS - 1))) == []
    assert list(repeats.due(later(REPEAT_NS))) == [("unwatched", "r", "third", 2)]
    assert list(repeats.due(later(3 * REPEAT_NS))) == []


def test_what_was_told_at_the_end_begins_a_new_while() -> None:
    repeats = Repeats()
    repeats.is_new("a", None, "first", T0)
    repeats.is_new("a", None, "second", later(1))
    assert len(list(repeats.due(later(REPEAT_NS)))) == 1
    assert not repeats.is_new("a", None, "third", later(REPEAT_NS + 1))
    assert repeats.is_new("a", None, "fourth", later(2 * REPEAT_NS))


def test_another_run_and_another_name_are_other_alarms() -> None:
    repeats = Repeats()
    assert repeats.is_new("a", "r", "text", T0)
    assert repeats.is_new("a", "s", "text", T0)
    assert repeats.is_new("b", "r", "text", T0)
    assert repeats.is_new("a", None, "text", T0)


def test_an_alarm_that_comes_again_later_is_told_again() -> None:
    repeats = Repeats()
    assert repeats.is_new("a", "r", "text", T0)
    assert not repeats.is_new("a", "r", "text", later(REPEAT_NS - 1))
    assert repeats.is_new("b", "r", "text", later(REPEAT_NS))
    assert repeats.is_new("b", "r", "text", later(2 * REPEAT_NS))


def test_what_is_remembered_is_bounded() -> None:
    repeats = Repeats()
    for number in range(KEYS_MAX + 1):
        assert repeats.is_new("a", f"r{number}", "text", T0)
    assert repeats.is_new("a", "r0", "text", T0)
    assert not repeats.is_new("a", f"r{KEYS_MAX}", "text", T0)
