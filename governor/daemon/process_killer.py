"""End a run's processes and watch until none is left. kill_set.py says which processes; this module signals them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from governor.core.base.identity import Clue, ProcessFacts, ProcessId, carries
from governor.core.base.secrets import command_within, redacted
from governor.core.base.units import NS_PER_MS, NS_PER_S, MonoNs
from governor.core.events.inputs import ProcessesSeen
from governor.core.halt.adopted import Adoption
from governor.core.halt.inherited import Inherited, inherited
from governor.core.halt.kill_set import (
    KillSet,
    begun_beside,
    in_group,
    kill_set,
    managers,
    marked_of_others,
    strays,
)
from governor.core.halt.known_names import is_costgov, is_multiplexer
from governor.core.halt.left_launch import Below, LeftLaunch, process_row
from governor.core.halt.neighbours import Ties, launched_apart, own_ties, siblings
from governor.daemon.kill_in_progress import ControlGroup, KillInProgress, Surroundings
from governor.ports import Processes, Sent

# The scan period while a process lives, so an exit is seen this soon.
SCAN_NS: Final = 50 * NS_PER_MS
# A row of /proc costs about 40 us (measured), so scans take at most a fifth of a core.
SCAN_PER_PROCESS_NS: Final = 200_000
# The scan period once all are gone, until the halt ends: something may restart them.
GUARD_NS: Final = NS_PER_S
EMPTY_SCANS: Final = 2  # Between two scans, a last fork can hide once, not twice.
# Signals sent at one time: about a second of the loop. A fork bomb is ended in rounds.
SENDS_MAX: Final = 10_000

UNSURE_MAX: Final = 16
COMMAND_CHARS_MAX: Final = 80
WORDS_SHOWN_MAX: Final = COMMAND_CHARS_MAX  # A word has one character at least, and secrets are hidden before the cut.

log = structlog.get_logger("costgov")

Table = Mapping[int, ProcessFacts]


@dataclass(slots=True)
class ProcessKiller:
    """All halts whose processes are being ended. False when there is none."""

    processes: Processes
    own_pid: int
    redact_keys: tuple[str, ...] = ()
    own_processes: Callable[[], frozenset[tuple[int, int]]] = frozenset  # Pid and start of what the governor starts.
    may_end_all: bool = False  # The processes of every user.
    _open: dict[str, KillInProgress] = field(default_factory=dict)
    blind: str | None = None  # Why the process table cannot be read.
    group: ControlGroup | None = None  # Of the command of `costgov run`.
    surroundings: Surroundings | None = None  # Likewise.
    adoption: Adoption | None = None  # Likewise.
    _inherited: dict[tuple[ProcessId, ...], Inherited] = field(default_factory=dict)  # By the launch's command.
    _late: list[tuple[str, signal.Signals, list[dict[str, Any]]]] = field(default_factory=list)

    def attend(
        self, group: ControlGroup | None, surroundings: Surroundings | None, adoption: Adoption | None
    ) -> None:  # fmt: skip
        """The command of `costgov run` is known."""
        self.group, self.surroundings, self.adoption = group, surroundings, adoption

    def __bool__(self) -> bool:
        return bool(self._open)

    def next_at(self) -> MonoNs:
        return min(killing.next_at for killing in self._open.values())

    def begin(
        self, incident_id: str, ranks: Iterable[ProcessId], launchers: Iterable[ProcessId], uid: int,
        signum: signal.Signals, other_uids: Iterable[int] = (), *, marks: Iterable[int] = (),
        cgroups: Iterable[str] = (), programs: Iterable[str] = (), signalled: Iterable[ProcessId] = (),
        unsure: Callable[[], Iterable[ProcessId]] = tuple, others: Callable[[], Iterable[ProcessId]] = tuple,
        strangers: Callable[[], Iterable[ProcessId]] = tuple, has_name: bool = False, launch: LeftLaunch | None = None,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Signal every process of the run, launchers first. Repeatable. Return each process and its signal's result.

        An announced process that we may not end, as one that has become another user's, is returned as denied.

        While `blind`, nobody is signalled. The signal waits, and `take_late` has its result.
        """
        known = self._open.get(incident_id)
        killing = KillInProgress(
            tuple(dict.fromkeys(ranks)), tuple(launchers), uid, tuple(other_uids), signum,
            marks=tuple(marks), cgroups=tuple(cgroups), programs=tuple(programs), unsure=unsure, others=others,
            strangers=strangers, signalled=tuple(signalled), has_name=has_name, inherited=self._inherit(launch),
        )  # fmt: skip
        if known is not None:
            killing.members, killing.apart, killing.siblings = known.members, known.apart, known.siblings
        self._open[incident_id] = killing
        table = self._read()
        killing.is_waiting = table is None
        return self._begin(killing, self._learned(table)) if table is not None else []

    def _inherit(self, launch: LeftLaunch | None) -> Inherited | None:
        """What is known of a launch that is not below us. None where it is."""
        if launch is None or (self.adoption is not None and self.adoption.is_among(launch.processes)):
            return None
        if launch.processes not in self._inherited:
            made = inherited(launch, self.own_pid, self.own_processes, may_end_all=self.may_end_all)
            self._inherited[launch.processes] = made
        return self._inherited[launch.processes]

    def below(
        self, processes: Iterable[ProcessId], launch: LeftLaunch | None = None, table: Table | None = None
    ) -> Below | None:  # fmt: skip
        """What a governor that goes on with a halt must know, as of now. `processes`: the run's ranks and launchers.

        `table`: read before. None: it is not of the command, or the process table cannot be read.
        """
        adoption = self._inherit(launch) or self.adoption
        if adoption is None or not adoption.is_among(processes):
            return None
        try:
            table = self.processes.table() if table is None else table
        except OSError:
            return None
        adoption.learn(table)
        return adoption.to_remember(table)

    def left_of(
        self, launch: LeftLaunch, uids: Iterable[int], own: Iterable[ProcessId], others: Iterable[ProcessId]
    ) -> tuple[ProcessFacts, ...]:  # fmt: skip
        """What lives of another governor's launch, or perhaps of it, behind the halt. OSError: it cannot be seen."""
        known = self._inherit(launch)
        if known is None:
            return ()
        table = self.processes.table()
        known.learn(table)
        living = known.living(table, tuple(uids), own, others)
        return tuple(facts for facts in living if not self.processes.is_gone(facts.process))

    def take_late(self) -> list[tuple[str, signal.Signals, list[dict[str, Any]]]]:
        """The signals that had waited and have been sent since: incident, signal, and as `begin` returns it."""
        late, self._late = self._late, []
        return late

    def _begin(self, killing: KillInProgress, table: Table) -> list[dict[str, Any]]:
        maybe = siblings(
            table, killing.ranks, (*killing.launchers, *killing.kept), killing.marks, killing.cgroups,
            killing.programs, uids=killing.uids,
        )  # fmt: skip
        killing.siblings = tuple(dict.fromkeys((*killing.siblings, *maybe)))
        ties = self._tie(killing, table)
        made = kill_set(
            table, killing.ranks, self.own_pid, launchers=killing.launchers, uid=killing.uid,
            other_uids=killing.other_uids, marks=ties.marks, cgroups=ties.cgroups, spared=ties.spared,
            of_command=killing.of_command,
        )  # fmt: skip
        assert made is not None, "a run has a uid"
        made = made.widened(self._known(killing, made, table))
        killing.members = made if killing.members is None else self._left(killing, made.joined(killing.members))
        killing.members = killing.members.widened(self._bearers(killing, killing.members, table))
        living = [process for process in killing.members.members if not self.processes.is_gone(process)]
        killing.unsent = tuple(living[SENDS_MAX:])
        rows = []
        for process in living[:SENDS_MAX]:
            role = "launcher" if process in killing.members.launchers else "child"
            rows.append(self._row(process, role, table, self._send(process, killing.signum)))
        known = frozenset(killing.members.members)
        spared = [rank for rank in killing.ranks if rank not in known and not self.processes.is_gone(rank)]
        if killing.signum is signal.SIGKILL:
            killed = [process for process in self._kill_group(killing, table) if process not in known]
            rows += [self._row(process, "child", table, Sent.SENT) for process in killed]
            spared = [rank for rank in spared if rank not in killed]
        rows += [self._row(rank, "rank", {}, Sent.DENIED) for rank in spared]
        return rows

    @staticmethod
    def _known(killing: KillInProgress, made: KillSet, table: Table) -> list[ProcessId]:
        """What was the run's when it was signalled, perhaps by a governor that is gone, and is nobody else's now."""
        there = ((p, table[p.pid]) for p in killing.signalled if p.pid in table and p.pid not in killing.ties.spared)
        may_end = (p for p, facts in there if facts.uid in made.uids or p.pid in killing.of_command)
        return [process for process in may_end if table[process.pid].process == process]

    def _tie(self, killing: KillInProgress, table: Table) -> Ties:
        """Look again which processes are other runs': these may begin, and announce themselves, during the halt."""
        before = killing.members.marks if killing.members is not None else ()
        adoption = killing.inherited or self.adoption
        if adoption is not None and adoption.is_among((*killing.launchers, *killing.ranks)):
            killing.left = adoption.to_leave(table, killing.uids, (*killing.ranks, *killing.launchers))
            killing.of_command = adoption.to_end(
                table, killing.uids, killing.others(), killing.left, has_name=killing.has_name
            )
            killing.managers = adoption.managers(table, killing.uids) | killing.left
        killing.ties = own_ties(
            table, killing.ranks, killing.launchers, (*killing.marks, *before), killing.cgroups, killing.others(),
            self.own_pid, uids=killing.uids, guesses=(*killing.apart, *killing.siblings),
            made=self.group.path if self.group is not None else None, strangers=killing.strangers(), kept=killing.kept,
        )  # fmt: skip
        ended = killing.of_command & self._above_both(killing, table)
        ours = killing.inherited.ours(table) if killing.inherited is not None else frozenset()
        killing.ties = replace(killing.ties, spared=(killing.ties.spared - ended) | killing.left | ours)
        return killing.ties

    def _above_both(self, killing: KillInProgress, table: Table) -> frozenset[int]:
        adoption = killing.inherited or self.adoption
        if adoption is None or not killing.has_name:
            return frozenset()
        return adoption.above_both(table, killing.ranks, killing.uids, killing.others())

    def _left(self, killing: KillInProgress, members: KillSet) -> KillSet:
        """What is left to the run of what an earlier scan knew as its own."""
        ties = killing.ties
        alone = tuple(process for process in members.members if process.pid not in ties.spared)
        return replace(members, members=alone, marks=frozenset(ties.marks), cgroups=frozenset(ties.cgroups))

    def _row(self, process: ProcessId, role: str, table: Table, sent: Sent) -> dict[str, Any]:
        facts = table.get(process.pid)
        argv0 = " ".join(redacted(facts.argv[:3], self.redact_keys))[:120] if facts is not None else ""
        return {**process_row(process), "role": role, "argv0": argv0, "sent": sent.value}

    def _own_group(self, killing: KillInProgress, table: Table) -> ControlGroup | None:
        """The control group that was made for this halt's run: not that of another run on the same socket.

        Nor one in which another user's run lives: it does not end as a whole.
        """
        group = self.group
        if group is None or group.path not in killing.ties.cgroups:
            return None
        of_others = killing.ties.spared - killing.left
        is_alone = all(facts.process.pid not in of_others for facts in in_group(table, group.path))
        return group if is_alone else None

    def _kill_group(self, killing: KillInProgress, table: Table) -> tuple[ProcessId, ...]:
        """End the run's own control group, another user's processes too. Return what the table shows in it.

        Root's manager (sshd, a container's) that the run has started there is left alone. It keeps the halt open.
        """
        group = self._own_group(killing, table)
        if group is None or not group.is_populated:
            return ()
        inside = in_group(table, group.path)
        foreign = [facts for facts in inside if facts.uid != killing.uid or facts.process.pid in killing.left]
        is_killed = not managers(table, foreign, 0) and group.kill()
        return tuple(facts.process for facts in inside) if is_killed else ()

    def _read(self) -> Table | None:
        """The process table; None while it cannot be read (no descriptors, no memory). That is not an empty table."""
        try:
            table: Table = self.processes.table()
        except OSError as error:
            if self.blind is None:  # Logged once, and not at each of twenty scans a second.
                log.error("process_table_unreadable", reason=error.strerror, until="it can be read, signals wait")
            self.blind = error.strerror or "unknown error"
            return None
        self.blind = None
        return table

    def _learned(self, table: Table) -> Table:
        for adoption in (self.adoption, *self._inherited.values()):
            if adoption is not None:
                adoption.learn(table)
                table = adoption.marked(table)
        return table

    def _send(self, process: ProcessId, signum: signal.Signals) -> Sent:
        if signum is signal.SIGTERM:
            self.processes.send(process, signal.SIGCONT)  # A stopped process gets SIGTERM only once it continues.
        return self.processes.send(process, signum)

    def scan(
        self, at: MonoNs, before_late: Callable[[str, Table], None] = lambda _incident_id, _table: None
    ) -> list[ProcessesSeen]:  # fmt: skip
        """Look which processes are left. Signal new ones and, after SIGKILL, survivors again.

        `before_late`: gets a halt whose signal has waited, with the table by which it is sent next.
        """
        due = {name: killing for name, killing in self._open.items() if at >= killing.next_at}
        if not due:
            return []
        read = self._read()
        if read is None:
            for killing in due.values():
                killing.empty_scans = 0
                killing.next_at = MonoNs(at + SCAN_NS)
            return []
        for name in [name for name, killing in due.items() if killing.is_waiting]:
            before_late(name, read)
        table = self._learned(read)
        return [seen for name, killing in due.items() if (seen := self._scan_one(name, killing, table, at)) is not None]

    def _scan_one(self, incident_id: str, killing: KillInProgress, table: Table, at: MonoNs) -> ProcessesSeen | None:
        if killing.is_waiting:
            killing.is_waiting = False
            self._late.append((incident_id, killing.signum, self._begin(killing, table)))
        assert killing.members is not None
        self._tie(killing, table)
        killing.members = self._left(killing, killing.members)
        newcomers = self._newcomers(killing, killing.members, table)
        everyone = dict.fromkeys((*killing.members.members, *newcomers, *killing.ranks))
        alive = tuple(p for p in everyone if not self.processes.is_gone(p))
        living = frozenset(alive)
        members = killing.members.widened(newcomers)
        # Dead members are dropped: a fork bomb makes more of them all the time.
        killing.members = members.without(everyone.keys() - living, table)
        due = dict.fromkeys((*killing.unsent, *newcomers))
        group = self._own_group(killing, table)
        is_held = group is not None and group.is_populated and not killing.leaves_all_in(table, group.path)
        if killing.signum is signal.SIGKILL:  # Survivors come after processes without a first signal.
            due.update(dict.fromkeys(killing.members.members))
            self._kill_group(killing, table)
        wanted = [p for p in due if p in living]
        killing.unsent = tuple(wanted[SENDS_MAX:])
        for process in wanted[:SENDS_MAX]:
            self._send(process, killing.signum)
        respawned = tuple(p for p in newcomers if p in living and table[p.pid].argv in killing.members.argvs)
        killing.empty_scans = 0 if alive or is_held else killing.empty_scans + 1
        gone = killing.empty_scans >= EMPTY_SCANS
        killing.next_at = MonoNs(at + (GUARD_NS if gone else max(SCAN_NS, len(table) * SCAN_PER_PROCESS_NS)))
        if respawned:
            killing.is_gone_reported = False
            return ProcessesSeen(at, incident_id, alive, respawned)
        if gone and not killing.is_gone_reported:
            killing.is_gone_reported = True
            return ProcessesSeen(at, incident_id, (), unsure=self._unsure(killing, table))
        return None

    def _newcomers(self, killing: KillInProgress, members: KillSet, table: Table) -> tuple[ProcessId, ...]:
        found = strays(table, members, self.own_pid, killing.ties.spared, killing.of_command)
        if found or not all(self.processes.is_gone(process) for process in members.members):
            return found
        return self._bearers(killing, members, table)  # Looked for once nobody else is left: it costs more.

    def _bearers(self, killing: KillInProgress, members: KillSet, table: Table) -> tuple[ProcessId, ...]:
        """What has the run's mark in its environment alone: a server from before has started it for the run.

        Where another launch has it too (in a terminal server that the run has opened), it says nothing: they are named.
        """
        clues = self._clues(killing, members, table)
        own = (*killing.ranks, *killing.launchers, *members.members)
        marks = dict.fromkeys((*killing.marks, *members.marks))
        apart = launched_apart(table, clues, own, marks, self.own_pid)
        if apart:
            killing.apart = tuple(dict.fromkeys((*killing.apart, *apart)))
            self._tie(killing, table)
        spared = killing.ties.spared
        found = tuple(
            p
            for p, clue in clues.items()
            if p.pid not in spared and any(carries(clue.mark, mark) for mark in members.marks)
        )
        is_shared = any(carries(clues[p].mark, mark) for p in apart for mark in marks)
        killing.bearers_shared = found if is_shared else ()
        return () if is_shared else found

    def _clues(self, killing: KillInProgress, members: KillSet, table: Table) -> Mapping[ProcessId, Clue]:
        began = [process.start_ticks for process in (*killing.launchers, *killing.ranks)]
        if self.surroundings is None or not began:
            return {}
        beside = begun_beside(table, members, self.own_pid, min(began))
        return self.surroundings.clues(facts.process for facts in beside)

    def _beside(self, killing: KillInProgress, members: KillSet, table: Table) -> tuple[ProcessId, ...]:
        """What a terminal server started in the command's directory since. It may be the run's or its user's."""
        clues = self._clues(killing, members, table)
        here = [p for p, clue in clues.items() if self.surroundings and clue.directory == self.surroundings.directory]
        above = {p: table.get(table[p.pid].ppid) for p in here if not is_costgov(table[p.pid].argv)}
        return tuple(p for p, parent in above.items() if parent is not None and is_multiplexer(parent.argv))

    def _unsure(self, killing: KillInProgress, table: Table) -> tuple[tuple[int, str], ...]:
        """Those that live on, are perhaps of the run and were not ended: pid and command."""
        assert killing.members is not None
        members = frozenset(killing.members.members)
        beside = self._beside(killing, killing.members, table)
        adoption = killing.inherited or self.adoption
        if adoption is not None and adoption.mark not in killing.marks:
            adoption = None
        adopted = adoption.unsure(table) if adoption is not None else ()
        others = (
            *killing.bearers_shared, *(facts.process for facts in adopted),
            *killing.ties.shared(table, killing.members.uids), *(table[pid].process for pid in killing.managers),
            # Last: another user may copy the mark to any number. What is another run's is known.
            *(p for p in marked_of_others(table, killing.members) if p.pid not in killing.ties.spared),
        )  # fmt: skip
        announced = frozenset(killing.others())
        unannounced = (process for process in killing.siblings if process not in announced)
        named = dict.fromkeys((*killing.unsure(), *unannounced, *beside, *others))
        living = [p for p in named if p not in members and p.pid in table and not self.processes.is_gone(p)]
        shown = ((p.pid, table[p.pid].argv[:WORDS_SHOWN_MAX]) for p in living[:UNSURE_MAX])
        return tuple((pid, command_within(COMMAND_CHARS_MAX, redacted(argv, self.redact_keys))) for pid, argv in shown)

    def end(self, incident_id: str) -> None:
        """End the search for this halt's processes: the halt is over."""
        self._open.pop(incident_id, None)
