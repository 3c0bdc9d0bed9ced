"""What is left of main memory, as events: of the machine, and of the control groups with a limit above each run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from governor.adapters.http.asker import Asker
from governor.core.base.units import MonoNs
from governor.core.events.events import Event
from governor.core.events.machine_events import HostMemory

PERIOD_S: Final = 5.0  # A leak takes minutes; what goes faster is over before anybody can act.
PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
DEPTH_MAX: Final = 32  # Control groups above one another; systemd, Kubernetes and Slurm nest up to ten.
MEMINFO_BYTES_MAX: Final = 64 * 1024

Pids = Mapping[str, int]  # One process of each run.


class Left(NamedTuple):
    available_bytes: int
    total_bytes: int
    group: str | None = None


def machine(proc: Path = PROC) -> Left | None:
    """Main memory by the kernel's word; None where it does not say."""
    figures = dict(_figures(proc / "meminfo"))
    available, total = figures.get("MemAvailable:"), figures.get("MemTotal:")
    return Left(available * 1024, total * 1024) if available is not None and total else None


def group_of(pid: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> Left | None:
    """The control group (v2) with the least part left of its limit, at or above the process; None without a limit."""
    path = _path_of(proc / str(pid) / "cgroup")
    if path is None:
        return None
    limited = [left for group in _above(path) if (left := _left(cgroups, group)) is not None]
    return min(limited, key=lambda left: left.available_bytes / left.total_bytes, default=None)


def _path_of(file: Path) -> str | None:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None  # Gone.
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    # Beside the root of our own view, as in another container: its limit is not to be seen, and ours is not its own.
    return None if path is not None and path.startswith("/..") else path


def _above(path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part][:DEPTH_MAX]
    for count in range(len(parts), -1, -1):
        yield "/" + "/".join(parts[:count])


def _left(cgroups: Path, group: str) -> Left | None:
    directory = cgroups / group.lstrip("/")
    limit, used = _number(directory / "memory.max"), _number(directory / "memory.current")
    if not limit or used is None:
        return None  # "max": no limit of its own.
    parts = dict(_figures(directory / "memory.stat"))
    # Caches go before a process does; pages of a mapped data set that are read again and again count as active.
    droppable = parts.get("inactive_file", 0) + parts.get("active_file", 0)
    return Left(max(0, min(limit, limit - used + droppable)), limit, group)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _figures(file: Path) -> Iterator[tuple[str, int]]:
    try:
        with file.open(encoding="ascii", errors="replace") as stream:
            text = stream.read(MEMINFO_BYTES_MAX)
    except OSError:
        return
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdecimal():
            yield words[0], int(words[1])


@dataclass(slots=True)
class MemoryWatch:
    """A source of the loop, which it never holds up: files are read on a thread of its own."""

    pids: Callable[[], Pids]  # Of the runs that live now, on this machine.
    proc: Path = PROC
    cgroups: Path = CGROUPS
    _wanted: Pids = field(default_factory=dict)
    _asker: Asker[Mapping[str | None, Left]] = field(init=False)

    def __post_init__(self) -> None:
        self._asker = Asker("memory", PERIOD_S, self.look)

    def poll(self, at: MonoNs) -> list[Event]:
        self._wanted = self.pids()
        found = self._asker.take()
        if found is None:
            return []
        return [HostMemory(at, left.available_bytes, left.total_bytes, run, left.group) for run, left in found.items()]

    def look(self) -> Mapping[str | None, Left]:
        """Look now. None stands for the machine."""
        found: dict[str | None, Left] = {}
        whole = machine(self.proc)
        if whole is not None:
            found[None] = whole
        for run, pid in self._wanted.items():
            group = group_of(pid, self.proc, self.cgroups)
            if group is not None:
                found[run] = group
        return found

    def close(self) -> None:
        self._asker.close()
