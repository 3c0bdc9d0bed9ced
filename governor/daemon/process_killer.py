"""Ending a run's processes and watching until nobody is left. Whom, is core.killset's business; this does it."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.base.units import NS_PER_MS, NS_PER_S, MonoNs
from governor.core.engine.kill_set import KillSet, kill_set, strays
from governor.core.events.inputs import ProcessesSeen
from governor.core.halt.incident import process_row
from governor.ports import Processes, Sent

SCAN_NS: Final = 50 * NS_PER_MS  # While somebody lives: an exit is seen this soon.
SCAN_PER_PROCESS_NS: Final = 200_000  # A row of /proc costs about 40 us (measured): a fifth of a core at the most.
GUARD_NS: Final = NS_PER_S  # Once all are gone, until the halt ends: something may bring them back.
EMPTY_SCANS: Final = 2  # Between two scans a last fork can hide once, not twice.
SENDS_MAX: Final = 10_000  # At one time: about a second of the loop. A fork bomb is ended in rounds.

log = structlog.get_logger("costgov")

Table = Mapping[int, ProcessFacts]


@dataclass(slots=True)
class KillInProgress:
    """One halt's processes. `signum` is the strongest signal sent so far."""

    ranks: tuple[ProcessId, ...]  # Announced: nobody is "gone" before each of them is, also one that we may not end.
    launchers: tuple[ProcessId, ...]
    uid: int
    signum: signal.Signals
    members: KillSet | None = None  # None while the process table cannot be read.
    unsent: tuple[ProcessId, ...] = ()  # Whom `signum` has not reached yet: the next round's first.
    empty_scans: int = 0
    told_gone: bool = False
    next_at: MonoNs = MonoNs(0)


@dataclass(slots=True)
class ProcessKiller:
    """All halts whose processes are being ended. False when there is none."""

    processes: Processes
    own_pid: int
    _open: dict[str, KillInProgress] = field(default_factory=dict)
    _is_blind: bool = False

    def __bool__(self) -> bool:
        return bool(self._open)

    def next_at(self) -> MonoNs:
        return min(killing.next_at for killing in self._open.values())

    def begin(
        self, incident_id: str, ranks: Iterable[ProcessId], launchers: Iterable[ProcessId], uid: int,
        signum: signal.Signals,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Signal everybody of the run, launchers first. Repeatable; returns whom, and what came of each signal."""
        known = self._open.get(incident_id)
        killing = KillInProgress(tuple(dict.fromkeys(ranks)), tuple(launchers), uid, signum)
        killing.members = known.members if known is not None else None
        self._open[incident_id] = killing
        table = self._table()
        return self._begin(killing, table) if table is not None else []

    def _begin(self, killing: KillInProgress, table: Table) -> list[dict[str, Any]]:
        made = kill_set(table, killing.ranks, self.own_pid, launchers=killing.launchers, uid=killing.uid)
        assert made is not None, "a run has a uid"
        killing.members = made if killing.members is None else made.joined(killing.members)
        living = [process for process in killing.members.members if not self.processes.is_gone(process)]
        killing.unsent = tuple(living[SENDS_MAX:])
        rows = []
        for process in living[:SENDS_MAX]:
            role = "launcher" if process in killing.members.launchers else "child"
            facts = table.get(process.pid)
            argv0 = " ".join(facts.argv[:3])[:120] if facts is not None else ""
            sent = self._send(process, killing.signum).value
            rows.append({**process_row(process), "role": role, "argv0": argv0, "sent": sent})
        return rows

    def _table(self) -> Table | None:
        """The process table; None while we cannot look (no descriptors, no memory), which is not an empty one."""
        try:
            table = self.processes.table()
        except OSError as error:
            if not self._is_blind:  # Said once, and not at each of twenty looks a second.
                log.error("process_table_unreadable", reason=error.strerror, until="it can be read, signals wait")
            self._is_blind = True
            return None
        self._is_blind = False
        return table

    def _send(self, process: ProcessId, signum: signal.Signals) -> Sent:
        if signum is signal.SIGTERM:
            self.processes.send(process, signal.SIGCONT)  # A stopped process keeps a SIGTERM for later.
        return self.processes.send(process, signum)

    def scan(self, at: MonoNs) -> list[ProcessesSeen]:
        """Look who is left; signal newcomers and, after SIGKILL, survivors again."""
        due = {name: killing for name, killing in self._open.items() if at >= killing.next_at}
        if not due:
            return []
        table = self._table()
        if table is None:
            for killing in due.values():
                killing.empty_scans = 0
                killing.next_at = MonoNs(at + SCAN_NS)
            return []
        return [seen for name, killing in due.items() if (seen := self._scan_one(name, killing, table, at)) is not None]

    def _scan_one(self, incident_id: str, killing: KillInProgress, table: Table, at: MonoNs) -> ProcessesSeen | None:
        if killing.members is None:
            self._begin(killing, table)  # The signals that a table which could not be read has held up.
        assert killing.members is not None
        newcomers = strays(table, killing.members, self.own_pid)
        everyone = dict.fromkeys((*killing.members.members, *newcomers, *killing.ranks))
        alive = tuple(p for p in everyone if not self.processes.is_gone(p))
        living = frozenset(alive)
        members = killing.members.widened(newcomers)
        # The dead make room: a fork bomb has as many of them as it has had time.
        killing.members = members.without(everyone.keys() - living, table)
        due = dict.fromkeys((*killing.unsent, *newcomers))
        if killing.signum is signal.SIGKILL:  # Survivors behind those who have not had theirs yet.
            due.update(dict.fromkeys(killing.members.members))
        wanted = [p for p in due if p in living]
        killing.unsent = tuple(wanted[SENDS_MAX:])
        for process in wanted[:SENDS_MAX]:
            self._send(process, killing.signum)
        respawned = tuple(p for p in newcomers if p in living and table[p.pid].argv in killing.members.argvs)
        killing.empty_scans = 0 if alive else killing.empty_scans + 1
        gone = killing.empty_scans >= EMPTY_SCANS
        killing.next_at = MonoNs(at + (GUARD_NS if gone else max(SCAN_NS, len(table) * SCAN_PER_PROCESS_NS)))
        if respawned:
            killing.told_gone = False
            return ProcessesSeen(at, incident_id, alive, respawned)
        if gone and not killing.told_gone:
            killing.told_gone = True
            return ProcessesSeen(at, incident_id, ())
        return None

    def end(self, incident_id: str) -> None:
        """The halt is over: nobody of it is looked for any more."""
        self._open.pop(incident_id, None)
