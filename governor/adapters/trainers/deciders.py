"""Who decides what a file says: its owner, and whoever owns, may write or has mounted something on the way to it.

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

from governor.adapters.machine.mounts import Mount, mount_of, mounts
from governor.adapters.machine.regular_file import HERE, NotRegularError, opened_for_reading

# A uid, or ANYONE -> the first place where it decides.
Deciders = Mapping[int, str]
ANYONE: Final = -1  # A uid is never negative.

LINKS_MAX: Final = 40  # The kernel's own limit.
PIDFILE_BYTES_MAX: Final = 64


@dataclass(slots=True)
class Walk:
    """Goes to a file component by component and notes who decides about each, part of the way also if it fails.

    Whoever may write a directory may put any file of another name in this one's place, its owner's own too.
    """

    deciders: dict[int, str] = field(default_factory=dict)
    _links: int = 0
    _mounts: Mapping[int, Mount] | None = None  # By number; None before the first is needed.
    _looked_at: set[int] = field(default_factory=set)  # Numbers of mounts.

    def open_regular(self, path: str) -> int:
        """Return a descriptor for reading. OSError if that fails, NotRegularError if something else stands there.

        Never waits for another process, and opens nothing that is not a regular file: opening a device may act on it.
        """
        directory = self._root()
        parts = deque(part for part in path.split("/") if part)
        try:
            self._enter(directory, "/", path)
            while parts:
                part = parts.popleft()
                found = self._step(directory, part, path, last=not parts)
                target = self._target(found, path)
                if target is None and not parts:
                    return self._open_last(found, path)
                if target is None:
                    os.close(directory)
                    directory = found
                    self._enter(directory, part, path)
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

    def _enter(self, directory: int, name: str, path: str) -> None:
        """Note who may rename in a directory. In one with the sticky bit these are the owners, which are noted."""
        facts = os.fstat(directory)
        if not facts.st_mode & stat.S_ISVTX and (who := _others_that_write(directory, facts)) is not None:
            self.note(ANYONE, f"{name!r} on the way to {path}, which {who} may write")

    def _mounted(self, fd: int, place: str) -> None:
        """Note who answers for a file system in user space: its server says of owners and modes what it likes."""
        number = mount_of(fd)
        if number in self._looked_at:
            return
        if self._mounts is None or number not in self._mounts:
            self._mounts = {mount.number: mount for mount in mounts()}
        mount = self._mounts.get(number) if number is not None else None
        if mount is None:
            self.note(ANYONE, f"{place}, on a mount of which nothing is known")
        elif mount.kind.startswith("fuse"):
            given = [option.removeprefix("user_id=") for option in mount.options if option.startswith("user_id=")]
            who = int(given[0]) if given and given[0].isdigit() else ANYONE
            self.note(who, f"{place}, on {mount.place}, a {mount.kind} file system")
        if number is not None:
            self._looked_at.add(number)

    def _root(self) -> int:
        return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _step(self, directory: int, part: str, path: str, *, last: bool) -> int:
        found = -1
        if not last:
            try:
                found = os.open(part, HERE | os.O_DIRECTORY, dir_fd=directory)  # Mounts what is mounted on demand.
            except NotADirectoryError:
                pass  # A link.
        if found < 0:
            found = os.open(part, HERE, dir_fd=directory)
        place = f"{part!r} on the way to {path}" if not last else path
        try:
            self._mounted(found, place)
            self.note(os.fstat(found).st_uid, place)
        except OSError:
            os.close(found)
            raise
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

    def _open_last(self, found: int, path: str) -> int:
        """Its owner is noted already: it is the very file that was found, whatever stands in its place by now."""
        try:
            fd = opened_for_reading(found, path)
        finally:
            os.close(found)
        facts = os.fstat(fd)
        if (who := _others_that_write(fd, facts)) is not None:
            self.note(ANYONE, f"{path}, which {who} may write")
        return fd


def _others_that_write(fd: int, facts: os.stat_result) -> str | None:
    """Who beside the owner may write it. User private groups have their user's number, and umask 002 goes with them."""
    if facts.st_mode & stat.S_IWOTH:
        return "everybody"
    if not facts.st_mode & stat.S_IWGRP:
        return None
    if facts.st_gid not in (0, facts.st_uid):
        return f"group {facts.st_gid}"
    try:
        os.getxattr(f"/proc/self/fd/{fd}", "system.posix_acl_access")
    except OSError as error:
        return None if error.errno in (errno.ENODATA, errno.EOPNOTSUPP) else "somebody"
    return "who stands in its access list"  # The group's bits are the list's mask.


@dataclass(frozen=True, slots=True)
class PidfileRead:
    """What a pidfile names, when it was written, and who decided that."""

    pid: int
    written_s: float
    deciders: Deciders


def read_pidfile(path: str) -> PidfileRead | None:
    """Read a pidfile; None if it is absent, unreadable or names no process.

    A pidfile names any process of its owner. So, other than a log, it must not have a second name, which another
    file's pid could come under.
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
    if facts.st_nlink > 1:
        walk.note(ANYONE, f"{path}, which is a hard link")
    return PidfileRead(pid, facts.st_mtime, walk.deciders) if pid > 1 else None


def stranger(uid: int, deciders: Deciders) -> tuple[int, str] | None:
    """Who else than root and the process's own user decides, and where. None: they alone."""
    return next(((who, place) for who, place in deciders.items() if who != uid), None)
