"""What the machine shows beside its processes: free memory, the provider's notices, other governors.

Questions that may block run on a separate thread. The loop takes the answers and never waits.
"""

from __future__ import annotations

import pwd
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final, Generic, NamedTuple, TypeVar

import psutil

from governor.core.base.shares import UidRange
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, DurationNs, MonoNs
from governor.core.events.inputs import Event
from governor.core.events.machine import FilesLost, GovernorsSeen, HostMemory, SpotNotice, UidRangesSeen
from governor.ports import Clock, Processes
from governor.remote_ports import Cloud, Notice

Answer = TypeVar("Answer")


class Poller(Generic[Answer]):
    """Asks every `period_s`, from the first `take` on. A newer answer replaces one that was not taken."""

    def __init__(self, name: str, period_s: float, ask: Callable[[], Answer | None]) -> None:
        """`ask` may block within its own bounds. None: there is no answer this time."""
        self._name = name
        self._period_s = period_s
        self._ask = ask
        self._lock = threading.Lock()
        self._newest: Answer | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> Answer | None:
        """The newest answer, once. None if there is no new one."""
        if (self._thread is None or not self._thread.is_alive()) and not self._closing.is_set():
            self._begin()
        with self._lock:
            newest, self._newest = self._newest, None
        return newest

    def close(self) -> None:
        """Stop asking. A pending question is abandoned: its thread ends with it."""
        self._closing.set()

    def _begin(self) -> None:
        thread = threading.Thread(target=self._go_on, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # No thread can be started; the next call tries again.
            return
        self._thread = thread

    def _go_on(self) -> None:
        try:
            while not self._closing.is_set():
                answer = self._ask()
                if answer is not None:
                    with self._lock:
                        self._newest = answer
                self._closing.wait(self._period_s)
        except BaseException:
            # The thread's end prints the fault. The next `take` starts another thread.
            self._closing.wait(self._period_s)
            raise


# --- main memory: the machine's from psutil, that of each run's control groups from their files --------

# A leak takes minutes. Anything faster is over before anybody can act.
MEMORY_PERIOD_S: Final = 5.0
PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
# Nested control groups; systemd, Kubernetes and Slurm nest up to ten.
DEPTH_MAX: Final = 32
STAT_BYTES_MAX: Final = 64 * 1024

Pids = Mapping[str, int]  # One process of each run.


class MemoryLeft(NamedTuple):
    available_bytes: int
    total_bytes: int
    group: str | None = None


def machine() -> MemoryLeft | None:
    """The machine's main memory. None if the kernel does not report it."""
    try:
        found = psutil.virtual_memory()
    except (OSError, ValueError, LookupError):  # /proc/meminfo is hidden or malformed.
        return None
    return MemoryLeft(found.available, found.total) if found.total else None


def group_of(pid: int, proc: Path = PROC, cgroups: Path = CGROUPS) -> MemoryLeft | None:
    """The control group (v2), at or above the process, with the least free part of its limit. None without a limit."""
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
    # The path lies outside our own view, as of another container: its limit cannot be read, and ours is not its own.
    return None if path is not None and path.startswith("/..") else path


def _above(path: str) -> Iterator[str]:
    parts = [part for part in path.split("/") if part][:DEPTH_MAX]
    for count in range(len(parts), -1, -1):
        yield "/" + "/".join(parts[:count])


def _left(cgroups: Path, group: str) -> MemoryLeft | None:
    directory = cgroups / group.lstrip("/")
    limit, used = _number(directory / "memory.max"), _number(directory / "memory.current")
    if not limit or used is None:
        return None  # "max": no limit of its own.
    parts = dict(_figures(directory / "memory.stat"))
    # The kernel drops caches before it kills a process. Pages of a mapped data set, read repeatedly, count as active.
    droppable = parts.get("inactive_file", 0) + parts.get("active_file", 0)
    return MemoryLeft(max(0, min(limit, limit - used + droppable)), limit, group)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _figures(file: Path) -> Iterator[tuple[str, int]]:
    try:
        with file.open(encoding="ascii", errors="replace") as stream:
            text = stream.read(STAT_BYTES_MAX)
    except OSError:
        return
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdecimal():
            yield words[0], int(words[1])


@dataclass(slots=True)
class MemoryWatch:
    """A source of the loop. A separate thread reads the files, so it never holds up the loop."""

    pids: Callable[[], Pids]  # The live runs on this machine.
    proc: Path = PROC
    cgroups: Path = CGROUPS
    _wanted: Pids = field(default_factory=dict)
    _poller: Poller[Mapping[str | None, MemoryLeft]] = field(init=False)

    def __post_init__(self) -> None:
        self._poller = Poller("memory", MEMORY_PERIOD_S, self.look)

    def poll(self, at: MonoNs) -> list[Event]:
        self._wanted = self.pids()
        found = self._poller.take()
        if found is None:
            return []
        return [HostMemory(at, left.available_bytes, left.total_bytes, run, left.group) for run, left in found.items()]

    def look(self) -> Mapping[str | None, MemoryLeft]:
        """Look now. The key None is the machine."""
        found: dict[str | None, MemoryLeft] = {}
        whole = machine()
        if whole is not None:
            found[None] = whole
        for run, pid in self._wanted.items():
            group = group_of(pid, self.proc, self.cgroups)
            if group is not None:
                found[run] = group
        return found

    def close(self) -> None:
        self._poller.close()


# --- whether the provider reclaims this machine ----------------------------------------------------------

# AWS asks for this period. It is a small part of two minutes, and of Google's half a minute.
NOTICE_PERIOD_S: Final = 5.0


@dataclass(slots=True)
class NoticeWatch:
    """A source of the loop. A provider that gives no notice is not asked."""

    cloud: Cloud | None
    clock: Clock
    _poller: Poller[Notice] | None = field(init=False)

    def __post_init__(self) -> None:
        cloud = self.cloud
        gives = cloud is not None and cloud.gives_notice
        self._poller = Poller("notices", NOTICE_PERIOD_S, cloud.notice) if cloud is not None and gives else None

    def poll(self, at: MonoNs) -> list[Event]:
        notice = self._poller.take() if self._poller is not None else None
        if notice is None:
            return []
        left = None if notice.at_wall is None else DurationNs(max(0, notice.at_wall - self.clock.wall()))
        return [SpotNotice(at, notice.action, left)]

    def close(self) -> None:
        if self._poller is not None:
            self._poller.close()


# --- whose a uid is ------------------------------------------------------------------------------------

SUBUIDS: Final = Path("/etc/subuid")
SUBUIDS_PERIOD_S: Final = 60.0
SUBUIDS_BYTES_MAX: Final = 1024 * 1024  # About 30,000 users.


class UidRangeWatch:
    """A source of the loop. Names are looked up on the poller's thread, because a directory service may be slow."""

    def __init__(self, file: Path = SUBUIDS) -> None:
        self._file = file
        self._known: tuple[UidRange, ...] = ()
        self._poller = Poller("subuids", SUBUIDS_PERIOD_S, self._read)

    def _read(self) -> tuple[UidRange, ...] | None:
        try:
            with self._file.open(encoding="utf-8", errors="replace") as lines:
                return tuple(uid_ranges(lines.read(SUBUIDS_BYTES_MAX)))
        except FileNotFoundError:
            return ()
        except OSError:
            return None  # What was read before stays.

    def poll(self, at: MonoNs) -> list[Event]:
        ranges = self._poller.take()
        if ranges is None or ranges == self._known:
            return []
        self._known = ranges
        return [UidRangesSeen(at, ranges)]

    def close(self) -> None:
        self._poller.close()


def uid_ranges(text: str) -> list[UidRange]:
    """The lines `owner:first:count` (subuid(5)), by their first uid. A line that is not understood is left out."""
    found: list[UidRange] = []
    for line in text.splitlines():
        owner, _, numbers = line.strip().partition(":")
        first, _, count = numbers.partition(":")
        try:
            uid = int(owner) if owner.isdecimal() else pwd.getpwnam(owner).pw_uid
            found.append(UidRange(int(first), int(count), uid))
        except (KeyError, ValueError):
            continue
    return sorted((one for one in found if one.first > 0), key=lambda one: one.first)


# --- the governor's own files: a logout or a clean-up may remove them while it runs --------------------

# A trainer that starts without the socket is unwatched from its first step.
OWN_FILES_PERIOD_S: Final = 1.0
# Somebody may remove a file again and again: the same loss is told once in this time.
LOSS_PERIOD_NS: Final = NS_PER_MINUTE


@dataclass(slots=True)
class OwnFileWatch:
    """A source of the loop. `restore` returns what was found and done, or None; it may block, on a separate thread."""

    alarm: str
    restore: Callable[[], str | None]
    _told: dict[str, MonoNs] = field(default_factory=dict)
    _poller: Poller[str] = field(init=False)

    def __post_init__(self) -> None:
        self._poller = Poller(self.alarm, OWN_FILES_PERIOD_S, self.restore)

    def poll(self, at: MonoNs) -> list[Event]:
        text = self._poller.take()
        self._told = {told: since for told, since in self._told.items() if at - since < LOSS_PERIOD_NS}
        if text is None or text in self._told:
            return []
        self._told[text] = at
        return [FilesLost(at, self.alarm, text)]

    def close(self) -> None:
        self._poller.close()


# --- other governors of this machine: their runs are unknown to us, and not ours to stop ----------------

# A scan of /proc costs milliseconds, and a launch lasts longer.
GOVERNORS_LOOK_PERIOD_NS: Final = 5 * NS_PER_S
# "python", "-u", "-m", "governor" and the command, with one more option.
WORDS_LOOKED_AT: Final = 6


@dataclass(slots=True)
class GovernorWatch:
    """A source of the loop. The service reports each `costgov run`; beside one command, the service is reported too."""

    processes: Processes
    kinds: Collection[str]  # "run", "daemon".
    own_pid: int
    _look_at: MonoNs = MonoNs(0)

    def poll(self, at: MonoNs) -> list[Event]:
        if at < self._look_at:
            return []
        self._look_at = MonoNs(at + GOVERNORS_LOOK_PERIOD_NS)
        try:
            table = self.processes.table()
        except OSError as error:
            return [GovernorsSeen(at, (), f"the process table cannot be read: {error.strerror}")]
        # Processes started since then have no command line to recognise them by.
        if self.processes.is_stuck:
            why = "some process's memory map is locked, or the machine is too busy"
            return [GovernorsSeen(at, (), f"command lines cannot be read: {why}")]
        found = [
            pid
            for pid, facts in table.items()
            if self.own_pid not in (pid, facts.ppid) and governs(facts.argv) in self.kinds
        ]  # A forked child carries our command line until it executes its program.
        return [GovernorsSeen(at, tuple(sorted(found)))]


def governs(argv: Sequence[str]) -> str | None:
    """ "run" or "daemon" if this is a governor's command line, not that of its starter (sudo, timeout)."""
    words = list(argv[:WORDS_LOOKED_AT])
    if not words or not PurePath(words[0]).name.startswith(("python", "costgov")):
        return None
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if PurePath(word).name == "costgov" or (before, word) == ("-m", "governor"):
            return after if after in ("run", "daemon") else None
    return None
