"""Several nodes in words: each node's part of a halt, what the timeline has of others, and this node's fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.core.base.units import NS_PER_S, DurationNs, format_duration
from governor.text.screen import Styled
from governor.text.table import plain

_NODES_SHOWN: Final = 8
ORDERS_SHOWN: Final = 8

Row = Mapping[str, Any]


def nodes_text(snapshot: Mapping[str, Any]) -> list[str]:
    """One line a node, this one first. Empty: the run had one node, or an older journal does not say."""
    nodes = snapshot.get("nodes") or ()
    return [_part(row, is_own=number == 0) for number, row in enumerate(nodes)] if len(nodes) > 1 else []


def decided_text(snapshot: Mapping[str, Any]) -> str | None:
    """Whose verdict it was, and how the other nodes call the halt. None: it was this node's, under this id."""
    by, called = snapshot.get("decided_by"), snapshot.get("called", snapshot["incident_id"])
    parts = [f"by node {by}"] if by not in (None, snapshot.get("node")) else []
    parts += [f"all nodes call it {called}"] if called != snapshot["incident_id"] else []
    return plain("; ".join(parts)) if parts else None


def live_nodes_text(run: Mapping[str, Any]) -> list[str]:
    """Of a live run, by its `status`: what all its nodes have charged, and each that is silent. Empty: it has one."""
    over = run.get("over_nodes")
    if over is None:
        return []
    names = {row["node"] for row in (*over["nodes"], *over["left"])}
    count = 1 + len(names)
    spend, rate = over["spend_usd"], over["spend_rate_usd_per_hour"]
    money = f"${spend:,.2f} spent by all of it" if spend is not None else "what all of it spends is not known"
    at = f" at ${rate:,.2f}/h" if rate is not None else ""
    told = [f"over {count} nodes: {money}{at}"]
    for row in over["nodes"]:
        if row["silent"] and row["alive"]:
            machine = f" ({row['cloud']} {row['instance']})" if row["instance"] else ""
            step = f", last at step {row['step']}" if row["step"] is not None else ""
            told.append(f"node {row['node']}{machine} is SILENT for {row['spoke_s_ago']:.0f} s{step}")
    return [plain(text) for text in told[:_NODES_SHOWN]]


def _part(row: Row, *, is_own: bool) -> str:
    machine = f" ({row['cloud']} {row['instance']})" if row.get("instance") else ""
    told = [str(row["stage"])] if row.get("stage") else []
    told += ["this node"] if is_own else ["SILENT"] if row.get("silent") else []
    told.append("processes gone" if row.get("gone") else "processes not seen to be gone")
    if row.get("verified"):
        told.append("its machine has ended, read back")
    elif row.get("stopped"):
        told.append("its machine's stop is accepted, and not read back")
    elif row.get("stopped") is False or (row.get("silent") and row.get("instance")):
        told.append("its machine MAY STAY BILLED")
    return plain(f"{row['node']}{machine}: {', '.join(told)}")


def silent_node(detail: Row, _snapshot: Row) -> str:
    return f"nothing is heard of node {plain(detail.get('node', '?'))}"


def node_back(detail: Row, _snapshot: Row) -> str:
    return f"node {plain(detail.get('node', '?'))} is heard again"


def node_stopped(detail: Row, _snapshot: Row) -> str:
    state = detail.get("state")
    return f"the machine of node {plain(detail.get('node', '?'))}{f': {plain(state)}' if state else ''}"


def called(detail: Row, _snapshot: Row) -> str:
    return f"all nodes of the run call it {plain(detail.get('incident', '?'))}"


def fleet_notes(fleet: Mapping[str, Any] | None) -> list[Styled]:
    """For `costgov status`: what is wrong with this governor's fleet, which orders stand, and what runs live on."""
    if not fleet:
        return []
    told = [Styled(f"problem: {plain(fleet['problem'])}", "bold red")] if fleet.get("problem") else []
    told += [
        Styled(plain(f"order {one['id']}: {one['act']} {one['scope']}, by {one['by']}: {one['reason']}"), "bold yellow")
        for one in fleet.get("orders", [])[:ORDERS_SHOWN]
    ]
    if not fleet.get("orders_read", True):
        told.append(Styled("orders to the fleet: etcd has not said which there are since the start", "bold yellow"))
    return told + [
        Styled(
            plain(f"{one['run']}: etcd does not answer; what it was granted of {one['scope']} lasts {_lasting(lasts)}"),
            "bold yellow",
        )
        for one in fleet.get("grants", [])
        if one.get("why") == "silent" and not one.get("has_ended") and (lasts := one.get("lasts_s")) is not None
    ]


def _lasting(seconds: float) -> str:
    return format_duration(DurationNs(round(seconds) * NS_PER_S))
