"""The fleet as its rows show it: nodes, runs over their nodes, and the sums of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from governor.app.fleet_rows import Failure, failure_of, opened
from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, NS_PER_S, WallNs
from governor.core.events.fleet_orders import Order
from governor.core.events.fleet_store import Kept
from governor.core.fleet.orders import ORDER_ROWS, covers, order_of
from governor.core.fleet.presence import (
    LIVE_ROWS,
    NODE_ROWS,
    RUN_ROWS,
    NodeRow,
    RunRow,
    holder_in,
    node_name,
    node_row,
    run_row,
)
from governor.core.money.group_totals import keys_of
from governor.daemon.fleet.paging import every_row
from governor.remote_ports import FleetReply, FleetStore
from governor.settings.fleet import Fleet

# Of a run over several nodes, the first of these that one of them is in is shown.
_STATES: Final = ("halting", "unwatched", "training", "eval", "checkpoint", "compile", "starting", "ending", "halted")
_ENDED: Final = ("finished", "halted")


@dataclass(frozen=True, slots=True)
class Part:
    """A run on one node."""

    holder: str
    node: str
    row: RunRow
    said_ns: int | None  # How long ago that was written, by this machine's clock. None: its node's row is not there.
    is_silent: bool

    @property
    def unseen_usd_micros(self) -> int:
        """What it may have spent since, at the rate that it said."""
        rate = self.row.rate_usd_micros_per_hour
        return 0 if not rate or self.said_ns is None else rate * self.said_ns // NS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Seen:
    """All rows of one look."""

    wall: WallNs
    live: frozenset[str]
    nodes: Mapping[str, NodeRow]  # By holder.
    parts: Sequence[Part]
    orders: Sequence[Order]
    unreadable: tuple[str, ...]  # Keys.


def look(store: FleetStore, wall: WallNs) -> Seen | Failure:
    """Reads one after the other: what changes between them is seen by the next look."""
    found: list[Sequence[Kept]] = []
    for prefix in (LIVE_ROWS, NODE_ROWS, RUN_ROWS, ORDER_ROWS):
        rows = every_row(store, prefix)
        if isinstance(rows, FleetReply):
            return Failure(f"{prefix}: more rows than are read") if rows.is_cut else failure_of(rows)
        found.append(rows)
    live, nodes, runs, orders = found
    read_nodes = {holder_in(kept.key): (kept.key, node_row(kept)) for kept in nodes}
    read_runs = [(kept.key, run_row(kept)) for kept in runs]
    read_orders = [(kept.key, order_of(kept)) for kept in orders]
    unreadable = [key for key, row in (*read_nodes.values(), *read_runs, *read_orders) if row is None]
    speaking = frozenset(holder_in(kept.key) for kept in live)
    known = {holder: row for holder, (_, row) in read_nodes.items() if row is not None}
    parts = [_part(key, row, known, speaking, wall) for key, row in read_runs if row is not None]
    given = [order for _, order in read_orders if order is not None]
    return Seen(wall, speaking, known, parts, given, tuple(unreadable))


def _part(key: str, row: RunRow, nodes: Mapping[str, NodeRow], live: frozenset[str], wall: WallNs) -> Part:
    holder = holder_in(key)
    node = nodes.get(holder)
    said_ns = max(0, wall - node.said_wall_ns) if node is not None else None
    return Part(holder, node.node if node is not None else node_name(holder), row, said_ns, holder not in live)


def covered(seen: Seen, order: Order) -> list[Part]:
    """The parts of live runs that an order covers, as far as the rows show."""
    return [part for part in _live(seen) if _covers(order, part)]


def is_known(seen: Seen, order: Order) -> bool:
    """Whether `covered` is all of it: every row can be read, and no run has labels that its row lacks."""
    by_label = order.scope.startswith("label:")
    return not seen.unreadable and not any(by_label and part.row.left_out for part in _live(seen))


def scopes_of(seen: Seen) -> list[str]:
    """What live runs could be named by: their labels and stages first."""
    rows = [(part.node, part.row) for part in _live(seen)]
    groups = {key for _, row in rows for key in keys_of(row.stage, row.labels.items())}
    return [
        *sorted(groups),
        *sorted({f"run:{row.run}" for _, row in rows}),
        *sorted({f"node:{node}" for node, _ in rows}),
    ]


def _live(seen: Seen) -> list[Part]:
    return [part for part in seen.parts if part.row.state not in _ENDED]


def _covers(order: Order, part: Part) -> bool:
    row = part.row
    return covers(order, part.node, row.run, row.uid, row.stage, row.labels)


def findings(settings: Fleet) -> Iterator[tuple[str, str, str, str]]:
    """For `costgov doctor`: whether the fleet's etcd answers, and which orders stand. It writes nothing."""
    if not settings.is_enabled:
        yield "ok", "fleet", "off: budgets and orders are this node's alone (fleet.etcd)", ""
        return
    store = opened(settings)
    if isinstance(store, Failure):
        yield "fail", "fleet", store.text, "correct [fleet] in costgov.toml: docs/howto/fleet.md"
        return
    try:
        seen = look(store, WallNs(time.time_ns()))
    finally:
        store.close()
    if isinstance(seen, Failure):
        advice = "runs of shared budgets are halted when their grants are used up, and no order is known"
        yield "fail", "fleet", f"{settings.name}: {seen.text}", advice
        return
    speaking = sum(holder in seen.live for holder in seen.nodes)
    of = f"{len(seen.nodes)} governor{'' if len(seen.nodes) == 1 else 's'}"
    level, told = "ok" if speaking else "warn", f"{speaking} of {of} {'speaks' if speaking == 1 else 'speak'}"
    yield level, "fleet", f"{settings.name}: etcd answers; {told}", ""
    for order in seen.orders:
        if order.stands(seen.wall):
            told = f"order {order.order_id}: {order.act.value} {order.scope}, by {order.by}: {order.reason}"
            yield "warn", "fleet", told, f"`costgov fleet release {order.order_id}` ends it"


