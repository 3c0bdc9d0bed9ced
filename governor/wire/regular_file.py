"""Reading a file that a person named: what is no file is refused, instead of being waited for or read without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """Return at most `bytes_max + 1` bytes, so that the caller sees what is larger. Raises OSError.

    A FIFO without a writer would hold up its reader for ever, and a device has no end.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # Not to wait for a FIFO's writer.
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(bytes_max + 1)
