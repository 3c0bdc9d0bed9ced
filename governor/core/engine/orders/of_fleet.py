"""Orders to the fleet, carried out here: a halt once for each attempt of a run, and a hold for as long as it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from governor.core.base.units import MonoNs, utc_text
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.engine.orders import by_hand
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.fleet_orders import Act, Order, OrdersRead
from governor.core.fleet.orders import Orders, covers, left_of


def on_read(node: Node, event: OrdersRead) -> list[Effect]:
    if node.shared is None:
        return []
    before = node.shared.orders.standing
    effects: list[Effect] = [
        Alarm("fleet_order_unreadable", None, f"a row of the fleet orders nothing, because it cannot be read: {key}")
        for key in sorted(node.shared.orders.replace(event, node.runs))
    ]
    if tuple(before) != event.orders:  # A start of ours while nobody can be asked goes on with these.
        effects.append(persist(node, event.at, durable=True))
    return [*effects, *_carried_out(node, event.at)]


def apply(node: Node, at: MonoNs) -> list[Effect]:
    """At each tick, for runs that have begun since, and for those whose hold is over."""
    holds = any(managed.history.fleet_hold is not None for managed in node.runs.values())
    return _carried_out(node, at) if holds or (node.shared is not None and node.shared.orders.standing) else []


def is_held(node: Node, name: str, uid: int, at: MonoNs) -> bool:
    """Whether an order keeps rules from halting a run of this name, which may not have begun."""
    return node.shared is not None and any(_covering(node, Act.HOLD, name, uid, at))


def _covering(node: Node, act: Act, name: str, uid: int, at: MonoNs) -> Iterator[Order]:
    assert node.shared is not None
    managed = node.runs.get(name)
    stage, labels = (managed.run.stage, managed.run.labels) if managed is not None else (None, {})
    for order in node.shared.orders.of(act, node.wall(at)):
        if covers(order, node.facts.node, name, uid, stage, labels):
            yield order


def refusal(node: Node, name: str, uid: int, at: MonoNs) -> str | None:
    """Why a command of this name is not started: an order would halt it at once. None: none that is known would."""
    if node.shared is None or node.facts.observe:
        return None
    for order in _covering(node, Act.HALT, name, uid, at):
        until = f" until {utc_text(order.until_wall)}" if order.until_wall is not None else ""
        seen = "" if node.shared.orders.is_read else ", as it was read before; etcd does not answer now"
        return (
            f"not launched: {order.text} ({order.scope}) stands{until}{seen}; "
            f"`costgov fleet release {order.order_id}` ends it"
        )
    return None


def _carried_out(node: Node, at: MonoNs) -> list[Effect]:
    wall, orders = node.wall(at), node.shared.orders if node.shared is not None else Orders()
    halts, holds = orders.of(Act.HALT, wall), orders.of(Act.HOLD, wall)
    records: list[Record] = []
    effects: list[Effect] = []
    for managed in list(node.runs.values()):
        records += _held(node, managed, [one for one in holds if _is_covered(node, managed, one)], at)
        for order in halts if managed.run.alive else ():
            is_new = _is_covered(node, managed, order) and orders.note_done(
                order, managed.run.run, managed.run.attempt_at
            )
            effects += _halted(node, managed, order, at) if is_new else []
    return [*records, *effects]


def _halted(node: Node, managed: ManagedRun, order: Order, at: MonoNs) -> list[Effect]:
    if not node.facts.observe:
        return by_hand.halt_by_order(node, managed, order, at)
    return [Alarm("fleet_order_observed", managed.run.run, f"observe mode: {order.text}; this governor halts nothing")]


def _is_covered(node: Node, managed: ManagedRun, order: Order) -> bool:
    run = managed.run
    return covers(order, node.facts.node, run.run, run.uid, run.stage, run.labels)


def _held(node: Node, managed: ManagedRun, holds: list[Order], at: MonoNs) -> list[Record]:
    """The hold that ends last is in force. It begins and ends with its order, which the journal has."""
    wall, before = node.wall(at), managed.history.fleet_hold
    last = max(holds, key=lambda order: order.until_wall or 0, default=None)
    if (last.text if last is not None else None) == (before[1] if before is not None else None):
        return []
    if last is None:
        managed.history.hold_by_fleet(None)
        data: dict[str, Any] = {"act": "hold", "reason": "released, or over", "duration_ns": 0}
    else:
        left = left_of(last, wall)
        managed.history.hold_by_fleet((MonoNs(at + left), last.text))
        data = {"act": "hold", "order": last.order_id, "by": last.by, "reason": last.text, "duration_ns": left}
    return [Record("operator", managed.run.run, None, data, durable=True)]
