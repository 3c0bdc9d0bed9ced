"""What a governor takes up from its journal, and that nothing which stands there keeps it from starting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.core.base.findings import Reading
from governor.core.base.identity import ConnectionId
from governor.core.base.policy import AT_ONCE, Budget, Persistence, PersistenceKind
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, UsdMicros, WallNs
from governor.core.engine.idle_state import NODE
from governor.core.engine.node import RUNS_MAX, Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_incidents, restore_runs
from governor.core.events.effects import Alarm, Ask, PersistIncident, PersistRuns, ReadBilling, Record
from governor.core.events.inputs import BillingAnswer, BillingRead, Disconnected, ProcessesSeen, StopAnswer, StopReplied
from governor.core.events.machine import PriceRead
from governor.core.events.operators import OperatorHalt, OperatorHold
from governor.core.money.charges import UNALLOCATED
from tests.unit.core.engine.test_step import PRICE, a_step, at, hello, make_node, play, rule, tick, training

NAN = float("nan")
WALL = WallNs(10**18)


def a_run(node: Node, when: float) -> dict[str, Any]:
    return dict(run_snapshot(node, node.runs["llama"], at(when)))


def alarms(effects: list[Any]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Alarm)]


@pytest.mark.parametrize("fault", [{"uid": None}, {"halts_wall": 3}, {"spend_usd_micros": "much"}, {"labels": 7}])
def test_a_run_that_cannot_be_read_is_said_and_the_others_are_taken_up(fault: dict[str, Any]) -> None:
    node = make_node()
    training(node)
    torn = {**a_run(node, 31), "run": "torn", **fault}
    reborn = make_node(boot=40)
    effects = restore_runs(reborn, [torn, {}, a_run(node, 31)], BootNs(at(40)), at(40))
    assert alarms(effects) == ["run_unreadable", "run_unreadable"]
    assert list(reborn.runs) == ["llama"]


@pytest.mark.parametrize("fault", [{"halt": {}}, {"plan": {"checkpoint": "golden"}}, {"rank_processes": [{}]}])
def test_an_incident_of_another_version_is_said_and_the_next_one_resumed(fault: dict[str, Any]) -> None:
    node = make_node()
    training(node)
    kept = [e for e in play(node, a_step(31, loss=NAN)) if isinstance(e, PersistIncident)]
    reborn = make_node(boot=40)
    effects = restore_incidents(reborn, [{**kept[-1].snapshot, **fault}, kept[-1].snapshot], at(40), WALL)
    assert alarms(effects) == ["incident_unreadable"]
    assert any(isinstance(effect, Ask) for effect in effects)


def test_an_incident_number_is_given_once_also_when_the_runs_own_count_is_older() -> None:
    node = make_node()
    training(node)
    old = {**a_run(node, 30), "incidents_total": 1}
    node.runs["llama"].history.incidents_total = 1
    kept = [e for e in play(node, a_step(31, loss=NAN)) if isinstance(e, PersistIncident)]
    assert kept[-1].incident_id == "llama.node-a.2"
    reborn = make_node(boot=40)
    restore_runs(reborn, [old], BootNs(at(40)), at(40))
    restore_incidents(reborn, [kept[-1].snapshot], at(40), WALL)
    assert reborn.runs["llama"].history.incidents_total == 2
    assert len(reborn.runs["llama"].history.halts_wall) == 1, "the breaker counts it"


def test_a_budget_outlives_the_machines_reboot_and_its_incident_numbers_go_on() -> None:
    node = make_node()
    training(node, 3600)
    spent = node.ledger.spend("llama")
    assert spent > 0
    snapshot = {**a_run(node, 3600), "incidents_total": 2}
    reborn = make_node(boot_id="boot-2", boot=5)
    restore_runs(reborn, [snapshot], BootNs(at(5)), at(5))
    assert reborn.ledger.spend("llama") == spent
    assert not reborn.runs["llama"].run.alive
    play(reborn, tick(5), hello(0, 6, attempt="a2", world_size=1), OperatorHalt(at(7), "llama", "enough", 0))
    assert reborn.runs["llama"].incident.incident_id == "llama.node-a.3"  # type: ignore[union-attr]


def test_a_restored_run_knows_who_it_was_until_its_ranks_say_hello() -> None:
    node = make_node()
    training(node)
    reborn = make_node(boot=40)
    restore_runs(reborn, [a_run(node, 31)], BootNs(at(40)), at(40))
    assert reborn.runs["llama"].processes() == node.runs["llama"].processes()
    assert len(reborn.runs["llama"].processes()) == 2


def test_what_the_steps_before_a_restart_were_like_halts_nobody_who_does_not_say_hello_again() -> None:
    """One minute of the three that the rule asks for was measured; from then on nothing is heard: no evidence."""
    starved = rule("data_starvation", persistence=Persistence(PersistenceKind.DURATION, 180 * NS_PER_S))
    node = make_node(starved)
    play(node, tick(0), hello(0, world_size=1))
    for second in range(1, 101):
        slow = {"step_s": 1.0, "data_s": 0.0 if second < 40 else 0.95}
        play(node, a_step(second, when=second, **slow), tick(second))
    assert node.runs["llama"].rules.findings["r-data_starvation"].reading is Reading.FIRING
    new = make_node(starved, boot=100)
    restore_runs(new, [a_run(node, 100)], BootNs(at(100)), at(100))
    play(new, *(tick(second) for second in range(101, 500)))
    assert new.runs["llama"].rules.findings["r-data_starvation"].reason == "no_connection"
    assert new.runs["llama"].incident is None


def test_no_more_runs_are_taken_up_than_are_kept() -> None:
    node = make_node()
    training(node, 2)
    play(node, Disconnected(at(3), ConnectionId(1)))
    many = [{**a_run(node, 3), "run": f"r{number}"} for number in range(RUNS_MAX + 5)]
    reborn = make_node(boot=40)
    restore_runs(reborn, many, BootNs(at(40)), at(40))
    assert len(reborn.runs) == RUNS_MAX
    assert "r4" not in reborn.runs


def test_a_governor_that_comes_back_knows_that_the_machine_was_to_be_destroyed() -> None:
    """The provider forgets such a machine, and the adapter of a new process has never seen it."""
    node = make_node()
    training(node)
    play(node, OperatorHalt(at(31), "llama", "enough", 0))
    incident_id = "llama.node-a.1"
    play(node, *[ProcessesSeen(at(32), incident_id, ())] * 2)
    effects = play(node, StopReplied(at(33), incident_id, StopAnswer.ACCEPTED, False, "accepted", destroys=True))
    assert [effect.destroyed for effect in effects if isinstance(effect, ReadBilling)] == [True]
    kept = [effect for effect in effects if isinstance(effect, PersistIncident)]
    reborn = make_node(boot=40)
    restore_runs(reborn, [a_run(node, 33)], BootNs(at(40)), at(40))
    resumed = restore_incidents(reborn, [json.loads(json.dumps(kept[-1].snapshot))], at(40), WALL)
    assert [effect.destroyed for effect in resumed if isinstance(effect, ReadBilling)] == [True]
    play(reborn, BillingRead(at(41), incident_id, BillingAnswer.ENDED, "InvalidInstanceID.NotFound"))
    incident = reborn.runs["llama"].incident
    assert incident is not None
    assert incident.is_closed


def test_an_acceptance_that_comes_late_is_remembered_too_and_a_mere_stop_is_not() -> None:
    node = make_node()
    training(node)
    play(node, OperatorHalt(at(31), "llama", "enough", 0))
    incident_id = "llama.node-a.1"
    play(node, *[ProcessesSeen(at(32), incident_id, ())] * 2)
    effects = play(node, StopReplied(at(33), incident_id, StopAnswer.ACCEPTED, False, "accepted"))
    assert [effect.destroyed for effect in effects if isinstance(effect, ReadBilling)] == [False]
    effects = play(node, StopReplied(at(34), incident_id, StopAnswer.ACCEPTED, False, "accepted", destroys=True))
    (kept,) = [effect for effect in effects if isinstance(effect, PersistIncident)]
    assert kept.snapshot["halt"]["destroyed"] is True


def test_a_halt_that_an_older_version_wrote_down_destroyed_nothing() -> None:
    node = make_node()
    training(node)
    kept = [effect for effect in play(node, a_step(31, loss=NAN)) if isinstance(effect, PersistIncident)]
    snapshot = json.loads(json.dumps(kept[-1].snapshot))
    del snapshot["halt"]["destroyed"]
    reborn = make_node(boot=40)
    restore_incidents(reborn, [snapshot], at(40), WALL)
    incident = reborn.runs["llama"].incident
    assert incident is not None
    assert not incident.halt.destroyed


@pytest.mark.parametrize(("trigger", "price"), [("budget", PRICE), ("budget", None), ("nonfinite", PRICE)])
def test_a_halt_that_a_hold_kept_back_comes_at_its_end_also_when_the_governor_died_in_between(
    trigger: str, price: UsdMicros | None
) -> None:
    """The verdict itself is reported once: the ceiling that it was for would never be held to again."""
    budget = Budget(ceiling_usd_micros=UsdMicros(900_000))  # $0.17 of it for its own halt; $0.03 a second.
    node = make_node(rule(trigger, persistence=AT_ONCE), budget=budget)
    play(node, tick(0), hello(0), hello(1))
    play(node, OperatorHold(at(1), "llama", DurationNs(100 * NS_PER_S), "debugging", 0))
    held = [e for second in range(2, 30) for e in play(node, a_step(second, loss=NAN), tick(second))]
    assert "halt_held" in alarms(held)
    reborn = make_node(rule(trigger, persistence=AT_ONCE), budget=budget, boot=30, price_usd_micros_per_hour=price)
    restore_runs(reborn, [a_run(node, 29)], BootNs(at(30)), at(30))
    play(reborn, tick(30), hello(0, 31), hello(1, 31), tick(32))
    # What is not known at first has not ended.
    play(reborn, PriceRead(at(32), BootNs(at(32)), WallNs(at(32) + 10**18), PRICE, "test", "2026-01-01"))
    for second in range(33, 120):
        effects = play(reborn, a_step(second, loss=NAN), tick(second))
        if any(isinstance(effect, PersistIncident) for effect in effects):
            assert second == 101
            return
    raise AssertionError("never")


def test_a_hold_is_kept_before_the_record_whose_commit_waits_for_the_disk() -> None:
    """What is answered for outlives our own crash in the next moment."""
    node = make_node()
    training(node)
    [kept, record] = play(node, OperatorHold(at(31), "llama", DurationNs(100 * NS_PER_S), "debugging", 0))
    assert isinstance(kept, PersistRuns)
    assert kept.durable
    assert kept.runs["llama"]["hold_until"] == at(131)
    assert isinstance(record, Record)
    assert record.durable


def test_the_nodes_hold_is_kept_before_its_record_too() -> None:
    node = make_node()
    play(node, tick(0))
    kept, record, *_ = play(node, OperatorHold(at(1), NODE, DurationNs(100 * NS_PER_S), "an evaluation", 0))
    assert isinstance(kept, PersistRuns)
    assert kept.durable
    assert kept.runs[UNALLOCATED]["idle"]["hold_until"] == at(101)
    assert isinstance(record, Record)
    assert record.durable


@pytest.mark.parametrize("furthest", [[], [1], [1, 2, 3]])
def test_a_row_whose_furthest_step_is_damaged_costs_that_run_alone(furthest: list[int]) -> None:
    node = make_node()
    training(node)
    reborn = make_node(boot=40)
    effects = restore_runs(reborn, [{**a_run(node, 31), "furthest": furthest}], BootNs(at(40)), at(40))
    assert alarms(effects) == ["run_unreadable"]


@pytest.mark.parametrize(
    ("trigger", "field", "damaged"),
    [("hang", "log_pause_ns", "1e999"), ("loss_divergence", "step", "1e999"), ("data_starvation", "ranks", "[[]]")],
)
def test_a_damaged_value_in_one_rules_state_costs_that_state_alone(trigger: str, field: str, damaged: str) -> None:
    node = make_node(rule(trigger))
    training(node)
    kept = a_run(node, 31)
    state = kept["rules"][f"r-{trigger}"]["state"]
    assert field in state
    state[field] = json.loads(damaged)
    reborn = make_node(rule(trigger), boot=40)
    effects = restore_runs(reborn, [kept], BootNs(at(40)), at(40))
    assert alarms(effects) == []
    assert reborn.ledger.spend("llama") == kept["spend_usd_micros"] > 0
