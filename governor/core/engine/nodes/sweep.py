"""The machine of a silent node: one of the others ends its spending and reads it back, where policies stop machines.

It begins when this node's own ranks are ended: until then the silent node's ranks may be part of a save. The nodes
that speak take turns by their names, ten seconds apart, and each reads before it stops: so two do not stop it, and one
that does not know the node keeps nobody from it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine import incidents
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Effect, Record, StopOther
from governor.core.events.fleet_orders import SilentUsedUp
from governor.core.events.peers import OtherStopped
from governor.core.halt.incident import Incident
from governor.core.halt.table import PAST_ASKING, HaltState, StopTarget

AGAIN_NS: Final = 15 * NS_PER_S  # EC2 takes half a minute to stop a machine.
TURN_NS: Final = 10 * NS_PER_S
NEVER: Final = MonoNs(1 << 62)
NOT_ALLOWED: Final = "not_allowed"
OF_FLEET: Final = "sweep."  # In place of an incident's id: a stop that no halt of ours has asked for.
INCIDENT_CHARS_MAX: Final = 200
# In the timeline.
NODE_STOPPED: Final = "node_stopped"


def watch(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """At each tick: the stops and reads that are due."""
    incident, members = managed.incident, managed.history.members
    if incident is None or not incident.nodes or not _sweeps(incident):
        return []
    effects: list[Effect] = []
    begun = incident.at_of("term") or incident.opened_at
    waits_ns = members.turn_of(node.facts.node) * TURN_NS
    speaking = {one.machine.instance_id for one in members.by_node.values() if not one.is_silent}
    for name, part in incident.nodes.items():
        is_ours = part.may_stop and part.instance_id not in (None, node.facts.instance_id, *speaking)
        is_ours = is_ours and part.cloud == node.facts.cloud
        since = members.missing_since(name, at)
        if part.verified or not is_ours or since is None or at < members.ask_again.get(name, at):
            continue
        if at - max(since, begun) < waits_ns:
            continue
        members.note_asked(name, MonoNs(at + AGAIN_NS))
        effects.append(StopOther(incident.incident_id, managed.run.run, name, part.instance_id or ""))
    return effects


def _sweeps(incident: Incident) -> bool:
    is_begun = incident.halt.stage in (*PAST_ASKING, HaltState.HALTED)
    return is_begun and not incident.given_up and incident.plan.stop is StopTarget.INSTANCE


def on_used_up(node: Node, event: SilentUsedUp) -> list[Effect]:
    """Of the fleet, not of a run of ours: the store's rows are all that is known. Noted before it is done."""
    told = f"{event.cloud} {event.instance_id} of node {event.node}: {event.text}"
    if node.facts.observe:
        return [Alarm("fleet_swept", None, f"observe mode: would stop {told}")]
    data = {"holder": event.holder, "node": event.node, "instance": event.instance_id, "why": event.text}
    stop = StopOther(f"{OF_FLEET}{event.holder}"[:INCIDENT_CHARS_MAX], "", event.node, event.instance_id)
    return [Record("sweep", None, None, data, durable=True), stop]


def _of_fleet(seen: OtherStopped) -> list[Effect]:
    data = {"node": seen.node, "stopped": seen.stopped, "verified": seen.verified, "reason": seen.reason}
    done = "is stopped" if seen.verified else "is being stopped" if seen.stopped else "is not stopped"
    text = f"the machine of {seen.node}, whose governor is silent and whose grants are used up, {done} ({seen.reason})"
    return [Record("sweep", None, None, data, durable=True), Alarm("fleet_swept", None, text)]


def on_other_stopped(node: Node, seen: OtherStopped) -> list[Effect]:
    if seen.incident_id.startswith(OF_FLEET):
        return _of_fleet(seen)
    managed = node.of_incident(seen.incident_id)
    incident = managed.incident if managed is not None else None
    if managed is None or incident is None or (before := incident.nodes.get(seen.node)) is None:
        return []
    stopped, verified = bool(before.stopped) or seen.stopped, bool(before.verified) or seen.verified
    # A machine that is off has no process, whoever was there to see them end.
    part = replace(before, stopped=stopped, verified=verified, gone=before.gone or verified)
    incident.take_nodes({seen.node: part})
    if verified:
        managed.history.members.note_read_back(seen.node, seen.at)
    incident.note(seen.at, node.wall(seen.at), NODE_STOPPED, node=seen.node, state=seen.reason)
    kept: list[Effect] = [incidents.persist_incident(node, managed)]
    if seen.reason != NOT_ALLOWED:
        return kept
    managed.history.members.note_asked(seen.node, NEVER)
    text = (
        f"node {seen.node} of run {managed.run.run} is silent, and its machine ({part.cloud} instance "
        f"{part.instance_id}) may stay billed: this governor may not stop it; stop it by hand, or let governors do so "
        "(cloud.aws.stops_others)"
    )
    return [*kept, Alarm("peer_stays_billed", managed.run.run, text)]
