"""What the daemon asks of the world. Every port has a real adapter and a fake that pass one contract suite.

Operating errors come back as values. Only a programming error is an exception.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from governor.core.events.hardware import UNTOLD, GpuFigures

# Only for signatures: a command that imports a port need not load the whole core.
if TYPE_CHECKING:
    from governor.core.alerts.catalogue import Alert
    from governor.core.alerts.outbox import Delivery
    from governor.core.base.identity import ConnectionId, Peer, ProcessFacts, ProcessId
    from governor.core.base.units import BootNs, MonoNs, WallNs
    from governor.core.events.checkpoints import CheckpointLook, CheckpointSeen


class Clock(Protocol):
    def mono(self) -> MonoNs:
        """CLOCK_MONOTONIC, for decisions."""

    def boot(self) -> BootNs:
        """CLOCK_BOOTTIME, which counts suspended time, for charges."""

    def wall(self) -> WallNs:
        """CLOCK_REALTIME, for labels."""

    @property
    def boot_id(self) -> str:
        """An id that changes with every boot. Monotonic times of different boots are not comparable."""


# --- processes -------------------------------------------------------------------------------------------


class Sent(Enum):
    SENT = "sent"  # Not "gone": even a zombie accepts a signal.
    GONE = "gone"
    NOT_OURS = "not_ours"  # The pid belongs to another process now.
    DENIED = "denied"


class Processes(Protocol):
    @property
    def is_stuck(self) -> bool:
        """Whether command lines cannot be read now. Then rows have those that were seen before, or none."""

    def table(self) -> Mapping[int, ProcessFacts]:
        """Scan /proc once. Processes that vanish meanwhile are left out."""

    def facts(self, pid: int) -> ProcessFacts | None:
        """One row of the table, or None when there is no such process."""

    def locate(self, target: ProcessId) -> ProcessId | None:
        """The process as our PID namespace numbers it; as it is given, where it is ours, gone or of another boot.

        None: it is of another namespace and not seen from here. Such a one is DENIED below, and never gone.
        """

    def send(self, target: ProcessId, signum: signal.Signals) -> Sent:
        """Signal exactly this process through a pidfd whose identity was compared after opening."""

    def is_gone(self, target: ProcessId) -> bool:
        """Whether the process has exited. A zombie is gone: it spends nothing and holds no GPU."""

    def catches(self, target: ProcessId, signum: signal.Signals) -> bool | None:
        """Whether it has a handler installed (SigCgt); None when /proc does not say."""

    def watch(self, target: ProcessId) -> int | None:
        """A pidfd that becomes readable at exit; the caller closes it. None when already gone."""


# --- inbox -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packet:
    connection: ConnectionId
    peer: Peer
    data: bytes
    truncated: bool = False  # The packet is larger than the wire allows; `data` has what fitted.


@dataclass(frozen=True, slots=True)
class Opened:
    connection: ConnectionId
    peer: Peer


@dataclass(frozen=True, slots=True)
class Closed:
    connection: ConnectionId
    reason: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """A connection that was not accepted. `reason` is the line that was (or would be) sent to it."""

    reason: str
    uid: int | None
    pid: int | None


Arrival = Packet | Opened | Closed | Rejected


class Inbox(Protocol):
    def fileno(self) -> int:
        """Readable when receive() has something (an epoll descriptor over all connections)."""

    def receive(self) -> Sequence[Arrival]:
        """Everything that has arrived, bounded per call so that one flooding rank cannot starve the others."""

    def send(self, connection: ConnectionId, packet: bytes) -> bool:
        """Send without blocking. False when the peer is gone or its buffer is full."""

    def close(self, connection: ConnectionId, reason: str) -> None: ...


# --- journal ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One line of history. `key` makes effects idempotent: the same key is appended once."""

    kind: str  # transition | effect | done | verdict | alarm | operator | run | window | price | start
    run: str | None
    incident_id: str | None
    mono: MonoNs
    wall: WallNs
    boot_id: str
    data: Mapping[str, Any] = field(default_factory=dict)


