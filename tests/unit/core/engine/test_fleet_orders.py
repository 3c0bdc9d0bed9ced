"""Orders to the fleet on one node, through the engine: what is halted and held, once, and what a release ends."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, WallNs
from governor.core.engine.orders.of_fleet import refusal
from governor.core.events.effects import Alarm, Effect, Record, Term
from governor.core.events.fleet_orders import Act, Order, OrdersRead
from governor.core.events.fleet_store import Kept
from governor.core.events.inputs import Disconnected, TrainerExited
from governor.core.fleet.orders import (
    HOLD_MAX_NS,
    ORDER_ROWS,
    checked_order_scope,
    order_key,
    order_named_in,
    order_of,
    order_text,
)
from tests.unit.core.engine.test_shared_budgets import TEAM, World, end_billing
from tests.unit.core.engine.test_step import at, hello, tick

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


def test_an_unsaved_halt_asks_for_no_checkpoint() -> None:
    world = training()
    order = Order("halt-00000e", Act.HALT, "fleet", "x", "ann@ops", WallNs(1), None, True)
    read(world, 2, order)
    incident = world.node.runs["llama"].incident
    assert incident is not None
    assert incident.plan.checkpoint == "none"


def test_a_hold_lasts_until_its_end_and_is_not_made_again_where_a_person_has_lifted_it() -> None:
    world = training()
    read(world, 2, HOLD)
    history = world.node.runs["llama"].history
    assert history.hold_until == at(7200)
    assert order_named_in(history.hold_reason) == "hold-00000b"
    history.hold(None, "")
    world.until(4, 2)
    assert history.hold_until is None


def test_a_released_hold_is_lifted_also_where_an_earlier_start_of_ours_made_it() -> None:
    world = training()
    read(world, 2, HOLD)
    assert world.node.shared is not None
    world.node.shared.orders = type(world.node.shared.orders)()  # A restart: the run's row has the hold, and no order.
    read(world, 3)
    history = world.node.runs["llama"].history
    assert history.hold_until == at(3)


def test_a_person_s_own_hold_is_neither_shortened_nor_lifted_by_the_fleet() -> None:
    world = training()
    history = world.node.runs["llama"].history
    history.hold(at(50_000), "mine")
    read(world, 2, HOLD)
    read(world, 3)
    assert (history.hold_until, history.hold_reason) == (at(50_000), "mine")


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
