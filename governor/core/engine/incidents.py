"""From a verdict to the halt table and back: open incidents, and turn what happens into facts."""

from __future__ import annotations

from dataclasses import replace

from governor.core.base.findings import Verdict
from governor.core.base.identity import job_parts
from governor.core.base.units import NS_PER_HOUR, DurationNs, MonoNs
from governor.core.engine import budgeting, charging, node_journal, saved_checkpoint
from governor.core.engine.command.payers import payer_for
from governor.core.engine.halt_plan import bad_node, checkpoint_obstacle, job_ended_by, plan_for
from governor.core.engine.incident_json import incident_snapshot, stays_billed
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.metering import charge_until, charge_verdict, count_split, last_rate
from governor.core.engine.node import Node
from governor.core.engine.run_forecast import token_prices
from governor.core.events.checkpoints import CheckpointRead, CheckpointWeighed, LastGoodSeen
from governor.core.events.effects import (
    Alarm,
    Ask,
    CloseIncident,
    DrainNode,
    Effect,
    HaltEffect,
    Kill,
    Page,
    PersistIncident,
    ReadBilling,
    Record,
    StopCompute,
    Term,
)
from governor.core.events.inputs import Ack, ProcessesSeen
from governor.core.events.streams import StreamOpened
from governor.core.fleet.members import part_of
from governor.core.halt import table
from governor.core.halt.acts import UNKILLABLE
from governor.core.halt.incident import Incident, rank_rows
from governor.core.halt.left_launch import process_row
from governor.core.halt.table import Fact, Halt, HaltState, StopTarget
from governor.core.runs.ends import cause_of
from governor.core.runs.life import LifeFact

DAY_NS = 24 * NS_PER_HOUR
# A launcher restarts a node's ranks. Of more processes only the number is noted.
PIDS_NOTED_MAX = 16
# Acknowledgements after which there is no checkpoint.
FAILURES = frozenset({"failed", "aborted", "declined"})
BEFORE_TERM = (HaltState.ASKED, HaltState.SAVING, HaltState.WAITING)


def open_incident(
    node: Node, managed: ManagedRun, verdict: Verdict, at: MonoNs, *, operator_uid: int | None = None,
    joined: tuple[str, str] | None = None,
) -> list[Effect]:  # fmt: skip
    """Begin the halt of a run. The caller has made sure that no halt is open and that this one is allowed.

    `joined`: how another node calls this halt, and that node. It is no key here: ids are easily guessed.
    """
    run = managed.run
    in_vain = checkpoint_obstacle(managed, verdict, at)
    charge_verdict(node, managed, verdict.trigger, at)
    incident_id, _ = node.next_incident_id(run.run, managed.history.incidents_total)  # `number_of` reads it back.
    plan = plan_for(node, managed, verdict, at, in_vain=in_vain is not None)
    managed.history.note_halt(wall := node.wall(at))
    incident = Incident(
        incident_id=incident_id,
        run=run.run,
        uid=run.uid,
        attempt=run.attempt,
        stage=run.stage,
        reason=verdict.finding.reason,
        text=verdict.finding.text,
        evidence=dict(verdict.finding.evidence),
        policy=verdict.policy,
        rule=verdict.rule,
        trigger=verdict.trigger,
        halt=table.open_halt(incident_id, run.run, verdict.finding.reason, at),
        plan=plan,
        opened_at=at,
        opened_wall=wall,
        job=job_ended_by(plan, node.facts, run),
        bad_node="" if joined is not None else bad_node(node.facts, verdict),  # Else it is another node's hardware.
        operator_uid=operator_uid,
        wanted=verdict.checkpoint,
        known_as=(joined or ("", ""))[0],
        decided_by=(joined or ("", ""))[1],
        step=run.step if verdict.step is None else max(run.step or 0, verdict.step),  # Another rank's may be ahead.
        loss=run.loss,
        tokens_total=managed.trained_tokens,
        tokens_at=run.tokens_total,
        rank_processes=tuple(dict.fromkeys((*managed.processes(), *managed.launch.named))),
        launchers=managed.launch.launchers,
        named_uids=managed.launch.named_uids,
        ranks=rank_rows(run),
        last_good=run.last_good,
        spend_at_verdict_usd_micros=node.ledger.spend(run.run),
        prices=token_prices(managed, node.ledger.spend(run.run)),
        spend_rate_usd_micros_per_hour=None if managed.is_strangers else last_rate(node, managed),
        paid_by=payer_for(node, managed, node.holders()),
        resume=saved_checkpoint.resume_command(node, managed),
        framework=run.framework,
        resumes=run.resumes,
    )
    managed.enter_halt(incident)
    node.enter(incident)
    _note_begin(managed, incident, in_vain)
    fact = table.verdict_fact(plan, None if run.save_longest_ns is None else DurationNs(run.save_longest_ns))
    looks = [*drain(node, incident), *ask_while_it_runs(node, incident), *saved_checkpoint.find_last_good(managed, at)]
    # The letters do not wait for what the run has spent.
    return [*feed(node, managed, fact, at), *looks, node_journal.persist(node, at, managed)]


