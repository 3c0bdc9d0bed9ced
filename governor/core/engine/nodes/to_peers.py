"""What we tell the governors of a run's other nodes: all that this node knows, by beats and as a halt moves."""

from __future__ import annotations

from typing import Final

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs, UsdMicros
from governor.core.engine.halt_plan import stop_target
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.metering import last_rate
from governor.core.engine.node import Node
from governor.core.events.effects import Effect, TellPeers
from governor.core.events.peers import BEAT_NS, RUNS_TOLD_MAX, NodeTold, ToldHalt, ToldRun, beat_of
from governor.core.fleet.members import halts
from governor.core.halt.incident import Incident
from governor.core.halt.table import StopTarget
from governor.core.rules import stillness

# Behind its end a halt is told for so long: a node that was cut off hears of it when it is heard again.
ENDED_TOLD_NS: Final = 3_600 * NS_PER_S


def beat(node: Node, at: MonoNs) -> list[Effect]:
    """At each tick and behind each event: our message, if it is due."""
    if not node.facts.has_peers:
        node.telling.note(at, DurationNs(BEAT_NS))  # There is nobody to tell.
        return []
    if not node.telling.may_be_due(at):
        return []
    runs = [managed for managed in node.runs.values() if _is_of_many(managed) and _is_told(managed, at)]
    beat_ns = _beat_ns(runs)
    if not node.telling.is_due_after(beat_ns, at):
        return []
    node.telling.note(at, beat_ns)
    if not runs:
        return []
    runs.sort(key=lambda managed: (managed.incident is None or managed.incident.is_closed, managed.run.run))
    return [TellPeers(message(node, runs[:RUNS_TOLD_MAX], at, beat_ns))]


def _beat_ns(runs: list[ManagedRun]) -> DurationNs:
    """One for all runs: that of the run with the most nodes, or each second while any of them is halted."""
    if any(_is_halting(managed) for managed in runs):
        return DurationNs(BEAT_NS)
    return beat_of(1 + max((len(managed.history.members.by_node) for managed in runs), default=0))


def _is_halting(managed: ManagedRun) -> bool:
    """Here, or elsewhere while it lives here: in observe mode too, or the others would take us for silent."""
    if managed.incident is not None and not managed.incident.is_closed:
        return True
    return managed.run.alive and bool(halts(managed.history.members))


def _is_of_many(managed: ManagedRun) -> bool:
    return bool(managed.run.job) and managed.run.has_ranks_elsewhere


def _is_told(managed: ManagedRun, at: MonoNs) -> bool:
    ended = managed.run.ended_at
    return ended is None or at - ended < ENDED_TOLD_NS


def message(node: Node, runs: list[ManagedRun], at: MonoNs, beat_ns: DurationNs) -> NodeTold:
    facts = node.facts
    told = tuple(_told_run(node, managed, at) for managed in runs)
    return NodeTold(facts.node, facts.boot_id, facts.cloud, facts.instance_id, facts.region, told, beat_ns)


def _told_run(node: Node, managed: ManagedRun, at: MonoNs) -> ToldRun:
    run, incident = managed.run, managed.incident
    spend = None if node.ledger.usd_micros_per_hour is None else node.ledger.spend(run.run)
    return ToldRun(
        run=run.run,
        job=run.job or "",
        uid=run.uid,
        is_alive=run.alive,
        ranks=len(stillness.judged(run)) if run.alive else 0,
        has_first=0 in run.known_ranks(),
        step=run.step,
        still_ns=at - still if (still := stillness.still_since(run)) is not None else None,
        is_excused=stillness.is_excused(run, at),
        spend_usd_micros=spend,
        rate_usd_micros_per_hour=last_rate(node, managed) if run.alive else UsdMicros(0),
        may_stop=not node.facts.observe and stop_target(node, managed) is StopTarget.INSTANCE,
        halt=_told_halt(node, incident) if incident is not None else None,
        left=managed.history.members.left(),
    )


def _told_halt(node: Node, incident: Incident) -> ToldHalt:
    own = incident.own_part(node.facts.node, node.facts.cloud, node.facts.instance_id)
    return ToldHalt(
        incident_id=incident.called,
        node=incident.decided_by or node.facts.node,
        rule=incident.rule,
        trigger=incident.trigger,
        reason=incident.reason,
        text=incident.text,
        checkpoint=incident.plan.checkpoint if incident.plan.checkpoint != "none" else incident.wanted,
        stage=own.stage,
        gone=own.gone,
        stopped=own.stopped,
        verified=own.verified,
    )
