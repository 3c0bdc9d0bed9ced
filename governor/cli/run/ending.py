"""When a command of `costgov run` is over: it has exited, and nobody of its session is left. And who keeps its node."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from governor.adapters.journal.db import JournalReader
from governor.adapters.journal.reader import JOURNAL_NAME, JOURNALS_MAX
from governor.adapters.journal.runtime_files import MIRROR_NAME
from governor.adapters.machine import lock_file
from governor.app.settings_file import paths_beside
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, DurationNs, MonoNs
from governor.core.engine.idle.state import NODE
from governor.core.engine.node import Node
from governor.core.events.inputs import CommandExited, Event, OperatorHold
from governor.core.halt.state import Fact
from governor.ports import Processes
from governor.settings.model import Paths

LOOK_PERIOD_NS: Final = NS_PER_S  # A scan of /proc costs milliseconds, and only what outlives the command waits for it.
KEPT_NS: Final = DurationNs(10 * NS_PER_MINUTE)  # Until we have left, and with us what would have stopped the node.


@dataclass(slots=True)
class CommandEnd:
    """A source of the loop. Says once that the command is over; while nobody can look, it is not."""

    run: str
    poll_exit: Callable[[], int | None]
    sid: int
    processes: Processes
    _look_at: MonoNs = MonoNs(0)
    _has_ticked: bool = False
    _is_told: bool = False

    def poll(self, at: MonoNs) -> list[Event]:
        if not self._has_ticked:
            self._has_ticked = True  # A command that is over at once has its first tick all the same: it is charged.
            return []
        if self._is_told or at < self._look_at:
            return []
        exit_code = self.poll_exit()
        if exit_code is None:
            return []
        self._look_at = MonoNs(at + LOOK_PERIOD_NS)
        if living(self.processes, self.sid) != []:
            return []
        self._is_told = True
        return [CommandExited(at, self.run, exit_code)]


def living(processes: Processes, sid: int) -> list[int] | None:
    """Who lives in the command's session, by pid; None while we cannot look (no descriptors)."""
    try:
        table = processes.table()
    except OSError:
        return None
    return sorted(pid for pid, facts in table.items() if facts.sid == sid and facts.state not in "ZX")


def stops_node(node: Node, exit_code: int | None) -> bool:
    """The node's own stop is under way, or is about to follow from how the command ended."""
    idle = node.idle
    if idle.is_stopping or idle.finish is not None:
        return True
    policies = node.policies.policies
    return exit_code == 0 and idle.command is not None and any(one.run_on_finish == "stop" for one in policies)


def is_accepted(node: Node) -> bool:
    """The provider has said yes to the node's stop: nobody takes it back, and a shutdown's SIGTERM is part of it."""
    stop = node.idle.stop
    return (
        node.idle.is_stopping
        and stop is not None
        and stop.incident is not None
        and stop.incident.halt.stop_reply is Fact.STOP_ACCEPTED
    )


def kept_by(signum: signal.Signals, at: MonoNs) -> OperatorHold:
    """A signal to us when only the node's stop is left to wait for: who sent it wants the machine."""
    return OperatorHold(at, NODE, KEPT_NS, f"{signum.name} to costgov run", os.getuid())


# --- what ended `costgov run`s leave behind is bounded: a journal for each name, and the directory of its sockets


RUNS_DIR: Final = "runs"  # As settings_model.default_paths has it.
RUNS_KEPT_MAX: Final = JOURNALS_MAX - 1  # `cost` and `incident` read no more, the service's own included; about 50 MB.
REMOVED_AT_ONCE_MAX: Final = 100  # Nobody who ends a run waits for more; the next end goes on.
# A governor that starts makes its directory first and its sockets seconds later, when the provider has answered.
RUNTIME_IDLE_S: Final = 3_600.0
_SOCKETS: Final = ("control.sock", "trainer.sock")
# What a governor writes into its state directory. `-journal` is SQLite's, of a begin that was killed before the WAL.
_STATE_FILE: Final = re.compile(
    rf"{re.escape(MIRROR_NAME)}(\.new)?|{re.escape(JOURNAL_NAME)}(\.lock|(\.new|\.corrupt-\d{{8}}T\d{{6}}\.\d{{6}}Z)?(-wal|-shm|-journal)?)"
)
_REPORTS_DIR: Final = "incidents"  # As wiring has it.
_REPORT_FILE: Final = re.compile(r"(?s).+\..+\.\d+\.(json|md)(\.new)?")  # RUN.NODE.NUMBER, and a draft of it.


def made_for(name: str, paths: Paths, environ: Mapping[str, str] | None = None) -> tuple[Path | None, Path | None]:
    """The state and the runtime directory for `prune`: None for one that `costgov run` did not make for `name`.

    What stands beside a configured directory is its owner's, whatever it is called.
    """
    made = paths_beside(os.environ if environ is None else environ, name)
    return (
        paths.state_dir if paths.state_dir == Path(made["state_dir"]) else None,
        paths.runtime_dir if paths.runtime_dir == Path(made["runtime_dir"]) else None,
    )


def prune(
    state_dir: Path | None, runtime_dir: Path | None, kept_max: int = RUNS_KEPT_MAX,
    removed_max: int = REMOVED_AT_ONCE_MAX,
) -> None:  # fmt: skip
    """Remove the oldest journals beside ours beyond `kept_max`, and the runtime directories of ended runs.

    Stays what a live governor holds, what has a halt that was not seen to its end, and a directory with anything in it
    that is not ours. A name whose journal is gone begins a new budget. Never raises for what cannot be removed: it is
    tried again at the next end of a run.
    """
    if state_dir is not None and state_dir.parent.name == RUNS_DIR:
        beyond = sorted(_journals(state_dir.parent), reverse=True)[kept_max:]
        removed = 0
        for _, directory in reversed(beyond):
            if removed == removed_max:  # What stays does not count: it would keep the rest here for ever.
                break
            removed += directory != state_dir and _remove_state(directory)
    if runtime_dir is not None and runtime_dir.parent.name == RUNS_DIR:
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


def _remove_state(directory: Path) -> bool:
    """True when it is gone: nothing was in it but what a governor writes there, and nothing of that is needed."""
    journal = directory / JOURNAL_NAME
    with contextlib.suppress(OSError):
        if _own_files(directory) is None:  # Somebody else's is not touched at all, not even by a lock.
            return False
        with _held(directory / f"{JOURNAL_NAME}.lock") as is_ended:
            if not is_ended or _has_open_incident(journal):
                return False
            files = _own_files(directory)
            if files is None:
                return False
            # The journal last: by it the directory is found again where we are stopped in between.
            for file in sorted(files, key=lambda file: file == journal):
                file.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                (directory / _REPORTS_DIR).rmdir()
        directory.rmdir()
        return True
    return False


def _own_files(directory: Path) -> list[Path] | None:
    """All files in it and in its reports, the lock that we hold left out. None when anything there is not ours."""
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
            is_ours = entry.is_file(follow_symlinks=False) and ours.fullmatch(entry.name)
            if not is_ours and not (entry.name == subdirectory and entry.is_dir(follow_symlinks=False)):
                return None
            names.append(entry.name)
    return names


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
    """What a governor left: dead sockets, a copy of its journal's end. Anything else keeps the directory."""
    with contextlib.ExitStack() as locks:
        if not all(locks.enter_context(_held(directory / f"{name}.lock")) for name in _SOCKETS):
            return
        for name in (*_SOCKETS, MIRROR_NAME):
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
