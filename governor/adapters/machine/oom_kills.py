"""The kernel's count of processes that it killed for want of memory, in a control group or on the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from governor.adapters.machine.host_watch import CGROUPS, PROC, STAT_BYTES_MAX, Poller
from governor.core.base.units import MonoNs
from governor.core.events.ends import OomKillsSeen
from governor.core.events.inputs import Event

# A launcher lives on for a moment after a rank was killed. Then the group may be gone, and its count with it.
PERIOD_S: Final = 1.0
# A run that has ended is looked at for so many periods more: others may live in its group.
LOOKS_AFTER_END: Final = 10

Count = Callable[[], int | None]


def counter_of(process: str = "self", proc: Path = PROC, cgroups: Path = CGROUPS) -> Count | None:
    """How to read the count of this process's control group (v2, else v1). None: it has none that we see.

    The kernel counts a kill in the group of the killed process; v2 counts it in all groups above, too.
    """
    files = [cgroups / group.lstrip("/") / name for group, name in _groups(proc / process / "cgroup", process)]
    return next((_reader(file) for file in files if _count(file) is not None), None)


def machine_counter(proc: Path = PROC) -> Count | None:
    """How to read the machine's count."""
    file = proc / "vmstat"
    return _reader(file) if _count(file) is not None else None


def _groups(file: Path, process: str) -> list[tuple[str, str]]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/.."):  # Outside our view, as of another container.
            continue
        # In a container that does not see its own path, the root of the mount is its own group.
        roots = (path, "") if process == "self" else (path,)
        if controllers == "":
            found += [(root, "memory.events") for root in roots]
        elif "memory" in controllers.split(","):
            found += [(f"/memory{root}", "memory.oom_control") for root in roots]
    return found


def _reader(file: Path) -> Count:
    return lambda: _count(file)


def _count(file: Path) -> int | None:
    try:
        with file.open(encoding="ascii", errors="replace") as stream:
            text = stream.read(STAT_BYTES_MAX)
    except OSError:
        return None
    words = next((line.split() for line in text.splitlines() if line.startswith("oom_kill ")), [])
    return int(words[1]) if len(words) == 2 and words[1].isdecimal() else None


@dataclass(slots=True)
class _Watched:
    pid: int
    read: Count | None
    first: int
    grown: int = 0
    looks_left: int = LOOKS_AFTER_END


@dataclass(slots=True)
class OomKillWatch:
    """A source of the loop: kills in the control groups of live runs, and of those that have just ended.

    A separate thread reads. An answer has all kills since the run was first looked at, so that none is lost.
    """

    pids: Callable[[], Mapping[str, int]]  # One process of each live run.
    proc: Path = PROC
    cgroups: Path = CGROUPS
    _wanted: Mapping[str, int] = field(default_factory=dict)
    _watched: dict[str, _Watched] = field(default_factory=dict)  # The thread's own.
    _poller: Poller[Mapping[str, int]] = field(init=False)

    def __post_init__(self) -> None:
        self._poller = Poller("oom kills", PERIOD_S, lambda: self.look(self._wanted))

    def poll(self, at: MonoNs) -> list[Event]:
        self._wanted = self.pids()
        return [OomKillsSeen(at, run, count) for run, count in (self._poller.take() or {}).items()]

    def look(self, wanted: Mapping[str, int]) -> Mapping[str, int] | None:
        """The kills of each run that has any. None: there is none."""
        for run, pid in wanted.items():
            known = self._watched.get(run)
            if known is None or known.pid != pid:
                read = counter_of(str(pid), self.proc, self.cgroups)
                self._watched[run] = _Watched(pid, read, (read() or 0) if read is not None else 0)
        for run, one in list(self._watched.items()):
            now = one.read() if one.read is not None else None
            one.grown = max(one.grown, now - one.first) if now is not None else one.grown
            one.looks_left = LOOKS_AFTER_END if run in wanted else one.looks_left - 1
            if one.looks_left <= 0:
                del self._watched[run]
        return {run: one.grown for run, one in self._watched.items() if one.grown} or None

    def close(self) -> None:
        self._poller.close()
