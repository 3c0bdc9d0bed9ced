"""A log of JSON lines, followed as its file grows.

Another process writes it, so torn last lines, rotation, truncation and replacement are normal. Whatever is done here
may wait for a file server, so it runs on the stream's own thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from governor.adapters.trainers.deciders import Deciders, NotRegularError, Walk

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


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one look at a log has found."""

    lines: tuple[bytes, ...] = ()
    faulty: int = 0  # Torn or oversized lines: counted, never guessed.
    problem: str | None = None  # One line while the file cannot be read, so data is missing.
    position: Position | None = None


class JsonlTail:
    """Yields one file's new lines at each `read`. One instance per configured stream.

    The file's content at the first poll is history. It is skipped, unless `from_start` is set or `go_on` has given the
    position of an earlier reader. Files that appear or replace it later are read whole.
    """

    def __init__(self, path: str, *, from_start: bool = False, is_console: bool = False) -> None:
        """`is_console`: a progress bar ends its lines with a carriage return alone."""
        self.path = path
        self._ends = (b"\n", b"\r") if is_console else (b"\n",)
        self.deciders: Deciders = {}  # Of the file that is read; of its directories while there is none.
        self._faulty_total = 0
        self._problem: str | None = None
        self._skip_history = not from_start
        self._fd = -1
        self._inode: tuple[int, int] = (0, 0)
        self._offset = 0
        self._head = b""
        self._partial = b""
        self._resume: Position | None = None  # Where to resume a file that we had to close.
        self._oversized = False  # Inside a line that is too long: skip to its end.

    def read(self) -> Chunk:
        """Read what was appended since the last look, at most READ_BYTES_PER_POLL. Never waits for the writer."""
        faulty_before = self._faulty_total
        lines: list[bytes] = []
        self._problem = None
        try:
            self._read_new(lines)
        # A network file system may go away under us, or the file may be forbidden to us.
        except OSError as error:
            self._problem = f"{self.path}: {error.strerror}"
            self._resume = self.position
            self.close()
        return Chunk(tuple(lines), self._faulty_total - faulty_before, self._problem, self.position)

    @property
    def owner(self) -> int | None:
        """The uid of the file that is read. None while there is none."""
        try:
            return os.fstat(self._fd).st_uid if self._fd >= 0 else os.stat(self.path).st_uid
        except OSError:
            return None

    def begin(self) -> None:
        """Note where history ends, before the first read: what is written from now on is news."""
        with contextlib.suppress(OSError):
            if self._fd < 0 and self._named() is not None:
                self._open()

    def trace(self) -> None:
        """Look again who decides what the file says: root may have changed it."""
        walk = Walk()
        try:
            fd = walk.open_regular(self.path)
        except OSError:
            if self._fd < 0:
                self.deciders = walk.deciders
            return
        try:
            facts = os.fstat(fd)
        finally:
            os.close(fd)
        # Another file stands there now: it will be opened once the present one is read to its end.
        if self._fd < 0 or (facts.st_dev, facts.st_ino) == self._inode:
            self.deciders = walk.deciders

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def go_on(self, saved: Position) -> None:
        """Begin at `saved`; call it before the first read. A file that has been replaced since is read whole."""
        self.close()
        self._resume, self._skip_history = saved, False

    def _read_new(self, lines: list[bytes]) -> None:
        named = self._named()
        if self._fd < 0 and (named is None or not self._open()):
            return
        lines += self._drain()
        if named is not None and (named.st_dev, named.st_ino) != self._inode and not self._has_more():
            # The file was rotated, and the old one is read to its end. Its torn last line will never be completed.
            self._faulty_total += bool(self._partial)
            self.close()
            self._skip_history = False
            if self._open():
                lines += self._drain()

    def _named(self) -> os.stat_result | None:
        """What the path names now. None, with the reason in `_problem`, if that is unknown."""
        try:
            return os.stat(self.path)
        except OSError as error:
            self._problem = f"{self.path}: {error.strerror}"
            if self._fd < 0 and isinstance(error, FileNotFoundError):
                # Any file that appears under this name from now on is new.
                self._skip_history = False
            return None

    def _open(self) -> bool:
        walk = Walk()
        try:
            fd = walk.open_regular(self.path)
        except NotRegularError:
            self._problem = f"{self.path}: not a regular file"
            return False
        facts = os.fstat(fd)
        try:
            saved = self._resume
            goes_on = saved is not None and self._goes_on(fd, saved)
            self._begin(fd, saved.offset if saved and goes_on else facts.st_size if self._skip_history else 0)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._inode, self.deciders = fd, (facts.st_dev, facts.st_ino), walk.deciders
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
        oversized = offset > 0 and os.pread(fd, 1, offset - 1) not in self._ends
        self._offset, self._head, self._partial, self._oversized = offset, head, b"", oversized

    def _has_more(self) -> bool:
        return os.fstat(self._fd).st_size > self._offset

    def _drain(self) -> list[bytes]:
        size = os.fstat(self._fd).st_size
        if size < self._offset or os.pread(self._fd, len(self._head), 0) != self._head:
            self._faulty_total += bool(self._partial)  # Truncated, or rewritten in place.
            self._begin(self._fd, 0)
        chunk = os.pread(self._fd, READ_BYTES_PER_POLL, self._offset)
        offset = self._offset + len(chunk)
        if len(self._head) < HEAD_BYTES:
            self._head = os.pread(self._fd, HEAD_BYTES, 0)[:offset]
        # Set after the last read that can fail: bytes that were not split are read again.
        self._offset = offset
        return self._split(chunk)

    def _split(self, chunk: bytes) -> list[bytes]:
        text = self._partial + chunk
        for end in self._ends[1:]:
            text = text.replace(end, b"\n")
        *lines, partial = text.split(b"\n")
        if lines and self._oversized:
            lines.pop(0)  # The end of the line that is being skipped.
            self._oversized = False
        if self._oversized or len(partial) > LINE_BYTES_MAX:
            if not self._oversized:
                self._faulty_total += 1
            self._oversized = True
            partial = b""
        self._partial = partial
        self._faulty_total += sum(len(line) > LINE_BYTES_MAX for line in lines)
        return [line for line in lines if len(line) <= LINE_BYTES_MAX]
