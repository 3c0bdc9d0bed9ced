"""The segments of one run's recording, written one batch at a time, and the limits on all recordings.

Each batch is its own gzip member, so a segment is a whole file after every write, even if we are killed.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from governor.core.base.identity import RUN_NAME
from governor.core.base.units import MonoNs
from governor.core.engine.node import RUNS_MAX
from governor.settings.model import Record
from governor.wire import recording
from governor.wire.recording import ReceivedFrame, number_of, segment_name

SEGMENTS_OF_A_RUN: Final = 16  # A run at its limit drops at most a sixteenth at a time.
DIRECTORY_MODE: Final = 0o700
# Tighter than the journal's: frames hold stacks and losses of every user's runs.
FILE_MODE: Final = 0o600
# 27 to 1 on steps and heartbeats, in a third of the time that level 6 takes for 35 to 1.
GZIP_LEVEL: Final = 1
MB: Final = 1_000_000
BLOCK_BYTES: Final = 4096  # What the smallest file takes.
RECORDINGS_MAX: Final = 1_000  # Recordings that a sweep looks at.
# A governor may still append to a file written so recently.
FRESH_S: Final = 600.0


class NoRoom(OSError):  # noqa: N818 - the condition is the name.
    """A write would use the space that the limits leave free."""


@dataclass(frozen=True, slots=True)
class Limits:
    run_bytes_max: int
    node_bytes_max: int
    keep_s: float
    free_bytes_min: int

    @property
    def segment_bytes(self) -> int:
        """Open segments are never removed, so those of all runs together must fit the node's limit."""
        return min(self.run_bytes_max // SEGMENTS_OF_A_RUN, self.node_bytes_max // RUNS_MAX)


def limits_of(record: Record) -> Limits:
    """The limits from costgov.toml."""
    keep_s = record.keep_days * 24 * 3600.0
    return Limits(record.run_max_mb * MB, record.node_max_mb * MB, keep_s, record.leave_free_mb * MB)


@dataclass(slots=True)
class RunSegments:
    """The segments of one run.

    `write` raises OSError if the disk does not take a batch. The next batch then reports the loss.
    """

    root: Path
    run: str
    limits: Limits
    # Facts of the node, for each segment's first line.
    facts: Mapping[str, Any]
    path: Path | None = None  # The open segment.
    lines_lost: int = 0  # Lines lost since the last written batch.
    _lost_at: MonoNs = MonoNs(0)
    _size: int = 0
    _hellos: Sequence[ReceivedFrame] = field(default_factory=tuple)  # The connections at the end of the last batch.

    @property
    def directory(self) -> Path:
        return self.root / self.run

    def lose(self, lines: int, at: MonoNs) -> None:
        """Count lines that are not written from `at` on."""
        if lines and not self.lines_lost:
            self._lost_at = at
        self.lines_lost += lines

    def write(
        self, batch: Sequence[ReceivedFrame | bytes], hellos: Sequence[ReceivedFrame], at: MonoNs, *, durably: bool
    ) -> None:
        """Write the batch. `hellos` belong to the connections after this batch; `at` is when its first line came."""
        before, self._hellos = self._hellos, hellos
        try:
            self._append(batch, before, at, durably=durably)
        except OSError:
            self.lose(len(batch), at)
            raise
        self.lines_lost = 0

    def _append(
        self, batch: Sequence[ReceivedFrame | bytes], before: Sequence[ReceivedFrame], at: MonoNs, *, durably: bool
    ) -> None:
        again = [recording.line(hello._replace(at=at, is_again=True)) for hello in before]
        gap = [recording.gap(self._lost_at, self.lines_lost), *again] if self.lines_lost else []
        lines = [*gap, *(one if isinstance(one, bytes) else recording.line(one) for one in batch)]
        self._need_room()
        if self.path is None or self._size >= self.limits.segment_bytes:
            continues = self.path is not None
            self._begin()
            times = {"mono_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
            head = recording.head(self.run, self.facts, continues=continues, **times)
            lines = [head, *(() if gap or not continues else again), *lines]
        assert self.path is not None
        try:
            self._put(self.path, gzip.compress(b"".join(lines), GZIP_LEVEL, mtime=0), durably=durably)
        except OSError as error:
            # The segment has no first line yet, or it was removed.
            if not self._size or isinstance(error, FileNotFoundError):
                self.path.unlink(missing_ok=True)
                self.path = None
            raise

    def _need_room(self) -> None:
        self.root.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        free_bytes = psutil.disk_usage(str(self.root)).free
        if free_bytes < self.limits.free_bytes_min:
            text = f"{free_bytes / 1e6:.0f} MB free: the last {self.limits.free_bytes_min / 1e6:.0f} MB are left alone"
            raise NoRoom(text)

    def _begin(self) -> None:
        self.directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        numbers = [number for number, _ in _segments(self.directory)]
        path = self.directory / segment_name(max(numbers, default=0) + 1)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE))
        self.path, self._size = path, 0

    def _put(self, path: Path, data: bytes, *, durably: bool) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            begun = os.fstat(fd).st_size
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            except OSError:
                # Half a gzip member would hide everything after it.
                os.ftruncate(fd, begun)
                raise
            self._size = begun + len(data)
            if durably:
                os.fsync(fd)
        finally:
            os.close(fd)

    def forget_oldest(self) -> None:
        """Remove the oldest segments until the run is within its limit."""
        kept = _kept(self.directory)
        total = sum(one.size for one in kept)
        for one in kept:
            if total <= self.limits.run_bytes_max or Path(one.path) == self.path:
                return
            total -= one.size
            # Another governor of this user has swept it.
            with contextlib.suppress(OSError):
                os.unlink(one.path)


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    path: str
    size: int
    written_s: float


