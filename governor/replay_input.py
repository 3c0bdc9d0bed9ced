"""Recorded logs as a person names them: files, packed or not, and directories of them; read in bounded memory."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final, cast

LINE_BYTES_MAX: Final = 1024 * 1024  # The longest real metrics line we know is 40 kB (a histogram).
NAMES: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.xz", ".ndjson.xz")  # Taken from directories.
_READ_BYTES: Final = 256 * 1024
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


class LogUnreadable(Exception):  # noqa: N818 - the condition is the name.
    """The message is one line: which log, where in it, and why."""


def logs(paths: Sequence[Path]) -> list[Path]:
    """The logs that these paths stand for, in their order; a directory stands for those below it, sorted by path.

    LogUnreadable for a directory that holds none.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        below = sorted(file for file in path.rglob("*") if file.name.endswith(NAMES))
        if not below:
            raise LogUnreadable(f"{path}: holds no log; name a file, or a directory with *.jsonl, *.jsonl.gz or .xz")
        found += below
    return found


def lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number, from 1; None stands for one too long to be a record.

    LogUnreadable when the log cannot be opened, or its packing ends too early: what came before has been yielded.
    """
    number = 0
    try:
        with _open(path) as file:
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
                    while (rest := file.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
                        pass
                    yield number, None
                else:
                    yield number, line
    except OSError as error:
        if isinstance(error, _DAMAGED):
            raise LogUnreadable(f"{path}:{number + 1}: damaged: {error}") from error
        raise LogUnreadable(f"{path}: {error.strerror}; name a log that can be read") from error
    except _DAMAGED as error:
        raise LogUnreadable(f"{path}:{number + 1}: damaged: {error}") from error


def _open(path: Path) -> IO[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # Not to wait for a FIFO's writer.
    file = open(fd, "rb", buffering=_READ_BYTES)  # noqa: SIM115 - closed with what wraps it.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file.close()
        raise OSError(0, "not a regular file")
    if path.suffix == ".gz":
        return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=file)), _READ_BYTES)
    if path.suffix == ".xz":
        return io.BufferedReader(cast(io.RawIOBase, lzma.LZMAFile(file)), _READ_BYTES)
    return file
