"""Recorded logs as a person names them: files, packed or not, and directories of them; read in bounded memory."""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import json
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from governor.wire.jsonl import parse_line

LINE_BYTES_MAX: Final = 1024 * 1024  # The longest real metrics line we know is 40 kB (a histogram).
DOCUMENT_BYTES_MAX: Final = 256 * 1024 * 1024  # A trainer_state of a million steps has a quarter of it.
DOCUMENTS: Final = (".json", ".json.gz", ".json.xz")  # One document: trainer_state.json.
NAMES: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.xz", ".ndjson.xz")  # Taken from directories.
STATES: Final = tuple(f"trainer_state{suffix}" for suffix in DOCUMENTS)
_READ_BYTES: Final = 256 * 1024
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)

_UNPACK: Final[dict[str, Callable[[IO[bytes]], Any]]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lzma.LZMAFile,
}


class LogUnreadable(Exception):  # noqa: N818 - the condition is the name.
    """The message is one line: which log, where in it, and why."""


def logs(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The logs that these paths stand for, in their order; a directory stands for those below it, sorted by path.

    And a line for each directory that holds none, or cannot be looked into.
    """
    found: list[Path] = []
    problems: list[str] = []
    for path in paths:
        if not os.path.isdir(path):  # One that cannot be asked for is named when it is opened.
            found.append(path)
            continue
        below, closed = _below(path)
        problems += closed
        if not below and not closed:
            problems.append(f"{path}: holds no log; name a file, or a directory with *.jsonl, *.jsonl.gz or .xz")
        found += below
    return found, problems


def _below(directory: Path) -> tuple[list[Path], list[str]]:
    closed: list[OSError] = []
    files = [Path(at, name) for at, _, names in os.walk(directory, onerror=closed.append) for name in names]
    below = sorted(file for file in files if file.name.endswith(NAMES) or file.name in STATES)
    return below, sorted(f"{error.filename}: {error.strerror}; its logs are left out" for error in closed)


def records(path: Path) -> Iterator[tuple[int, dict[str, Any] | list[str]]]:
    """Yield each record of a log with its place (of JSONL its line, from 1), or what is wrong there.

    LogUnreadable when the log cannot be opened, or ends too early: what came before has been yielded.
    """
    if path.name.endswith(DOCUMENTS):
        yield from enumerate(_history(path), start=1)
        return
    for number, line in lines(path):
        if number == 1 and line is not None:
            line = line.removeprefix(codecs.BOM_UTF8)
        record = parse_line(line) if line is not None else [f"longer than {LINE_BYTES_MAX} bytes"]
        if record is not None:
            yield number, record


def _history(path: Path) -> list[dict[str, Any] | list[str]]:
    """The log_history of a Hugging Face trainer_state.json."""
    try:
        with _open(path) as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
        document = json.loads(data) if len(data) <= DOCUMENT_BYTES_MAX else None
    except OSError as error:
        raise LogUnreadable(f"{path}: {error.strerror or error}; name a log that can be read") from error
    except (*_DAMAGED, ValueError, RecursionError) as error:
        raise LogUnreadable(f"{path}: not JSON: {type(error).__name__}") from error
    history = document.get("log_history") if isinstance(document, dict) else None
    if not isinstance(history, list):
        raise LogUnreadable(f"{path}: no trainer_state.json: it has no log_history; name logs *.jsonl")
    return [record if isinstance(record, dict) else ["not an object"] for record in history]


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


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # Not to wait for a FIFO's writer.
    with open(fd, "rb", buffering=_READ_BYTES) as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if path.suffix not in _UNPACK:
            yield file
            return
        with io.BufferedReader(_UNPACK[path.suffix](file), _READ_BYTES) as unpacked:
            yield unpacked
