"""What a person asks for: a halt of a run, and a hold of its rules. On this node, or by an order to the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.core.base.findings import Finding, Reading
from governor.core.base.units import MonoNs
from governor.core.engine import incidents, verdicts
from governor.core.engine.idle import stop
from governor.core.engine.idle_state import NODE
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.node_journal import persist
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.fleet_orders import Order
from governor.core.events.operators import OperatorHalt, OperatorHold
from governor.core.halt.table import Fact


def on_halt(node: Node, event: OperatorHalt) -> list[Effect]:
    managed = node.runs.get(event.run)
    if managed is None or not managed.run.alive:
        return [Alarm("operator_halt", event.run, f"no live run {event.run} to halt")]
    finding = Finding(Reading.FIRING, "operator", event.reason, {"uid": event.uid})
    return _halted(node, managed, finding, event.at, {"uid": event.uid}, is_unsaved=event.is_unsaved)


def halt_by_order(node: Node, managed: ManagedRun, order: Order, at: MonoNs) -> list[Effect]:
    who = {"order": order.order_id, "by": order.by}
    finding = Finding(Reading.FIRING, "fleet_order", order.text, who)
    return _halted(node, managed, finding, at, who, is_unsaved=order.is_unsaved)


def _halted(
    node: Node, managed: ManagedRun, finding: Finding, at: MonoNs, who: Mapping[str, Any], *, is_unsaved: bool
) -> list[Effect]:  # fmt: skip
    checkpoint = "none" if is_unsaved else managed.policy.halt.checkpoint
    verdict = verdicts.verdict_by_hand(managed, finding, finding.reason, checkpoint, trigger="operator")
    unsaved = {"checkpoint": "none"} if is_unsaved else {}
    data = {"act": "halt", **who, "reason": finding.text, **unsaved}
    audit = Record("operator", managed.run.run, None, data, durable=True)
    if managed.incident is not None and not managed.incident.is_closed:
        merged = incidents.merge(node, managed, verdict, at)
        hastened = incidents.feed(node, managed, Fact.VERDICT_NO_ASK, at) if is_unsaved else []
        return [audit, *merged, *hastened]
    managed.drop_latch()  # A person may halt a run again in spite of its latch.
    return [audit, *incidents.open_incident(node, managed, verdict, at, operator_uid=who.get("uid"))]


def on_hold(node: Node, event: OperatorHold) -> list[Effect]:
    if event.run == NODE:
        return stop.on_hold(node, event)
    managed = node.runs.get(event.run)
    if managed is None:
        return [Alarm("operator_hold", event.run, f"no run {event.run} to hold")]
    managed.history.hold(MonoNs(event.at + event.duration), event.reason)
    data = {"act": "hold", "uid": event.uid, "reason": event.reason, "duration_ns": event.duration}
    # In this order: no record reports a hold that is not persisted. A confirmed hold outlives a crash of the governor.
    kept = persist(node, event.at, managed, durable=True)
    return [kept, Record("operator", event.run, None, data, durable=True)]
