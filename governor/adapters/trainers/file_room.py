"""Room that a log's writer has taken for later: zeros up to the end of the file. No line has them.

posix_fallocate, truncate and mmap leave such room, and its writer fills it from its begin. So reading waits there. A
hole with data behind it is another thing: what stood in it was freed.
"""

from __future__ import annotations

import errno
import os
from typing import Final

READ_BYTES: Final = 1024 * 1024
# Zeros that were written, not left out, are looked through at 64 MB/s, each once.
READS_MAX: Final = 16


def seek(fd: int, size: int, offset: int, how: int) -> int:
    """The begin of the next hole or of the next data, at `offset` or behind it. The file's end if there is none."""
    try:
        return min(os.lseek(fd, offset, how), max(offset, size))
    except OSError as error:
        if error.errno == errno.EINVAL and how == os.SEEK_DATA:
            return offset  # A file system that knows no holes has data everywhere.
        if error.errno not in (errno.ENXIO, errno.EINVAL):
            raise
        return max(offset, size)


def written_to(fd: int, size: int) -> int:
    """Where what was written ends, and room begins. The file's end if it has none."""
    if size == 0 or os.pread(fd, 1, size - 1) != b"\0":
        return size
    low, high = 0, size  # From `high` on there is no data; before `low` there is some.
    while low < high:
        middle = (low + high) // 2
        if seek(fd, size, middle, os.SEEK_DATA) >= size:
            high = middle
        else:
            low = middle + 1
    for _ in range(READS_MAX):
        begin = max(0, high - READ_BYTES)
        written = os.pread(fd, high - begin, begin).rstrip(b"\0")
        if written or begin == 0:
            return begin + len(written)
        high = begin
    return high


class Room:
    """Of one open file, followed as it is filled."""

    def __init__(self) -> None:
        self.bytes = 0  # That stand behind what was read, as of the last look.
        self._seen_to = 0  # Nothing but zeros was found up to here.

    def forget(self) -> None:
        """Another file, or another content, is read from now on."""
        self.bytes = self._seen_to = 0

    def before(self, fd: int, size: int, offset: int, chunk: bytes) -> bytes:
        """What of `chunk`, read at `offset`, stands before room. Zeros with data behind them are no room."""
        self.bytes = 0
        written = chunk.rstrip(b"\0")
        if len(written) == len(chunk):
            return chunk
        seen_to = self._look(fd, size, offset + len(chunk))
        if seen_to is None:
            return chunk
        if seen_to >= size:
            self.bytes = max(0, size - offset - len(written))
        return written

    def _look(self, fd: int, size: int, offset: int) -> int | None:
        """Up to where zeros alone stand behind `offset`, as far as is known by now. None: something else does."""
        at = max(offset, min(self._seen_to, size))
        for _ in range(READS_MAX):
            at = seek(fd, size, at, os.SEEK_DATA)
            data = os.pread(fd, READ_BYTES, at) if at < size else b""
            if data.strip(b"\0"):
                return None
            if not data:
                break
            at += len(data)
        self._seen_to = at
        return at
