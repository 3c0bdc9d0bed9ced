"""A log, followed as its file grows: lines of JSON, a console, or one of wire.files' formats.

Another process writes it, so torn last lines, rotation, truncation and replacement are normal. Whatever is done here
may wait for a file server, so it runs on the stream's own thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from governor.adapters.machine.regular_file import NotRegularError
from governor.adapters.trainers.deciders import Deciders, Walk
from governor.adapters.trainers.file_room import Room, seek, written_to
from governor.wire.files.cutter import HEAD_BYTES, Cutter
from governor.wire.files.lines import Lines

# Four polls a second make 4 MB/s, so no file can hold up the loop.
READ_BYTES_PER_POLL: Final = 1024 * 1024
# What is passed without a look into it, at 64 MB/s: history, and a line that is too long for any record.
READS_OF_HISTORY: Final = 16
# Behind a damaged place: the little that is looked at again each time.
DAMAGED_BYTES: Final = 4 * 1024
# So many zeros may be a hole of the file. No line of a log has them.
_ZEROS: Final = bytes(4 * 1024)


@dataclass(frozen=True, slots=True)
class Position:
    """How far a file has been read. Inode and first bytes distinguish it from a successor of the same name."""

    inode: int
    head: bytes  # The first `head_bytes`, or their digest.
    offset: int
    head_bytes: int = -1  # -1: as many as `head` has.
    state: Mapping[str, Any] = field(default_factory=dict)  # What the begin of the file has said.
    beside: Mapping[str, int] = field(default_factory=dict)  # Inodes of others of its directory: bytes of no news.

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"inode": self.inode, "head": self.head.hex(), "offset": self.offset}
        if self.head_bytes >= 0:
            row["head_bytes"] = self.head_bytes
        return row | {key: dict(said) for key, said in (("cut", self.state), ("beside", self.beside)) if said}

    @staticmethod
    def of(row: Mapping[str, Any] | None) -> Position | None:
        """The position in a journal row, or None if the row does not hold one."""
        try:
            found = None if row is None else Position(
                int(row["inode"]), bytes.fromhex(row["head"]), int(row["offset"]), int(row.get("head_bytes", -1)),
                dict(row.get("cut", {})), {inode: int(size) for inode, size in dict(row.get("beside", {})).items()},
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):
            return None
        return found if found is not None and found.offset >= 0 else None


def _mark(head: bytes) -> bytes:
    return head if len(head) <= HEAD_BYTES else hashlib.blake2b(head, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one look at a log has found."""

    lines: tuple[bytes, ...] = ()
    faulty: int = 0  # Torn or oversized lines: counted, never guessed.
    problem: str | None = None  # One line while the file cannot be read, so data is missing.
    position: Position | None = None
    holds: bool = False  # More of what is there is told in a moment, also if nothing else is written.
    unread: int = 0  # Bytes that were there already, and are read next.
    gone: int = 0  # Bytes that were freed or cut off before they were read.
    rivals: str | None = None  # One line, once: several files of one directory are written at a time.


