"""Orders to the fleet, carried out here: a halt once for each attempt of a run, and a hold for as long as it stands."""

from __future__ import annotations

from governor.core.base.units import MonoNs, utc_text
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.engine.orders import by_hand
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.fleet_orders import Act, Order, OrdersRead
from governor.core.fleet.orders import covers, left_of


def on_read(node: Node, event: OrdersRead) -> list[Effect]:
    if node.shared is None:
        return []
    before = node.shared.orders.standing
    effects: list[Effect] = [
        Alarm("fleet_order_unreadable", None, f"a row of the fleet orders nothing, because it cannot be read: {key}")
        for key in sorted(node.shared.orders.replace(event, node.runs))
    ]
    if tuple(before) != event.orders:  # A start of ours while nobody can be asked goes on with these.
        effects.append(persist(node, event.at))
    return [*effects, *_carried_out(node, event.at)]


def apply(node: Node, at: MonoNs) -> list[Effect]:
    """At each tick, for runs that have begun since."""
    return _carried_out(node, at) if node.shared is not None and node.shared.orders.standing else []


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


def _carried_out(node: Node, at: MonoNs) -> list[Effect]:
    assert node.shared is not None
    wall, orders = node.wall(at), node.shared.orders
    halts, holds = orders.of(Act.HALT, wall), orders.of(Act.HOLD, wall)
    effects: list[Effect] = []
    for managed in list(node.runs.values()):
        effects += _held(node, managed, [one for one in holds if _is_covered(node, managed, one)], at)
        for order in halts if managed.run.alive else ():
            is_new = _is_covered(node, managed, order) and orders.note_done(
                order, managed.run.run, managed.run.attempt_at
            )
            effects += _halted(node, managed, order, at) if is_new else []
    return effects


def _halted(node: Node, managed: ManagedRun, order: Order, at: MonoNs) -> list[Effect]:
    if not node.facts.observe:
        return by_hand.halt_by_order(node, managed, order, at)
    return [Alarm("fleet_order_observed", managed.run.run, f"observe mode: {order.text}; this governor halts nothing")]


def _is_covered(node: Node, managed: ManagedRun, order: Order) -> bool:
    run = managed.run
    return covers(order, node.facts.node, run.run, run.uid, run.stage, run.labels)


def _held(node: Node, managed: ManagedRun, holds: list[Order], at: MonoNs) -> list[Effect]:
    """The hold that ends last is in force. It begins and ends with its order: nothing of it is remembered."""
    wall, before = node.wall(at), managed.history.fleet_hold
    last = max(holds, key=lambda order: order.until_wall or 0, default=None)
    if (last.text if last is not None else None) == (before[1] if before is not None else None):
        return []
    managed.history.hold_by_fleet((MonoNs(at + left_of(last, wall)), last.text) if last is not None else None)
    order = {"order": last.order_id, "by": last.by, "reason": last.text} if last is not None else {"reason": "released"}
    data = {"act": "hold", **order, "duration_ns": left_of(last, wall) if last is not None else 0}
    # In this order: no record reports a hold that is not persisted.
    kept = persist(node, at, managed, durable=True)
    return [kept, Record("operator", managed.run.run, None, data, durable=True)]
