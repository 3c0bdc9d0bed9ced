"""What a call opens, as the kernel tells it: a look through O_PATH opens nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_IN_OPEN = 0x20
_HEADER_BYTES = 16  # Of struct inotify_event; its name's length is the last of four numbers.


@contextlib.contextmanager
def opened_in(directory: Path) -> Iterator[list[str]]:
    """The names of this directory's files that were opened, in their order. Complete when the block is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    names: list[str] = []
    try:
        assert libc.inotify_add_watch(fd, os.fsencode(directory), _IN_OPEN) >= 0, os.strerror(ctypes.get_errno())
        yield names
        with contextlib.suppress(BlockingIOError):
            while told := os.read(fd, 1 << 16):
                while told:
                    size = int.from_bytes(told[12:_HEADER_BYTES], "little")
                    name = told[_HEADER_BYTES : _HEADER_BYTES + size].rstrip(b"\0")
                    names += [os.fsdecode(name)] if name else []  # None: the directory itself.
                    told = told[_HEADER_BYTES + size :]
    finally:
        os.close(fd)
