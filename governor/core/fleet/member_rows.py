"""What the journal keeps of a launch's other nodes: a governor that begins again knows whom it misses, and their money.

A node that speaks tells all of it anew within a second. One that is dead or cut off does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.core.base.units import DurationNs, MonoNs
from governor.core.events.peers import NodeTold, ToldRun
from governor.core.fleet.members import Member, Members


def members_row(members: Members, at: MonoNs) -> dict[str, Any]:
    """Plain JSON. Empty for a run that never had another node."""
    rows = {
        "other_nodes": dict(members.charged),
        "other_nodes_assumed": dict(members.assumed),
        "other_nodes_there": {name: _row(one, at) for name, one in members.by_node.items() if one.told.is_alive},
    }
    return {name: row for name, row in rows.items() if row}


def members_of(snapshot: Mapping[str, Any], run: str, uid: int, job: str | None, *, same_boot: bool) -> Members:
    """KeyError, TypeError or ValueError when it is none of ours. An older journal has less, or nothing.

    `job`: the launch that went on when it was written. After another boot it is over, and its moments mean nothing.
    """
    found = Members(job or "")
    found.charged = _counters(snapshot.get("other_nodes", {}))
    found.assumed = _counters(snapshot.get("other_nodes_assumed", {}))
    there = dict(snapshot.get("other_nodes_there", {}))
    for name, row in there.items():
        if same_boot and job:
            found.by_node[str(name)] = _member_of(str(name), row, run, uid, job)
        else:
            found.assume(str(name), int(row["assumed_usd_micros"]))
    return found


def _counters(row: Any) -> dict[str, int]:
    return {str(node): int(usd_micros) for node, usd_micros in dict(row).items()}


def _row(member: Member, at: MonoNs) -> dict[str, Any]:
    machine, told = member.machine, member.told
    return {
        "boot_id": machine.boot_id,
        "cloud": machine.cloud,
        "instance": machine.instance_id,
        "region": machine.region,
        "beat_ns": machine.beat_ns,
        "ranks": told.ranks,
        "has_first": told.has_first,
        "step": told.step,
        "still_ns": told.still_ns,
        "is_excused": told.is_excused,
        "rate_usd_micros_per_hour": told.rate_usd_micros_per_hour,
        "may_stop": told.may_stop,
        "spend_usd_micros": told.spend_usd_micros,
        "spoke_at": member.spoke_at,
        "silent": member.is_silent,
        "assumed_usd_micros": member.may_have_charged(at),
    }


def _member_of(name: str, row: Mapping[str, Any], run: str, uid: int, job: str) -> Member:
    machine = NodeTold(
        name, str(row["boot_id"]), str(row["cloud"]), row["instance"], row["region"],
        beat_ns=DurationNs(int(row["beat_ns"])),
    )  # fmt: skip
    told = ToldRun(
        run, job, uid, True, int(row["ranks"]), has_first=bool(row["has_first"]), step=row["step"],
        still_ns=row["still_ns"], is_excused=bool(row["is_excused"]), spend_usd_micros=row["spend_usd_micros"],
        rate_usd_micros_per_hour=row["rate_usd_micros_per_hour"], may_stop=bool(row["may_stop"]),
    )  # fmt: skip
    return Member(machine, told, MonoNs(int(row["spoke_at"])), bool(row["silent"]), is_of_before=True)
