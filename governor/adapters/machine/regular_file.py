"""Opens a file that somebody else has named: a regular one, or nothing.

To open a device may act on it: a watchdog is armed, a tape is wound back. To open a FIFO lets its writer go on. So what
is there is looked at through a descriptor that opens nothing (O_PATH), and that very file is opened then.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import Final

HERE: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READING: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class NotRegularError(OSError):
    """A directory, a FIFO, a socket or a device."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", path)


class NotOwnError(OSError):
    """It is another user's, or others may write where it lies."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EPERM, "it is another user's, or others may write where it lies", path)


def opened_for_reading(here: int, path: str) -> int:
    """Open what a descriptor with O_PATH stands for; that one stays open. `path`: for errors alone.

    Raises OSError, and NotRegularError for what is no regular file.
    """
    if not stat.S_ISREG(os.fstat(here).st_mode):
        raise NotRegularError(path)
    return os.open(f"/proc/self/fd/{here}", _READING)


def open_regular(path: str, *, follows: bool = False) -> io.FileIO:
    """Open what is there by this name. Raises OSError: NotRegularError; ELOOP of a link, unless it `follows` them."""
    here = os.open(path, HERE & ~os.O_NOFOLLOW if follows else HERE)
    try:
        if stat.S_ISLNK(os.fstat(here).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return io.FileIO(opened_for_reading(here, path))
    finally:
        os.close(here)


def open_of_user(path: str, uid: int, folder: str) -> int:
    """Open a file of this user's in a directory of this name, which is the user's too and which nobody else may write.

    Raises OSError: NotRegularError and NotOwnError for what does not hold, ELOOP or ENOTDIR where a link stands.
    """
    directory, name = os.path.split(path)
    if not os.path.isabs(path) or os.path.basename(directory) != folder or name in ("", ".", ".."):
        raise OSError(errno.EINVAL, f"not in a directory {folder}", path)
    held = os.open(directory, HERE | os.O_DIRECTORY)
    try:
        facts = os.fstat(held)
        if facts.st_uid != uid or facts.st_mode & _OTHERS_WRITE:
            raise NotOwnError(path)
        here = os.open(name, HERE, dir_fd=held)
    finally:
        os.close(held)
    try:
        if os.fstat(here).st_uid != uid:
            raise NotOwnError(path)
        return opened_for_reading(here, path)
    finally:
        os.close(here)