class Journal(Protocol):
    def append(self, rows: Iterable[Row], *, full: bool) -> bool:
        """Commit. `full` rows are on disk when this returns True.

        False: not durable within the bound (full or frozen disk). The rows are then in the runtime directory's fallback
        file and in memory.
        """

    def rows(self, *, incident_id: str | None = None, kind: str | None = None, last: int | None = None) -> list[Row]:
        """Read back, oldest first."""

    def save_incident(self, incident_id: str, snapshot: Mapping[str, Any], rows: Iterable[Row] = ()) -> bool:
        """Replace the incident's resumable snapshot (durable), in one commit with its history rows.

        So a halt waits for the disk once.
        """

    def open_incidents(self) -> list[Mapping[str, Any]]:
        """Snapshots of incidents not yet closed, for resuming."""

    def close_incident(self, incident_id: str, snapshot: Mapping[str, Any], rows: Iterable[Row] = ()) -> bool: ...

    def incidents(self, last: int = 100) -> list[Mapping[str, Any]]:
        """Snapshots of all incidents, newest last."""

    def save_runs(
        self, runs: Mapping[str, Mapping[str, Any]], charges: Sequence[Mapping[str, Any]] = (),
        rows: Iterable[Row] = (), *, full: bool = False,
    ) -> bool:  # fmt: skip
        """Replace the state of runs and the charges with the same names, and append rows, in one commit.

        A run's state has its owner uid, spend, holds and trigger snapshots. Charges are rows of charge_row(). `full`:
        as in `append`.
        """

    def runs(self) -> Mapping[str, Mapping[str, Any]]: ...

    def note_metered(self, row: Mapping[str, Any]) -> None:
        """Keep the moment up to which the node's time is metered, beside the last commit. It never waits.

        It outlives a SIGKILL of the governor. A crash of the machine may cost the newest of them.
        """

    def metered(self) -> Mapping[str, Any] | None:
        """The row that the governor before this one has left. None: there is none."""

    def find_run(self, run: str, tell: Callable[[Mapping[str, Any] | None], None]) -> bool:
        """Look one run up, whatever `runs` still has of it. `tell` gets its state, from any thread; None: no trace.

        False: the journal cannot look now, and `tell` is not called. The caller must bear that an answer never comes.
        """

    def incident_ids(self) -> set[str]:
        """The ids of all incidents that have a snapshot."""

    @property
    def errors_total(self) -> int: ...

    def close(self) -> None: ...


# --- GPUs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuReading:
    uuid: str
    name: str
    busy_frac: float | None  # NVML's figure, not MFU.
    memory_used_bytes: int | None
    pids: tuple[int, ...] | None  # The compute processes on it; None: the driver does not say.
    memory_total_bytes: int | None = None
    figures: GpuFigures = UNTOLD


class Gpus(Protocol):
    def fileno(self) -> int | None:
        """Readable when there is a sample; None without NVML."""

    def read(self) -> Sequence[GpuReading] | None:
        """The newest sample, or None when there is none (no driver, no GPU, sampler wedged)."""

    @property
    def status(self) -> str:
        """One line: "8 GPUs", "no NVIDIA driver", "sampler silent for 12 s"."""


# --- service manager -------------------------------------------------------------------------------------


class ServiceManager(Protocol):
    def notify(self, *lines: str) -> None:
        """sd_notify: READY=1, STATUS=…, WATCHDOG=1, RELOADING=1, STOPPING=1. No-op outside systemd."""

    @property
    def watchdog_period_s(self) -> float | None: ...


# --- checkpoints -----------------------------------------------------------------------------------------


class Checkpoints(Protocol):
    def prepare(self) -> None:
        """A `read` may follow soon. Returns at once."""

    def read(self, path: str, manifest: str, *, uid: int, gid: int | None) -> CheckpointLook:
        """Compare the files under `path` with the manifest: presence, sizes, and any hashes that it has. Blocks.

        They are read with that user's rights, as far as this governor may take them. Without `gid`: in no group.
        """

    def find(self, paths: Sequence[str], *, uid: int, gid: int | None) -> list[CheckpointSeen]:
        """Look whether the first is still there and finite, and at the next as long as none is fit. Blocks."""

    def weigh(self, path: str, *, uid: int, gid: int | None) -> tuple[int | None, str]:
        """How many bytes that user's files below the path have. None, and why, if they cannot be seen. Blocks."""


# --- people ----------------------------------------------------------------------------------------------


class Observer(Protocol):
    """What watches the governor: the terminal of `costgov run`, the metrics endpoint, report files. Must not block."""

    def tick(self, node: Any, at: MonoNs) -> None:
        """Called every 250 ms with the engine's Node (governor.core.engine.node). Read it and keep no reference."""

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        """An incident was opened, moved on or closed, and persisted (see governor.core.engine.incident_json)."""

    def alarm(self, name: str, run: str | None, text: str) -> None: ...


class AlertReceiver(Protocol):
    """A receiver of alerts: a webhook, an Alertmanager."""

    @property
    def where(self) -> str:
        """Scheme, host and port of the URL. The rest is never shown: the path may be a secret."""

    @property
    def replaces(self) -> bool:
        """Whether only the newest alert of a thing counts. Then an open halt is sent again until it ends."""

    def problem(self) -> str | None:
        """Why nothing can be sent now, as far as this machine shows it: one of Delivery's reasons. Sends nothing."""

    def post(self, alert: Alert) -> Delivery:
        """Send it once. Blocks at most for the receiver's own time-out. Never raises an operating error."""


class ControlRequest(Protocol):
    """One request to the governor. The kernel vouches for uid and pid."""

    @property
    def uid(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def conn(self) -> int: ...
    @property
    def body(self) -> Mapping[str, Any]: ...


class Control(Protocol):
    def fileno(self) -> int: ...

    def poll(self) -> Sequence[ControlRequest]:
        """Complete requests, each with uid, pid, conn and body."""

    def reply(self, conn: int, response: Mapping[str, Any] | bytes) -> None: ...
