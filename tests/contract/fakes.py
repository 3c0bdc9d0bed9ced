"""Fakes of the local ports. Each passes the same contract suite as its real adapter."""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from governor.core.base.identity import ConnectionId, Peer, ProcessFacts, ProcessId
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, WallNs
from governor.ports import Arrival, Closed, GpuReading, Opened, Packet, Row, Sent

BOOT_ID = "00000000-0000-4000-8000-000000000001"
PACKETS_PER_CONNECTION = 8


class FakeClock:
    """Time that moves when told to. Boot time includes the suspends, wall time can be set wrong."""

    def __init__(self, boot_id: str = BOOT_ID) -> None:
        self._mono = 1_000 * NS_PER_S
        self._suspended_ns = 0
        self._wall = 1_800_000_000 * NS_PER_S
        self._boot_id = boot_id

    def mono(self) -> MonoNs:
        return MonoNs(self._mono)

    def boot(self) -> BootNs:
        return BootNs(self._mono + self._suspended_ns)

    def wall(self) -> WallNs:
        return WallNs(self._wall)

    @property
    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, duration_ns: int) -> None:
        assert duration_ns >= 0
        self._mono += duration_ns
        self._wall += duration_ns

    def suspend(self, duration_ns: int) -> None:
        """Charge-relevant time passes, monotonic time does not."""
        self._suspended_ns += duration_ns
        self._wall += duration_ns

    def set_wall(self, wall_ns: int) -> None:
        self._wall = wall_ns


@dataclass
class FakeProcess:
    """How one process of the script behaves."""

    facts: ProcessFacts
    catches: frozenset[int] = frozenset()  # Handlers installed.
    dies_of: frozenset[int] = frozenset((signal.SIGTERM, signal.SIGKILL, signal.SIGINT))
    becomes_zombie: bool = False  # Its parent does not reap it.
    deniable: bool = False
    gone: bool = False
    received: list[int] = field(default_factory=list)
    pipes: list[int] = field(default_factory=list)  # Write ends of what watch() gave out.


class FakeProcesses:
    """A scripted process table. `send` obeys each process's own script and re-parents orphans to pid 1."""

    def __init__(self, boot_id: str = BOOT_ID, pid_ns: int = 0) -> None:
        self.boot_id = boot_id
        self.pid_ns = pid_ns
        self.elsewhere: dict[ProcessId, ProcessId | None] = {}  # Those of other PID namespaces. Not seen: None.
        self.is_stuck = False
        self.by_pid: dict[int, FakeProcess] = {}
        self._ticks = 1_000

    def add(
        self, pid: int, ppid: int = 1, *, argv: Sequence[str] = ("python", "train.py"), uid: int = 1000,
        sid: int | None = None, pgid: int | None = None, start_ticks: int | None = None, mark: int = 0, **script: Any,
    ) -> ProcessId:  # fmt: skip
        """Start a process. Without a sid it inherits its parent's session and group, as fork does."""
        parent = self.by_pid.get(ppid)
        self._ticks += 1
        ticks = self._ticks if start_ticks is None else start_ticks
        process = ProcessId(pid, ticks, self.boot_id, self.pid_ns)
        inherited_sid = parent.facts.sid if parent else pid
        inherited_pgid = parent.facts.pgid if parent else pid
        facts = ProcessFacts(
            process=process, ppid=ppid, uid=uid, pgid=inherited_pgid if pgid is None else pgid,
            sid=inherited_sid if sid is None else sid, state="S", argv=tuple(argv), cgroup="/fake",
            mark=mark,
        )  # fmt: skip
        self.by_pid[pid] = FakeProcess(facts, **script)
        return process

    def end(self, pid: int) -> None:
        """The process exits: watchers wake, children go to pid 1."""
        process = self.by_pid[pid]
        process.gone = True
        for write_end in process.pipes:
            os.close(write_end)
        process.pipes.clear()
        for child in self.by_pid.values():
            if child.facts.ppid == pid:
                child.facts = replace(child.facts, ppid=1)
        if process.becomes_zombie:
            process.facts = replace(process.facts, state="Z", argv=())
        else:
            del self.by_pid[pid]

    def table(self) -> Mapping[int, ProcessFacts]:
        return {pid: process.facts for pid, process in self.by_pid.items()}

    def facts(self, pid: int) -> ProcessFacts | None:
        process = self.by_pid.get(pid)
        return process.facts if process else None

    def locate(self, target: ProcessId) -> ProcessId | None:
        if target.boot_id != self.boot_id or target.pid_ns == self.pid_ns:
            return target
        return replace(target, pid_ns=self.pid_ns) if target.pid_ns == 0 else self.elsewhere.get(target)

    def send(self, target: ProcessId, signum: signal.Signals) -> Sent:
        place = self.locate(target)
        if place is None or place.pid_ns != self.pid_ns:
            return Sent.DENIED if place is None else Sent.GONE
        target, process = place, self.by_pid.get(place.pid)
        if target.boot_id != self.boot_id or process is None:
            return Sent.GONE
        if process.facts.process != target:
            return Sent.NOT_OURS
        if process.deniable:
            return Sent.DENIED
        process.received.append(signum)
        if signum in process.dies_of and not process.gone:
            self.end(target.pid)
        return Sent.SENT

    def is_gone(self, target: ProcessId) -> bool:
        process = self._same(target)
        return self.locate(target) is not None and (process is None or process.gone)

    def catches(self, target: ProcessId, signum: signal.Signals) -> bool | None:
        process = self._same(target)
        return None if process is None else signum in process.catches

    def watch(self, target: ProcessId) -> int | None:
        process = self._same(target)
        if process is None or process.gone:
            return None
        read_end, write_end = os.pipe()
        process.pipes.append(write_end)
        return read_end

    def _same(self, target: ProcessId) -> FakeProcess | None:
        place = self.locate(target)
        process = self.by_pid.get(place.pid) if place is not None else None
        return process if process is not None and process.facts.process == place else None