def _note_begin(managed: ManagedRun, incident: Incident, in_vain: str | None) -> None:
    launchers, at, wall = incident.launchers, incident.opened_at, incident.opened_wall
    ranks = [process for process in incident.rank_processes if process not in launchers]
    roles = [*((process, "launcher") for process in launchers), *((process, "rank") for process in ranks)]
    incident.add_targets([{**process_row(process), "role": role} for process, role in roles])
    incident.take_nodes({name: part_of(one) for name, one in managed.history.members.by_node.items()})
    by = {"node": incident.decided_by} if incident.decided_by else {}
    incident.note(at, wall, "verdict", rule=incident.rule, reason=incident.reason, text=incident.text, **by)
    if managed.run.failures:
        incident.note(at, wall, "raised", text=cause_of(managed.run.failures))
    if in_vain is not None:
        incident.note(at, wall, "save_failed", reason=in_vain)


def drain(node: Node, incident: Incident) -> list[DrainNode]:
    """Before the job ends: the next one would land on the broken node. Once, and only where [scheduler] says so."""
    if not incident.bad_node or not node.facts.scheduler.drains:
        return []
    return [DrainNode(incident.incident_id, incident.run, job_parts(incident.bad_node)[1])]


def ask_while_it_runs(node: Node, incident: Incident) -> list[Effect]:
    """Read billing before anything is stopped, if the provider has never said "running": the last chance to hear it.

    A job is asked for each time: what has never been seen cannot be told from what has ended.
    """
    is_known = node.believes_the_end and incident.plan.stop is not StopTarget.JOB
    if is_known or incident.plan.stop is StopTarget.PROCESSES:
        return []
    return [ReadBilling(incident.incident_id, incident.run, 0.0, destroyed=False)]


def number_of(incident_id: str) -> int:
    """Which incident of its run this was; 1 if the id does not say."""
    last = incident_id.rpartition(".")[2]
    return int(last) if last.isdecimal() else 1


def merge(node: Node, managed: ManagedRun, verdict: Verdict, at: MonoNs) -> list[Effect]:
    """Join a second halt of the same attempt to the first. The checkpoint is suspect if either halt says so."""
    incident, found = managed.incident, verdict.finding
    assert incident is not None
    incident.note(at, node.wall(at), "merged", rule=verdict.rule, reason=found.reason, text=found.text)
    if verdict.checkpoint != "suspect" or incident.plan.checkpoint != "good":
        return [persist_incident(node, managed)]
    incident.suspect()
    again = table.entry_effects(incident.halt, incident.plan) if incident.halt.stage is HaltState.ASKED else ()
    return [persist_incident(node, managed), *again]


def ask_again(managed: ManagedRun, rank: int) -> list[Ask]:
    """Repeat the checkpoint request for one rank that (re)connected. The other ranks have it already."""
    assert managed.incident is not None
    requests = table.entry_effects(managed.incident.halt, managed.incident.plan)
    return [replace(request, rank=rank) for request in requests if isinstance(request, Ask)]


def feed(node: Node, managed: ManagedRun, fact: Fact, at: MonoNs) -> list[Effect]:
    """Put one fact to the table. The incident is persisted before the effects that follow from it."""
    incident = managed.incident
    assert incident is not None
    if incident.is_closed:
        return []
    before = incident.halt
    halt, ordered = _in_truth(incident, *table.step(before, fact, at, incident.plan))
    if is_closing := halt.stage is HaltState.HALTED:  # The run holds the node until then.
        charge_until(node, at)
        count_split(node, managed)
    incident.move(halt)
    effects: list[Effect] = []
    if managed.is_strangers:  # Nobody is called for it: the machine is the command's.
        effects = [_not_ended(managed, effect) for effect in ordered if isinstance(effect, Page)]
        ordered = tuple(effect for effect in ordered if not isinstance(effect, Page))
    if incident.halt == before and not ordered:
        return []
    incident.note_end_of_asking(before, managed.run, at, node.wall(at))
    _note_effects(node, incident, ordered, at)
    if is_closing:
        _close(node, managed, at)
        effects.extend(_still_billed(node, incident) if not managed.is_strangers else ())
    node.telling.ask()
    if incident.halt.stage is not before.stage:
        data = {"from": before.stage.name, "to": incident.stage_name, "fact": fact.name}
        effects.insert(0, Record("transition", incident.run, incident.incident_id, data, durable=True))
    row = [node_journal.persist(node, at, managed)] if is_closing else []  # With what the incident says it has spent.
    return [*row, persist_incident(node, managed), *effects, *ordered]


