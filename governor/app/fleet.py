"""The fleet's part of a governor, built from [fleet]: the store, the thread that asks it, and what the node holds."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from governor.adapters.etcd.opening import FleetUnavailable, NoStore, open_store
from governor.core.base.units import MonoNs
from governor.core.engine.node import NodeFacts
from governor.core.events.inputs import Event
from governor.core.fleet.scopes import Holder
from governor.core.fleet.shared import Shared
from governor.daemon.fleet_worker import FleetWorker, OpenScopes
from governor.ports import Clock
from governor.remote_ports import FleetStore
from governor.settings.model import Settings


@dataclass(slots=True)
class FleetPart:
    """`problem`: why nobody can be asked. Then nothing is granted, and the start says so."""

    worker: FleetWorker
    shared: Shared
    problem: str | None

    def document(self) -> dict[str, Any]:
        """For `status`."""
        last = self.worker.last_answer_at
        return {
            "problem": self.problem,
            "has_answered": last is not None,
            "asked_total": self.worker.asked_total,
            "unanswered_total": self.worker.unanswered_total,
            "grants": [
                {
                    "scope": one.scope,
                    "run": one.run,
                    "granted_usd": one.granted_usd_micros / 1e6,
                    "used_usd": one.used_usd_micros / 1e6,
                    "reserved_usd": one.reserve_usd_micros / 1e6,
                    "why": one.why.value if one.why is not None else None,
                }
                for one in self.shared.reservations.standings(self.worker.last_answer_at or MonoNs(0))
            ],
        }


def fleet_part(
    settings: Settings, facts: NodeFacts, clock: Clock, post: Callable[[Event], None]
) -> tuple[FleetPart | None, Shared | None]:
    """None: [fleet] has no etcd. Before the journal is read: what it holds of grants is taken up with the node's."""
    fleet = settings.fleet
    if not fleet.is_enabled:
        return None, None
    holder = Holder(facts.node, facts.boot_id, uuid.uuid4().hex)  # The journal's takes its place, where it has one.
    shared = Shared(fleet.budgets, holder, uuid.uuid4().hex, facts.instance_id)
    problem: str | None = None
    store: FleetStore
    try:
        store = open_store(fleet)
    except FleetUnavailable as unavailable:
        store, problem = NoStore(), f"fleet: {unavailable}; nothing of a shared budget is granted"
    worker = FleetWorker(store, clock, post, [OpenScopes(fleet.budgets, clock.wall)])
    return FleetPart(worker, shared, problem), shared
