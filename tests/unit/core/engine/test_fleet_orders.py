"""Orders to the fleet on one node, through the engine: what is halted and held, once, and what a release ends."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, WallNs
from governor.core.engine.orders.of_fleet import refusal
from governor.core.events.effects import Alarm, Ask, Effect, PersistRuns, Record, Term
from governor.core.events.fleet_orders import Act, Order, OrdersRead
from governor.core.events.fleet_store import Kept
from governor.core.events.inputs import Disconnected, TrainerExited
from governor.core.fleet.orders import (
    HOLD_MAX_NS,
    ORDER_ROWS,
    checked_order_scope,
    covers,
    order_key,
    order_of,
    order_text,
)
from governor.core.money.charges import UNALLOCATED
from tests.unit.core.engine.test_shared_budgets import TEAM, World, end_billing
from tests.unit.core.engine.test_step import a_step, at, hello, tick

NOW = 10**18  # The tests' wall clock at 0 s.
HALT = Order("halt-00000a", Act.HALT, TEAM, "the data are wrong", "ann@ops", WallNs(1))
HOLD = Order("hold-00000b", Act.HOLD, "run:llama", "we look", "ann@ops", WallNs(NOW), WallNs(NOW + 2 * NS_PER_HOUR))


def read(world: World, when: float, *orders: Order, unreadable: tuple[str, ...] = ()) -> list[Effect]:
    return world.play(OrdersRead(at(when), orders, unreadable))


def halted(effects: list[Effect]) -> list[str]:
    return [one.run for one in effects if isinstance(one, Term)]


def training() -> World:
    world = World(1_000)
    world.join()
    world.until(2)
    return world


def test_a_halt_ends_the_runs_that_it_covers_as_a_person_s_would_and_once() -> None:
    world = training()
    effects = read(world, 2, HALT)
    assert halted(effects) == ["llama"]
    [audit] = [one for one in effects if isinstance(one, Record) and one.kind == "operator"]
    assert (audit.data["order"], audit.data["by"]) == ("halt-00000a", "ann@ops")
    incident = world.node.runs["llama"].incident
    assert incident is not None
    assert (incident.trigger, incident.rule, incident.operator_uid) == ("operator", "fleet_order", None)
    again = [*read(world, 3, HALT), *world.until(6, 3)]
    assert not [one for one in again if isinstance(one, Record) and one.kind == "operator"]


@pytest.mark.parametrize("scope", ["label:team=vision", "node:n2", "run:other", "stage:s1"])
def test_what_an_order_does_not_cover_goes_on(scope: str) -> None:
    world = training()
    order = Order("halt-00000c", Act.HALT, scope, "x", "ann@ops", WallNs(1))
    assert halted([*read(world, 2, order), *world.until(4, 2)]) == []


@pytest.mark.parametrize("scope", ["fleet", "run:llama", "node:n1"])
def test_every_kind_of_scope_covers_what_it_names(scope: str) -> None:
    world = training()
    name = world.node.facts.node
    order = Order("halt-00000c", Act.HALT, scope.replace("n1", name), "x", "ann@ops", WallNs(1))
    assert halted(read(world, 2, order)) == ["llama"]


def test_a_run_that_begins_while_a_halt_stands_is_halted_at_its_first_tick() -> None:
    world = World(1_000)
    world.until(1)
    read(world, 1, HALT)
    world.join(1)
    assert halted(world.until(2, 1)) == ["llama"]


def test_a_run_that_is_started_anew_while_a_halt_stands_is_halted_anew() -> None:
    world = training()
    read(world, 2, HALT)
    world.until(30, 2)
    incident = world.node.runs["llama"].incident
    assert incident is not None
    end_billing(world, incident.incident_id, 30)
    world.play(Disconnected(at(30), ConnectionId(1)), TrainerExited(at(30), "llama", 0))
    world.until(120, 30)
    again = hello(0, when=121, attempt="a2", labels={"team": "nlp"}, world_size=1, connection=ConnectionId(2))
    world.play(again)
    assert halted(world.until(125, 121)) == ["llama"], "the order stands"


def test_an_order_that_has_ended_by_our_clock_does_nothing() -> None:
    world = training()
    order = Order("halt-00000d", Act.HALT, "fleet", "x", "ann@ops", WallNs(1), WallNs(NOW + NS_PER_S))
    assert halted([*read(world, 2, order), *world.until(4, 2)]) == []


@pytest.mark.parametrize("is_unsaved", [False, True])
def test_an_unsaved_halt_asks_for_no_checkpoint(is_unsaved: bool) -> None:
    world = training()
    world.play(*(hello(rank, when=2 + rank / 10, labels={"team": "nlp"}) for rank in (0, 1)))
    world.play(*(a_step(30, rank, when=3) for rank in (0, 1)))
    order = Order("halt-00000e", Act.HALT, "fleet", "x", "ann@ops", WallNs(1), None, is_unsaved)
    effects = read(world, 4, order)
    assert [one.run for one in effects if isinstance(one, Ask)] == ([] if is_unsaved else ["llama"])


def test_an_order_by_name_covers_the_run_of_a_user_whose_name_was_another_s() -> None:
    order = Order("halt-00000c", Act.HALT, "run:llama", "x", "ann@ops", WallNs(1))
    assert covers(order, "n1", "llama@1001", 1001, None, {})
    assert not covers(order, "n1", "llama@1001", 1002, None, {})


def test_a_governor_that_observes_halts_nothing_and_says_so_once_and_starts_what_is_launched() -> None:
    world = training()
    world.node.facts = replace(world.node.facts, observe=True)
    effects = [*read(world, 2, replace(HALT, scope="fleet")), *world.until(4, 2)]
    assert halted(effects) == []
    assert [one.name for one in effects if isinstance(one, Alarm)] == ["fleet_order_observed"]
    assert refusal(world.node, "new", 1000, at(4)) is None


def test_a_governor_that_starts_while_nobody_can_be_asked_goes_on_with_the_orders_of_before() -> None:
    world = World(1_000)
    world.until(1)
    effects = read(world, 1, HALT)
    kept = [one for one in effects if isinstance(one, PersistRuns)][-1]
    assert world.node.shared is not None
    again = World(1_000)
    assert again.node.shared is not None
    again.node.shared.restore(json.loads(json.dumps(kept.runs[UNALLOCATED]))["shared"])
    again.join(2)
    assert halted(again.until(4, 2)) == ["llama"]
    gone = World(1_000)
    assert gone.node.shared is not None
    gone.node.shared.restore(json.loads(json.dumps(kept.runs[UNALLOCATED]))["shared"])
    read(gone, 1)
    gone.join(2)
    assert halted(gone.until(4, 2)) == [], "it was released meanwhile"


def test_a_hold_whose_end_is_further_than_any_may_be_holds_nothing() -> None:
    world = training()
    given = WallNs(NOW + 400 * 24 * NS_PER_HOUR)
    read(world, 2, replace(HOLD, given_wall=given, until_wall=WallNs(given + NS_PER_HOUR)))
    assert until(world) is None


def until(world: World, when: float = 3) -> float | None:
    held = world.node.runs["llama"].history.held(at(when))
    return held[0] / NS_PER_S if held is not None else None


def test_a_hold_lasts_until_its_end_and_is_noted_once() -> None:
    world = training()
    effects = [*read(world, 2, HOLD), *world.until(4, 2), *read(world, 4, HOLD)]
    assert until(world) == 7200
    assert until(world, 7200) is None
    notes = [one.data for one in effects if isinstance(one, Record) and one.kind == "operator"]
    assert [(one["order"], one["by"]) for one in notes] == [("hold-00000b", "ann@ops")]


def test_a_hold_stands_over_a_restart_until_its_order_is_gone() -> None:
    world = training()
    kept = [one for one in read(world, 2, HOLD) if isinstance(one, PersistRuns)][-1]
    again = training()
    assert again.node.shared is not None
    again.node.shared.restore(json.loads(json.dumps(kept.runs[UNALLOCATED]))["shared"])
    again.until(3, 2)
    assert until(again) == 7200, "until the orders are read, what was read last stands"
    read(again, 3)
    assert until(again) is None


def test_a_hold_ends_with_the_fleet_that_gave_it() -> None:
    world = training()
    read(world, 2, HOLD)
    world.node.shared = None
    world.until(4, 3)
    assert until(world, 4) is None


def test_a_run_that_comes_back_from_what_is_only_remembered_has_the_holds_of_now() -> None:
    world = training()
    history = world.node.runs["llama"].history
    history.hold_by_fleet((at(7200), "of an order that is gone"))
    world.until(4, 3)
    assert until(world, 4) is None


def test_holds_of_many_runs_are_one_commit() -> None:
    world = training()
    for number in range(5):
        name = {"run": f"run-{number}", "connection": ConnectionId(50 + number)}
        world.play(hello(0, when=2, labels={"team": "nlp"}, world_size=1, **name))
    order = Order("hold-00000c", Act.HOLD, "fleet", "x", "bob@ops", WallNs(NOW), WallNs(NOW + NS_PER_HOUR))
    effects = read(world, 3, order)
    assert len([one for one in effects if isinstance(one, Record) and one.kind == "operator"]) == 6
    assert len([one for one in effects if isinstance(one, PersistRuns)]) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_several_holds_each_stands_until_it_is_released(order: tuple[int, int]) -> None:
    world = training()
    long = Order("hold-00000c", Act.HOLD, "fleet", "x", "bob@ops", WallNs(NOW), WallNs(NOW + 3 * NS_PER_HOUR))
    both = [(HOLD, long)[one] for one in order]
    read(world, 2, *both[:1])
    read(world, 2, *both)
    assert until(world) == 3 * 3600
    read(world, 3, HOLD)
    assert until(world) == 7200
    read(world, 4)
    assert until(world, 5) is None


@pytest.mark.parametrize("own_s", [100, 50_000])
def test_a_person_s_own_hold_stands_beside_the_fleet_s(own_s: int) -> None:
    world = training()
    world.node.runs["llama"].history.hold(at(own_s), "mine")
    read(world, 2, HOLD)
    assert until(world) == max(own_s, 7200)
    read(world, 3)
    assert until(world) == own_s


def test_a_rule_s_halt_is_held_back_by_the_fleet_s_hold_and_follows_when_that_is_released() -> None:
    world = training()
    read(world, 2, HOLD)
    assert halted(world.play(a_step(2, when=3, loss=float("nan")), tick(4))) == []
    read(world, 5)
    assert halted(world.until(7, 5)) == ["llama"]


def test_a_row_that_cannot_be_read_is_told_once() -> None:
    world = training()
    key = ORDER_ROWS + "halt-000001"
    told = [one for when in (2, 3) for one in read(world, when, unreadable=(key,)) if isinstance(one, Alarm)]
    assert [one.name for one in told] == ["fleet_order_unreadable"]


def test_a_command_that_an_order_would_halt_is_not_started() -> None:
    world = World(1_000)
    world.play(tick(1))
    assert refusal(world.node, "llama", 1000, at(1)) is None
    read(world, 1, Order("halt-00000c", Act.HALT, "run:llama", "x", "ann@ops", WallNs(1)))
    refused = refusal(world.node, "llama", 1000, at(1))
    assert refused is not None
    assert "costgov fleet release halt-00000c" in refused
    assert refusal(world.node, "gpt", 1000, at(1)) is None


# --- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [HALT, HOLD])
def test_an_order_is_read_as_it_was_written(order: Order) -> None:
    assert order_of(Kept(order_key(order.order_id), order_text(order), 7)) == order


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("halt-00000a", "no json"),
        ("halt-00000a", "[" * 3_000),
        ("halt-00000a", "null"),
        ("stop-00000a", order_text(HALT)),
        ("hold-00000a", order_text(HALT)),
        ("halt-00000a/x", order_text(HALT)),
        ("halt-00000a", order_text(HALT).replace('"v": 1', '"v": 2')),
        ("halt-00000a", order_text(HALT).replace(TEAM, "day")),
        ("halt-00000a", order_text(HALT).replace("the data", "\\u001b[2J")),
        ("halt-00000a", order_text(HALT).replace("the data", "x" * 600)),
        ("halt-00000a", order_text(HALT).replace('"is_unsaved": false', '"is_unsaved": 0')),
        ("halt-00000a", order_text(HALT).replace('"given_wall_ns": 1', '"given_wall_ns": true')),
        ("hold-00000b", order_text(HOLD).replace(str(HOLD.until_wall), "null")),
        ("hold-00000b", order_text(HOLD).replace(str(HOLD.until_wall), str(NOW + HOLD_MAX_NS + 1))),
        ("halt-00000a", order_text(HALT) + " " * 5_000),
    ],
)
def test_what_is_no_order_orders_nothing(key: str, value: str) -> None:
    assert order_of(Kept(ORDER_ROWS + key, value, 7)) is None


def test_a_row_that_is_gone_orders_nothing() -> None:
    assert order_of(Kept(ORDER_ROWS + "halt-00000a")) is None


@pytest.mark.parametrize("text", ["", "day", "node:", "node:\n", "run:", "run:a b", "everything", "node:" + "x" * 200])
def test_no_order_has_such_a_scope(text: str) -> None:
    with pytest.raises(ValueError, match="no scope of an order"):
        checked_order_scope(text)
