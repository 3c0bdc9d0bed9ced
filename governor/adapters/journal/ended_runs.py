"""What ended `costgov run`s leave is bounded: a journal for each name, and the directory of its sockets."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from governor.adapters.journal.db import JournalReader
from governor.adapters.journal.reader import JOURNAL_NAME, JOURNALS_MAX
from governor.adapters.journal.runtime_files import FALLBACK_NAME, MIRROR_NAME
from governor.adapters.machine import lock_file

RUNS_DIR: Final = "runs"  # As in settings.model.default_paths.
OUTPUT_NAME: Final = "output.log"  # Of the command: see adapters.command.output.
# `cost` and `incident` read no more journals, the service's own included. About 50 MB.
RUNS_KEPT_MAX: Final = JOURNALS_MAX - 1
# The operator waits for no more at the end of a run. The next end continues.
REMOVED_AT_ONCE_MAX: Final = 100
# Where no journal shows that the run is over. A starting governor creates the directory first, and its sockets seconds
# later, when the provider has answered.
RUNTIME_IDLE_S: Final = 3_600.0
_SOCKETS: Final = ("control.sock", "trainer.sock")
# The files that a governor writes into its state directory. SQLite leaves `-journal` when it is killed before the WAL
# is on.
_STATE_FILE: Final = re.compile(
    rf"(trainer|control)\.sock(\.lock)?|launch\.lock(\.new)?|{re.escape(OUTPUT_NAME)}(\.1)?|{re.escape(MIRROR_NAME)}(\.new)?|{re.escape(JOURNAL_NAME)}(\.lock|(\.new|\.(corrupt|replaced)-[0-9]{{8}}T[0-9]{{6}}\.[0-9]{{6}}Z)?(-wal|-shm|-journal)?)"
)
_REPORTS_DIR: Final = "incidents"  # As in app.wiring.
_REPORT_FILE: Final = re.compile(r"(?s).+\..+\.[0-9]+\.(json|md)(\.new)?")  # RUN.NODE.NUMBER, and the draft of one.


def prune(
    state_dir: Path | None, runtime_dir: Path | None, kept_max: int = RUNS_KEPT_MAX,
    removed_max: int = REMOVED_AT_ONCE_MAX,
) -> None:  # fmt: skip
    """Remove the oldest journals beside ours beyond `kept_max`, and the runtime directories of ended runs, ours too.

    These stay: what a live governor holds, a halt that was not seen to end, and a directory with any file that is not
    ours. A name whose journal is gone begins a new budget. Never raises for what it cannot remove: the next end of a
    run tries again.
    """
    if state_dir is not None and state_dir.parent.name == RUNS_DIR:
        beyond = sorted(_journals(state_dir.parent), reverse=True)[kept_max:]
        removed = 0
        for _, directory in reversed(beyond):
            # Only removals count. Directories that stay would otherwise block the rest for ever.
            if removed == removed_max:
                break
            removed += directory != state_dir and _remove_state(directory)
    if runtime_dir is not None and runtime_dir.parent.name == RUNS_DIR:
        journals = state_dir.parent if state_dir is not None and state_dir.parent.name == RUNS_DIR else None
        for directory in _directories(runtime_dir.parent):
            with contextlib.suppress(OSError):
                found = directory.stat()
                if found.st_uid != os.geteuid():
                    continue
                if found.st_mtime < time.time() - RUNTIME_IDLE_S:
                    _remove_runtime(directory)
                elif journals is not None:
                    _remove_ended(directory, journals / directory.name / JOURNAL_NAME)


def _directories(parent: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _journals(parent: Path) -> Iterator[tuple[float, Path]]:
    for directory in _directories(parent):
        with contextlib.suppress(OSError):  # A directory without a journal is not ours.
            yield (directory / JOURNAL_NAME).stat().st_mtime, directory


def _remove_state(directory: Path) -> bool:
    """Remove a state directory that holds only a governor's files, none of them needed. Returns whether it is gone."""
    journal = directory / JOURNAL_NAME
    with contextlib.suppress(OSError):
        if _own_files(directory) is None:  # A foreign directory is not touched at all, not even by a lock.
            return False
        with _held(directory / f"{JOURNAL_NAME}.lock") as is_ended:
            if not is_ended or _has_open_incident(journal):
                return False
            files = _own_files(directory)
            if files is None:
                return False
            # The journal goes last: it marks the directory for the next attempt if we are interrupted.
            for file in sorted(files, key=lambda file: file == journal):
                file.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                (directory / _REPORTS_DIR).rmdir()
        directory.rmdir()
        return True
    return False


def _own_files(directory: Path) -> list[Path] | None:
    """All files in the directory and in its reports, without the lock that we hold. None when one is not ours."""
    names = _names(directory, _STATE_FILE, _REPORTS_DIR)
    if names is None:
        return None
    reports = _names(directory / _REPORTS_DIR, _REPORT_FILE) if _REPORTS_DIR in names else []
    if reports is None:
        return None
    lock = directory / f"{JOURNAL_NAME}.lock"
    own = [directory / name for name in names if name != _REPORTS_DIR]
    return [*(file for file in own if file != lock), *(directory / _REPORTS_DIR / name for name in reports)]


def _names(directory: Path, ours: re.Pattern[str], subdirectory: str = "") -> list[str] | None:
    names = []
    with os.scandir(directory) as entries:
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            is_ours = (stat.S_ISREG(mode) or stat.S_ISSOCK(mode)) and ours.fullmatch(entry.name)
            if not is_ours and not (entry.name == subdirectory and entry.is_dir(follow_symlinks=False)):
                return None
            names.append(entry.name)
    return names


def _has_open_incident(journal: Path) -> bool:
    """Whether the next governor would resume a halt from it. True also when it cannot be read: it is then evidence."""
    try:
        reader = JournalReader(str(journal))
    except (sqlite3.Error, ValueError):  # ValueError: a name that is not UTF-8.
        return True
    try:
        return bool(reader.incidents(1, only_open=True))
    except (sqlite3.Error, ValueError):  # ValueError: a name that is not UTF-8.
        return True
    finally:
        reader.close()


def _remove_ended(directory: Path, journal: Path) -> None:
    """Remove a young runtime directory whose journal is whole and has no halt under way: nothing needs its copy.

    A governor that starts has the journal's lock before it makes anything there.
    """
    if not journal.exists():
        return
    try:
        fd = lock_file.take(f"{journal}.lock")
    except lock_file.LockHeld:
        return
    try:
        if not _has_open_incident(journal):
            _remove_runtime(directory)
    finally:
        os.close(fd)  # The file stays. What a killed governor noted in it is money: the name's next launch reads it.


def _remove_runtime(directory: Path) -> None:
    """Remove dead sockets and the copy of the journal's end. Any other file keeps the directory."""
    with contextlib.ExitStack() as locks:
        if not all(locks.enter_context(_held(directory / f"{name}.lock")) for name in _SOCKETS):
            return
        for name in (*_SOCKETS, *(f"{name}.new" for name in _SOCKETS), MIRROR_NAME):
            (directory / name).unlink(missing_ok=True)
        fallback = directory / FALLBACK_NAME
        if fallback.exists() and fallback.stat().st_size == 0:  # The journal has taken its rows.
            fallback.unlink()
    directory.rmdir()


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """True while we hold the lock. False when a live governor holds it, or when that cannot be determined."""
    try:
        fd = lock_file.take(str(path))
    except (lock_file.LockHeld, OSError):
        yield False
        return
    try:
        yield True
    finally:
        lock_file.drop(str(path), fd)
