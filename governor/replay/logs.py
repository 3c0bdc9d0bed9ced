"""Recorded logs given as files, compressed or not, or as directories. They are read in bounded memory."""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import json
import lzma
import math
import os
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from governor.adapters.machine.regular_file import open_regular
from governor.replay.readers import tensorboard, text, wandb
from governor.replay.readers.lines import LINE_BYTES_MAX, LogTorn, LogUnreadable, bounded_lines, console_lines
from governor.replay.readers.tensorboard import is_event_file
from governor.wire.files.rows import TOO_WIDE, Rows
from governor.wire.jsonl import DEFAULT_FIELDS, parse_line
from governor.wire.recorded import RecordedClock, break_note
from governor.wire.recording import number_of, segments

STDIN: Final = Path("-")
DOCUMENT_BYTES_MAX: Final = 256 * 1024 * 1024  # A trainer_state of a million steps has a quarter of it.
# In memory a value has up to 64 bytes, and "{}," has three of the file.
VALUES_MAX: Final = 16_000_000
DOCUMENTS: Final = (".json", ".json.gz", ".json.xz")  # One JSON document: trainer_state.json.
NAMES: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".jsonl.xz", ".ndjson.xz")  # Found in directories.
TABLES: Final = (".csv", ".csv.gz", ".csv.xz")  # Only when named: most tables in a directory are no logs.
WITHIN: Final = (
    "*.jsonl, *.jsonl.gz or .xz, a trainer's text log *.log, *.out or *.txt of a known format, TensorBoard's event "
    "files, W&B's run-*.wandb or a trainer_state.json"
)
STATES: Final = tuple(f"trainer_state{suffix}" for suffix in DOCUMENTS)
# In it `costgov export` writes its files before it puts them in place: copies, and of any length.
EXPORT_PART: Final = ".costgov-export.part"
# A key of the record at the end of a training. The train_loss there is the mean of all steps.
SUMMARY: Final = "train_runtime"
_CHECKPOINT: Final = re.compile(r"checkpoint-([0-9]{1,18})")
_READ_BYTES: Final = 256 * 1024
_DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)

# The highest preset of xz takes 65 MiB.
XZ_BYTES_MAX: Final = 96 * 1024 * 1024


class _Xz:
    """An .xz file in bounded memory: its header says how much unpacking takes, and may say anything."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = self._new()
        self._rest = b""

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=XZ_BYTES_MAX)

    def read1(self, size: int) -> bytes:
        """b"" at the end. lzma.LZMAError where it is damaged, EOFError where it ends too early."""
        while True:
            if self._stream.eof:
                self._rest = self._stream.unused_data or self._file.read(_READ_BYTES)
                if not self._rest.strip(b"\0"):
                    return b""
                self._stream = self._new()
            elif self._stream.needs_input:
                self._rest = self._file.read(_READ_BYTES)
                if not self._rest:
                    raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            data, self._rest = self._stream.decompress(self._rest, size), b""
            if data:
                return data


_UNPACK: Final[dict[str, Callable[[IO[bytes]], Any]]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": _Xz,
}


Place = int | str  # In JSONL the line number, from 1.
Read = tuple[Place, dict[str, Any] | list[str]]


def logs(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The logs of these paths in order, and one line for each directory that has none, cannot be read or is left out.

    A directory stands for the logs below it, sorted by path, without those of an export that has not ended. A directory
    with the segments of a recording is itself a log. TensorBoard's event files in one directory are one log with the
    directory's name: each file is an attempt of its run.
    """
    found: list[Path] = []
    problems: list[str] = []
    for path in paths:
        if path == STDIN or not os.path.isdir(path):  # A path that cannot be examined is reported when it is opened.
            found.append(path)
            continue
        below, closed = _below(path)
        problems += closed
        if not below and not closed:
            problems.append(f"{path}: holds no log; name a file, or a directory with {WITHIN}")
        found += below
    return found, problems


def _below(directory: Path) -> tuple[list[Path], list[str]]:
    problems: list[str] = []
    below: set[Path] = set()
    for at, folders, names in os.walk(directory, onerror=lambda error: problems.append(_closed(error))):
        if os.path.basename(os.path.normpath(at)) == EXPORT_PART:
            folders.clear()  # os.walk then goes no deeper.
            problems.append(f"{at}: of an export that did not end, or goes on; left out: export again")
            continue
        below |= {log for name in names if (log := _log_of(Path(at, name))) is not None}
    return sorted(below - _outgrown(below)), sorted(problems)


