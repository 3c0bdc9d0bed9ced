"""What can be seen of a command's end: its signal, the kernel's count of out-of-memory kills, its last output.

The command has our terminal or files. They are not interposed: what is read is a regular file to which its output went
anyway, once, after its end. A terminal or a pipe keeps nothing that could be read.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.ends import CommandEndSeen, LastLine, OomKills
from governor.core.events.inputs import Event
from governor.wire.last_output import last_lines

# A traceback of each of eight ranks, and torchrun's summary.
TAIL_BYTES_MAX: Final = 64 * 1024
# A log on a file server that does not answer costs our exit no more than this.
READ_S: Final = 2.0
OOM_PERIOD_NS: Final = NS_PER_S
_FIGURES_BYTES_MAX: Final = 64 * 1024
_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A regular file that the command writes to, by a descriptor of ours, and where its own output begins in it."""

    fd: int
    begin: int
    identity: tuple[int, int]

    def tail(self) -> bytes:
        """The end of what was written since. It is opened anew: ours may be for writing only. OSError if it cannot."""
        reader = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            found = os.fstat(reader)
            if not stat.S_ISREG(found.st_mode):
                return b""
            begin = self.begin if self.begin <= found.st_size else 0  # It was truncated meanwhile.
            begin = max(begin, found.st_size - TAIL_BYTES_MAX)
            return os.pread(reader, TAIL_BYTES_MAX, begin)
        finally:
            os.close(reader)


def output_files(fds: Sequence[int]) -> tuple[OutputFile, ...]:
    """Those of the descriptors that are regular files, each file once."""
    found: dict[tuple[int, int], OutputFile] = {}
    for fd in fds:
        try:
            seen = os.fstat(fd)
        except OSError:  # Closed.
            continue
        if stat.S_ISREG(seen.st_mode):
            identity = seen.st_dev, seen.st_ino
            found.setdefault(identity, OutputFile(fd, seen.st_size, identity))
    return tuple(found.values())


def read_lines(tails: Sequence[Callable[[], bytes]], within_s: float = READ_S) -> tuple[LastLine, ...]:
    """What the last lines of these files mean. Nothing of a file that cannot be read in time."""
    found: list[bytes] = []

    def read() -> None:
        for tail in tails:
            try:
                found.append(tail())
            except OSError:
                continue

    if tails:
        reader = threading.Thread(target=read, name="last output", daemon=True)
        reader.start()
        reader.join(within_s)
    return tuple(line for tail in list(found) for line in last_lines(tail))


# --- out-of-memory kills ---------------------------------------------------------------------------------------


def oom_counter(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> tuple[Callable[[], int | None], bool] | None:
    """How to read the count of our control group, which the command shares, else of the machine; and whether ours.

    The kernel counts a kill where the killed process is, and in all groups above it. None: there is no count.
    """
    files = [(cgroups / group.lstrip("/") / name, True) for group, name in _groups(proc / "self" / "cgroup")]
    for file, is_own in (*files, (proc / "vmstat", False)):
        if _oom_kills(file) is not None:
            return (lambda file=file: _oom_kills(file)), is_own
    return None


def _groups(file: Path) -> list[tuple[str, str]]:
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
        # A container that does not see its own path sees its group as the root of the mount.
        if controllers == "":
            found += [(path, "memory.events"), ("/", "memory.events")]
        elif "memory" in controllers.split(","):
            found += [(f"/memory{path}", "memory.oom_control"), ("/memory", "memory.oom_control")]
    return found


def _oom_kills(file: Path) -> int | None:
    try:
        with file.open(encoding="ascii", errors="replace") as stream:
            text = stream.read(_FIGURES_BYTES_MAX)
    except OSError:
        return None
    words = next((line.split() for line in text.splitlines() if line.startswith("oom_kill ")), [])
    return int(words[1]) if len(words) == 2 and words[1].isdecimal() else None


@dataclass(slots=True)
class OomWatch:
    """A source of the loop without events: it notes when the kernel's count grew. The files are the kernel's own."""

    read: Callable[[], int | None] | None = None
    is_own: bool = False
    _first: int | None = None
    _count: int = 0
    _grew_at: MonoNs | None = None
    _look_at: MonoNs = MonoNs(0)

    @classmethod
    def begin(cls) -> OomWatch:
        """Count from now on: before the command starts."""
        counter = oom_counter()
        if counter is None:
            return cls()
        read, is_own = counter
        return cls(read, is_own, _first=read())

    def poll(self, at: MonoNs) -> list[Event]:
        if at >= self._look_at:
            self._look_at = MonoNs(at + OOM_PERIOD_NS)
            self.look(at)
        return []

    def look(self, at: MonoNs) -> None:
        now = self.read() if self.read is not None else None
        if now is not None and self._first is not None and now - self._first > self._count:
            self._count, self._grew_at = now - self._first, at

    def seen(self, ended_at: MonoNs) -> OomKills | None:
        if self.read is None or self._first is None:
            return None
        before = None if self._grew_at is None else DurationNs(max(0, ended_at - self._grew_at))
        return OomKills(self._count, self.is_own, before)


@dataclass(slots=True)
class Evidence:
    """Taken before the command starts, and looked at after its end."""

    files: tuple[OutputFile, ...] = ()
    oom: OomWatch = field(default_factory=OomWatch)

    def of_end(
        self, at: MonoNs, run: str, processes: tuple[ProcessId, ...], exit_code: int, *, ended_at: MonoNs,
        died_of: str | None, died_below: str | None, passed_on: str | None,
    ) -> CommandEndSeen:  # fmt: skip
        self.oom.look(ended_at)
        lines = read_lines([file.tail for file in self.files]) if exit_code else ()
        return CommandEndSeen(
            at, run, processes, exit_code, died_of, died_below, passed_on, self.oom.seen(ended_at), lines
        )  # fmt: skip