def _not_ended(managed: ManagedRun, page: Page) -> Alarm:
    text = f"run {page.run} of uid {managed.run.uid} is not ended: {page.reason}; still trying ({page.incident_id})"
    return Alarm("stranger_not_ended", page.run, text)


def _in_truth(incident: Incident, halt: Halt, ordered: tuple[HaltEffect, ...]) -> tuple[Halt, tuple[HaltEffect, ...]]:
    """Nobody survives a signal that was not sent, and no end is claimed of whom nobody has noted."""
    if incident.is_in_doubt:
        ordered = tuple(replace(one, has_ended=False) if isinstance(one, CloseIncident) else one for one in ordered)
    if halt.page_reason != UNKILLABLE or incident.unsent is None:
        return halt, ordered
    reason = f"its processes could not be signalled: {incident.unsent}"
    truly = tuple(replace(effect, reason=reason) if isinstance(effect, Page) else effect for effect in ordered)
    return replace(halt, page_reason=reason), truly


def _unsent(incident: Incident) -> dict[str, str]:
    # A signal that is repeated for a person is told as not sent until it is: he is called first.
    why = "the run names no processes" if incident.names_nobody else incident.unsent if incident.pages else None
    return {} if why is None else {"unsent": why}


def _note_effects(node: Node, incident: Incident, ordered: tuple[HaltEffect, ...], at: MonoNs) -> None:
    wall = node.wall(at)
    for effect in ordered:
        match effect:
            case Ask():
                incident.note(at, wall, "asked", checkpoint=effect.checkpoint)
            case Term() | Kill():
                incident.note(at, wall, "kill" if isinstance(effect, Kill) else "term", **_unsent(incident))
            case StopCompute():
                incident.note(at, wall, "stop_requested", rung=effect.rung)
            case Page():
                incident.page(effect.reason)
                incident.note(at, wall, "page", reason=effect.reason)


def _close(node: Node, managed: ManagedRun, at: MonoNs) -> None:
    incident = managed.incident
    assert incident is not None
    budgeting.note_overrun(node, managed, at)
    incident.end(at, node.wall(at))
    managed.run.move(LifeFact.HALTED, at)
    count_split(node, managed)
    charging.note_shares(node, at)


def _still_billed(node: Node, incident: Incident) -> list[Effect]:
    if incident.plan.stop is not StopTarget.PROCESSES:
        return []
    how = "is halted" if not incident.given_up else "was ended as far as it was noted,"
    text = f"run {incident.run} {how} and this stays billed: {'; '.join(stays_billed(node, incident)) or 'unknown'}"
    return [Alarm("still_billed", incident.run, text)]


def persist_incident(node: Node, managed: ManagedRun) -> PersistIncident:
    incident = managed.incident
    assert incident is not None
    spent = node.spent_by(incident.run)
    incident.set_spend(spent, token_prices(managed, spent), managed.history.split.wasted_usd_micros())
    return PersistIncident(incident.incident_id, incident_snapshot(node, incident), closed=incident.is_closed)


# --- what happens, as facts ---------------------------------------------------------------------------------


# One rank's ack counts for the run. A checkpoint needs every rank's part, so a rank without its part decides the round
# for all in their common store ("abort"). All ranks then answer `failed`, `aborted` or `declined`.
# The one exception is a rank that loses the store after its vote: the manifest may then still be committed. A `saved`
# that arrives after SIGTERM is noted all the same.
# Waiting for every rank would use up the grace: some hang in the save's barrier beside the one that failed.
_ACK_FACTS = {
    "received": Fact.RECEIVED,
    "agreed": Fact.RECEIVED,
    "saving": Fact.SAVING,
    "saved": Fact.SAVED,
    "failed": Fact.SAVE_FAILED,
    "aborted": Fact.SAVE_FAILED,
    "declined": Fact.SAVE_FAILED,
}