class FakeTrainer:
    """The trainer's end of a FakeInbox connection."""

    def __init__(self, inbox: FakeInbox, peer: Peer) -> None:
        self._inbox = inbox
        self.connection = ConnectionId(inbox.next_id)
        inbox.next_id += 1
        self.peer = peer
        self.outgoing: deque[Arrival] = deque((Opened(self.connection, peer),))
        self.letters: list[bytes] = []
        self.is_full = False
        self.is_open = True

    def send(self, packet: bytes, *, truncated: bool = False) -> None:
        self.outgoing.append(Packet(self.connection, self.peer, packet, truncated))
        self._inbox.wake()

    def hang_up(self) -> None:
        self.outgoing.append(Closed(self.connection, "peer closed"))
        self._inbox.wake()


class FakeInbox:
    """Connections as lists. `fileno` is a real descriptor, so a selector can wait on it."""

    def __init__(self) -> None:
        self.next_id = 1
        self.trainers: list[FakeTrainer] = []
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def connect(self, peer: Peer) -> FakeTrainer:
        trainer = FakeTrainer(self, peer)
        self.trainers.append(trainer)
        self.wake()
        return trainer

    def fileno(self) -> int:
        return self._event_fd

    def wake(self) -> None:
        os.eventfd_write(self._event_fd, 1)

    def receive(self) -> Sequence[Arrival]:
        arrivals: list[Arrival] = []
        for trainer in list(self.trainers):
            for _ in range(min(PACKETS_PER_CONNECTION, len(trainer.outgoing))):
                arrival = trainer.outgoing.popleft()
                arrivals.append(arrival)
                if isinstance(arrival, Closed):
                    self._drop(trainer)
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            pass  # Nobody woke us: receive() may be called at any time.
        if any(trainer.outgoing for trainer in self.trainers):
            self.wake()
        return arrivals

    def send(self, connection: ConnectionId, packet: bytes) -> bool:
        trainer = next((t for t in self.trainers if t.connection == connection), None)
        if trainer is None or trainer.is_full:
            return False
        trainer.letters.append(packet)
        return True

    def close(self, connection: ConnectionId, reason: str) -> None:
        for trainer in [t for t in self.trainers if t.connection == connection]:
            self._drop(trainer)

    def close_all(self) -> None:
        for trainer in list(self.trainers):
            self._drop(trainer)
        os.close(self._event_fd)

    def _drop(self, trainer: FakeTrainer) -> None:
        trainer.is_open = False
        trainer.outgoing.clear()
        self.trainers.remove(trainer)


