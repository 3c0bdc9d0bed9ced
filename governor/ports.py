"""What the daemon asks of the world. Every port has a real adapter and a fake that pass one contract suite.

Operating errors come back as values; only a broken promise of ours is an exception.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # Words of signatures alone: a command that asks for a port need not load the whole core.
    from governor.core.alerts.catalogue import Alert
    from governor.core.alerts.outbox import Delivery
    from governor.core.base.identity import ConnectionId, Peer, ProcessFacts, ProcessId
    from governor.core.base.units import BootNs, MonoNs, UsdMicros, WallNs
    from governor.core.events.inputs import BillingAnswer, StopAnswer
    from governor.core.money.prices import Machine, Quote


class Clock(Protocol):
    def mono(self) -> MonoNs:
        """CLOCK_MONOTONIC: decides."""

    def boot(self) -> BootNs:
        """CLOCK_BOOTTIME, which counts suspend: charges."""

    def wall(self) -> WallNs:
        """CLOCK_REALTIME: labels."""

    @property
    def boot_id(self) -> str:
        """Changes with every boot of the machine; monotonic times of different boots are not comparable."""


# --- processes -------------------------------------------------------------------------------------------


class Sent(Enum):
    SENT = "sent"  # Not "gone": even a zombie accepts a signal.
    GONE = "gone"
    NOT_OURS = "not_ours"  # The pid has changed hands.
    DENIED = "denied"


class Processes(Protocol):
    @property
    def is_stuck(self) -> bool:
        """Command lines cannot be read now: rows show those that were seen before, or none."""

    def table(self) -> Mapping[int, ProcessFacts]:
        """Scan /proc once. Processes that vanish meanwhile are left out."""

    def facts(self, pid: int) -> ProcessFacts | None:
        """One row of the table, or None when there is no such process."""

    def send(self, target: ProcessId, signum: signal.Signals) -> Sent:
        """Signal exactly this process through a pidfd whose identity was compared after opening."""

    def is_gone(self, target: ProcessId) -> bool:
        """True when the process has exited (a zombie is gone: it spends nothing and holds no GPU)."""

    def catches(self, target: ProcessId, signum: signal.Signals) -> bool | None:
        """Whether it has a handler installed (SigCgt); None when /proc does not tell us."""

    def watch(self, target: ProcessId) -> int | None:
        """A pidfd that becomes readable at exit; the caller closes it. None when already gone."""


# --- clouds ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StopReply:
    answer: StopAnswer
    retryable: bool
    reason: str  # Named, never with secrets: "accepted", "http_503", "UnauthorizedOperation", "timeout".
    destroys: bool = False  # What was accepted ends the machine for good: the provider will forget it.


@dataclass(frozen=True, slots=True)
class BillingReply:
    answer: BillingAnswer
    provider_state: str  # The provider's own word: "running", "stopping", "stopped", "http_500".


@dataclass(frozen=True, slots=True)
class Preflight:
    """What start-up learned of the machine. Printed as "on halt I will …; this stays billed: …"."""

    ok: bool
    instance_id: str | None
    will: str  # "stop EC2 instance i-0abc in us-east-1 (read back until stopped)"
    stays_billed: tuple[str, ...]  # "EBS volume vol-1 (100 GiB)"
    problems: tuple[str, ...]  # Each one line: what, and what to do.
    price_usd_micros_per_hour: UsdMicros | None = None  # The provider's own answer for this machine, if it has one.
    price_source: str | None = None
    launched_at_wall: WallNs | None = None  # The provider's word; billing began there.
    region: str | None = None
    respawners: tuple[str, ...] = ()  # What may bring the machine back: an ASG, a persistent spot request.
    survives_stop: bool | None = None  # Does the local disk outlive a stop?


@dataclass(frozen=True, slots=True)
class Notice:
    """A provider's answer to whether it takes this machine back."""

    action: str | None  # Its own word: "terminate", "stop"; None: it has announced nothing.
    at_wall: WallNs | None = None  # When, by the provider's clock.


class Cloud(Protocol):
    """One provider. Blocking: called on a worker, each call bounded by its own timeouts (declared below)."""

    name: str
    gives_notice: bool  # Whether it can be asked for a notice at all, and costgov knows how.
    stop_bound_s: float  # Declared: an accepted stop ends billing within this.
    granularity_s: float  # Declared billing granularity.

    def preflight(self) -> Preflight:
        """Learn identity, permission (dry run), respawners, price. No effect on the machine."""

    def stop(self, incident_id: str, rung: int) -> StopReply:
        """Ask for the end of spending. Idempotent per incident. rung 0: stop, 1: force, 2: terminate."""

    def notice(self) -> Notice | None:
        """Ask now whether it takes this machine back. None: it gives no notice, or did not answer."""

    def billing(self, *, destroyed: bool = False) -> BillingReply:
        """Ask the provider now; never answer from memory. UNKNOWN if it does not say.

        `destroyed`: our journal has it that the provider accepted this machine's destruction. Then "there is no such
        machine" is the end that was asked for; from a provider that never showed it to us it may be a wrong account.
        """


