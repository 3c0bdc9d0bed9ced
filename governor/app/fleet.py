"""The fleet's part of a governor, built from [fleet]: the store, the thread that asks it, and what the node holds."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from governor.adapters.etcd.opening import FleetUnavailable, NoStore, open_store
from governor.app.fleet_costs import ledger_days
from governor.core.base.units import NS_PER_S, MonoNs, WallNs
from governor.core.engine.node import NodeFacts
from governor.core.events.inputs import Event
from governor.core.fleet.scopes import Holder
from governor.core.fleet.shared import Shared
from governor.daemon.fleet.costs import FleetCosts
from governor.daemon.fleet.orders import OrderWatch
from governor.daemon.fleet.presence import FleetPresence
from governor.daemon.fleet.sweep import FleetSweep, Sweeper
from governor.daemon.fleet.worker import FleetWorker, OpenScopes
from governor.ports import Clock
from governor.remote_ports import Cloud, FleetStore
from governor.settings.model import Settings

ORDERS_WITHIN_S: Final = 3.0  # etcd answers in some milliseconds; a follower without a leader after 7 s.


@dataclass(slots=True)
class FleetPart:
    """`problem`: why nobody can be asked. Then nothing is granted, and the start says so."""

    worker: FleetWorker
    sweep: FleetWorker
    watch: OrderWatch
    presence: FleetPresence
    shared: Shared
    problem: str | None
    wall: Callable[[], WallNs]

    def begin(self) -> Callable[[], None]:
        """Returns what ends it. RuntimeError: no thread can be started."""
        self.worker.begin()
        self.sweep.begin()
        if self.problem is None:
            self.watch.begin()
        return self.close

    def close(self) -> None:
        self.watch.close()
        self.sweep.end_soon()
        self.worker.close()
        self.sweep.close(within_s=0.5)  # It may wait for a provider.

    def stopped(self) -> str | None:
        """A thread of ours that has ended before its time: a fault of ours, which the log has."""
        threads = {"grants and rows": self.worker.is_alive, "silent governors": self.sweep.is_alive}
        threads |= {"orders": self.watch.is_alive or self.problem is not None}
        gone = [what for what, is_alive in threads.items() if not is_alive]
        return f"nobody asks etcd for {', '.join(gone)} any more: restart the governor" if gone else None

    def await_orders(self) -> None:
        """Before a command is started: an order may forbid it. Who cannot be asked forbids nothing."""
        read = self.watch.await_first(ORDERS_WITHIN_S) if self.problem is None else None
        if read is not None:
            self.shared.orders.begin_with(read)

    def document(self) -> dict[str, Any]:
        """For `status`."""
        last = self.worker.last_answer_at
        return {
            "problem": self.problem or self.stopped(),
            "orders_read": self.watch.has_read,
            "orders": [
                {"id": one.order_id, "act": one.act.value, "scope": one.scope, "reason": one.reason, "by": one.by}
                for one in self.shared.orders.standing
                if one.stands(self.wall())
            ],
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
                    "lasts_s": None if one.runway_ns is None else round(one.runway_ns / NS_PER_S, 1),
                    "has_ended": one.has_ended,
                    "why": one.why.value if one.why is not None else None,
                }
                for one in self.shared.reservations.standings(self.worker.last_answer_at or MonoNs(0))
            ],
        }


def fleet_part(
    settings: Settings, facts: NodeFacts, clock: Clock, post: Callable[[Event], None], cloud: Cloud | None = None
) -> tuple[FleetPart | None, Shared | None]:
    """None: [fleet] has no etcd. Before the journal is read: what it holds of grants is taken up with the node's."""
    fleet = settings.fleet
    if not fleet.is_enabled:
        return None, None
    holder = Holder(facts.node, facts.boot_id, uuid.uuid4().hex)  # The journal's takes its place, where it has one.
    shared = Shared(fleet.budgets, holder, uuid.uuid4().hex, facts.instance_id)
    problem: str | None = None
    stores: list[FleetStore]
    try:
        stores = [open_store(fleet) for _ in range(3)]  # One for each thread.
    except FleetUnavailable as unavailable:
        stores = [NoStore() for _ in range(3)]
        problem = f"fleet: {unavailable}; nothing of a shared budget is granted, and no order is known"
    presence = FleetPresence(
        lambda: shared.holder, (facts.cloud, facts.instance_id), lambda: (problem,) if problem else (), post
    )
    sweeper = Sweeper(facts.cloud, facts.region, cloud.other) if fleet.sweep and cloud is not None else None
    sweep = FleetSweep(lambda: shared.holder, lambda: presence.lease, clock.wall, post, sweeper)
    costs = FleetCosts(lambda: shared.holder, ledger_days(settings.paths.state_dir), clock.wall)
    worker = FleetWorker(stores[0], clock, post, [OpenScopes(fleet.budgets, clock.wall), presence, costs])
    sweeping = FleetWorker(stores[2], clock, post, [sweep], name="fleet-sweep")
    watch = OrderWatch(stores[1], clock, post, spread=uuid.uuid4().int % 1_000 / 1_000)
    return FleetPart(worker, sweeping, watch, presence, shared, problem, clock.wall), shared
