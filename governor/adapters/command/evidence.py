"""What can be seen of a command's end: its signal, the kernel's count of out-of-memory kills, its last output.

The command has our terminal or files. They are not interposed: what is read is a regular file to which its output went
anyway, once, after its end. A terminal or a pipe keeps nothing that could be read.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from governor.adapters.machine.oom_kills import Count, counter_of, machine_counter
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
        with contextlib.suppress(RuntimeError):  # No thread can be started. The exit code does not wait for one.
            reader.start()
            reader.join(within_s)
    return tuple(line for tail in list(found) for line in last_lines(tail))


# --- out-of-memory kills ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class OomWatch:
    """A source of the loop without events: it notes when the kernel's count grew. The files are the kernel's own."""

    read: Count | None = None
    is_own: bool = False
    _first: int | None = None
    _count: int = 0
    _grew_at: MonoNs | None = None
    _look_at: MonoNs = MonoNs(0)

    @classmethod
    def begin(cls) -> OomWatch:
        """Count from now on: before the command starts."""
        own = counter_of()
        read = own or machine_counter()
        return cls(read, own is not None, read()) if read is not None else cls()

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
        died_of: str | None, died_below: str | None, passed_on: tuple[str, MonoNs] | None,
    ) -> CommandEndSeen:  # fmt: skip
        self.oom.look(ended_at)
        lines = read_lines([file.tail for file in self.files]) if exit_code else ()
        signal_name, sent_at = passed_on or (None, ended_at)
        return CommandEndSeen(
            at, run, processes, exit_code, died_of, died_below, signal_name,
            DurationNs(max(0, ended_at - sent_at)), self.oom.seen(ended_at), lines,
        )  # fmt: skip
