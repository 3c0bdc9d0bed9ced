"""What the machine itself shows: its GPUs, its memory, who is on it, and that its provider takes it back.

As in core.events, `at` is arrival on the governor's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from governor.core.base.units import DurationNs, MonoNs


@dataclass(slots=True)  # As Step: a log may bring one with every record.
class GpuSample:
    """What GPUs do now. Every tuple has one place a GPU, in one order, or none at all where nobody says it.

    `run` None: GPUs of the node, by the driver's word; the engine shows each run its own (core.machine). Else those of
    one run, by its log's word.
    """

    at: MonoNs
    run: str | None
    # NVML's figure, 0 to 1: the part of the time in which any kernel ran. Not MFU: a GPU that spins in a collective
    # is busy. None: this GPU's is not known.
    busy_frac: tuple[float | None, ...]
    uuids: tuple[str, ...] = ()
    memory_used_bytes: tuple[int | None, ...] = ()
    memory_total_bytes: tuple[int | None, ...] = ()
    pids: tuple[frozenset[int] | None, ...] = ()  # Who computes on it; None: the driver does not say.


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Main memory: of the node (`run` None), or of the control group with the least left above one run's processes."""

    at: MonoNs
    available_bytes: int  # What can still be had without swapping: free, and caches that can be dropped.
    total_bytes: int  # Of a control group: its limit.
    run: str | None = None
    group: str | None = None  # The control group's path.


@dataclass(frozen=True, slots=True)
class SpotNotice:
    """Whether the provider says that it takes this machine back; told each time that it has been asked."""

    at: MonoNs
    action: str | None  # The provider's own word: "terminate", "stop", "hibernate"; None: it has announced nothing.
    left: DurationNs | None = None  # Until then, as of `at`; None: the provider does not say.


MachineEvent = GpuSample | HostMemory | SpotNotice  # What a run's rules are shown.


@dataclass(frozen=True, slots=True)
class GpuProcessesSeen:
    """Every process that computes on a GPU of this node, by the driver's word; nobody where there is no GPU.

    `own`: those of them that stand below the command of `costgov run`, whether they have said hello or not.
    """

    at: MonoNs
    pids: frozenset[int]
    unnamed: int = 0  # GPUs that work or hold memory for somebody whom the driver does not name: another container's.
    problem: str | None = None  # One line where nobody can tell who computes here; `pids`: who is seen all the same.
    own: frozenset[int] = frozenset()
    is_read: bool = False  # With a problem: no GPU is known to be missing, and nobody but `pids` is on those shown.


@dataclass(frozen=True, slots=True)
class GovernorsSeen:
    """Other governors of this machine, whose runs we do not know. `problem`: one line where we could not look."""

    at: MonoNs
    pids: tuple[int, ...]
    problem: str | None = None