# --- prices ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PriceAnswer:
    """What a provider says of the machine's price. No quote and no problem: there was nothing to ask it for."""

    quote: Quote | None = None
    problem: str = ""  # One line, never with a secret: why there is no quote, and what to do.
    machine: Machine | None = None  # What the provider says this machine is: the built-in table is asked for it.


class PriceSource(Protocol):
    """One provider's prices. Blocking, read-only, and over within `bound_s`; never from memory."""

    name: str
    bound_s: float

    def ask(self) -> PriceAnswer:
        """Ask now. Whatever goes wrong is a problem told in the answer."""


# --- inbox -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packet:
    connection: ConnectionId
    peer: Peer
    data: bytes
    truncated: bool = False  # Larger than the wire allows: data is what fitted.


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
    """A connection that was not accepted, with the one line that was (or would be) sent to it."""

    reason: str
    uid: int | None
    pid: int | None


Arrival = Packet | Opened | Closed | Rejected


class Inbox(Protocol):
    def fileno(self) -> int:
        """Readable when receive() has something (an epoll descriptor over all connections)."""

    def receive(self) -> Sequence[Arrival]:
        """Everything that is there now, bounded per call so that one flooding rank cannot starve the rest."""

    def send(self, connection: ConnectionId, packet: bytes) -> bool:
        """Never block. False when the peer is gone or full."""

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
        """Commit. `full` rows are on disk when this returns True. False: not durable within the bound
        (full or frozen disk); the rows then stand in the runtime directory's fallback file and memory."""

    def rows(self, *, incident_id: str | None = None, kind: str | None = None, last: int | None = None) -> list[Row]:
        """Read back, oldest first."""

    def save_incident(self, incident_id: str, snapshot: Mapping[str, Any], rows: Iterable[Row] = ()) -> bool:
        """Replace the incident's resumable snapshot (durable), in one commit with the history behind it: a halt waits
        for the disk once."""

    def open_incidents(self) -> list[Mapping[str, Any]]:
        """Snapshots of incidents not yet closed, for resuming."""

    def close_incident(self, incident_id: str, snapshot: Mapping[str, Any], rows: Iterable[Row] = ()) -> bool: ...

    def incidents(self, last: int = 100) -> list[Mapping[str, Any]]:
        """Snapshots of all incidents, newest last."""

    def save_runs(
        self, runs: Mapping[str, Mapping[str, Any]], charges: Sequence[Mapping[str, Any]] = (),
        rows: Iterable[Row] = (), *, full: bool = False,
    ) -> bool:  # fmt: skip
        """Replace the carried state of runs (owner uid, spend, holds, trigger snapshots) and the charges of the same
        names (rows of core.charges.charge_row), and append rows, in one commit. `full`: as of `append`."""

    def runs(self) -> Mapping[str, Mapping[str, Any]]: ...

    @property
    def errors_total(self) -> int: ...

    def close(self) -> None: ...


# --- GPUs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GpuReading:
    uuid: str
    name: str
    busy_frac: float | None  # NVML's figure: not MFU.
    memory_used_bytes: int | None
    power_w: float | None
    pids: tuple[int, ...] | None  # Compute processes on it; None: the driver does not say.
    memory_total_bytes: int | None = None


class Gpus(Protocol):
    def fileno(self) -> int | None:
        """Readable when a sample is there; None where there is no NVML."""

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


@dataclass(frozen=True, slots=True)
class CheckpointLook:
    whole: bool | None  # None: we may not read it.
    files: int
    hashed: int
    reason: str


class Checkpoints(Protocol):
    def read(self, path: str, manifest: str) -> CheckpointLook:
        """Compare the files under `path` with the manifest: presence, sizes, and hashes where it has them. Blocking."""


# --- people ----------------------------------------------------------------------------------------------


class Observer(Protocol):
    """Whoever watches: the terminal of `costgov run`, the metrics endpoint, report files. Must not block."""

    def tick(self, node: Any, at: MonoNs) -> None:
        """Every 250 ms, with the engine's Node (governor.core.engine.node), to be read and not kept."""

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        """An incident was kept: opened, moved on or closed (see governor.core.engine.incident_json)."""

    def alarm(self, name: str, run: str | None, text: str) -> None: ...


class AlertReceiver(Protocol):
    """Somebody whom alerts are sent to: a webhook, an Alertmanager."""

    @property
    def where(self) -> str:
        """Scheme, host and port: all of the URL that may be shown, for its path may be a secret."""

    @property
    def replaces(self) -> bool:
        """Only the newest of a thing is news here, and an open halt is told again until it ends."""

    def problem(self) -> str | None:
        """Why nothing could be sent now, as far as this machine shows it: a reason of Delivery's. Sends nothing."""

    def post(self, alert: Alert) -> Delivery:
        """Send it once, within the receiver's own time-out, which blocks. Never raises what the world may do."""


class ControlRequest(Protocol):
    """One question to the governor; uid and pid are the kernel's word."""

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
