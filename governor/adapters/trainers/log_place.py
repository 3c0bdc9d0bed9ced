"""Which file of a directory is a run's log: each launch of its trainer writes one of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import Final

from governor.wire.files import TENSORBOARD, WANDB
from governor.wire.records import is_aside

# A run's directory has a file for each launch. One with more entries than this is something else.
ENTRIES_MAX: Final = 10_000
# Directories below that are looked into at each look: those in which a file was made last.
FOLDERS_MAX: Final = 50
# Each rank of a node may have a writer of its own.
LOGS_MAX: Final = 1_024
# Part of every writer's file name: events.out.tfevents.<seconds>.<host>.<pid>.<number>.
_EVENTS: Final = re.compile(r"tfevents\.([0-9]{1,18})\b(.*)")
_PROFILE: Final = "profile-empty"  # TensorFlow's profiler leaves such a file.
_RUN_FILE: Final = ".wandb"
# wandb/run-20260101_120000-ID/run-ID.wandb, and offline-run-… beside it.
_RUN: Final = re.compile(r"run-([0-9]{8})_([0-9]{6})-")
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """`order`: by when it was begun."""

    order: tuple[int, ...]
    path: str
    inode: int

    @property
    def size(self) -> int:
        """In bytes. 0 for one that is gone."""
        try:
            return os.stat(self.path).st_size
        except OSError:
            return 0


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A path that may be a file, a directory of files, or one with a directory for each launch.

    Directories below are looked into where
    the path itself has no log, and not those of validation.
    """

    path: str
    format: str

    def logs(self) -> list[LogFile] | None:
        """The newest logs of the directory, in the order in which they were begun. None: it is none. OSError."""
        try:
            return sorted(self._logs())[-LOGS_MAX:]
        except (NotADirectoryError, FileNotFoundError):
            return None

    @property
    def lacks(self) -> str:
        """One line, of a directory without a log."""
        what = "event file of TensorBoard" if self.format == TENSORBOARD else "run-*.wandb"
        return f"{self.path}: a directory without any {what}"

    def _logs(self) -> Iterator[LogFile]:
        found, folders = [], []
        with os.scandir(self.path) as entries:
            for entry in islice(entries, ENTRIES_MAX):
                if (order := self._order(entry.name, "")) is not None:
                    found.append(LogFile(order, entry.path, entry.inode()))
                elif not is_aside(entry.name) and entry.is_dir(follow_symlinks=False):
                    folders.append((_changed_ns(entry), entry.path))
        yield from found
        if found:
            return
        for _, folder in nlargest(FOLDERS_MAX, folders):
            try:
                with os.scandir(folder) as entries:
                    for entry in islice(entries, ENTRIES_MAX // FOLDERS_MAX):
                        if (order := self._order(entry.name, os.path.basename(folder))) is not None:
                            yield LogFile(order, entry.path, entry.inode())
            except OSError:
                continue  # Gone since, or somebody else's.

    def _order(self, name: str, folder: str) -> tuple[int, ...] | None:
        """By when a file was begun, as its name or its directory's says it. None for another file."""
        if self.format == WANDB:
            if not name.endswith(_RUN_FILE):
                return None
            began = _RUN.search(folder)
            return (int(began[1]), int(began[2])) if began is not None else ()
        event = _EVENTS.search(name)
        if event is None or name.endswith(_PROFILE):
            return None
        return (int(event[1]), *map(int, _NUMBER.findall(event[2])))


def _changed_ns(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0  # Gone since.
