"""TensorBoard's event files as a log: the scalars of one step are one record. TensorBoard's own loader reads them.

An event file has (wall time, step, tag, value) in the order of writing. The loader reads one event after the other.
TensorBoard's EventAccumulator would keep all events in memory, and does not report lost ones.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from governor.replay.readers.lines import LogUnreadable
from governor.wire.cause_series import PREFIX
from governor.wire.records import is_aside

# Part of every writer's file name: events.out.tfevents.<seconds>.<host>.<pid>.<number>.
MARK: Final = ".tfevents."
SUFFIX: Final = MARK.removesuffix(".")
FRAME_BYTES: Final = 16  # Overhead of each event: its length, and two checksums.
# A file that begins this much before the previous one ended was written in parallel.
BEFORE_MAX_S: Final = 1.0
TAGS_SHOWN: Final = 8
EXTRA: Final = "TensorBoard event files need TensorBoard's own reader: pip install 'costgov[tensorboard]'"
NUMERIC: Final = frozenset((1, 2, 3, 4, 5, 6, 9, 14, 17, 19, 22, 23))  # Floats and integers in TensorFlow's DataType.

Placed = tuple[int, dict[str, Any] | list[str]]
Scalar = tuple[float, int, str, float]  # Wall time in seconds since 1970, step, tag, value.


def is_event_file(name: str) -> bool:
    return MARK in name or name.endswith(SUFFIX)


def records(path: Path, fields: Mapping[str, Sequence[str]]) -> Iterator[Placed]:
    """The records of an event file, or of all event files of a directory, one attempt after the other.

    `t` is seconds since the file began, so the time between two attempts is no silence. LogUnreadable at the end of
    what can be read. Memory is that of the largest event.
    """
    known = {name for names in fields.values() for name in names}
    number = 0
    unknown: dict[str, None] = {}
    for number, record in _placed(path, known, unknown):
        yield number, record
    if not number and unknown:
        raise LogUnreadable(f"{path}: no tag is known: {', '.join(unknown)}; say which is what: --map loss=TAG")


def _placed(path: Path, known: Collection[str], unknown: dict[str, None]) -> Iterator[Placed]:
    if not os.path.isdir(path):
        yield from enumerate(_File(path, unknown).records(known), start=1)
        return
    number, ended = 0, None
    try:
        names = sorted(file for file in path.iterdir() if is_event_file(file.name))
    except OSError as error:
        raise LogUnreadable(f"{path}: {error.strerror}; its logs are left out") from error
    for name in names:
        file = _File(name, unknown)
        try:
            for record in file.records(known, ended):
                number += 1
                yield number, record
        # The trainer was killed and launched again. Its next file continues.
        except LogUnreadable as error:
            number += 1
            yield number, [str(error)]
        ended = file.ended if ended is None or file.ended is None else max(ended, file.ended)


class _File:
    """One event file: the data of one attempt."""

    def __init__(self, path: Path, unknown: dict[str, None]) -> None:
        self.path = path
        self.unknown = unknown  # The first unknown tags, so that the user can map one of them.
        self.ended: float | None = None  # The time of its last event, seconds since 1970.

    def records(self, known: Collection[str], before: float | None = None) -> Iterator[dict[str, Any]]:
        """The joined scalars of known tags and of validation. `before`: the end of the previous file."""
        joined = _Joined()
        began: float | None = None
        torn: LogUnreadable | None = None
        try:
            for at, step, tag, value in _scalars(self.path):
                if began is None:
                    began = self.ended = at
                    if before is not None and at < before - BEFORE_MAX_S:
                        self.ended = before
                        raise LogUnreadable(f"{self.path}: written beside the file before it, not after; name it alone")
                self.ended = at
                if tag in known or is_aside(tag) or (PREFIX in known and tag.startswith(PREFIX)):
                    record = joined.take(at - began, step, tag, value)
                    if record:
                        yield record
                elif tag and len(self.unknown) < TAGS_SHOWN:
                    self.unknown[tag] = None
        except LogUnreadable as error:
            torn = error
        if joined.record:
            yield joined.record
        if torn is not None:
            raise torn


class _Joined:
    """Joins the scalars of one step into a record.

    Validation scalars get their own record, because they are no step. So does each point of a run's causes.
    """

    def __init__(self) -> None:
        self.record: dict[str, Any] = {}
        self._is_aside = self._is_cause = False

    def take(self, t: float, step: int, tag: str, value: float) -> dict[str, Any] | None:
        """Add a scalar. Returns the previous record when this scalar does not belong to it."""
        done: dict[str, Any] | None = None
        aside, cause = is_aside(tag), tag.startswith(PREFIX)
        is_other = aside is not self._is_aside or cause is not self._is_cause or (cause and t != self.record.get("t"))
        if self.record and (step != self.record["step"] or is_other or tag in self.record):
            done, self.record = self.record, {}
        self._is_aside, self._is_cause = aside, cause
        self.record |= {"step": step, tag: value, "t": t}
        return done


def _scalars(path: Path) -> Iterator[Scalar]:
    """Every scalar of a file, and the file's start with an empty tag. Other events are skipped."""
    raw_events, event_of, number_of, broken = _reader(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise LogUnreadable(f"{path}: {error.strerror}; name a log that can be read") from error
    if not stat.S_ISREG(status.st_mode):  # The loader would wait for a FIFO's writer.
        raise LogUnreadable(f"{path}: not a regular file; name a log that can be read")
    if not status.st_size:
        raise LogUnreadable(f"{path}: empty: its writer was killed before it wrote anything")
    read_bytes = 0
    try:
        for raw in raw_events(str(path)):
            event = event_of(raw)
            read_bytes += len(raw) + FRAME_BYTES
            if event.HasField("file_version"):
                yield event.wall_time, event.step, "", 0.0
            for value in event.summary.value:
                number = number_of(value)
                if number is not None:
                    yield event.wall_time, event.step, value.tag, number
    except OSError as error:
        raise LogUnreadable(f"{path}: {error.strerror or error}; name a log that can be read") from error
    except broken as error:
        raise LogUnreadable(f"{path}: damaged at byte {read_bytes}: {type(error).__name__}") from error
    if not read_bytes:
        raise LogUnreadable(f"{path}: no TensorBoard event file: it does not begin with an event")
    if read_bytes < status.st_size:  # The loader ends in the same way at the end and at an error.
        raise LogUnreadable(f"{path}: torn or damaged at byte {read_bytes} of {status.st_size}; the rest is left out")


def _reader(
    path: Path,
) -> tuple[Callable[[str], Iterator[bytes]], Callable[[bytes], Any], Callable[[Any], float | None], Any]:
    """TensorBoard's loader and its messages. They are imported only to read a file."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise LogUnreadable(f"{path}: {EXTRA}") from error

    def number(value: Any) -> float | None:
        """A scalar as PyTorch or TensorFlow 2 writes it. None for pictures, histograms and texts."""
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            return float(value.simple_value)
        tensor = value.tensor
        if kind != "tensor" or tensor.dtype not in NUMERIC or any(dim.size != 1 for dim in tensor.tensor_shape.dim):
            return None
        return float(make_ndarray(tensor).item())

    # Includes a length with a valid checksum that does not fit into memory.
    broken = (DecodeError, ValueError, TypeError, MemoryError, OverflowError)
    return lambda name: RawEventFileLoader(name).Load(), Event.FromString, number, broken