# --- documents ----------------------------------------------------------------------------------------------


def document(seen: Seen) -> dict[str, Any]:
    nodes = [_node(seen, holder, row) for holder, row in sorted(seen.nodes.items(), key=lambda item: item[1].node)]
    runs = _runs(seen)
    live = [node for node in nodes if not node["silent"]]
    return {
        "totals": {
            "nodes": len(nodes),
            "nodes_silent": len(nodes) - len(live),
            "runs": sum(run["alive"] for run in runs),
            "rate_usd_per_hour": _machines_usd(seen, silent=False),
            # Of machines whose governor is silent: it is not known whether they are billed.
            "rate_unseen_usd_per_hour": _machines_usd(seen, silent=True),
            "spend_usd": sum(run["spend_usd"] for run in runs),
        },
        "nodes": nodes,
        "runs": runs,
        "orders": [order_document(order, seen.wall) for order in seen.orders],
        "unreadable": list(seen.unreadable),
    }


def _machines_usd(seen: Seen, *, silent: bool) -> float:
    """Each machine once: several governors may look after one."""
    rates: dict[tuple[str, str], int] = {}
    for holder, row in seen.nodes.items():
        if (holder not in seen.live) is silent:
            machine = (row.cloud, row.instance_id or row.node)
            rates[machine] = max(rates.get(machine, 0), row.rate_usd_micros_per_hour or 0)
    return sum(rates.values()) / MICROS_PER_USD


def _node(seen: Seen, holder: str, row: NodeRow) -> dict[str, Any]:
    return {
        "node": row.node,
        "holder": holder,
        "cloud": row.cloud,
        "instance": row.instance_id,
        "region": row.region,
        "version": row.version,
        "mode": "observe" if row.observes else "enforce",
        "can_stop": row.can_stop,
        "silent": holder not in seen.live,
        "said_s_ago": max(0, seen.wall - row.said_wall_ns) / NS_PER_S,
        "rate_usd_per_hour": _usd(row.rate_usd_micros_per_hour),
        "idle_s": row.idle_s,
        "health": list(row.health),
        "runs": [part.row.run for part in seen.parts if part.holder == holder and part.row.state not in _ENDED],
    }


def _runs(seen: Seen) -> list[dict[str, Any]]:
    """A user's runs of one name are one run, on however many nodes."""
    by_run: dict[tuple[str, int], list[Part]] = {}
    for part in seen.parts:
        by_run.setdefault((part.row.run, part.row.uid), []).append(part)
    return [_run(parts) for _, parts in sorted(by_run.items())]


def _run(parts: Sequence[Part]) -> dict[str, Any]:
    rows = [part.row for part in parts]
    first = max(rows, key=lambda row: (row.is_alive, row.step or 0))
    spend, tokens = sum(row.spend_usd_micros for row in rows), _of_launches(parts, lambda row: row.tokens or 0)
    runways = [row.runway_s for row in rows if row.runway_s is not None]
    states = {row.state for row in rows}
    halts = sorted({row.halt_stage for row in rows if row.halt_stage is not None and row.incident_id is not None})
    return {
        "run": first.run,
        "uid": first.uid,
        "stage": first.stage,
        "labels": dict(first.labels),
        "jobs": sorted({row.job for row in rows if row.job}),
        "state": next((state for state in _STATES if state in states), first.state),
        "alive": any(row.is_alive for row in rows),
        "step": first.step,
        "total_steps": first.total_steps,
        "ranks": sum(row.ranks for row in rows),
        "world_size": _of_launches(parts, lambda row: row.world_size),
        "nodes": sorted({part.node for part in parts}),
        "nodes_silent": sorted({part.node for part in parts if part.is_silent}),
        "spend_usd": spend / MICROS_PER_USD,
        # What may have been spent since the rows were written.
        "unseen_usd": sum(part.unseen_usd_micros for part in parts) / MICROS_PER_USD,
        "rate_usd_per_hour": sum(row.rate_usd_micros_per_hour or 0 for row in rows) / MICROS_PER_USD,
        "tokens": tokens or None,
        "usd_per_mtok": spend / tokens if tokens else None,  # Micro-dollars a token are dollars a million.
        "runway_s": min(runways) if runways else None,
        "said_s_ago": max((part.said_ns or 0) for part in parts) / NS_PER_S,
        "incidents": sorted({row.incident_id for row in rows if row.incident_id is not None}),
        "halt_stages": halts,
    }


def _of_launches(parts: Sequence[Part], figure: Callable[[RunRow], int]) -> int:
    """Each node of one launch tells the same; launches of one name beside each other are added up."""
    launches: dict[str, int] = {}
    for part in parts:
        launch = part.row.job or part.holder
        launches[launch] = max(launches.get(launch, 0), figure(part.row))
    return sum(launches.values())


def order_document(order: Order, wall: WallNs) -> dict[str, Any]:
    return {
        "id": order.order_id,
        "act": order.act.value,
        "scope": order.scope,
        "reason": order.reason,
        "by": order.by,
        "checkpoint": "none" if order.is_unsaved else None,
        "given_s": order.given_wall / NS_PER_S,
        "left_s": max(0, order.until_wall - wall) / NS_PER_S if order.until_wall is not None else None,
        "stands": order.stands(wall),
    }


def _usd(micros: int | None) -> float | None:
    return micros / MICROS_PER_USD if micros is not None else None
