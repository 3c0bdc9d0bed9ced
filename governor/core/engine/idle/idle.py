"""Stopping a node that nobody uses: since when nobody is here, the warning, and the stop (docs/adr/0014).

Not knowing is not idle. Whoever comes before the provider has accepted the stop ends it.
"""

from __future__ import annotations

from typing import Final

from governor.core.base.units import NS_PER_MINUTE, DurationNs, MonoNs
from governor.core.engine.idle.idle_limit import due_at, finish_over, limit, warn_ns
from governor.core.engine.idle.idle_words import cannot_stop, idle_text, unseen_text, warning
from governor.core.engine.idle.idleness import NODE
from governor.core.engine.idle.node_stop import go_on, open_stop
from governor.core.engine.keeping import keep
from governor.core.engine.node import Node
from governor.core.engine.occupancy import LOOK_GAP_NS, left_since, live, occupants, unseen
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.events import OperatorHold
from governor.core.money.charges import UNALLOCATED

UNSEEN_ALARM_NS: Final = DurationNs(5 * NS_PER_MINUTE)  # A sampler that crashed is started again within one.


def on_hold(node: Node, event: OperatorHold) -> list[Effect]:
    """`costgov hold @node`: the operator is somebody. Lifted or over, the idle time begins anew."""
    idle = node.idle
    idle.hold_until = MonoNs(event.at + event.duration) if event.duration else None
    idle.hold_reason = event.reason
    data = {"act": "hold", "uid": event.uid, "reason": event.reason, "duration_ns": event.duration}
    idle.somebody()
    record = Record("operator", NODE, None, data, durable=True)  # Behind what it answers for, as for a run's brake.
    return [keep(node, event.at, durable=True), record, *watch(node, event.at)]


def watch(node: Node, at: MonoNs) -> list[Effect]:
    """Behind everything else of the tick: who is here by now, and what follows."""
    idle = node.idle
    if idle.hold_until is not None and at >= idle.hold_until:
        idle.hold_until = None
    idle.last_runs = tuple(live(node)) or idle.last_runs
    here, why = occupants(node, at), unseen(node, at)
    effects = finish_over(node, here, why, at)
    boot = node.ledger.charged_to  # Of the last tick. Whoever wakes a suspended machine wants it.
    slept = idle.looked_at is None or max(at - idle.looked_at, boot - idle.looked_boot) > LOOK_GAP_NS
    came_and_went = idle.since is not None and left_since(node, idle.since)
    idle.looked_at, idle.looked_boot = at, boot
    if here or why is not None or slept:
        idle.since = idle.warned_at = None
    if here or came_and_went:
        idle.somebody()
    if why is None:
        idle.blind_since = None
    if idle.since is None and not here and why is None:
        idle.since = at
        if not idle.is_stopping:
            idle.spent_before_usd_micros = node.ledger.spend(UNALLOCATED)
    if idle.is_stopping:
        return [*effects, *go_on(node, here, at)]
    if idle.since is not None:
        return [*effects, *_wait(node, at)]
    return [*effects, *(_blind(node, why, at) if not here else [])]


def _blind(node: Node, why: str | None, at: MonoNs) -> list[Effect]:
    """Not knowing is not idle; where a stop is wanted, that nobody knows is said once."""
    idle, wanted = node.idle, limit(node)
    if why is None:
        return []
    idle.blind_since = at if idle.blind_since is None else idle.blind_since
    if wanted is None or at - idle.blind_since < UNSEEN_ALARM_NS:
        return []
    return _once(node, "node_unseen", unseen_text(why, wanted.source))


def _wait(node: Node, at: MonoNs) -> list[Effect]:
    idle, wanted = node.idle, limit(node)
    if wanted is None or idle.is_done:
        return []
    due = due_at(node, wanted)
    assert due is not None
    obstacle = cannot_stop(node.facts)
    if obstacle is not None or wanted.observed:
        if at < due:
            return []
        would = obstacle or "observe mode: it would be"
        assert idle.since is not None
        return _once(node, "node_stays_billed", idle_text(node.facts, wanted.source, at - idle.since, would))
    if idle.warned_at is None:
        if at < due - warn_ns(wanted):
            return []
        idle.warned_at = at
        due = due_at(node, wanted)
        assert due is not None
        return [Alarm("node_idle", NODE, warning(node, wanted.source, at - (idle.since or at), due - at))]
    return open_stop(node, wanted, at) if at >= due else []


def _once(node: Node, name: str, text: str) -> list[Effect]:
    if name in node.idle.told:
        return []
    node.idle.told.add(name)
    return [Alarm(name, NODE, text)]
