"""What ended `costgov run`s leave behind is bounded: a journal for each name, and the directory of its sockets."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from governor.adapters import lock_file
from governor.adapters.charges_db import JOURNAL_NAME, JOURNALS_MAX
from governor.adapters.journal_db import JournalReader

RUNS_DIR: Final = "runs"  # As settings_model.default_paths has it.
RUNS_KEPT_MAX: Final = JOURNALS_MAX - 1  # `cost` and `incident` read no more, the service's own included; about 50 MB.
REMOVED_AT_ONCE_MAX: Final = 100  # Nobody who ends a run waits for more; the next end goes on.
# A governor that starts makes its directory first and its sockets seconds later, when the provider has answered.
RUNTIME_IDLE_S: Final = 3_600.0
_SOCKETS: Final = ("control.sock", "trainer.sock")


def prune(state_dir: Path, runtime_dir: Path, kept_max: int = RUNS_KEPT_MAX) -> None:
    """Remove the oldest journals beside ours beyond `kept_max`, and the runtime directories of ended runs.

    Stays what a live governor holds, and what has a halt that was not seen to its end. A name whose journal is gone
    begins a new budget. Never raises for what cannot be removed: it is tried again at the next end of a run.
    """
    if state_dir.parent.name == RUNS_DIR:
        journals = sorted(_journals(state_dir.parent), reverse=True)
        for _, directory in journals[kept_max:][-REMOVED_AT_ONCE_MAX:]:
            if directory != state_dir:
                _remove_state(directory)
    if runtime_dir.parent.name == RUNS_DIR:
        before = time.time() - RUNTIME_IDLE_S
        for directory in _directories(runtime_dir.parent):
            with contextlib.suppress(OSError):
                if directory != runtime_dir and directory.stat().st_mtime < before:
                    _remove_runtime(directory)


def _directories(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _journals(parent: Path) -> Iterator[tuple[float, Path]]:
    for directory in _directories(parent):
        with contextlib.suppress(OSError):  # Without a journal it is none of ours.
            yield (directory / JOURNAL_NAME).stat().st_mtime, directory


def _remove_state(directory: Path) -> None:
    with _held(directory / f"{JOURNAL_NAME}.lock") as is_ended:
        if is_ended and not _has_open_incident(directory / JOURNAL_NAME):
            shutil.rmtree(directory, ignore_errors=True)


def _has_open_incident(journal: Path) -> bool:
    """A halt that its next governor resumes; and whatever cannot be read, which is evidence."""
    try:
        reader = JournalReader(str(journal))
    except (sqlite3.Error, ValueError):  # The latter: a name that is no UTF-8.
        return True
    try:
        return bool(reader.incidents(1, only_open=True))
    except (sqlite3.Error, ValueError):  # The latter: a name that is no UTF-8.
        return True
    finally:
        reader.close()


def _remove_runtime(directory: Path) -> None:
    """What a killed governor left, sockets that nobody serves; anything else there keeps the directory."""
    with contextlib.ExitStack() as locks:
        if not all(locks.enter_context(_held(directory / f"{name}.lock")) for name in _SOCKETS):
            return
        for name in _SOCKETS:
            (directory / name).unlink(missing_ok=True)
    directory.rmdir()


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """True while we hold the lock; False when a live governor does, or when it cannot be told."""
    try:
        fd = lock_file.take(str(path))
    except (lock_file.LockHeld, OSError):
        yield False
        return
    try:
        yield True
    finally:
        lock_file.drop(str(path), fd)
