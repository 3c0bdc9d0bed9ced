"""Of a run, for `status`: the machine under it, its other nodes, and what all its nodes have charged together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_S, DurationNs, MonoNs, UsdMicros
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.spent.over_nodes import is_over_nodes, whole_usd_micros
from governor.core.events.machine import GpuSample, HostMemory
from governor.core.fleet.members import Member
from governor.core.runs.state import Run

STALE_NS: Final = DurationNs(60 * NS_PER_S)  # Older figures would be read as present ones.


@dataclass(frozen=True, slots=True)
class OverNodes:
    """A run of several nodes, this one included. `spend_usd_micros`: None where one of them has no price."""

    nodes: int
    spend_usd_micros: UsdMicros | None


def spent_over_nodes(managed: ManagedRun, at: MonoNs) -> OverNodes | None:
    """None: no other node has spoken for the run."""
    members = managed.history.members
    if not is_over_nodes(managed):
        return None
    is_priced = (
        managed.run.spend_rate_usd_micros_per_hour is not None and members.charged.keys() >= members.by_node.keys()
    )
    return OverNodes(1 + len(members.by_node), whole_usd_micros(managed, at) if is_priced else None)


def over_nodes(managed: ManagedRun, at: MonoNs) -> dict[str, Any] | None:
    """None: no other node has spoken for the run. `spend_usd` and the rate are those of all nodes, this one too."""
    members, run = managed.history.members, managed.run
    whole = spent_over_nodes(managed, at)
    if whole is None:
        return None
    rate, spent = run.spend_rate_usd_micros_per_hour, whole.spend_usd_micros
    return {
        "spend_usd": spent / MICROS_PER_USD if spent is not None else None,
        "spend_rate_usd_per_hour": (rate + members.rate_usd_micros_per_hour) / MICROS_PER_USD if rate else None,
        "nodes": [_row(members.charged.get(name), one, at) for name, one in sorted(members.by_node.items())],
        "left": [{"node": node, "spend_usd": usd_micros / MICROS_PER_USD} for node, usd_micros in members.left()],
    }


def launch_named(run: Run) -> dict[str, Any]:
    """How its ranks call this launch on all nodes, and where rank 0 is. Null while nobody has said so."""
    return {"job": run.job, "master": run.master}


def _row(charged: int | None, member: Member, at: MonoNs) -> dict[str, Any]:
    told, machine = member.told, member.machine
    rate = told.rate_usd_micros_per_hour
    return {
        "node": machine.node,
        "cloud": machine.cloud,
        "instance": machine.instance_id,
        "alive": told.is_alive,
        "ranks": told.ranks,
        "has_rank_0": told.has_first,
        "step": told.step,
        "spend_usd": charged / MICROS_PER_USD if charged is not None else None,
        "spend_rate_usd_per_hour": rate / MICROS_PER_USD if rate is not None else None,
        "halt_stage": told.halt.stage if told.halt is not None else None,
        "spoke_s_ago": (at - member.spoke_at) / NS_PER_S,
        "silent": member.is_silent,
    }


def machine_status(run: Run, at: MonoNs) -> dict[str, Any]:
    """None is unknown: no recent sample, or for GPUs also when it is unknown which are the run's."""
    memory = [known for known in (run.group_memory, run.host_memory) if known is not None and at - known.at <= STALE_NS]
    tightest = min(memory, key=_left_frac, default=None)
    notice = run.spot_notice
    return {
        "gpus": _gpus(run.gpus) if run.gpus is not None and at - run.gpus.at <= STALE_NS else None,
        "memory_left_frac": _left_frac(tightest) if tightest is not None else None,
        "memory_of": (tightest.group or "machine") if tightest is not None else None,
        "taken_back": notice.action if notice is not None and at - notice.at <= STALE_NS else None,
    }


def _left_frac(memory: HostMemory) -> float:
    return memory.available_bytes / memory.total_bytes if memory.total_bytes > 0 else 1.0


def _gpus(sample: GpuSample) -> list[dict[str, Any]]:
    return [
        {
            "gpu": sample.uuids[place] if sample.uuids else str(place),
            "busy_frac": frac,
            "memory_used_bytes": sample.memory_used_bytes[place] if sample.memory_used_bytes else None,
            "hardware": sample.figures[place].told() if sample.figures else None,
        }
        for place, frac in enumerate(sample.busy_frac)
    ]