def on_ack(node: Node, managed: ManagedRun, ack: Ack) -> list[Effect]:
    incident = managed.incident
    assert incident is not None
    wall = node.wall(ack.at)
    effects: list[Effect] = []
    if ack.what == "saved" and (ack.checkpoint is None or incident.checkpoint is not None):
        # The first ack with the whole checkpoint counts. The other ranks only report that they know it.
        incident.note(ack.at, wall, "rank_saved", **_ack_detail(ack))
        return []
    if ack.what == "agreed" and ack.step is not None:
        incident.agree(ack.step)
    incident.note(ack.at, wall, "save_failed" if ack.what in FAILURES else ack.what,
                  **_ack_detail(ack))  # fmt: skip
    if ack.what == "saved":
        # Persisted before the incident has the checkpoint: then a repeated ack is not charged again.
        effects.extend(charging.on_saved(node, managed, ack))
        effects.extend(saved_checkpoint.take(managed, ack))
    fact = _ACK_FACTS.get(ack.what)
    return [*effects, *(feed(node, managed, fact, ack.at) if fact is not None else [])]


def _ack_detail(ack: Ack) -> dict[str, object]:
    detail: dict[str, object] = {"rank": ack.rank}
    if ack.step is not None:
        detail["step"] = ack.step
    if ack.reason:
        detail["reason"] = ack.reason
    if ack.merged_into:
        detail["merged_into"] = ack.merged_into
    return detail


def on_checkpoint_weighed(node: Node, seen: CheckpointWeighed) -> list[Effect]:
    managed = node.runs.get(seen.run)
    said = managed.money.unweighed.get(seen.name) if managed is not None else None
    if managed is None or said is None:
        return []
    effects, incident = charging.on_weighed(node, managed, seen), managed.incident
    if incident is None or said.incident_id != incident.incident_id:
        return effects
    return [*effects, persist_incident(node, managed)]  # Its spend, and perhaps more than was reserved for it.


def on_checkpoint_read(node: Node, managed: ManagedRun, read: CheckpointRead) -> list[Effect]:
    found = saved_checkpoint.judge(managed, read, node.wall(read.at))
    return [persist_incident(node, managed), *found]


def on_last_good_seen(node: Node, seen: LastGoodSeen) -> list[Effect]:
    managed = node.runs.get(seen.run)
    if managed is None:
        return []
    before = managed.run.last_good, managed.incident.last_good if managed.incident is not None else None
    alarms = saved_checkpoint.note_last_good(managed, seen)
    if before == (managed.run.last_good, managed.incident.last_good if managed.incident is not None else None):
        return []
    effects: list[Effect] = [persist_incident(node, managed)] if managed.incident is not None else []
    return [*effects, node_journal.persist(node, seen.at, managed), *alarms]


def on_processes(node: Node, managed: ManagedRun, seen: ProcessesSeen) -> list[Effect]:
    incident = managed.incident
    assert incident is not None
    effects: list[Effect] = []
    if seen.respawned:
        pids = [process.pid for process in seen.respawned[:PIDS_NOTED_MAX]]
        incident.note(seen.at, node.wall(seen.at), "respawned", pids=pids, count=len(seen.respawned))
        incident.add_processes(seen.respawned)
        effects.extend(feed(node, managed, Fact.RESPAWNED, seen.at))
    elif not seen.alive and incident.names_nobody:
        # The run's processes were never named, so seeing none of them proves nothing.
        if incident.at_of("nobody_named") is None:
            incident.note(seen.at, node.wall(seen.at), "nobody_named")
            text = f"run {incident.run} names no processes (pidfile, unit, cgroup, job): its end cannot be seen here"
            effects.append(Alarm("nobody_named", incident.run, text))
    elif not seen.alive:
        # Before TERM, only the ranks are known to be gone. Processes that they left behind are looked for next.
        what = "ranks_exited" if incident.halt.stage in BEFORE_TERM else "exited"
        if incident.at_of(what) is None:
            incident.note(seen.at, node.wall(seen.at), what)
            if seen.unsure:
                rows = [{"pid": pid, "command": command} for pid, command in seen.unsure]
                incident.note(seen.at, node.wall(seen.at), "unsure", processes=rows)
        effects.extend(feed(node, managed, Fact.EXITED, seen.at))
    return effects


def name_at_last(node: Node, managed: ManagedRun, event: StreamOpened) -> list[Effect]:
    """End the processes of a log that are named only after its halt: a pidfile is read every few seconds."""
    incident = managed.incident
    if incident is None or incident.is_closed or not incident.names_nobody or not event.processes:
        return []
    incident.add_processes(event.processes)
    incident.add_uids(event.other_uids)
    incident.add_targets({**process_row(process), "role": "rank"} for process in event.processes)
    pids = [process.pid for process in event.processes[:PIDS_NOTED_MAX]]
    incident.note(event.at, node.wall(event.at), "respawned", pids=pids)
    return [persist_incident(node, managed), *feed(node, managed, Fact.RESPAWNED, event.at)]
