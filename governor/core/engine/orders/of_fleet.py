"""Orders to the fleet, carried out on this node: each once for an attempt of a run, and a hold until it is released."""

from __future__ import annotations

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, utc_text
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.orders import by_hand
from governor.core.events.effects import Alarm, Effect
from governor.core.events.fleet_orders import Act, Order, OrdersRead
from governor.core.fleet.orders import covers, left_of, order_named_in


def on_read(node: Node, event: OrdersRead) -> list[Effect]:
    if node.shared is None:
        return []
    effects: list[Effect] = [
        Alarm("fleet_order_unreadable", None, f"a row of the fleet orders nothing, because it cannot be read: {key}")
        for key in sorted(node.shared.orders.replace(event, node.runs))
    ]
    return [*effects, *_released(node, event), *apply(node, event.at)]


def apply(node: Node, at: MonoNs) -> list[Effect]:
    """At each tick, for runs that have begun since."""
    if node.shared is None or not node.shared.orders.standing:
        return []
    wall = node.wall(at)
    effects: list[Effect] = []
    for order in node.shared.orders.standing:
        for managed in list(node.runs.values()) if order.stands(wall) else ():
            if managed.run.alive and _is_covered(node, managed, order):
                effects += _done(node, managed, order, at)
    return effects


def refusal(node: Node, name: str, uid: int, at: MonoNs) -> str | None:
    """Why a command of this name is not started: an order would halt it at once. None: none that is known would."""
    if node.shared is None or node.facts.observe:
        return None
    managed = node.runs.get(name)
    stage, labels = (managed.run.stage, managed.run.labels) if managed is not None else (None, {})
    for order in node.shared.orders.of(Act.HALT, node.wall(at)):
        if covers(order, node.facts.node, name, uid, stage, labels):
            until = f" until {utc_text(order.until_wall)}" if order.until_wall is not None else ""
            release = f"costgov fleet release {order.order_id}"
            return f"not launched: {order.text} ({order.scope}) stands{until}; `{release}` ends it"
    return None


def _is_covered(node: Node, managed: ManagedRun, order: Order) -> bool:
    run = managed.run
    return covers(order, node.facts.node, run.run, run.uid, run.stage, run.labels)


def _done(node: Node, managed: ManagedRun, order: Order, at: MonoNs) -> list[Effect]:
    assert node.shared is not None
    # A person who lifts a hold on the node itself is not overruled when the run's ranks are started anew.
    attempt = managed.run.attempt_at if order.act is Act.HALT else 0
    if not node.shared.orders.note_done(order, managed.run.run, attempt):
        return []
    if order.act is Act.HALT:
        return by_hand.halt_by_order(node, managed, order, at)
    left = left_of(order, node.wall(at))
    until = managed.history.hold_until
    if until is not None and until >= at + left - NS_PER_S:
        return []  # A longer one, or this one of before our restart.
    return by_hand.hold(node, managed, left, order.text, at, {"order": order.order_id, "by": order.by})


def _released(node: Node, event: OrdersRead) -> list[Effect]:
    """Lift the holds whose order is gone: also those of an earlier start of ours."""
    effects: list[Effect] = []
    ids = {order.order_id for order in event.orders}
    for managed in node.runs.values():
        held = managed.history
        named = order_named_in(held.hold_reason)
        if named is not None and named not in ids and held.hold_until is not None and event.at < held.hold_until:
            lifted = f"fleet order {named} was released"
            effects += by_hand.hold(node, managed, DurationNs(0), lifted, event.at, {"order": named})
    return effects
