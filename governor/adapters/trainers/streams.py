"""A trainer without the shim: its metrics file is its voice, and its owner says which processes it is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from governor.adapters.trainers.jsonl_tail import JsonlTail, Position
from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.events import Event, StreamOpened, StreamRead, StreamState, TrainerExited
from governor.ports import Processes
from governor.settings.settings_model import Jsonl
from governor.wire.jsonl import DEFAULT_FIELDS, field_map

LOOK_PERIOD_NS: Final = 5 * NS_PER_S  # A scan of /proc costs milliseconds; a pidfile changes once a launch.
PIDFILE_BYTES_MAX: Final = 64
PIDFILE_SLACK_S: Final = 2.0  # Of file systems that round times to seconds, and of clocks that are being slewed.

Table = Mapping[int, ProcessFacts]


@dataclass(frozen=True, slots=True)
class LeftAt:
    """What the journal knows of a stream: how far it had been read, and whose it was then."""

    position: Mapping[str, Any] | None
    processes: tuple[ProcessId, ...]


class Stream:
    """One `[[jsonl]]` entry: polls the file, and keeps telling which processes a halt would end.

    What was written while no governor ran is read, and judged as if it came now, when it is still the voice of a
    process that wrote it then. Otherwise (launched anew, or nobody was named) it is history, and only what comes from
    now on counts: a NaN of yesterday's launch must not end today's. Lines are judged once: the position is kept with
    the state of the rules, every ten seconds, and a crash takes both back to the same line.
    """

    def __init__(self, entry: Jsonl, processes: Processes, left_at: LeftAt | None = None) -> None:
        self._entry = entry
        self._processes = processes
        self._tail = JsonlTail(str(entry.path), entry.run, field_map(entry.fields) if entry.fields else DEFAULT_FIELDS)
        self._find = _finder(entry)
        self._named: tuple[ProcessId, ...] | None = None  # None until we could look.
        self._left_at = left_at or LeftAt(None, ())
        self._look_at = MonoNs(0)
        self._was_read = left_at is not None
        self._problem: str | None = None
        self._told: Position | None = None

    def poll(self, at: MonoNs) -> list[Event]:
        looked = self._look(at)
        if self._named is None:
            return looked  # Whose voice it is decides where to begin.
        read = self._tail.poll(at)
        return [*looked, *self._state(at), *read, *self._position(at)]

    def close(self) -> None:
        self._tail.close()

    def _state(self, at: MonoNs) -> list[Event]:
        """Say when the file becomes unreadable and when it is back. One not yet written by nobody is only awaited."""
        self._was_read = self._was_read or self._tail.status is None
        problem = self._tail.status if self._was_read or self._named else None
        if problem == self._problem:
            return []
        self._problem = problem
        return [StreamState(at, self._entry.run, problem)]

    def _position(self, at: MonoNs) -> list[Event]:
        position = self._tail.position
        if position is None or position == self._told:
            return []
        self._told = position
        return [StreamRead(at, self._entry.run, position.row())]

    def _look(self, at: MonoNs) -> list[Event]:
        if at < self._look_at:
            return []
        self._look_at = MonoNs(at + LOOK_PERIOD_NS)
        try:
            found = self._find(self._processes) if self._find is not None else ()
        except OSError:
            return []  # Out of descriptors: not seeing them is not their end.
        first, known = self._named is None, self._left_at.processes if self._named is None else self._named
        named = tuple(facts.process for facts in found)
        if not first and named == known:
            return []
        living = tuple(process for process in known or () if not self._processes.is_gone(process))
        if not found and living and not first:
            return []  # A pidfile that was removed or emptied: its process lives, and is still the run.
        self._named = named or living
        ended = [TrainerExited(at, self._entry.run, None)] if known and not self._named else []
        if ended and not first:
            return [*ended]
        if first:
            self._go_on()
        uid = found[0].uid if found else self._owner()
        entry = self._entry
        return [StreamOpened(at, entry.run, uid, entry.stage, dict(entry.labels), self._named), *ended]

    def _go_on(self) -> None:
        """Read on where a governor before us stopped, if one of the processes of then still writes."""
        left_at = Position.of(self._left_at.position)
        if left_at is not None and set(self._left_at.processes) & set(self._named or ()):
            self._tail.go_on(left_at)

    def _owner(self) -> int:
        try:
            return os.stat(self._entry.path).st_uid
        except OSError:
            return os.getuid()


def _finder(entry: Jsonl) -> Callable[[Processes], Sequence[ProcessFacts]] | None:
    named = entry.ended_by
    if named is None:
        return None
    how, value = named
    if how == "pidfile":
        return lambda processes: _by_pidfile(Path(value), processes)
    # A unit and a Slurm step are control groups too: their name is one part of the path.
    part = {"unit": value, "job": f"job_{value}", "cgroup": value.removeprefix("/sys/fs/cgroup").strip("/")}[how]
    return lambda processes: [f for f in processes.table().values() if f"/{part}/" in f"{f.cgroup.rstrip('/')}/"]


def _by_pidfile(path: Path, processes: Processes) -> Sequence[ProcessFacts]:
    try:
        with path.open("rb") as file:
            pid = int(file.read(PIDFILE_BYTES_MAX).split()[0])
            written_s = os.fstat(file.fileno()).st_mtime
    except (OSError, ValueError, IndexError):
        return []
    facts = processes.facts(pid) if pid > 1 else None
    if facts is None or _started_s(facts.process) > written_s + PIDFILE_SLACK_S:
        return []  # Gone; or younger than the file, so the number has changed hands since.
    return [facts]


def _started_s(process: ProcessId) -> float:
    """Wall time at which a process of this boot began, by the present clock. Set forward, it names nobody: safe."""
    since_boot_s = process.start_ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s
