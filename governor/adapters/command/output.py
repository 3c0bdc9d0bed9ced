"""The output of a command that is watched by what it prints: a regular file, which is read and copied from beside.

The command writes a file, and nothing stands between the two: whatever becomes of costgov, a write of the command
neither waits nor fails for its sake. A thread copies the file to whoever shows it, and frees what has been read: a year
of output holds some MiB of the disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

# What stays readable at the end: the cause of an end is looked for in the last lines.
KEPT_BYTES: Final = 1 << 20
# A follower knows the file again by its first bytes, and the largest block of a usual file system is as long.
HEAD_BYTES: Final = 64 * 1024
# What waits for its reader or its follower. Beyond it the oldest is freed all the same: a terminal that is stopped over
# a weekend must not fill the disk.
BACKLOG_BYTES_MAX: Final = 32 << 20
FREED_AT_ONCE_BYTES: Final = 1 << 20
READ_BYTES: Final = 64 * 1024
WAITING_BYTES_MAX: Final = 256 * 1024  # Less than a queue takes before it drops what is oldest.
PERIOD_S: Final = 0.1
PARTIAL_S: Final = 1.0  # So long an unfinished line is held back: nothing is written into the middle of one.
LOST: Final = "costgov: bytes of this output that are lost here, since nobody took them in time: {}\n"
_MARK_BYTES: Final = 64
_LINE_ENDS: Final = (b"\n", b"\r")  # A progress bar has the latter alone.
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h

Free = Callable[[int, int, int], None]  # Of this descriptor, from this offset on, so many bytes. OSError.


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Free the disk blocks of a part of a file, which reads as zeros then. OSError where the file system cannot."""
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, offset, length) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def make_output(path: Path) -> IO[bytes]:
    """A new file for the command's output, for appending, readable by its user alone. OSError if it cannot be made.

    The file of the launch before stays beside it, as `.1`: what a command printed after costgov was killed is there.
    """
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, path.with_name(f"{path.name}.1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600), "ab", buffering=0)


class OutputCopy:
    """Copies a command's output to whoever shows it, and frees what was read. The file is the queue.

    `show` takes bytes at once, and `waiting` says how many of them its reader has not taken. `tell` is told in a line
    what cannot be done. `step` is the whole work of one moment; `begin` has a thread call it.
    """

    def __init__(
        self, path: Path, show: Callable[[bytes], None], waiting: Callable[[], int], tell: Callable[[str], None],
        *, free: Free = punch_hole,
    ) -> None:  # fmt: skip
        """OSError if the file cannot be opened."""
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.inode = os.fstat(self._fd).st_ino
        self._show, self._waiting, self._tell, self._free = show, waiting, tell, free
        self._shown = 0
        self._size = 0  # As it was seen last.
        self._head = b""  # It has other first bytes when it was emptied and written again.
        self._read_to = 0  # What stands before it is not read again by whoever judges the lines.
        self._freed = HEAD_BYTES
        self._may_free = True
        self._partial_since: float | None = None
        self._is_ending, self._is_over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """RuntimeError if no thread can be started."""
        thread = threading.Thread(target=self._go_on, name="output", daemon=True)
        thread.start()
        self._thread = thread

    def note_read(self, offset: int) -> None:
        """What stands before it has been judged for good. Called from another thread."""
        self._read_to = max(self._read_to, offset)

    def finish(self, within_s: float) -> int:
        """Copy what is there by now, but no longer than so. Returns how many bytes were not shown."""
        self._is_ending.set()
        if self._thread is None:
            return 0
        self._thread.join(within_s)
        self._is_over.set()
        try:
            left = max(0, os.fstat(self._fd).st_size - self._shown)
        except OSError:
            return 0
        if not self._thread.is_alive():  # Else the thread uses it; the end of the process closes it.
            os.close(self._fd)
        return left

    def step(self, now_s: float) -> None:
        """Show what is new as far as its reader takes it, and free what is not needed any more. OSError."""
        while not self._is_over.is_set():
            size = self._look()  # Anew each time: a burst may grow faster than it is shown.
            self._pass_over(size)
            self._free_read(size)
            if self._shown >= size or self._waiting() >= WAITING_BYTES_MAX:
                break
            ready = self._ready(os.pread(self._fd, READ_BYTES, self._shown), now_s)
            if not ready:
                break
            self._show(ready)
            self._shown += len(ready)

    def _look(self) -> int:
        """The file's size. One that the command has emptied (`> /dev/stderr` does) is shown from its begin on."""
        head = os.pread(self._fd, _MARK_BYTES, 0)  # Before the size: it may be emptied between the two.
        size = os.fstat(self._fd).st_size
        before = max(self._size, self._shown)  # What was shown may have come behind the look before.
        if size < before or not head.startswith(self._head):
            lost = before - self._shown
            self._shown, self._freed, self._read_to, self._partial_since = 0, HEAD_BYTES, 0, None
            head = b""  # It may be of the file before, and is learnt at the next look.
            if lost:
                self._show(LOST.format(lost).encode())
        self._size, self._head = size, head
        return size

    def _ready(self, data: bytes, now_s: float) -> bytes:
        """The whole lines of it. An unfinished one after a while, or if it is longer than what is read at once."""
        end = 1 + max(data.rfind(one) for one in _LINE_ENDS)
        if end:
            self._partial_since = None
            return data[:end]
        if len(data) == READ_BYTES or self._is_ending.is_set():
            return data
        if self._partial_since is None:
            self._partial_since = now_s
        if now_s - self._partial_since < PARTIAL_S:
            return b""
        self._partial_since = None
        return data

    def _pass_over(self, size: int) -> None:
        if size - self._shown <= BACKLOG_BYTES_MAX:
            return
        begin = size - KEPT_BYTES
        begin += 1 + os.pread(self._fd, READ_BYTES, begin).find(b"\n")
        lost, self._shown, self._partial_since = begin - self._shown, begin, None
        self._show(LOST.format(lost).encode())

    def _free_read(self, size: int) -> None:
        needed = max(min(self._shown, self._read_to), size - BACKLOG_BYTES_MAX)
        end = min(needed, size - KEPT_BYTES) // HEAD_BYTES * HEAD_BYTES
        if not self._may_free or end - self._freed < FREED_AT_ONCE_BYTES:
            return
        try:
            self._free(self._fd, self._freed, end - self._freed)
        except OSError as error:
            self._may_free = False
            self._tell(
                f"{self.path} grows with all that the command prints: its file system frees no part of a file "
                f"({error.strerror}); name a state directory on another one, in [paths] of costgov.toml"
            )
        self._freed = end

    def _go_on(self) -> None:
        # Signals are the main thread's, and a write of a background job (`stty tostop`) must not stop the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            while not self._is_ending.wait(PERIOD_S):
                self.step(time.monotonic())
            self._show_rest()
        except OSError as error:
            self._tell(
                f"{self.path} cannot be read: {error.strerror}; what the command prints is not shown from now on"
            )

    def _show_rest(self) -> None:
        """All that stands there now, as its reader takes it. What is left behind may print on."""
        end = os.fstat(self._fd).st_size
        while self._shown < end and not self._is_over.is_set():
            before = self._shown
            self.step(time.monotonic())
            if self._shown == before:  # Its reader is slow.
                self._is_over.wait(PERIOD_S)
