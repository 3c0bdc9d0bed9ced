"""What the governors of a run's other nodes tell us: a verdict to join, their parts of a halt, their money."""

from __future__ import annotations

import re
from typing import Final

from governor.core.base.findings import Finding, Reading
from governor.core.base.policy import Mode
from governor.core.base.units import DurationNs, MonoNs, format_duration
from governor.core.engine import incidents, verdicts
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.engine.nodes import sweep
from governor.core.engine.nodes.to_peers import ENDED_TOLD_NS
from governor.core.events.effects import Alarm, Effect, MeetPeer
from governor.core.events.inputs import Ack
from governor.core.events.peers import NodeTold, PeerTold, ToldHalt, ToldRun
from governor.core.fleet.members import SILENT_NS, Member, Members, first_id, halts, merged, part_of
from governor.core.halt.table import Fact, HaltState

_NUMBER: Final = re.compile(r"[0-9]{1,9}")
# In the timeline.
NODE_SILENT: Final = "node_silent"
NODE_BACK: Final = "node_back"


def on_peer_told(node: Node, event: PeerTold) -> list[Effect]:
    """Take one governor's message. It may repeat what is known, and nothing that it leaves out is undone."""
    machine = event.told
    if machine.node == node.facts.node:
        text = (
            f"the governor of another machine calls itself {machine.node}, as we do: nothing that it tells is heard; "
            "give each machine its own node.name in costgov.toml"
        )
        return [Alarm("peer_same_name", None, text)] if node.telling.note_namesake() else []
    for one in node.runs.values():
        one.history.members.note_word(machine.node, event.at)
    effects: list[Effect] = []
    for told in machine.runs:
        managed = node.runs.get(told.run)
        if managed is not None and managed.run.uid == told.uid:
            _count(node, managed, machine, told)
        launched = _of_launch(node, told)
        if launched is not None:
            effects += _take(node, launched, machine, told, event.at)
    return effects


def _count(node: Node, managed: ManagedRun, machine: NodeTold, told: ToldRun) -> None:
    own = ((machine.node, told.spend_usd_micros),) if told.spend_usd_micros is not None else ()
    managed.history.members.count((*own, *told.left), node.facts.node, machine.node)


def _of_launch(node: Node, told: ToldRun) -> ManagedRun | None:
    """Our part of this launch. Its name is settled by the launch's own ranks, and no other launch has it."""
    its = (one for one in node.runs.values() if one.run.job and one.run.job == told.job and one.run.uid == told.uid)
    return next(its, None)


def _take(node: Node, managed: ManagedRun, machine: NodeTold, told: ToldRun, at: MonoNs) -> list[Effect]:
    members = managed.history.members
    members.begin(managed.run.job or "", at)
    was_silent = machine.node in members.by_node and not members.speaks(machine.node)
    if machine.node not in members.by_node:
        node.request_persist()  # If it falls silent, the governor after this one must know of it.
    members.hear(at, machine, told)
    effects: list[Effect] = []
    if was_silent:
        text = f"node {machine.node} of run {managed.run.run} is heard again"
        effects.append(Alarm("peer_heard_again", managed.run.run, text))
        if managed.incident is not None:
            managed.incident.note(at, node.wall(at), NODE_BACK, node=machine.node)
    effects += join_told(node, managed, at)
    _note_parts(managed, machine.node)
    return [*effects, *_write_parts(node, managed, at), *go_on(node, managed, at)]


# --- one verdict -----------------------------------------------------------------------------------------------