class JsonlTail:
    """Yields one file's new lines at each `read`. One instance per configured stream.

    The file's content at the first poll is history. It is skipped, unless `from_start` is set or `go_on` has given the
    position of an earlier reader. Files that appear or replace it later are read whole.
    """

    def __init__(self, path: str, *, from_start: bool = False, cutter: Cutter | None = None) -> None:
        """`cutter`: of another format than JSONL."""
        self.path = path
        self._cutter = Lines() if cutter is None else cutter
        self.deciders: Deciders = {}  # Of the file that is read; of its directories while there is none.
        self._faulty_before = 0
        self._problem: str | None = None
        self._skip_history = not from_start
        self._fd = -1
        self._inode: tuple[int, int] = (0, 0)
        self._offset = 0
        self._head = b""
        self._size = 0  # Of the file, as it was seen last.
        self._gone = 0
        self._room = Room()
        self._resume: Position | None = None  # Where to resume a file that we had to close.

    def read(self) -> Chunk:
        """Read what was appended since the last look, at most READ_BYTES_PER_POLL. Never waits for the writer."""
        lines: list[bytes] = []
        self._problem = None
        try:
            self._read_new(lines)
        # A network file system may go away under us, or the file may be forbidden to us.
        except OSError as error:
            self._problem = f"{self.path}: {error.strerror}"
            self._resume = self.position
            self.close()
        if self._problem is None and self._cutter.problem is not None and self._fd >= 0:
            self._problem = f"{self.path}: {self._cutter.problem}"
        return self._told(lines)

    def _told(self, lines: list[bytes]) -> Chunk:
        faulty = self._cutter.faulty - self._faulty_before
        self._faulty_before += faulty
        is_open = self._fd >= 0 and self._cutter.problem is None
        unread = self._size - self._offset - self._room.bytes if is_open else 0
        holds = self._fd >= 0 and (self._cutter.holds or unread > 0)
        gone, self._gone = self._gone, 0
        return Chunk(tuple(lines), faulty, self._problem, self.position, holds, max(0, unread), gone)

    def leave(self) -> Chunk:
        """Another file is read from now on: what was held of this one. Its position is behind that."""
        self._problem = None
        chunk = self._told(self._cutter.rest())
        self.close()
        return chunk

    @property
    def offset(self) -> int:
        """How many bytes were read, or passed as history."""
        return self._offset

    @property
    def is_at_end(self) -> bool:
        """Whether all that can be read was read. Also true of a file that could not be opened."""
        try:
            return self._fd < 0 or not self._has_more()
        except OSError:
            return True

    @property
    def is_damaged(self) -> bool:
        """Whether nothing behind the present place can be read."""
        return self._fd >= 0 and self._cutter.problem is not None

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
            lines += self._cutter.rest()
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
            self._begin(fd, facts.st_size, saved if saved is not None and self._goes_on(fd, saved) else None)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._inode, self.deciders = fd, (facts.st_dev, facts.st_ino), walk.deciders
        self._resume, self._skip_history, self._size = None, False, self._offset
        return True

    @property
    def position(self) -> Position | None:
        """Where the first incomplete line begins. While no file is open: the last known position."""
        if self._fd < 0:
            return self._resume
        offset, state = self._offset - self._cutter.behind, self._cutter.state() or {}
        if len(self._head) <= HEAD_BYTES:
            return Position(self._inode[1], self._head, offset, state=state)
        return Position(self._inode[1], _mark(self._head), offset, len(self._head), state)

    def _goes_on(self, fd: int, saved: Position) -> bool:
        """Whether this is the file that we left, possibly grown. Then nothing of it is read twice."""
        facts = os.fstat(fd)
        if facts.st_ino != saved.inode or facts.st_size < saved.offset:
            return False
        size = len(saved.head) if saved.head_bytes < 0 else min(saved.head_bytes, self._cutter.head_bytes)
        return _mark(os.pread(fd, size, 0)) == saved.head

    def _begin(self, fd: int, size: int, saved: Position | None) -> None:
        """Begin where we stopped, or behind history, or at the file's first byte."""

        def read(count: int, offset: int) -> bytes:
            return os.pread(fd, count, offset)

        self._room.forget()
        self._head = read(self._cutter.head_bytes, 0)
        if isinstance(self._cutter, Lines):
            self._head, size = self._head.rstrip(b"\0"), written_to(fd, size) if saved is None else size
        if saved is not None:
            self._offset = self._cutter.go_on(saved.offset, saved.state, read)
        elif self._skip_history and size:
            self._offset = self._cutter.begin(size, read)
        else:
            self._offset = 0
            self._cutter.anew()

    def _has_more(self) -> bool:
        """Behind a damaged place nothing can be read."""
        return self._cutter.problem is None and os.fstat(self._fd).st_size > self._offset + self._room.bytes

    def _drain(self) -> list[bytes]:
        lines: list[bytes] = []
        grew = False
        for _ in range(READS_OF_HISTORY):
            size, chunk = self._chunk(lines)
            # Set after the last read that can fail: bytes that were not cut are read again.
            self._offset += len(chunk)
            grew = grew or bool(chunk)
            lines += self._cutter.give(chunk)
            if self._cutter.problem is not None:
                self._offset -= self._cutter.drop()
                return lines
            if self._offset + self._room.bytes >= size or not (self._cutter.is_past or self._cutter.ahead):
                break
        if self._offset >= size:
            lines += self._cutter.at_end(grew=grew)
        return lines

    def _chunk(self, lines: list[bytes]) -> tuple[int, bytes]:
        """The file's size and its next bytes. A file that was emptied or written again is read from its begin."""
        size, before = os.fstat(self._fd).st_size, self._size
        chunk = self._next(size)
        # Looked at behind the read, so nothing of a file that was written again is taken for more of what was.
        head = os.pread(self._fd, self._cutter.head_bytes, 0)
        if size < self._offset or head[: len(self._head)] != self._head or self._cutter.wants_begin:
            if isinstance(self._cutter, Lines):  # Whoever writes a table again writes all of it.
                self._gone += max(0, before - self._offset - self._room.bytes)
            self._room.forget()
            lines += self._cutter.rest()  # Truncated, or rewritten in place.
            self._cutter.anew()
            self._offset, self._head = 0, b""
            chunk = self._next(size)
            head = os.pread(self._fd, self._cutter.head_bytes, 0)
        self._size = size
        chunk = self._before_hole(chunk, lines) if isinstance(self._cutter, Lines) else chunk
        if len(self._head) < self._cutter.head_bytes:
            self._head = head[: self._offset + len(chunk)]
        return size, chunk

    def _before_hole(self, chunk: bytes, lines: list[bytes]) -> bytes:
        """What stands before a hole of a log of lines: its writer's output was freed before it was read.

        At a hole: pass over it, into the middle of a line. What the file system does not know as a hole stays. Before
        room that is not filled yet: wait.
        """
        chunk = self._room.before(self._fd, self._size, self._offset, chunk)
        zeros = chunk.find(_ZEROS)
        if zeros < 0:
            return chunk
        hole = seek(self._fd, self._size, self._offset + zeros, os.SEEK_HOLE)
        if hole > self._offset:
            return chunk[: hole - self._offset]
        end = seek(self._fd, self._size, self._offset, os.SEEK_DATA)
        self._gone += end - self._offset + self._cutter.behind
        lines += self._cutter.rest()
        self._offset = self._cutter.go_on(
            end, self._cutter.state() or {}, lambda count, offset: os.pread(self._fd, count, offset)
        )
        return self._room.before(self._fd, self._size, self._offset, self._next(self._size))

    def _next(self, size: int) -> bytes:
        beyond = min(self._cutter.ahead, max(0, size - self._offset))
        self._offset += beyond
        self._cutter.leave_out(beyond)
        if self._cutter.ahead:
            return b""  # It has not been written yet.
        return os.pread(self._fd, READ_BYTES_PER_POLL if self._cutter.problem is None else DAMAGED_BYTES, self._offset)
