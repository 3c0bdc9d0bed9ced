"""A lock beside a file, which names its holder. Two governors must not share a socket or a journal.

A holder may leave a note in it. The note outlives the holder's SIGKILL, and nobody waits for the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Final

from governor.adapters.machine.regular_file import open_regular

# Each try loses to a holder that left in the same instant. So many losses mean that it is held.
TRIES_MAX: Final = 16
_PID_BYTES_MAX: Final = 32  # The pid and the inode of its PID namespace. The note follows them.
LOCKS: Final = "/proc/locks"
_PID_FIELD, _PLACE_FIELD = 4, 5
NOTE_BYTES_MAX: Final = 480  # With the pid, one sector of a disk: a crash of the machine leaves no half of it.


class LockHeld(Exception):  # noqa: N818 - the condition is the name.
    """Another process holds it. The message is its pid, and that it is of another PID namespace, or "unknown"."""


def take(path: str) -> int:
    """Return a descriptor that holds the lock until it is closed, or until `drop`. Raises LockHeld or OSError."""
    for _ in range(TRIES_MAX):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.pread(fd, _PID_BYTES_MAX, 0))
            os.close(fd)
            raise LockHeld(holder) from None
        except OSError:
            os.close(fd)
            raise
        # The last holder may have removed the file since we opened it. A lock on an unlinked file excludes no process.
        if is_named(fd, path):
            # A full disk may not take even the pid. The lock holds all the same.
            with contextlib.suppress(OSError):
                os.pwrite(fd, f"{os.getpid()} {_namespace()}".encode().ljust(_PID_BYTES_MAX), 0)
            return fd
        os.close(fd)
    raise LockHeld("unknown")


def holder(path: str) -> int | None:
    """Who holds the lock, by the kernel's list. None: nobody, or it cannot be seen: another PID namespace, or rights.

    It is not taken to see that: a governor that starts in this instant would find it held.
    """
    try:
        with open_regular(path) as file:
            inode, written = os.fstat(file.fileno()).st_ino, file.read(_PID_BYTES_MAX)
        with open(LOCKS, encoding="ascii", errors="replace") as lines:
            held = [line.split() for line in lines]
    except OSError:
        return None
    # Some file systems tell another device here than `stat`. Its pid stands in the file.
    pid = written.decode("ascii", "replace").partition(" ")[0].strip()
    is_held = any(
        len(one) > _PLACE_FIELD and one[_PID_FIELD] == pid and one[_PLACE_FIELD].rpartition(":")[2] == str(inode)
        for one in held
    )
    return int(pid) if is_held else None


def _holder(written: bytes) -> str:
    """An older holder has written its pid alone."""
    pid, _, namespace = written.decode("ascii", "replace").strip().partition(" ")
    is_here = namespace in ("", "0", str(_namespace()))
    return (pid if is_here else f"{pid} in another PID namespace, as a container has") or "unknown"


def _namespace() -> int:
    """The inode of our PID namespace. 0: this kernel does not show it."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def leave_note(fd: int, line: str) -> None:
    """Replace the note. Raises OSError."""
    data = line.encode() + b"\n"
    assert len(data) <= NOTE_BYTES_MAX
    os.pwrite(fd, data, _PID_BYTES_MAX)


def note(fd: int) -> str | None:
    """The last holder's note; None: there is none. Raises OSError."""
    line, end, _ = os.pread(fd, NOTE_BYTES_MAX, _PID_BYTES_MAX).partition(b"\n")
    return line.decode("ascii", "replace") if end else None


def drop(path: str, fd: int) -> None:
    """Remove the file while we still hold the lock, then release it."""
    with contextlib.suppress(OSError):
        if is_named(fd, path):
            os.unlink(path)
    os.close(fd)


def is_named(fd: int, path: str) -> bool:
    """Whether the path still leads to the open file. Raises OSError if that cannot be seen."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
