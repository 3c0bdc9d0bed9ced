"""What trainers leave on disk: JSONL files, followed line by line, and checkpoints.

Another process writes these files, so torn last lines, rotation, truncation and replacement are normal.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Event, FramesLost, StreamOpened, StreamRead, StreamState, TrainerExited
from governor.ports import CheckpointLook, Processes
from governor.settings.model import Jsonl
from governor.wire.jsonl import DEFAULT_FIELDS, field_map
from governor.wire.records import RecordReader
from trainer_shim.saving.checkpoint import read_manifest, verify_manifest

LINE_BYTES_MAX = 256 * 1024  # The longest real metrics line we know is 40 kB (a histogram).
# Four polls a second make 4 MB/s, so no file can hold up the loop.
READ_BYTES_PER_POLL = 1024 * 1024
# The first bytes reveal a file that was emptied and grew past our offset between two polls.
HEAD_BYTES = 64


@dataclass(frozen=True, slots=True)
class Position:
    """How far a file has been read. Inode and first bytes distinguish it from a successor of the same name."""

    inode: int
    head: bytes
    offset: int

    def row(self) -> dict[str, Any]:
        return {"inode": self.inode, "head": self.head.hex(), "offset": self.offset}

    @staticmethod
    def of(row: Mapping[str, Any] | None) -> Position | None:
        """The position in a journal row, or None if the row does not hold one."""
        try:
            found = None if row is None else Position(int(row["inode"]), bytes.fromhex(row["head"]), int(row["offset"]))
        except (KeyError, TypeError, ValueError):
            return None
        return found if found is not None and found.offset >= 0 else None


class JsonlTail:
    """Yields the events of one file's new lines at each `poll`. One instance per configured stream.

    The file's content at the first poll is history. It is skipped, unless `from_start` is set or `go_on` has given the
    position of an earlier reader. Files that appear or replace it later are read whole.
    """

    def __init__(
        self, path: str, run: str, fields: Mapping[str, Sequence[str]] = DEFAULT_FIELDS, *, from_start: bool = False
    ) -> None:
        self.path = path
        self.run = run
        self.lines_total = 0
        self.faulty_total = 0  # Malformed or oversized lines: counted, never guessed.
        self.status: str | None = None  # One line while the file cannot be read, so data is missing.
        self._reader = RecordReader(run, fields)
        self._skip_history = not from_start
        self._fd = -1
        self._inode: tuple[int, int] = (0, 0)
        self._offset = 0
        self._head = b""
        self._partial = b""
        self._resume: Position | None = None  # Where to resume a file that we had to close.
        self._oversized = False  # Inside a line that is too long: skip to its end.

    def poll(self, at: MonoNs) -> list[Event]:
        """Read what was appended since the last poll, at most READ_BYTES_PER_POLL. Never blocks on the writer."""
        faulty_before = self.faulty_total
        lines: list[bytes] = []
        self.status = None
        try:
            self._read_new(lines)
        # A network file system may go away under us, or the file may be forbidden to us.
        except OSError as error:
            self.status = f"{self.path}: {error.strerror}"
            self._resume = self.position
            self.close()
        events = [event for line in lines for event in self._read(line, at)]
        faulty = self.faulty_total - faulty_before
        if faulty:
            events.append(FramesLost(at, None, faulty, f"{self.path}: lines that could not be read"))
        return events

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def go_on(self, saved: Position) -> None:
        """Begin at `saved`; call it before the first poll. A file that has been replaced since is read whole."""
        assert self._fd < 0, "reading has begun"
        self._resume, self._skip_history = saved, False

    def _read(self, line: bytes, at: MonoNs) -> Iterator[Event]:
        self.lines_total += 1
        events = self._reader.read_line(line, at)
        if isinstance(events, list):
            self.faulty_total += 1
        else:
            yield from events

    def _read_new(self, lines: list[bytes]) -> None:
        named = self._named()
        if self._fd < 0 and (named is None or not self._open()):
            return
        lines += self._drain()
        if named is not None and (named.st_dev, named.st_ino) != self._inode and not self._has_more():
            # The file was rotated, and the old one is read to its end. Its torn last line will never be completed.
            self.faulty_total += bool(self._partial)
            self.close()
            self._skip_history = False
            if self._open():
                lines += self._drain()

    def _named(self) -> os.stat_result | None:
        """What the path names now. None, with the reason in `status`, if that is unknown."""
        try:
            return os.stat(self.path)
        except OSError as error:
            self.status = f"{self.path}: {error.strerror}"
            if self._fd < 0 and isinstance(error, FileNotFoundError):
                # Any file that appears under this name from now on is new.
                self._skip_history = False
            return None

    def _open(self) -> bool:
        # O_NONBLOCK: a FIFO may stand under the name.
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(fd)
            self.status = f"{self.path}: not a regular file"
            return False
        try:
            saved = self._resume
            goes_on = saved is not None and self._goes_on(fd, saved)
            self._begin(fd, saved.offset if saved and goes_on else facts.st_size if self._skip_history else 0)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._inode = fd, (facts.st_dev, facts.st_ino)
        self._resume, self._skip_history = None, False
        return True

    @property
    def position(self) -> Position | None:
        """Where the first incomplete line begins. While no file is open: the last known position."""
        if self._fd < 0:
            return self._resume
        return Position(self._inode[1], self._head, self._offset - len(self._partial))

    def _goes_on(self, fd: int, saved: Position) -> bool:
        """Whether this is the file that we left, possibly grown. Then nothing of it is read twice."""
        facts = os.fstat(fd)
        if facts.st_ino != saved.inode or facts.st_size < saved.offset:
            return False
        return os.pread(fd, len(saved.head), 0) == saved.head

    def _begin(self, fd: int, offset: int) -> None:
        head = os.pread(fd, HEAD_BYTES, 0)
        # Reading begins inside a line, whose first half is history.
        oversized = offset > 0 and os.pread(fd, 1, offset - 1) != b"\n"
        self._offset, self._head, self._partial, self._oversized = offset, head, b"", oversized

    def _has_more(self) -> bool:
        return os.fstat(self._fd).st_size > self._offset

    def _drain(self) -> list[bytes]:
        size = os.fstat(self._fd).st_size
        if size < self._offset or os.pread(self._fd, len(self._head), 0) != self._head:
            self.faulty_total += bool(self._partial)  # Truncated, or rewritten in place.
            self._begin(self._fd, 0)
        chunk = os.pread(self._fd, READ_BYTES_PER_POLL, self._offset)
        offset = self._offset + len(chunk)
        if len(self._head) < HEAD_BYTES:
            self._head = os.pread(self._fd, HEAD_BYTES, 0)[:offset]
        # Set after the last read that can fail: bytes that were not split are read again.
        self._offset = offset
        return self._split(chunk)

    def _split(self, chunk: bytes) -> list[bytes]:
        *lines, partial = (self._partial + chunk).split(b"\n")
        if lines and self._oversized:
            lines.pop(0)  # The end of the line that is being skipped.
            self._oversized = False
        if self._oversized or len(partial) > LINE_BYTES_MAX:
            self.faulty_total += not self._oversized
            self._oversized = True
            partial = b""
        self._partial = partial
        self.faulty_total += sum(len(line) > LINE_BYTES_MAX for line in lines)
        return [line for line in lines if len(line) <= LINE_BYTES_MAX]


# --- a trainer without the shim: it reports by a metrics file, and its owner names its processes ---------

# A scan of /proc costs milliseconds. A pidfile changes once per launch.
LOOK_PERIOD_NS: Final = 5 * NS_PER_S
PIDFILE_BYTES_MAX: Final = 64
# Some file systems round times to seconds, and clocks may be slewed.
PIDFILE_SLACK_S: Final = 2.0

Table = Mapping[int, ProcessFacts]


@dataclass(frozen=True, slots=True)
class SavedStream:
    """What the journal has of a stream: the position read, and the processes at that time."""

    position: Mapping[str, Any] | None
    processes: tuple[ProcessId, ...]


class Stream:
    """One `[[jsonl]]` entry: polls the file and reports which processes a halt would end.

    Lines written while no governor ran are judged as if they came now, if a process that wrote then still writes.
    Otherwise (a new launch, or no process is named) they are history and are skipped: yesterday's NaN must not end
    today's launch. Each line is judged once. The position is persisted with the state of the rules every ten seconds,
    so a crash takes both back to the same line.
    """

    def __init__(self, entry: Jsonl, processes: Processes, saved: SavedStream | None = None) -> None:
        self._entry = entry
        self._processes = processes
        self._tail = JsonlTail(str(entry.path), entry.run, field_map(entry.fields) if entry.fields else DEFAULT_FIELDS)
        self._find = _finder(entry)
        self._named: tuple[ProcessId, ...] | None = None  # None until the first look.
        self._saved_stream = saved or SavedStream(None, ())
        self._look_at = MonoNs(0)
        self._was_read = saved is not None
        self._problem: str | None = None
        self._position_reported: Position | None = None

    def poll(self, at: MonoNs) -> list[Event]:
        looked = self._look(at)
        if self._named is None:
            # The process that writes the file decides where reading begins.
            return looked
        read = self._tail.poll(at)
        return [*looked, *self._state(at), *read, *self._position(at)]

    def close(self) -> None:
        self._tail.close()

    def _state(self, at: MonoNs) -> list[Event]:
        """Report when the file becomes unreadable and when it is back. Without a process, a new file is awaited."""
        self._was_read = self._was_read or self._tail.status is None
        problem = self._tail.status if self._was_read or self._named else None
        if problem == self._problem:
            return []
        self._problem = problem
        return [StreamState(at, self._entry.run, problem)]

    def _position(self, at: MonoNs) -> list[Event]:
        position = self._tail.position
        if position is None or position == self._position_reported:
            return []
        self._position_reported = position
        return [StreamRead(at, self._entry.run, position.row())]

    def _look(self, at: MonoNs) -> list[Event]:
        if at < self._look_at:
            return []
        self._look_at = MonoNs(at + LOOK_PERIOD_NS)
        try:
            found = self._find(self._processes) if self._find is not None else ()
        except OSError:
            return []  # Out of descriptors: not seeing the processes does not mean that they ended.
        first, known = self._named is None, self._saved_stream.processes if self._named is None else self._named
        named = tuple(facts.process for facts in found)
        if not first and named == known:
            return []
        living = tuple(process for process in known or () if not self._processes.is_gone(process))
        if not found and living and not first:
            # The pidfile was removed or emptied. Its process lives and is still the run.
            return []
        self._named = named or living
        ended = [TrainerExited(at, self._entry.run, None)] if known and not self._named else []
        if ended and not first:
            return [*ended]
        if first:
            self._go_on()
        uid = found[0].uid if found else self._owner()
        entry = self._entry
        return [StreamOpened(at, entry.run, uid, entry.stage, dict(entry.labels), self._named), *ended]

    def _go_on(self) -> None:
        """Continue where an earlier governor stopped, if one of the processes of that time still writes."""
        saved = Position.of(self._saved_stream.position)
        if saved is not None and set(self._saved_stream.processes) & set(self._named or ()):
            self._tail.go_on(saved)

    def _owner(self) -> int:
        try:
            return os.stat(self._entry.path).st_uid
        except OSError:
            return os.getuid()


def _finder(entry: Jsonl) -> Callable[[Processes], Sequence[ProcessFacts]] | None:
    named = entry.ended_by
    if named is None:
        return None
    how, value = named
    if how == "pidfile":
        return lambda processes: _by_pidfile(Path(value), processes)
    # Units and Slurm steps are control groups too: their name is one part of the path.
    part = {"unit": value, "job": f"job_{value}", "cgroup": value.removeprefix("/sys/fs/cgroup").strip("/")}[how]
    return lambda processes: [f for f in processes.table().values() if f"/{part}/" in f"{f.cgroup.rstrip('/')}/"]


def _by_pidfile(path: Path, processes: Processes) -> Sequence[ProcessFacts]:
    try:
        # Without waiting: a FIFO without a writer is an empty file.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            pid = int(file.read(PIDFILE_BYTES_MAX).split()[0])
            written_s = os.fstat(file.fileno()).st_mtime
    except (OSError, ValueError, IndexError):
        return []
    facts = processes.facts(pid) if pid > 1 else None
    if facts is None or _started_s(facts.process) > written_s + PIDFILE_SLACK_S:
        # The process is gone, or it is younger than the file, so its pid was reused.
        return []
    return [facts]


def _started_s(process: ProcessId) -> float:
    """Wall time at which a process of this boot began, by the present clock.

    A clock that was set forward makes the process look younger than its pidfile, so no process is named: safe.
    """
    since_boot_s = process.start_ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s


# --- checkpoints: the shim defines the manifest's format; its reader needs only the stdlib ---------------


class DiskCheckpoints:
    """`ports.Checkpoints`. Reads as the daemon's own user, so another user's 0700 directory is UNKNOWN, not torn."""

    def read(self, path: str, manifest: str) -> CheckpointLook:
        if not os.access(manifest, os.R_OK):
            is_there = os.path.exists(os.path.dirname(path) or "/")
            return CheckpointLook(None, 0, 0, "not readable by the governor" if is_there else "not visible here")
        found = read_manifest(path)
        if found is None:
            return CheckpointLook(False, 0, 0, "the manifest cannot be parsed")
        files = [entry for entry in found["files"] if isinstance(entry, dict)]
        unreadable = [e["path"] for e in files if _forbidden(os.path.join(path, e["path"]))]
        if unreadable:
            return CheckpointLook(None, len(files), 0, f"{unreadable[0]} is not readable by the governor")
        faults = verify_manifest(path, hashes=True)
        hashed = sum(1 for entry in files if entry.get("sha256"))
        if faults:
            return CheckpointLook(False, len(files), 0, "; ".join(faults[:3]))
        return CheckpointLook(True, len(files), hashed, "every file is there with its size and hash")


def _forbidden(path: str) -> bool:
    return os.path.exists(path) and not os.access(path, os.R_OK)
