"""What `costgov status` and the metrics show of who uses the node, and of its own stop."""

from __future__ import annotations

from typing import Any

from governor.core.base.units import MICROS_PER_USD, NS_PER_S, MonoNs
from governor.core.engine.idle.idle_limit import due_at, limit
from governor.core.engine.idle.idle_words import KEEP_IT, cannot_stop
from governor.core.engine.node import Node
from governor.core.engine.occupancy import occupants, unseen
from governor.core.money.charges import UNALLOCATED


def idle_s(node: Node, at: MonoNs) -> float | None:
    """How long nobody has been here; 0 while somebody is, None while nobody can tell."""
    if node.idle.since is not None:
        return max(0, at - node.idle.since) / NS_PER_S
    return 0.0 if occupants(node, at) else None


def node_status(node: Node, at: MonoNs) -> dict[str, Any]:
    """Seconds and dollars are floats here: for eyes, not for sums."""
    idle, wanted = node.idle, limit(node)
    due = due_at(node, wanted) if wanted is not None and not idle.is_done and not wanted.observed else None
    obstacle = cannot_stop(node.facts) if wanted is not None else None
    incident = idle.stop.incident if idle.stop is not None else None
    return {
        "here": [one.text for one in occupants(node, at)],
        "unseen": unseen(node, at),
        "idle_s": idle_s(node, at),
        "limit_s": wanted.after_ns / NS_PER_S if wanted is not None else None,
        "limit_by": wanted.source if wanted is not None else None,
        "observed": wanted.observed if wanted is not None else None,
        "obstacle": obstacle,
        "stops_in_s": max(0, due - at) / NS_PER_S if due is not None and obstacle is None else None,
        "will": node.facts.will_stop,
        "keep_it": KEEP_IT,
        "hold": _hold(node, at),
        "stop": {"stage": incident.halt.stage.name, "incident_id": incident.incident_id}
        if idle.is_stopping and incident
        else None,
        "unallocated_usd": node.ledger.spend(UNALLOCATED) / MICROS_PER_USD,
    }


def _hold(node: Node, at: MonoNs) -> dict[str, Any] | None:
    until = node.idle.hold_until
    if until is None or at >= until:
        return None
    return {"left_s": (until - at) / NS_PER_S, "reason": node.idle.hold_reason}