def _closed(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}; its logs are left out"


def _outgrown(found: Collection[Path]) -> set[Path]:
    """The trainer_state.json of each checkpoint that a later one of the same Trainer repeats."""
    newest: dict[Path, tuple[float, Path]] = {}
    states = [path for path in found if path.name in STATES]
    for path in states:
        checkpoint = _CHECKPOINT.fullmatch(path.parent.name)
        home = path.parent.parent if checkpoint else path.parent
        step = int(checkpoint[1]) if checkpoint else math.inf  # The final trainer_state.json is beside the checkpoints.
        newest[home] = max(newest.get(home, (-1.0, path)), (step, path))
    return set(states) - {path for _, path in newest.values()}


def _is_recording(path: Path) -> bool:
    """Whether the path is a recording's segment or a directory of segments. Otherwise it is TensorBoard's."""
    try:
        return any(number_of(name) is not None for name in (os.listdir(path) if os.path.isdir(path) else [path.name]))
    except OSError:
        return True  # Opening it then reports why it cannot be read.


def _log_of(file: Path) -> Path | None:
    """The log that a file in a directory is or belongs to."""
    if is_event_file(file.name):
        return file.parent
    if number_of(file.name) is not None:
        return file.parent
    is_log = file.name.endswith((*NAMES, wandb.SUFFIX)) or file.name in STATES
    return file if is_log or (file.name.endswith(text.SUFFIXES) and _is_text_log(file)) else None


def _is_text_log(file: Path) -> bool:
    """Whether its first lines have steps of a known format. Nothing is said of other files in a directory."""
    try:
        return text.recognised(lines(file, console_lines), file.name)[0] not in (None, text.JSONL)
    except LogUnreadable:
        return False


def records(
    path: Path, fields: Mapping[str, Sequence[str]] = DEFAULT_FIELDS, options: text.TextOptions = text.ANY
) -> Iterator[Read]:
    """Yield each record of a log with its place, or what is wrong there.

    `fields` select TensorBoard's tags, `options` are of text logs. LogUnreadable when the log cannot be opened, ends
    too early or is of no known format. Everything before that has been yielded.
    """
    if path == STDIN:
        yield from _lines(path, options)
    elif _is_recording(path):
        yield from recording(path, RecordedClock())
    elif os.path.isdir(path) or is_event_file(path.name):
        yield from tensorboard.records(path, fields)
    elif path.name.endswith(wandb.SUFFIX):
        yield from wandb.records(path)
    elif path.name.endswith(DOCUMENTS):
        yield from enumerate(_history(path), start=1)
    elif path.name.endswith(TABLES):
        yield from _rows(path)
    else:
        yield from _lines(path, options)


def _lines(path: Path, options: text.TextOptions) -> Iterator[Read]:
    """JSONL, or a trainer's console: whatever the first lines are."""
    found, said = options.format, lines(path, bounded_lines if path.name.endswith(NAMES) else console_lines)
    if found is None:
        found, said = text.recognised(said, str(path))
    if found in (None, text.JSONL):
        yield from _jsonl(said)
    else:
        yield from text.records(found, said, str(path), options)


def _jsonl(said: Iterable[tuple[int, bytes | None]]) -> Iterator[Read]:
    for number, line in said:
        if number == 1 and line is not None:
            line = line.removeprefix(codecs.BOM_UTF8)
        record = parse_line(line) if line is not None else [f"longer than {LINE_BYTES_MAX} bytes"]
        if record is not None:
            yield number, record


def _rows(path: Path) -> Iterator[Read]:
    """The rows of a table, read as the daemon reads one that grows."""
    table, number = Rows(), 0
    for number, line in lines(path):
        if line is None:
            yield number, [f"longer than {LINE_BYTES_MAX} bytes"]
            continue
        if not line.endswith(b"\n") and table.is_cut_off(line):
            yield number, ["the last row is cut off: fewer cells than names"]
            continue
        faulty = table.faulty
        yield from ((number, record) for record in map(_row, table.give(_ended(line))) if record is not None)
        if table.faulty > faulty:
            yield number, ["no row of a table"]
    if not number:
        raise LogUnreadable(f"{path}: empty")
    faulty = table.faulty
    yield from ((number, record) for record in map(_row, table.rest()) if record is not None)
    if table.faulty > faulty:
        yield number, ["a quoted cell has no end"]


