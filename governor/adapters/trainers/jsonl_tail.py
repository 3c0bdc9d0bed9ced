"""Follow a JSONL file that somebody else writes: torn last lines, rotation, truncation and replacement are normal."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from governor.core.base.units import MonoNs
from governor.core.events.events import Event, FramesLost
from governor.wire.jsonl import DEFAULT_FIELDS
from governor.wire.records import RecordReader

LINE_BYTES_MAX = 256 * 1024  # The longest real metrics line we know is 40 kB (a histogram).
READ_BYTES_PER_POLL = 1024 * 1024  # Four polls a second: 4 MB/s, and no file can hold up the loop.
HEAD_BYTES = 64  # The first bytes tell a file that was emptied and outgrew us between two polls.


@dataclass(frozen=True, slots=True)
class Position:
    """How far a file has been read. The inode and the first bytes tell that file from a successor of its name."""

    inode: int
    head: bytes
    offset: int

    def row(self) -> dict[str, Any]:
        return {"inode": self.inode, "head": self.head.hex(), "offset": self.offset}

    @staticmethod
    def of(row: Mapping[str, Any] | None) -> Position | None:
        """The position of a journal's row; None where it is not one of ours."""
        try:
            found = None if row is None else Position(int(row["inode"]), bytes.fromhex(row["head"]), int(row["offset"]))
        except (KeyError, TypeError, ValueError):
            return None
        return found if found is not None and found.offset >= 0 else None


class JsonlTail:
    """Yields the events of one file's new lines at each `poll`. One instance per configured stream.

    What stands in the file at the first poll is history and is skipped unless `from_start`, or unless `go_on` was told
    where an earlier reader stopped; files that appear or replace it later are read whole.
    """

    def __init__(
        self, path: str, run: str, fields: Mapping[str, Sequence[str]] = DEFAULT_FIELDS, *, from_start: bool = False
    ) -> None:
        self.path = path
        self.run = run
        self.lines_total = 0
        self.faulty_total = 0  # Malformed or oversized: counted, never guessed.
        self.status: str | None = None  # One line while the file cannot be read: then data is missing.
        self._reader = RecordReader(run, fields)
        self._skip_history = not from_start
        self._fd = -1
        self._inode: tuple[int, int] = (0, 0)
        self._offset = 0
        self._head = b""
        self._partial = b""
        self._resume: Position | None = None  # Where to go on in a file that we had to let go.
        self._oversized = False  # Inside a line that is too long: skip to its end.

    def poll(self, at: MonoNs) -> list[Event]:
        """Read what was appended since the last poll, at most READ_BYTES_PER_POLL. Never blocks on the writer."""
        faulty_before = self.faulty_total
        lines: list[bytes] = []
        self.status = None
        try:
            self._read_new(lines)
        except OSError as error:  # A network file system that went away under us, as well as a file that is not ours.
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

    def go_on(self, left_at: Position) -> None:
        """Before the first poll: begin there. A file that is no longer the one of then is news, and is read whole."""
        assert self._fd < 0, "reading has begun"
        self._resume, self._skip_history = left_at, False

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
            # Rotated, and the old file is read to its end. Its torn last line will never be completed.
            self.faulty_total += bool(self._partial)
            self.close()
            self._skip_history = False
            if self._open():
                lines += self._drain()

    def _named(self) -> os.stat_result | None:
        """What the name stands for now; None, and why, when we cannot tell."""
        try:
            return os.stat(self.path)
        except OSError as error:
            self.status = f"{self.path}: {error.strerror}"
            if self._fd < 0 and isinstance(error, FileNotFoundError):
                self._skip_history = False  # Whatever appears under this name from now on is news.
            return None

    def _open(self) -> bool:
        # Never block on a FIFO that somebody put under the name.
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(fd)
            self.status = f"{self.path}: not a regular file"
            return False
        try:
            left_at = self._resume
            goes_on = left_at is not None and self._goes_on(fd, left_at)
            self._begin(fd, left_at.offset if left_at and goes_on else facts.st_size if self._skip_history else 0)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._inode = fd, (facts.st_dev, facts.st_ino)
        self._resume, self._skip_history = None, False
        return True

    @property
    def position(self) -> Position | None:
        """Where the first line that is not whole yet begins; what we had last, while no file is open."""
        if self._fd < 0:
            return self._resume
        return Position(self._inode[1], self._head, self._offset - len(self._partial))

    def _goes_on(self, fd: int, left_at: Position) -> bool:
        """Whether this is the file that we left, grown or as it was: then nothing of it is read twice."""
        facts = os.fstat(fd)
        if facts.st_ino != left_at.inode or facts.st_size < left_at.offset:
            return False
        return os.pread(fd, len(left_at.head), 0) == left_at.head

    def _begin(self, fd: int, offset: int) -> None:
        head = os.pread(fd, HEAD_BYTES, 0)
        # Entered in the middle of a line: its first half is history.
        oversized = offset > 0 and os.pread(fd, 1, offset - 1) != b"\n"
        self._offset, self._head, self._partial, self._oversized = offset, head, b"", oversized

    def _has_more(self) -> bool:
        return os.fstat(self._fd).st_size > self._offset

    def _drain(self) -> list[bytes]:
        size = os.fstat(self._fd).st_size
        if size < self._offset or os.pread(self._fd, len(self._head), 0) != self._head:
            self.faulty_total += bool(self._partial)  # Truncated or written anew in place.
            self._begin(self._fd, 0)
        chunk = os.pread(self._fd, READ_BYTES_PER_POLL, self._offset)
        offset = self._offset + len(chunk)
        if len(self._head) < HEAD_BYTES:
            self._head = os.pread(self._fd, HEAD_BYTES, 0)[:offset]
        self._offset = offset  # After the last read that can fail: what was not split is read again.
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