class FakeJournal:
    """A journal in memory. `is_stuck` plays a frozen disk: rows stay readable, but nothing is durable."""

    def __init__(self) -> None:
        self.is_stuck = False
        self._errors_total = 0
        self._rows: list[Row] = []
        self._incidents: dict[str, tuple[bool, str]] = {}
        self._runs: dict[str, str] = {}

    def append(self, rows: Iterable[Row], *, full: bool) -> bool:
        self._rows.extend(replace(row, data=json.loads(json.dumps(dict(row.data), default=str))) for row in rows)
        return self._outcome()

    def rows(self, *, incident_id: str | None = None, kind: str | None = None, last: int | None = None) -> list[Row]:
        found = [r for r in self._rows if incident_id in (None, r.incident_id) and kind in (None, r.kind)]
        return found if last is None else found[len(found) - min(last, len(found)) :]

    def save_incident(self, incident_id: str, snapshot: Mapping[str, Any], rows: Iterable[Row] = ()) -> bool:
        self._incidents[incident_id] = (True, json.dumps(dict(snapshot), default=str))
        return self.append(rows, full=True)

    def open_incidents(self) -> list[Mapping[str, Any]]:
        return [json.loads(text) for is_open, text in self._incidents.values() if is_open]

    def close_incident(self, incident_id: str, snapshot: Mapping[str, Any], rows: Iterable[Row] = ()) -> bool:
        self._incidents[incident_id] = (False, json.dumps(dict(snapshot), default=str))
        return self.append(rows, full=True)

    def incidents(self, last: int = 100) -> list[Mapping[str, Any]]:
        found = [json.loads(text) for _, text in self._incidents.values()]
        return found[len(found) - min(last, len(found)) :]

    def save_runs(
        self, runs: Mapping[str, Mapping[str, Any]], charges: Sequence[Mapping[str, Any]] = (),
        rows: Iterable[Row] = (), *, full: bool = False,
    ) -> bool:  # fmt: skip
        self._runs |= {run: json.dumps(dict(snapshot), default=str) for run, snapshot in runs.items()}
        return self.append(rows, full=full)

    def note_metered(self, row: Mapping[str, Any]) -> None:
        pass

    def metered(self) -> Mapping[str, Any] | None:
        return None  # No governor was before this one.

    def runs(self) -> Mapping[str, Mapping[str, Any]]:
        return {run: json.loads(text) for run, text in self._runs.items()}

    def find_run(self, run: str, tell: Callable[[Mapping[str, Any] | None], None]) -> bool:
        if self.is_stuck:
            return False
        tell(self.runs().get(run))
        return True

    def incident_ids(self) -> set[str]:
        return set(self._incidents)

    @property
    def errors_total(self) -> int:
        return self._errors_total

    def close(self) -> None:
        pass

    def _outcome(self) -> bool:
        self._errors_total += self.is_stuck
        return not self.is_stuck


class FakeGpus:
    """Readings handed in by the test; `fileno` is readable while one waits."""

    def __init__(self) -> None:
        self.status = "no NVIDIA driver"
        self._reading: Sequence[GpuReading] | None = None
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def offer(self, readings: Sequence[GpuReading]) -> None:
        self._reading = readings
        self.status = f"{len(readings)} GPUs"
        os.eventfd_write(self._event_fd, 1)

    def silence(self, status: str) -> None:
        self._reading, self.status = None, status

    def fileno(self) -> int | None:
        return self._event_fd

    def read(self) -> Sequence[GpuReading] | None:
        try:
            os.eventfd_read(self._event_fd)
        except BlockingIOError:
            pass  # No new sample: the newest one stands.
        return self._reading

    def close(self) -> None:
        os.close(self._event_fd)


class FakeServiceManager:
    """Keeps what it was told."""

    def __init__(self, watchdog_period_s: float | None = None) -> None:
        self.told: list[tuple[str, ...]] = []
        self.watchdog_period_s = watchdog_period_s

    def notify(self, *lines: str) -> None:
        self.told.append(lines)
