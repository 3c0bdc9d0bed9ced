"""This node and its runs, as the fleet's rows have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from governor.core.base.identity import JOB_CHARS_MAX
from governor.core.base.printable import cut, printable
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.halt_plan import stop_target
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.metering import last_rate
from governor.core.engine.node import Node
from governor.core.engine.run_forecast import binding_ceiling
from governor.core.engine.spent.shared_budgets import reaches_end_ns
from governor.core.fleet.presence import HEALTH_MAX, LABEL_CHARS_MAX, LABELS_MAX, TEXT_CHARS_MAX, NodeRow, RunRow
from governor.core.halt.state import HaltState
from governor.core.halt.table import StopTarget
from governor.core.money.charges import UNALLOCATED
from governor.core.views.status import idle_s, runway_s, state_of

_STOPS: Final = (HaltState.STOPPING, HaltState.VERIFYING)
# What changes of it is written at once. All else waits for the minute.
Signature = tuple[tuple[str, bool, str], ...]


def signature(node: Node) -> Signature:
    return tuple(
        (name, managed.run.alive, managed.incident.stage_name if managed.incident is not None else "")
        for name, managed in node.runs.items()
    )


def node_row_of(node: Node, at: MonoNs, version: str, troubles: tuple[str, ...]) -> NodeRow:
    """`troubles`: what is wrong beside what the engine knows."""
    facts, idle = node.facts, idle_s(node, at)
    return NodeRow(
        node=_short(facts.node),
        said_wall_ns=max(0, node.wall(at)),
        cloud=_short(facts.cloud),
        instance_id=_short(facts.instance_id) if facts.instance_id else None,
        region=_short(facts.region) if facts.region else None,
        version=version,
        observes=facts.observe,
        can_stop=facts.can_stop,
        rate_usd_micros_per_hour=node.ledger.rate(UNALLOCATED, {UNALLOCATED: 1}),
        idle_s=round(idle) if idle is not None else None,
        stops_machine=node.idle.is_stopping,
        health=tuple(_short(one) for one in (*_troubles(node), *troubles))[:HEALTH_MAX],
    )


def _troubles(node: Node) -> list[str]:
    found = [f"policy {one.policy}: rule {one.rule} only observes" for one in node.policies.fallen()]
    if node.ledger.price_usd_micros_per_hour is None:
        found.append("the machine's price is unknown")
    return found


def run_rows_of(node: Node, at: MonoNs) -> dict[str, RunRow]:
    """By name. At most as many as a node manages."""
    return {name: _run_row(node, managed, at) for name, managed in node.runs.items()}


def _run_row(node: Node, managed: ManagedRun, at: MonoNs) -> RunRow:
    run, incident = managed.run, managed.incident
    costs = run.alive or (incident is not None and not incident.is_closed)
    held, labels = managed.history.held(at), _bounded(run.labels)
    own, shared = runway_s(binding_ceiling(managed, at)), reaches_end_ns(node, managed, at)
    ends = [one for one in (own, shared / NS_PER_S if shared is not None else None) if one is not None]
    runway = min(ends, default=None) if costs else None
    return RunRow(
        run=run.run,
        uid=run.uid,
        state=state_of(managed, at),
        is_alive=run.alive,
        stage=_short(run.stage) if run.stage else None,
        labels=labels,
        job=cut(printable(run.job or ""), JOB_CHARS_MAX),
        step=run.step,
        total_steps=run.total_steps,
        ranks=len(run.connected_ranks()),
        world_size=run.world_size,
        spend_usd_micros=node.ledger.spend(run.run),
        rate_usd_micros_per_hour=last_rate(node, managed) if costs else 0,
        tokens=managed.trained_tokens,
        runway_s=round(runway) if runway is not None else None,
        incident_id=incident.incident_id if incident is not None else None,
        halt_stage=_short(incident.stage_name) if incident is not None else None,
        stops_machine=incident is not None and incident.halt.stage in _STOPS,
        may_stop=not node.facts.observe and stop_target(node, managed) is StopTarget.INSTANCE,
        held_s=round((held[0] - at) / NS_PER_S) if held is not None else None,
        left_out=len(labels) < len(run.labels),
    )


def _short(text: str) -> str:
    return cut(printable(text), TEXT_CHARS_MAX)


def _bounded(labels: Mapping[str, str]) -> dict[str, str]:
    """Whole ones, or none: a label that is cut is another label."""
    fits = [(name, its) for name, its in labels.items() if _fits(name) and _fits(its)]
    return dict(fits[:LABELS_MAX])


def _fits(text: str) -> bool:
    return len(text) <= LABEL_CHARS_MAX and text == printable(text)