def join_told(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """Halt here too, if another node of the launch halts: by our own table and plan."""
    told = halts(managed.history.members)
    incident = managed.incident
    if not told:
        return []
    if incident is not None:
        called = first_id(incident.called, *(halt.incident_id for _, halt in told))
        if called == incident.called:
            return []
        incident.call(called)
        incident.note(at, node.wall(at), "called", incident=called)
        node.telling.ask()
        return [incidents.persist_incident(node, managed)]
    if not managed.run.alive and not _broke_off(managed, at):
        return []
    halt = min((halt for _, halt in told), key=lambda one: one.incident_id)
    return _join(node, managed, halt, at)


def _broke_off(managed: ManagedRun, at: MonoNs) -> bool:
    """Whether its ranks here ended before the verdict was told: of the halt that ended the others, perhaps.

    What is left of the launch is ended then, and the machine stopped, as on every other node.
    """
    ended_at = managed.run.ended_at
    return not managed.run.ended_well and ended_at is not None and at - ended_at < ENDED_TOLD_NS


def _join(node: Node, managed: ManagedRun, halt: ToldHalt, at: MonoNs) -> list[Effect]:
    """Neither our hold nor our breaker stands against it: the run ends on the node that has decided."""
    evidence = {"node": halt.node, "incident": halt.incident_id, "rule": halt.rule}
    finding = Finding(Reading.FIRING, halt.reason, halt.text, evidence)
    if node.facts.observe or managed.policy.mode is Mode.OBSERVE:
        text = f"node {halt.node} halts run {managed.run.run}: {halt.text} (observe mode: would halt here too)"
        return [Alarm("joined", managed.run.run, text)] if managed.reported.note_joined(halt.incident_id) else []
    verdict = verdicts.verdict_by_hand(managed, finding, halt.rule, halt.checkpoint, trigger=halt.trigger)
    return incidents.open_incident(node, managed, verdict, at, joined=(halt.incident_id, halt.node))


def join_obeyed(node: Node, managed: ManagedRun, ack: Ack) -> list[Effect]:
    """Halt this node too, by our own policy: ranks here obey an incident that another node's governor opened."""
    finding = Finding(
        Reading.FIRING, "joined", f"ranks obey incident {ack.incident_id} of another governor", {"rank": ack.rank}
    )
    if node.facts.observe or managed.policy.mode is Mode.OBSERVE:
        text = f"{finding.text} (observe mode: would halt)"
        return [Alarm("joined", managed.run.run, text)]
    verdict = verdicts.verdict_by_hand(managed, finding, "join", "good")
    named = _node_in(managed, ack.incident_id)
    if named is not None and managed.incident is None:  # Its governor has not told us yet.
        effects = incidents.open_incident(node, managed, verdict, ack.at, joined=(ack.incident_id, named))
    else:
        effects = verdicts.on_halt_verdict(node, managed, verdict, ack.at)
    if managed.incident is not None:
        managed.incident.obey(ack.incident_id)
    return effects


def _node_in(managed: ManagedRun, incident_id: str) -> str | None:
    """The node of this launch in an id of this run: RUN.NODE.NUMBER. A rank may say any, of its own run's halt."""
    stem, _, number = incident_id.rpartition(".")
    if _NUMBER.fullmatch(number) is None:
        return None
    its = (name for name in managed.history.members.by_node if stem == f"{managed.run.run}.{name}")
    return next(its, None)


# --- the other nodes' parts ------------------------------------------------------------------------------------


def _note_parts(managed: ManagedRun, speaker: str) -> None:
    """Of the node that speaks; of all when the halt has just begun."""
    incident, members = managed.incident, managed.history.members
    if incident is None:
        return
    names = [speaker] if len(incident.nodes) >= len(members.by_node) else list(members.by_node)
    known = ((name, members.by_node[name]) for name in names if name in members.by_node)
    parts = {name: merged(incident.nodes.get(name), part_of(one)) for name, one in known}
    if any(incident.nodes.get(name) != part for name, part in parts.items()):
        incident.take_nodes(parts)
        members.note_parts()


def _write_parts(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    if managed.incident is None or not managed.history.members.is_row_due(at):
        return []
    return [incidents.persist_incident(node, managed)]


def go_on(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """End this node's processes, the last ones, when the other nodes are done."""
    incident, members = managed.incident, managed.history.members
    if incident is None or incident.halt.stage is not HaltState.WAITING or members.keep_us_waiting:
        return []
    if members.since is None or at - members.since < SILENT_NS:
        return []  # Whoever is there has spoken by then.
    return incidents.feed(node, managed, Fact.OTHERS_GONE, at)


# --- silence ---------------------------------------------------------------------------------------------------


def watch(node: Node, at: MonoNs) -> list[Effect]:
    """At each tick: which nodes have fallen silent. That is missing data, and halts nothing by itself."""
    if not node.facts.has_peers:
        return []
    effects: list[Effect] = []
    for managed in node.runs.values():
        members = managed.history.members
        members.begin(managed.run.job or "", at)
        members.note_over(managed.run.ended_at)
        for member in members.fall_silent(at, _halted_at(managed)):
            effects += _tell_silent(node, managed, members, member, at)
        if members.by_node or managed.run.other_nodes:
            managed.run.set_other_nodes(members.others())
        effects += _meet(node, managed, at)
        effects += _write_parts(node, managed, at)
        effects += go_on(node, managed, at)
        effects += sweep.watch(node, managed, at)
    return effects


def _meet(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """Ask for the host of rank 0, each minute, until another node of the launch has spoken."""
    run = managed.run
    is_alone = not run.has_ranks_elsewhere or bool(managed.history.members.by_node)
    if run.master is None or not run.alive or is_alone:
        return []
    return [MeetPeer(run.master)] if node.telling.may_meet(run.run, run.uid, at) else []


def _halted_at(managed: ManagedRun) -> MonoNs | None:
    """Since when the run's nodes tell of it each second: those that have heard of its halt."""
    incident = managed.incident
    return incident.opened_at if incident is not None and not incident.is_closed else None


def _tell_silent(node: Node, managed: ManagedRun, members: Members, member: Member, at: MonoNs) -> list[Effect]:
    incident, name = managed.incident, member.machine.node
    if member.is_done and incident is None:
        return []  # Its part of the run was over.
    if incident is not None:
        incident.note(at, node.wall(at), NODE_SILENT, node=name)
        incident.take_nodes({name: merged(incident.nodes.get(name), part_of(member))})
        members.note_parts()
    if member.is_done:
        return []
    unheard = DurationNs(member.silent_at(_halted_at(managed)) - member.spoke_at)
    which = f"{member.machine.cloud} instance {member.machine.instance_id}" if member.machine.instance_id else "machine"
    text = (
        f"nothing heard of node {name} ({which}) of run {managed.run.run} for {format_duration(unheard)}: it is cut "
        f"off, frozen or dead; its last step was {member.told.step}; {len(members.by_node)} other nodes are known"
    )
    return [Alarm("peer_silent", managed.run.run, text)]
