"""A run's ceiling over all its nodes: what all have charged, at the rate of all, with a halt that all must pay for."""

from __future__ import annotations

from dataclasses import replace

from governor.core.base.units import MonoNs, UsdMicros
from governor.core.engine.command import ceilings
from governor.core.engine.halt_plan import halt_times, lasts_ns, reserve_growth, shortest_ns
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.peers import BEAT_NS
from governor.core.fleet.members import SILENT_NS
from governor.core.money.budgets import Cap
from governor.core.money.ledger import reserve


def over_nodes(node: Node, managed: ManagedRun, cap: Cap | None, at: MonoNs) -> Cap | None:
    """The run's own ceiling as all its nodes spend it. None: it has no ceiling, or no other node.

    `cap`: the ceiling as this node alone has it, where a launched command's counts more than the run.
    Every node does this sum, so each of them may be the one that halts the run.
    """
    members, ceiling = managed.history.members, managed.policy.budget.ceiling_usd_micros
    others = members.charged_usd_micros(at)
    if not is_over_nodes(managed):
        return cap
    if cap is None and ceiling is None:
        return None
    cap = cap or _alone(node, managed, UsdMicros(ceiling or 0), at)
    if cap.rate_usd_micros_per_hour is None:  # Without a price of ours nothing can be reserved.
        return replace(cap, spend_usd_micros=UsdMicros(cap.spend_usd_micros + others))
    more = members.rate_usd_micros_per_hour
    rate = UsdMicros(cap.rate_usd_micros_per_hour + more)
    lasts = shortest_ns(managed, lasts_ns(cap.ceiling_usd_micros, rate))
    times = halt_times(node.facts, managed.policy, lasts, managed.run, at)
    # What they have charged since their last word, their halts, and the wait of rank 0's node for all the others.
    waits = reserve(members.first_rate_usd_micros_per_hour, SILENT_NS + times.term_ns + times.kill_ns)
    held = cap.reserve_usd_micros + reserve(more, BEAT_NS + times.whole_ns) + waits
    return replace(
        cap,
        spend_usd_micros=UsdMicros(cap.spend_usd_micros + others),
        reserve_usd_micros=UsdMicros(held),
        rate_usd_micros_per_hour=rate,
    )


def is_over_nodes(managed: ManagedRun) -> bool:
    """Whether another node has spoken for the run, in this launch or an earlier one."""
    return bool(managed.history.members.by_node or managed.history.members.charged)


def whole_usd_micros(managed: ManagedRun, at: MonoNs) -> UsdMicros:
    """What all nodes have charged to the run."""
    return UsdMicros(managed.run.spend_usd_micros + managed.history.members.charged_usd_micros(at))


def _alone(node: Node, managed: ManagedRun, ceiling: UsdMicros, at: MonoNs) -> Cap:
    run, rate = managed.run, managed.run.spend_rate_usd_micros_per_hour
    growths = (reserve_growth(managed, at, lasts_ns(ceiling, rate)),)
    held = run.reserve_usd_micros or UsdMicros(0)
    return Cap(f"run:{run.run}", ceiling, ceilings.spend(node, managed), held, rate, growths=growths)
