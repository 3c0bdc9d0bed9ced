"""Standard error of a governor, and its standard output where a command's is copied there. Nobody who writes there
waits for who reads it: a terminal is stopped (Ctrl-S), a pipe's reader hangs, an ssh is gone. One thread writes, and it
alone waits.

O_NONBLOCK would be no way: it belongs to the open file, which the command has inherited.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, TextIO

# What waits for its reader: some 5,000 lines. Then the oldest go, since the last ones say how it ended and goes on.
BYTES_MAX: Final = 1 << 20
ENTRY_BYTES: Final = 64  # Of a queued text, besides its own bytes.
# At the end, for a reader that is slow. One that hangs gets no more of our time.
END_S: Final = 2.0
REDRAWN: Final = b"\r"  # How a line begins that stands for the one before.


class QueuedStream(io.TextIOBase):
    """A text stream on the descriptor `fd`. `write` and `flush` return at once, on any thread; order is kept.

    A write is whole with its newline, or with `flush`. `lost_line`: what is shown in place of so many lost lines.
    """

    def __init__(
        self, fd: int, lost_line: Callable[[int], str], encoding: str = "utf-8", bytes_max: int = BYTES_MAX,
        name: str = "stderr",
    ) -> None:  # fmt: skip
        self._fd = fd
        self._bytes_max = bytes_max
        self._lost_line = lost_line
        self._encoding = encoding
        # Reentrant: a signal's handler may write while its thread is in here.
        self._changed = threading.Condition(threading.RLock())
        self._begun = ""
        self._queue: deque[tuple[bytes, bool]] = deque()  # With whether the next redrawn line may stand for it.
        self._queued_bytes = 0
        self._lost_lines = 0
        self._is_writing = False
        self._is_at_line_start = True
        # Raises RuntimeError where no thread can be had.
        threading.Thread(target=self._write_on, name=name, daemon=True).start()

    # --- of a text stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._changed:
            self._begun += text
            if text.endswith("\n"):
                self.flush()
        return len(text)

    def flush(self) -> None:
        with self._changed:
            data, self._begun = self._begun.encode(self._encoding, self.errors), ""
            if not data:
                return
            is_redrawn = data.startswith(REDRAWN)
            if is_redrawn and self._queue and self._queue[-1][1]:
                self._queued_bytes -= _size(self._queue.pop()[0])
            self._append(data, is_redrawn=is_redrawn)

    # --- of what is copied here

    def alone(self) -> AbstractContextManager[object]:
        """Within it no other thread writes: for who writes by what was written last."""
        return self._changed

    def copy(self, data: bytes) -> None:
        """Write bytes of somebody else's as they are, behind what was written so far."""
        with self._changed:
            self.flush()
            self._append(data, is_redrawn=False)

    @property
    def waiting_bytes(self) -> int:
        """How much waits to be written."""
        return self._queued_bytes

    def _append(self, data: bytes, *, is_redrawn: bool) -> None:
        self._queue.append((data, is_redrawn))
        self._queued_bytes += _size(data)
        while self._queued_bytes > self._bytes_max and len(self._queue) > 1:
            oldest, _ = self._queue.popleft()
            self._queued_bytes -= _size(oldest)
            self._lost_lines += oldest.count(b"\n")
        self._changed.notify_all()

    # --- its end

    def drain(self, seconds: float) -> bool:
        """Wait until all is written, but no longer than that. False: some of it is not."""
        self.flush()
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._is_writing, seconds)

    # --- the thread

    def _write_on(self) -> None:
        # Of a background job on a terminal (`stty tostop`) this write would stop the process while a command starts,
        # whose signals are as we found them.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue)
                self._is_writing = True
                data, _ = self._queue.popleft()
                self._queued_bytes -= _size(data)
                lost, self._lost_lines = self._lost_lines, 0
            told = lost == 0 or self._put(self._told(lost))
            missed = 0 if self._put(data) else data.count(b"\n")
            with self._changed:
                self._lost_lines += missed + (0 if told else lost)

    def _told(self, lost: int) -> bytes:
        line = self._lost_line(lost).encode(self._encoding, self.errors) + b"\n"
        return line if self._is_at_line_start else b"\n" + line

    def _put(self, data: bytes) -> bool:
        """Write all of it, however long that takes. False: it cannot be written (nobody reads, or the disk is full)."""
        done = 0
        while done < len(data):
            try:
                done += os.write(self._fd, memoryview(data)[done:])
            except BlockingIOError:  # Who shares the open file has set O_NONBLOCK.
                self._until_ready()
            except OSError:
                return False
            self._is_at_line_start = data.endswith(b"\n", 0, done)
        return True

    def _until_ready(self) -> None:
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        ready.poll()


def _size(data: bytes) -> int:
    return len(data) + ENTRY_BYTES


@contextlib.contextmanager
def stderr_that_never_waits(lost_line: Callable[[int], str], end_s: float = END_S) -> Iterator[None]:
    """Within it `sys.stderr` is such a stream. What its reader has not taken `end_s` after the end is lost."""
    before = sys.stderr
    queued = _queued(before, lost_line)
    if queued is None:
        yield
        return
    sys.stderr = queued
    try:
        yield
    finally:
        # Where the thread still waits, who writes later must not.
        if queued.drain(end_s):
            sys.stderr = before


def _queued(stream: TextIO, lost_line: Callable[[int], str]) -> QueuedStream | None:
    try:
        stream.flush()
        return QueuedStream(stream.fileno(), lost_line, stream.encoding)
    except (OSError, ValueError, RuntimeError):  # In memory or closed, or no thread can be had.
        return None
