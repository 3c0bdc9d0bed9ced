"""Opens a file that a person named, to read or to write, so that neither can go on for ever."""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import BinaryIO, Final

STDIN: Final = "-"

_KINDS: Final = (
    (stat.S_ISDIR, errno.EISDIR, "it is a directory"),
    (stat.S_ISCHR, errno.EINVAL, "it is a device"),
    (stat.S_ISBLK, errno.EINVAL, "it is a device"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket"),
)
_FIFO: Final = "it is a FIFO, whose writer may never come: name a file or <(COMMAND), or - for standard input"
_FIFO_OUT: Final = "it is a FIFO, whose reader may never come"
_WRITING: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK


def opened_file(path: str) -> io.FileIO:
    """The raw bytes of a regular file, of a pipe between programs (`<(COMMAND)`), or of standard input (`-`).

    Raises OSError; for anything else its `strerror` says what it is.
    """
    if path == STDIN:
        return io.FileIO(os.dup(0))
    _check(path, os.stat(path))  # Opening some devices has effects.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        _check(path, found)
        if stat.S_ISFIFO(found.st_mode) and found.st_dev != _device_of_pipes():
            raise OSError(errno.EINVAL, _FIFO, path)
        os.set_blocking(fd, True)
        return io.FileIO(fd)
    except OSError:
        os.close(fd)
        raise


def read_whole(path: str, bytes_max: int) -> bytes:
    """At most `bytes_max + 1` bytes, so that the caller recognises a larger file. Raises as `opened_file` does."""
    with io.BufferedReader(opened_file(path)) as file:
        return file.read(bytes_max + 1)


def write_whole(path: str, text: str, errors: str = "strict") -> None:
    """Make it the contents of a file, of a pipe between programs (`>(COMMAND)`), or of a device such as /dev/null.

    Raises OSError, whose `strerror` says what it is where it is none of these.
    """
    with open(opened_to_write(path), "w", encoding="utf-8", errors=errors) as file:
        file.write(text)


def opened_to_write(path: str) -> int:
    """The descriptor of an empty file, or of what else `write_whole` writes to. Raises as that does."""
    try:
        fd = os.open(path, _WRITING, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # Nobody reads a FIFO, or it is a socket.
            raise OSError(errno.EINVAL, _FIFO_OUT if _is_fifo(path) else error.strerror, path) from error
        raise
    try:
        found = os.fstat(fd)
        if stat.S_ISFIFO(found.st_mode) and found.st_dev != _device_of_pipes():
            raise OSError(errno.EINVAL, _FIFO_OUT, path)
        os.set_blocking(fd, True)
    except OSError:
        os.close(fd)
        raise
    return fd


def opened_to_append(path: str | os.PathLike[str]) -> BinaryIO:
    """What is written goes behind what is there. Raises OSError, also for a FIFO that nobody reads: it would wait."""
    name = os.fspath(path)
    try:
        fd = os.open(name, _WRITING & ~os.O_TRUNC | os.O_APPEND, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO and _is_fifo(name):
            raise OSError(errno.EINVAL, _FIFO_OUT, name) from error
        raise
    os.set_blocking(fd, True)
    return open(fd, "ab")


def _is_fifo(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _check(path: str, found: os.stat_result) -> None:
    for is_kind, number, text in _KINDS:
        if is_kind(found.st_mode):
            raise OSError(number, text, path)


def _device_of_pipes() -> int:
    """The pipes of the kernel share a device of their own. A named one is on its file system's."""
    reader, writer = os.pipe()
    try:
        return os.fstat(reader).st_dev
    finally:
        os.close(reader)
        os.close(writer)