def _ended(line: bytes) -> bytes:
    """The file's last line may have no end."""
    return line if line.endswith(b"\n") else line + b"\n"


def _row(told: bytes) -> dict[str, Any] | list[str] | None:
    return ["more cells than names"] if told.startswith(TOO_WIDE) else parse_line(told)


def recording(path: Path, clock: RecordedClock) -> Iterator[Read]:
    """A segment or a directory of segments, as one log on this clock. A torn end, as after a power cut, is no error."""
    try:
        parts = segments(path) if os.path.isdir(path) else [path]
    except OSError as error:
        raise LogUnreadable(f"{path}: {error.strerror}; name a log that can be read") from error
    damage: LogUnreadable | None = None
    for part in parts:
        try:
            yield from _segment(part, clock, is_first=part is parts[0])
        except LogTorn:
            continue
        except LogUnreadable as error:
            damage = damage or error
            yield part.name, break_note(clock.last_ns)
    if damage is not None:
        raise damage


def _segment(path: Path, clock: RecordedClock, *, is_first: bool) -> Iterator[Read]:
    for number, line in lines(path):
        place = f"{path.name}:{number}"
        if line is not None and not line.endswith(b"\n"):
            return  # A torn end.
        record = parse_line(line) if line is not None else [f"longer than {LINE_BYTES_MAX} bytes"]
        if number == 1 and isinstance(record, dict) and isinstance(meta := record.get("meta"), dict):
            fault = clock.begin(meta)
            if fault is not None:
                raise LogUnreadable(f"{path}:1: {fault}")
            if is_first:
                yield place, record
            elif meta.get("continues") is not True:
                yield place, break_note(clock.last_ns)
        elif isinstance(record, dict):
            yield place, clock.put(record)
        elif record is not None:
            yield place, record


def _history(path: Path) -> list[dict[str, Any] | list[str]]:
    """The log_history of a Hugging Face trainer_state.json."""
    try:
        with _open(path) as file:
            data = file.read(DOCUMENT_BYTES_MAX + 1)
        if len(data) > DOCUMENT_BYTES_MAX or data.count(b",") + data.count(b"[") + data.count(b"{") > VALUES_MAX:
            raise LogUnreadable(f"{path}: larger than any trainer_state.json; name logs *.jsonl")
        document = json.loads(data)
    except OSError as error:
        raise LogUnreadable(f"{path}: {error.strerror or error}; name a log that can be read") from error
    except (*_DAMAGED, ValueError, RecursionError) as error:
        raise LogUnreadable(f"{path}: not JSON: {type(error).__name__}") from error
    history = document.get("log_history") if isinstance(document, dict) else None
    if not isinstance(history, list):
        raise LogUnreadable(f"{path}: no trainer_state.json: it has no log_history; name logs *.jsonl")
    steps = (record for record in history if not (isinstance(record, dict) and SUMMARY in record))
    return [record if isinstance(record, dict) else ["not an object"] for record in steps]


def lines(
    path: Path, split: Callable[[IO[bytes]], Iterator[tuple[int, bytes | None]]] = bounded_lines
) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number, from 1. None stands for a line that is too long to be a record.

    LogUnreadable when the log cannot be opened or its compressed data ends too early. Everything before that has been
    yielded.
    """
    number = 0
    try:
        with _open(path) as file:
            for number, line in split(file):
                yield number, line
    except OSError as error:
        if isinstance(error, _DAMAGED):
            raise LogUnreadable(f"{path}:{number + 1}: damaged: {error}") from error
        raise LogUnreadable(f"{path}: {error.strerror}; name a log that can be read") from error
    except EOFError as error:
        raise LogTorn(f"{path}:{number + 1}: damaged: {error}") from error
    except _DAMAGED as error:
        raise LogUnreadable(f"{path}:{number + 1}: damaged: {error}") from error


class _AsItComes(io.RawIOBase):
    """Decompressed bytes as they become available, so that a damaged place does not lose what comes before it."""

    def __init__(self, file: gzip.GzipFile | _Xz) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    if path == STDIN:
        if sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")
        yield sys.stdin.buffer
        return
    with io.BufferedReader(open_regular(str(path), follows=True), _READ_BYTES) as file:
        if path.suffix not in _UNPACK:
            yield file
            return
        with io.BufferedReader(_AsItComes(_UNPACK[path.suffix](file)), _READ_BYTES) as unpacked:
            yield unpacked
