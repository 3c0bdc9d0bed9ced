"""What the machine itself shows: its GPUs, memory, other users and journal, the provider's spot notice, and
whatever else a person must know.

As in inputs.py, `at` is arrival on the governor's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from governor.core.base.identity import ProcessId
from governor.core.base.policy import Wrong
from governor.core.base.shares import UidRange
from governor.core.base.units import BootNs, DurationNs, MonoNs, UsdMicros, WallNs
from governor.core.events.hardware import GpuFigures


@dataclass(slots=True)  # Not frozen, as Step: a log may have one with every record.
class GpuSample:
    """What GPUs do now. Every tuple has one place for each GPU, in the same order, or is empty if unknown.

    `run` None: all GPUs of the node, as the driver shows them; the engine shows each run its own (on_sources.py).
    Otherwise: one run's GPUs, as its log shows them.
    """

    at: MonoNs
    run: str | None
    # NVML's figure, 0 to 1: the part of the time in which any kernel ran. It is not MFU: a GPU that spins in a
    # collective is busy. None: unknown for this GPU.
    busy_frac: tuple[float | None, ...]
    uuids: tuple[str, ...] = ()
    memory_used_bytes: tuple[int | None, ...] = ()
    memory_total_bytes: tuple[int | None, ...] = ()
    pids: tuple[frozenset[int] | None, ...] = ()  # The processes that compute on it; None: the driver does not say.
    figures: tuple[GpuFigures, ...] = ()
    names: tuple[str, ...] = ()  # As the driver calls their kind: "NVIDIA H100 80GB HBM3".

    def is_lost(self, place: int) -> bool:
        """Whether this GPU has fallen off the bus, as the driver says. It computes nothing more."""
        return bool(self.figures) and self.figures[place].is_lost


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Main memory of the node (`run` None), or of the control group above one run's processes with the least left."""

    at: MonoNs
    # Available without swapping: free memory, and caches that can be dropped.
    available_bytes: int
    total_bytes: int  # For a control group, its limit.
    run: str | None = None
    group: str | None = None  # The control group's path.


@dataclass(frozen=True, slots=True)
class SpotNotice:
    """Whether the provider announces to take this machine back. Sent each time the provider was asked."""

    at: MonoNs
    # The provider's own word: "terminate", "stop", "hibernate"; None: nothing is announced.
    action: str | None
    left: DurationNs | None = None  # The time left at `at`; None: the provider does not say.


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The whole machine. Totals count since its boot; None: the kernel does not tell."""

    cores: int | None = None
    cpu_busy_s: float | None = None  # Of all cores together, without waiting for disks.
    cpu_iowait_s: float | None = None
    memory_available_bytes: int | None = None
    memory_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    disk_read_bytes: int | None = None
    disk_written_bytes: int | None = None
    network_received_bytes: int | None = None  # Without the loopback.
    network_sent_bytes: int | None = None
    # Pressure stall information: in this time at least one task waited for it (Documentation/accounting/psi.rst).
    cpu_pressure_s: float | None = None
    io_pressure_s: float | None = None
    memory_pressure_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A rank's process, or one below it: a loader's worker, a compiler. Totals count since it began."""

    process: ProcessId
    rank: ProcessId  # Itself, for a rank's.
    name: str  # The kernel's, 15 characters: torch calls its workers pt_data_worker.
    state: str  # R runs or waits for a core, S sleeps, D waits for a disk or a driver.
    cpu_ns: int  # Of all its threads.
    # Of its main thread alone, the trainer's: the time in which it could have run and had no core. None: not told.
    core_wait_ns: int | None = None
    # From storage; what the page cache had is not in it. None: not told, as of another user's process.
    read_bytes: int | None = None
    cores: frozenset[int] | None = None  # On which a rank may run. None: not told, as of processes below it.
    cores_max: float | None = None  # So many at once, by its control group's limit. None: no limit is known.
    core_run_ns: int | None = None  # Of its main thread alone: the time in which it ran. None: not told.

    @property
    def cores_at_once(self) -> float | None:
        told = [one for one in (len(self.cores) if self.cores is not None else None, self.cores_max) if one is not None]
        return min(told, default=None)


@dataclass(frozen=True, slots=True)
class HostSample:
    """What the machine and its runs' processes use. `run` None: of all runs; the engine shows each run its own."""

    at: MonoNs
    node: NodeUse
    processes: tuple[ProcessUse, ...] = ()
    run: str | None = None
    # Ranks below which there were too many processes to look at each. Who is not among `processes` may be there.
    cut: frozenset[ProcessId] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """What the scheduler said when a halt wanted this node drained."""

    at: MonoNs
    incident_id: str
    is_drained: bool  # It was read back.
    reason: str  # Named, without secrets.


MachineEvent = GpuSample | HostMemory | HostSample | SpotNotice  # What a run's rules are shown.


@dataclass(frozen=True, slots=True)
class GpuProcessesSeen:
    """Every process that computes on a GPU of this node, as the driver shows it; none if there is no GPU.

    `own`: those that descend from the command of `costgov run`, whether they have sent a hello or not.
    """

    at: MonoNs
    pids: frozenset[int]
    # GPUs that are busy or have memory in use by a process that the driver does not name: another container's.
    unnamed: int = 0
    # One line if it is unknown which processes compute here. `pids` then has those that are seen all the same.
    problem: str | None = None
    own: frozenset[int] = frozenset()
    # With a problem: no GPU is known to be missing, and only `pids` are on the GPUs shown.
    is_read: bool = False


@dataclass(frozen=True, slots=True)
class GovernorsSeen:
    """Other governors on this machine, whose runs are unknown here. `problem`: one line if we could not look."""

    at: MonoNs
    pids: tuple[int, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class UidRangesSeen:
    """Which uids are whose (/etc/subuid), by their first uid."""

    at: MonoNs
    ranges: tuple[UidRange, ...]


@dataclass(frozen=True, slots=True)
class HaltMarksRead:
    """What people have said of halts so far, as the rules count it. It replaces what was read before."""

    at: MonoNs
    wrong: Wrong


@dataclass(frozen=True, slots=True)
class SourceTrouble:
    """What a source of events must tell a person, each time it begins. `alarm`: its name. `text`: and what to do."""

    at: MonoNs
    run: str | None  # None: it is of no run.
    alarm: str
    text: str


@dataclass(frozen=True, slots=True)
class RunRecalled:
    """The journal's answer about a run that memory has dropped. `snapshot`: the run's last; None: there is no trace."""

    at: MonoNs
    run: str
    snapshot: Mapping[str, Any] | None
    is_answered: bool = True  # Else the disk did not answer in time.


@dataclass(frozen=True, slots=True)
class FilesLost:
    """A file of the governor's own was removed or replaced while it runs: a socket, the journal."""

    at: MonoNs
    alarm: str  # "socket_gone", "journal_gone".
    text: str  # What was found, and what was done.


@dataclass(frozen=True, slots=True)
class PriceRead:
    """The source of the machine's price was asked again. `at`, `boot` and `wall` are of one moment: now."""

    at: MonoNs
    boot: BootNs
    wall: WallNs
    usd_micros_per_hour: UsdMicros
    source: str
    as_of: str  # The day (ISO 8601) on which the source stated the price.
    since: WallNs | None = None  # When it came into force; None: with this reading, as the source does not say.
    alarms: tuple[tuple[str, str], ...] = ()  # (name, text) of what a person should know about it.
    kind: str = ""  # "spot", "on-demand".