def sweep(root: Path, limits: Limits, live: Sequence[Path], now_s: float) -> int:
    """Remove what is too old or too much. Returns the bytes that are left.

    The largest recording gives first, so a run that floods its own recording displaces no other's. `live` names the
    segments that we are writing; each counts in full.
    """
    runs = {directory.name: _kept(directory) for directory in _recordings(root)}
    for name in sorted(runs, key=lambda name: _written_s(runs[name]), reverse=True)[RECORDINGS_MAX:]:
        _remove(runs, name, len(runs[name]), live, now_s)
    for name, kept in runs.items():
        aged = sum(now_s - one.written_s > limits.keep_s for one in kept)
        _remove(runs, name, aged, live, now_s)
    reserved = {str(path) for path in live}
    sizes = {name: sum(_counted(one, reserved, limits) for one in kept) for name, kept in runs.items()}
    stuck: set[str] = set()
    while sum(sizes.values()) > limits.node_bytes_max and len(stuck) < len(sizes):
        name = max((name for name in sizes if name not in stuck), key=lambda name: sizes[name])
        if not _remove(runs, name, 1, live, now_s):
            stuck.add(name)
        sizes[name] = sum(_counted(one, reserved, limits) for one in runs[name])
    # Sizes in blocks, as disks count them.
    return sum(one.size for kept in runs.values() for one in kept)


def kept_bytes(root: Path) -> int:
    return sum(one.size for directory in _recordings(root) for one in _kept(directory))


def _counted(one: _Kept, reserved: set[str], limits: Limits) -> int:
    return max(one.size, limits.segment_bytes) if one.path in reserved else one.size


def _written_s(kept: Sequence[_Kept]) -> float:
    return kept[-1].written_s if kept else 0.0


def _remove(runs: dict[str, list[_Kept]], name: str, count: int, live: Sequence[Path], now_s: float) -> int:
    """Remove a run's `count` oldest segments, and its directory with the last. Returns how many were removed."""
    removed = 0
    while removed < count and (kept := runs[name]):
        is_last = len(kept) == 1
        if Path(kept[0].path) in live or (is_last and now_s - kept[0].written_s < FRESH_S):
            break
        with contextlib.suppress(OSError):
            os.unlink(kept[0].path)
        if os.path.lexists(kept[0].path):
            break
        directory = os.path.dirname(kept.pop(0).path)
        removed += 1
        if is_last:
            with contextlib.suppress(OSError):  # The directory holds other files.
                os.rmdir(directory)
    return removed


def _recordings(root: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if RUN_NAME.fullmatch(entry.name) is not None and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _kept(directory: Path) -> list[_Kept]:
    """The segments, oldest first."""
    kept = []
    with contextlib.suppress(OSError):
        for number, entry in _segments(directory):
            facts = entry.stat(follow_symlinks=False)
            kept.append(_Kept(number, entry.path, max(facts.st_size, BLOCK_BYTES), facts.st_mtime))
    return sorted(kept, key=lambda one: one.number)


def _segments(directory: Path) -> list[tuple[int, os.DirEntry[str]]]:
    with os.scandir(directory) as entries:
        return [(number, entry) for entry in entries if (number := number_of(entry.name)) is not None]
