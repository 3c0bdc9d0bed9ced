"""A rule whose halts were wrong falls back to observe mode, and enforces again when people say so."""

from __future__ import annotations

import json
from dataclasses import replace

from governor.core.base.policy import Budget, Mode, WrongHalt
from governor.core.base.units import BootNs, UsdMicros
from governor.core.engine import step as engine
from governor.core.engine.incident_json import incident_snapshot
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.events.effects import Alarm, Ask, Effect, Record
from governor.core.events.inputs import HaltMarksRead
from governor.core.events.operators import OperatorHalt
from tests.unit.core.engine.test_step import a_step, at, make_node, play, rule, tick, training

TWICE = (WrongHalt("llama.node-a.1"), WrongHalt("llama.node-a.2"))
NAN = {("p", "r-nonfinite"): TWICE}


def alarms(effects: list[Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Alarm)]


def read(when: float, wrong: dict[tuple[str, str], tuple[WrongHalt, ...]]) -> HaltMarksRead:
    return HaltMarksRead(at(when), wrong)


def is_halted(node: Node) -> bool:
    return node.runs["llama"].incident is not None


def test_a_rule_that_was_wrong_twice_warns_and_halts_nothing() -> None:
    node = make_node()
    training(node)
    told = play(node, read(30.1, NAN))
    assert alarms(told) == ["fell_back"]
    (row,) = [effect for effect in told if isinstance(effect, Record)]
    assert (row.kind, row.data["incidents"], row.durable) == ("fell_back", ["llama.node-a.1", "llama.node-a.2"], True)
    effects = play(node, a_step(31, loss=float("nan")))
    assert (alarms(effects), is_halted(node)) == (["rule_r-nonfinite"], False)
    assert play(node, read(31.1, NAN)) == [], "it is told once"


def test_a_rule_that_is_armed_again_and_still_fires_halts_then() -> None:
    node = make_node()
    training(node)
    play(node, read(30.1, NAN), a_step(31, loss=float("nan")), tick(31.2))
    assert alarms(play(node, read(31.5, {}))) == ["enforces_again"]
    effects = play(node, a_step(32, loss=float("nan")))
    assert any(isinstance(effect, Ask) for effect in effects)


def test_a_mark_ends_no_halt_that_is_under_way() -> None:
    node = make_node()
    training(node)
    play(node, a_step(31, loss=float("nan")))
    incident = node.runs["llama"].incident
    assert incident is not None
    before = incident.halt
    play(node, read(31.1, NAN))
    assert (incident.halt, incident.is_closed) == (before, False)
    deadline = incident.halt.deadline
    assert deadline is not None
    play(node, tick(deadline / 1e9 + 1))
    assert incident.halt.stage is not before.stage, "it goes on"


def test_a_ceilings_halt_and_one_by_hand_never_fall_back() -> None:
    node = make_node(rule("budget"), budget=Budget(ceiling_usd_micros=UsdMicros(2_500_000)))
    training(node, steps=2)
    assert play(node, read(2.1, {("p", "r-budget"): TWICE, ("p", "operator"): TWICE})) == []
    play(node, *(tick(second) for second in range(3, 100)))
    assert is_halted(node)
    node = make_node()
    training(node)
    play(node, read(30.1, {("p", "operator"): TWICE}), OperatorHalt(at(31), "llama", "enough", 0))
    assert is_halted(node)


def test_a_reload_keeps_what_people_have_said_and_may_turn_it_off() -> None:
    node = make_node()
    training(node)
    play(node, read(30.1, NAN))
    fresh = replace(node.policies, wrong={})
    assert alarms(engine.reload(node, fresh)) == []
    assert node.runs["llama"].policy.rules[0].mode is Mode.OBSERVE
    (policy,) = fresh.policies
    off = replace(fresh, policies=(replace(policy, wrong_max=0),))
    engine.reload(node, off)
    assert node.runs["llama"].policy.rules[0].mode is Mode.ENFORCE


def test_it_holds_over_a_restart_of_the_governor() -> None:
    node = make_node()
    training(node)
    play(node, read(30.1, NAN), a_step(31, loss=float("nan")))
    row = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(31))))
    again = make_node(boot=40)
    again.policies = replace(again.policies, wrong=NAN)
    restore_runs(again, [row], BootNs(at(40)), at(40))
    assert again.runs["llama"].policy.rules[0].mode is Mode.OBSERVE


def test_an_incident_says_with_how_many_false_ones_its_rule_falls_back() -> None:
    node = make_node()
    training(node)
    play(node, a_step(31, loss=float("nan")))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident_snapshot(node, incident)["wrong_max"] == 2
    node = make_node()
    training(node)
    play(node, OperatorHalt(at(31), "llama", "enough", 0))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident_snapshot(node, incident)["wrong_max"] == 0
