"""The performer: effects become checkpoint requests, signals, provider calls and rows. Results return as events.

Nothing here decides. Journal first: an incident is persisted (or marked undurable) before its later effects are done.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog

from governor.core.base.identity import ProcessId
from governor.core.base.units import MonoNs
from governor.core.engine.idle_state import NODE
from governor.core.engine.incidents import persist_incident
from governor.core.engine.managed_run import Launch, ManagedRun, announced_by_others
from governor.core.engine.node import Node
from governor.core.engine.stops.replies import job_to_end
from governor.core.events.effects import (
    Alarm,
    Ask,
    CloseIncident,
    Confirm,
    Effect,
    Kill,
    MeetPeer,
    Page,
    PersistIncident,
    PersistRuns,
    RecallRun,
    Record,
    Refuse,
    TellPeers,
    Term,
)
from governor.core.events.fleet_store import AskStore
from governor.core.events.inputs import Event, ProcessesSeen
from governor.core.events.machine import RunRecalled
from governor.core.events.shown import RankShowed
from governor.core.halt.incident import TARGETS_MAX, Incident
from governor.core.halt.left_launch import process_of
from governor.core.money.charges import charge_row
from governor.daemon.calls import CALLS, Call, Calls
from governor.daemon.halt_looks import HaltLooks
from governor.daemon.log_quota import LogQuota, more_like_it
from governor.daemon.observers import Observers
from governor.daemon.process_killer import ProcessKiller, Table
from governor.daemon.rank_looks import RankLooks
from governor.ports import Checkpoints, Clock, Inbox, Journal, Processes, Row, Sent
from governor.remote_ports import Cloud, Peers, Scheduler
from governor.wire.frames import confirm_packet, refuse_packet, request_packet

# The words of the timeline.
_MOMENTS: Final = {signal.SIGTERM: "term", signal.SIGKILL: "kill"}

log = structlog.get_logger("costgov")


@dataclass(slots=True)
class Performer:
    """Everything that effects may touch. `post` hands an event to the loop and is safe from any thread."""

    node: Node
    clock: Clock
    inbox: Inbox
    processes: Processes
    journal: Journal
    checkpoints: Checkpoints
    observer: Observers
    process_killer: ProcessKiller
    post: Callable[[Event], None]
    cloud: Cloud | None = None
    peers: Peers | None = None
    scheduler: Scheduler | None = None
    quota: LogQuota = field(default_factory=LogQuota)
    recalls: dict[str, MonoNs] = field(default_factory=dict)  # Runs that the journal was asked for: since when.
    calls: Calls = field(init=False)
    rank_looks: RankLooks = field(init=False)
    halt_looks: HaltLooks = field(init=False)
    _observer_calls: list[Callable[[], None]] = field(default_factory=list)  # Calls that the observer has not had yet.

    def __post_init__(self) -> None:
        job_of = partial(job_to_end, self.node)
        self.calls = Calls(self.clock, self.checkpoints, self.cloud, self.post, self.scheduler, job_of)
        self.rank_looks = RankLooks(self.inbox.send)
        self.halt_looks = HaltLooks(self.node, self.rank_looks)

    def perform(self, effects: Iterable[Effect]) -> None:
        """Do effects in order. Consecutive rows and their incident are one commit, because each one waits for the disk.

        The commit comes before the next act. Observers are called last: their reports must not delay a rank's signal.
        """
        kept: list[Record | PersistIncident] = []
        for effect in effects:
            if isinstance(effect, Record | PersistIncident):
                kept.append(effect)
            else:
                if isinstance(effect, Term | Kill):
                    kept = self._with_below(effect.run, kept)
                self._persist(kept)
                kept = []
                _DO[type(effect)](self, effect)
        self._persist(kept)
        self._call_observers()

    def _call_observers(self) -> None:
        calls, self._observer_calls = self._observer_calls, []
        for call in calls:
            call()

    def call(self, effect: Call) -> None:
        self.calls.begin(effect)

    # --- history ---------------------------------------------------------------------------------------

    def _row(self, kind: str, run: str | None, incident_id: str | None, data: Mapping[str, Any]) -> Row:
        return Row(kind, run, incident_id, self.clock.mono(), self.clock.wall(), self.clock.boot_id, data)

    def _persist(self, kept: Sequence[Record | PersistIncident]) -> None:
        records = [effect for effect in kept if isinstance(effect, Record)]
        rows = [self._row(record.kind, record.run, record.incident_id, record.data) for record in records]
        incidents = [effect for effect in kept if isinstance(effect, PersistIncident)]
        for incident in incidents[:-1]:
            self._persist_incident(incident, [])
        if incidents:
            self._persist_incident(incidents[-1], rows)
        elif rows:
            self.journal.append(rows, full=any(record.durable for record in records))

    def _persist_incident(self, effect: PersistIncident, rows: Sequence[Row]) -> None:
        keep = self.journal.close_incident if effect.closed else self.journal.save_incident
        snapshot = effect.snapshot
        if not keep(effect.incident_id, snapshot, rows):
            # A full or frozen disk may cost a record, but must not stop a halt.
            managed = self.node.of_incident(effect.incident_id)
            if managed is not None and managed.incident is not None:
                managed.incident.mark_undurable()
            snapshot = {**snapshot, "undurable": True}  # Also if this was the halt's last row.
        self._observer_calls.append(partial(self.observer.incident, snapshot))

    def persist_runs(self, effect: PersistRuns) -> None:
        rows = [self._row(record.kind, record.run, record.incident_id, record.data) for record in effect.records]
        charges = [charge_row(charge) for charge in effect.charges]
        self.journal.save_runs(effect.runs, charges, rows, full=effect.durable)

    def alarm(self, effect: Alarm) -> None:
        managed = self.node.runs.get(effect.run) if effect.run is not None else None
        uid = effect.uid if effect.uid is not None or managed is None else managed.run.uid
        more = self.quota.take(uid, effect.name, self.clock.mono()) if uid is not None else 0
        if more is None:
            return  # One user's alarms take no room from another's. Those left out are counted.
        log.warning("alarm", name=effect.name, run=effect.run, text=effect.text, **more_like_it(more))
        self.journal.append(
            [self._row("alarm", effect.run, None, {"name": effect.name, "text": effect.text})], full=False
        )
        self._observer_calls.append(partial(self.observer.alarm, effect.name, effect.run, effect.text))

    def page(self, effect: Page) -> None:
        what = "the stop of this node" if effect.run == NODE else f"halt of run {effect.run}"
        text = f"{what} needs a person: {effect.reason}; still trying (incident {effect.incident_id})"
        log.error("needs_human", run=effect.run, incident_id=effect.incident_id, reason=effect.reason)
        self._observer_calls.append(partial(self.observer.alarm, "needs_human", effect.run, text))

    def close_incident(self, effect: CloseIncident) -> None:
        self.process_killer.end(effect.incident_id)
        self.halt_looks.forget(effect.incident_id)
        log.info("halted" if effect.has_ended else "halt_given_up", run=effect.run, incident_id=effect.incident_id)

    def recall_run(self, effect: RecallRun) -> None:
        """Ask the journal. Without an answer, the hellos that wait for it are let in after a moment."""

        def tell(snapshot: Mapping[str, Any] | None) -> None:
            self.post(RunRecalled(self.clock.mono(), effect.run, snapshot))

        self.recalls.setdefault(effect.run, self.clock.mono())
        self.journal.find_run(effect.run, tell)

    # --- other nodes -----------------------------------------------------------------------------------

    def tell_peers(self, effect: TellPeers | MeetPeer) -> None:
        if self.peers is not None:
            self.peers.tell(effect.told) if isinstance(effect, TellPeers) else self.peers.meet(effect.host)

    # --- ranks -----------------------------------------------------------------------------------------

    def confirm(self, effect: Confirm) -> None:
        self.inbox.send(effect.connection, confirm_packet(effect.seq))

    def refuse(self, effect: Refuse) -> None:
        self.inbox.send(effect.connection, refuse_packet(effect.reason))
        self.inbox.close(effect.connection, effect.reason)

    def ask(self, effect: Ask) -> None:
        """Send the request, then the signal. The request alone obliges, so a rank without a handler gets no signal."""
        managed = self.node.runs.get(effect.run)
        if managed is None:
            return
        packet = request_packet(
            incident=effect.incident_id,
            checkpoint=effect.checkpoint,
            deadline_mono_ns=effect.deadline,
            exit_after=effect.exit_after,
            reason=effect.reason,
        )
        sent = []
        for rank in managed.run.connected_ranks():
            if effect.rank in (None, rank.rank):
                assert rank.connection is not None
                sent.append((rank, self.inbox.send(rank.connection, packet)))
        # All requests first: a signal needs a look into /proc, and the last rank should not wait for the others' looks.
        reached = [
            {"rank": rank.rank, "letter": is_sent, "rung": self._signal_rank(rank.peer.process, rank.signal)}
            for rank, is_sent in sent
        ]
        self.halt_looks.ask(managed, self.clock.mono())
        if effect.checkpoint != "none" and effect.rank is None:
            self.checkpoints.prepare()
        kept: list[Record | PersistIncident] = [
            Record("effect", effect.run, effect.incident_id, {"effect": "ask", "reached": reached})
        ]
        if effect.rank is None and self._look_below(managed):
            kept.append(persist_incident(self.node, managed))
        self._persist(kept)

    def showed(self, event: RankShowed) -> None:
        look = self.rank_looks.take(event)
        if look is not None:
            self.halt_looks.take(look, event.at)

    def _look_below(self, managed: ManagedRun, table: Table | None = None) -> bool:
        """Note what the halt's launch has now, if it is the command's: we may be killed. Whether there is news."""
        incident = managed.incident
        if incident is None:
            return False
        below = self.process_killer.below((*incident.launchers, *incident.rank_processes), incident.launch, table)
        if below is None or below == incident.below:
            return False
        incident.note_below(below)
        return True

    def _with_below(
        self, run: str, kept: Sequence[Record | PersistIncident] = (), table: Table | None = None
    ) -> list[Record | PersistIncident]:  # fmt: skip
        """What is to be committed before a signal that ends: `kept`, with what the halt's launch has by now.

        A signal ends what ties the others to it, and we may be killed before we can look behind it.
        """
        managed = self.node.runs.get(run)
        if managed is None or not self._look_below(managed, table):
            return list(kept)
        newest = persist_incident(self.node, managed)
        seen = {"launch": newest.snapshot["launch"]} if "launch" in newest.snapshot else {}
        told = [
            replace(one, snapshot={**one.snapshot, **seen})
            if isinstance(one, PersistIncident) and one.incident_id == newest.incident_id
            else one
            for one in kept
        ]
        return told if any(isinstance(one, PersistIncident) for one in told) else [*told, newest]

    def _signal_rank(self, process: Any, number: int) -> str:
        if number == 0:
            return "no_doorbell"
        signum = signal.Signals(number)
        if self.processes.catches(process, signum) is False:
            # The signal's default action would kill it. The request must be enough.
            return "not_caught"
        return self.processes.send(process, signum).value

    # --- processes -------------------------------------------------------------------------------------

    def term(self, effect: Term) -> None:
        self._end(effect.incident_id, effect.run, signal.SIGTERM)

    def kill(self, effect: Kill) -> None:
        self._end(effect.incident_id, effect.run, signal.SIGKILL)

    def _end(self, incident_id: str, run: str, signum: signal.Signals) -> None:
        managed: ManagedRun | None = self.node.runs.get(run)
        incident = managed.incident if managed is not None else None
        launchers, others = (incident.launchers, incident.named_uids) if incident is not None else ((), ())
        uid = managed.run.uid if managed is not None else -1
        launch = managed.launch if managed is not None else Launch()
        if managed is not None and signum is signal.SIGTERM:
            self.halt_looks.ask(managed, self.clock.mono())
        hit = self.process_killer.begin(
            incident_id, self.node.announced(incident_id), launchers, uid, signum, others,
            marks=launch.marks, cgroups=launch.cgroups, programs=launch.programs, unsure=lambda: launch.unsure,
            others=partial(announced_by_others, self.node.runs, run),
            signalled=[process_of(row) for row in (incident.targets if incident is not None else ())],
            strangers=partial(announced_by_others, self.node.runs, run, but_of=(uid, *others)),
            has_name=run == self._name_of_command(incident), launch=incident.launch if incident is not None else None,
        )  # fmt: skip
        self.halt_looks.sum_up(incident_id, self.clock.mono())
        unsent = self._why_unsent(hit)
        if managed is not None and managed.incident is not None:
            if unsent is not None:
                managed.incident.mark_unsent(_MOMENTS[signum], unsent)
            elif any(row["sent"] == Sent.SENT.value for row in hit):
                managed.incident.mark_sent(_MOMENTS[signum])
        self._note_hit(incident_id, run, signum, hit)
        if self.process_killer.blind is not None:
            text = f"{signum.name} is not sent: {unsent}; it is sent when the table can be read again"
            self.alarm(Alarm("process_table_unreadable", run, text))

    def _name_of_command(self, incident: Incident | None) -> str | None:
        """Of the halt's own launch, which may be an earlier one."""
        if incident is not None and incident.launch is not None:
            return incident.launch.run
        return self.node.command.run if self.node.command is not None else None

    def _why_unsent(self, hit: list[dict[str, Any]]) -> str | None:
        if self.process_killer.blind is not None:
            return f"the process table cannot be read ({self.process_killer.blind})"
        results = {row["sent"] for row in hit}
        if Sent.DENIED.value in results and Sent.SENT.value not in results:
            return "not permitted, or the processes cannot be identified"
        return None

    def _note_hit(self, incident_id: str, run: str, signum: signal.Signals, hit: list[dict[str, Any]]) -> None:
        managed = self.node.runs.get(run)
        kept: list[Record | PersistIncident] = []
        if managed is not None and managed.incident is not None and self.process_killer.blind is None:
            managed.incident.add_targets(row for row in hit if row["sent"] is Sent.SENT.value)
            signalled = {process_of(row) for row in hit}
            if signum is signal.SIGKILL:
                managed.incident.note_killed({process_of(row) for row in hit if row["sent"] is Sent.SENT.value})
            others = (process for process in managed.incident.launchers if process not in signalled)
            left = [process for process in others if not self.processes.is_gone(process)]
            of_others = [process for process in left if self._is_anothers(managed, process)]
            managed.incident.note_left(left, signalled, of_others=of_others)
            self._look_below(managed)
            # At once: a governor that resumes this halt ends what was signalled, and nothing else may tie that to it.
            kept.append(persist_incident(self.node, managed))
        data = {"effect": signum.name, "targets": hit[:TARGETS_MAX], "targets_total": len(hit)}
        self._persist([Record("effect", run, incident_id, data), *kept])

    def _is_anothers(self, managed: ManagedRun, launcher: ProcessId) -> bool:
        """Whether it is another user's, and above no other run."""
        assert managed.incident is not None, "the caller looked"
        others = (other for other in self.node.runs.values() if other is not managed and other.run.alive)
        if any(launcher in other.launch.launchers for other in others):
            return False
        try:
            facts = self.processes.facts(launcher.pid)
        except OSError:  # No free descriptors.
            return False
        return facts is not None and facts.uid not in (managed.run.uid, *managed.incident.named_uids)

    def _before_late(self, incident_id: str, table: Table) -> None:
        late = self.node.of_incident(incident_id)
        self._persist(self._with_below(late.run.run, table=table) if late is not None else [])

    def scan(self, at: MonoNs) -> list[ProcessesSeen]:
        """What the search for processes has found. Signals that had waited for it are noted now."""
        seen = self.process_killer.scan(at, self._before_late)
        for incident_id, signum, hit in self.process_killer.take_late():
            managed = self.node.of_incident(incident_id)
            if managed is not None and managed.incident is not None:
                managed.incident.note(at, self.node.wall(at), _MOMENTS[signum])
                if (unsent := self._why_unsent(hit)) is not None:
                    managed.incident.mark_unsent(_MOMENTS[signum], unsent)
                self._note_hit(incident_id, managed.run.run, signum, hit)
        return seen


_DO: Final[dict[type, Callable[[Performer, Any], None]]] = {
    **dict.fromkeys(CALLS, Performer.call),
    Alarm: Performer.alarm,
    Ask: Performer.ask,
    AskStore: Performer.call,
    CloseIncident: Performer.close_incident,
    Confirm: Performer.confirm,
    PersistRuns: Performer.persist_runs,
    Kill: Performer.kill,
    MeetPeer: Performer.tell_peers,
    Page: Performer.page,
    RecallRun: Performer.recall_run,
    Refuse: Performer.refuse,
    TellPeers: Performer.tell_peers,
    Term: Performer.term,
}
