"""Who decides what a file says: its owner, and whoever owns a directory or a link on the way to it.

A file of a stream stands where its owner put it. The governor reads it with rights that its owner lacks, and a pidfile
names a process to end. So nobody is believed about another user's process. systemd judges a service's PIDFile= alike.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# A uid, or ANYONE -> the first place where it decides.
Deciders = Mapping[int, str]
ANYONE: Final = -1  # A uid is never negative.

LINKS_MAX: Final = 40  # The kernel's own limit.
PIDFILE_BYTES_MAX: Final = 64
_HERE: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class NotRegularError(OSError):
    """A directory, a FIFO, a socket or a device."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", path)


@dataclass(slots=True)
class Walk:
    """Goes to a file component by component and notes the owner of each. Part of the way is noted also if it fails.

    Modes of directories are not looked at: whoever replaces a file in an open directory owns what stands there then.
    """

    deciders: dict[int, str] = field(default_factory=dict)
    _links: int = 0

    def open_regular(self, path: str) -> int:
        """Return a descriptor for reading. OSError if that fails, NotRegularError if something else stands there.

        Never waits for another process, and opens nothing that is not a regular file: opening a device may act on it.
        """
        directory = self._root()
        parts = deque(part for part in path.split("/") if part)
        try:
            while parts:
                part = parts.popleft()
                found = self._step(directory, part, path, last=not parts)
                target = self._target(found, path)
                if target is None and not parts:
                    os.close(found)
                    return self._open_last(directory, part, path)
                if target is None:
                    os.close(directory)
                    directory = found
                    continue
                os.close(found)
                if target.startswith("/"):
                    os.close(directory)
                    directory = self._root()
                parts.extendleft(reversed([part for part in target.split("/") if part]))
            raise NotRegularError(path)  # "/", or a link to it.
        finally:
            os.close(directory)

    def note(self, uid: int, place: str) -> None:
        # Root and our own user may signal whom they want without a file's help.
        if uid not in (0, os.geteuid()):
            self.deciders.setdefault(uid, place)

    def _root(self) -> int:
        return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _step(self, directory: int, part: str, path: str, *, last: bool) -> int:
        found = -1
        if not last:
            try:
                found = os.open(part, _HERE | os.O_DIRECTORY, dir_fd=directory)  # Mounts what is mounted on demand.
            except NotADirectoryError:
                pass  # A link.
        if found < 0:
            found = os.open(part, _HERE, dir_fd=directory)
        self.note(os.fstat(found).st_uid, f"{part!r} on the way to {path}" if not last else path)
        return found

    def _target(self, found: int, path: str) -> str | None:
        """Where a link leads; None for anything else."""
        if not stat.S_ISLNK(os.fstat(found).st_mode):
            return None
        self._links += 1
        try:
            if self._links > LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            return os.readlink("", dir_fd=found)
        except OSError:
            os.close(found)
            raise

    def _open_last(self, directory: int, part: str, path: str) -> int:
        if not stat.S_ISREG(os.stat(part, dir_fd=directory, follow_symlinks=False).st_mode):
            raise NotRegularError(path)
        # It may have been replaced since: then a link is refused, a FIFO is not waited for, and its own owner counts.
        fd = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(fd)
            raise NotRegularError(path)
        self.note(facts.st_uid, path)
        if facts.st_mode & stat.S_IWOTH:
            self.note(ANYONE, f"{path}, which everybody may write")
        return fd


@dataclass(frozen=True, slots=True)
class PidfileRead:
    """What a pidfile names, when it was written, and who decided that."""

    pid: int
    written_s: float
    deciders: Deciders


def read_pidfile(path: str) -> PidfileRead | None:
    """Read a pidfile; None if it is absent, unreadable or names no process.

    A pidfile names any process of its owner. So, other than a log, it must not be writable by a group, unless that is
    its owner's private group, nor have a second name, which another file's pid could come under.
    """
    walk = Walk()
    try:
        fd = walk.open_regular(path)
    except OSError:
        return None
    try:
        facts = os.fstat(fd)
        pid = int(os.read(fd, PIDFILE_BYTES_MAX).split()[0])
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(fd)
    # User private groups have their user's number, and umask 002 goes with them.
    if facts.st_mode & stat.S_IWGRP and facts.st_gid not in (0, facts.st_uid):
        walk.note(ANYONE, f"{path}, which group {facts.st_gid} may write")
    if facts.st_nlink > 1:
        walk.note(ANYONE, f"{path}, which is a hard link")
    return PidfileRead(pid, facts.st_mtime, walk.deciders) if pid > 1 else None


def stranger(uid: int, deciders: Deciders) -> tuple[int, str] | None:
    """Who else than root and the process's own user decides, and where. None: they alone."""
    return next(((who, place) for who, place in deciders.items() if who != uid), None)
