"""Trainers without the shim: each reports by the log that it writes, and its owner names its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final

from governor.adapters.trainers.deciders import Deciders, PidfileRead, stranger
from governor.adapters.trainers.jsonl_tail import Chunk, Position
from governor.adapters.trainers.log_readers import tail_of, text_log
from governor.adapters.trainers.log_state import LogState
from governor.adapters.trainers.named_groups import NamedProcesses
from governor.adapters.trainers.stream_files import Answerer, Asked, Seen, StreamFiles, StreamThread
from governor.adapters.trainers.unjudged import Unjudged
from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs, format_duration
from governor.core.events.inputs import Event, FramesLost, TrainerExited
from governor.core.events.machine import SourceTrouble
from governor.core.events.streams import StreamOpened, StreamRead, StreamState, WriterGone
from governor.core.halt.kill_set import managers
from governor.ports import Processes
from governor.settings.streams import Jsonl
from governor.wire.jsonl import DEFAULT_FIELDS, field_map
from governor.wire.records import RecordReader

# A scan of /proc costs milliseconds. A pidfile is looked at sooner: when it is written, and when its process has ended.
LOOK_PERIOD_NS: Final = 5 * NS_PER_S
# Some file systems round times to seconds, and clocks may be slewed.
PIDFILE_SLACK_S: Final = 2.0
# Longer than a busy file server takes, and soon enough for a person to act.
UNANSWERED_NS: Final = 5 * NS_PER_S


@dataclass(frozen=True, slots=True)
class SavedStream:
    """What the journal has of a stream: the position read, and the processes at that time."""

    position: Mapping[str, Any] | None
    processes: tuple[ProcessId, ...]
    has_record: bool = False  # Something of the present attempt was understood.


class Stream:
    """One `[[jsonl]]` entry: follows the log and reports which processes a halt would end.

    Lines written while no governor ran are judged as if they came now, if a process that wrote then still writes.
    Otherwise (a new launch, or no process is named) they are history and are skipped: yesterday's NaN must not end
    today's launch. Each line is judged once. The position is persisted with the state of the rules every ten seconds,
    so a crash takes both back to the same line.

    The files are looked at on a thread of the stream's own, one question at a time. A thread that a file server holds
    up is not replaced: its next answer comes when the server answers.
    """

    def __init__(
        self, entry: Jsonl, processes: Processes, saved: SavedStream | None = None,
        wake: Callable[[], None] = lambda: None, *,
        begin: Callable[[str, StreamFiles, Callable[[], None]], Answerer] = StreamThread,
        launches: bool = False,
    ) -> None:  # fmt: skip
        """`wake`: called from the thread when there is news for `take`. `begin`: how the thread is made.

        `launches`: a command is launched, which writes the log where nobody else is named. Nothing of an earlier launch
        is such a log's.
        """
        self._entry = entry
        self._processes = processes
        self._text = text_log(entry)
        pidfile = str(entry.pidfile) if entry.pidfile is not None else None
        self._files = StreamFiles(tail_of(entry), pidfile)
        self._thread = begin(f"stream {entry.run}", self._files, wake)
        fields = field_map(entry.fields) if entry.fields else DEFAULT_FIELDS
        self._lines = RecordReader(entry.run, fields, self._text)
        self._named: tuple[ProcessId, ...] | None = None  # None until the first look.
        self._managers: Set[ProcessId] = frozenset()
        self._uids: Mapping[ProcessId, int] = {}  # Of the named, as they were when they were named.
        self._saved_stream = saved or SavedStream(None, ())
        self._look_at = MonoNs(0)
        self._asked_at = MonoNs(0)
        self.unjudged = Unjudged(entry.run, str(entry.path))
        self._read_at = MonoNs(-1)  # When the last answered question was asked.
        is_commands = launches and entry.ended_by is None
        had_record = self._saved_stream.has_record and not is_commands
        self._state = LogState(entry, is_commands, had_record, was_read=saved is not None)
        self._distrust: str | None = None
        self._position_reported: Position | None = None
        self._untold: list[Event] = []
        self._is_late = False  # The present question has been reported to be unanswered.
        self._is_known = False  # The run has been reported.
        self._is_fresh = False  # Nothing that was written before this governor began is read.
        self._has_ended = False  # Its processes have, and the last of what they wrote is not read yet.
        self._was_over = False  # They had when the present question was asked: its answer has all that they wrote.
        self._opened_s = time.time()
        self._is_left = False  # A pidfile of this time names nobody any more, and what that one wrote may be unread.

    def begin(self, at: MonoNs) -> None:
        """Ask for the first look, which ends history. `wait` for it before anything is launched that may write."""
        self._ask(at)

    def wait(self, bound_s: float) -> None:
        self._thread.wait(bound_s)

    def has_read(self, since: MonoNs) -> bool:
        """Whether what was written before `since` has been read. Also true where nothing answers."""
        return self._is_late or self._read_at >= since

    def poll(self, at: MonoNs) -> list[Event]:
        """Take what is there and ask for more. Never waits."""
        events = self.take(at)
        if not self._thread.is_busy:
            self._ask(at)
        return [*events, *self.take(at)]

    def take(self, at: MonoNs) -> list[Event]:
        """What the thread has found since the last call."""
        seen = self._thread.take()
        if seen is None:
            return self._unanswered(at)
        self._is_late = False
        if seen.chunk.holds:
            self._was_over = False  # It has not all that they wrote.
        elif seen.is_read:
            self._read_at = self._asked_at
        was_left = self._is_left
        looked = self._look(at, seen) if seen.is_look else []
        if not seen.is_read:
            self._untold += looked
            if self._named is not None:
                # The process that writes the file decides where reading begins.
                self._ask(at)
            return self.take(at)
        dropped = self._distrust_log(at, seen.log_deciders)
        # A run opens before its lines, and ends behind them.
        events = [*self._told(at), *looked, *dropped]
        read = [*self._read(at, seen.chunk), *self._ended(at)]
        if was_left and self._is_left and not seen.chunk.lines and not seen.chunk.holds:
            self._is_left = False
            read.append(WriterGone(at, self._entry.run))
        state = self._state.news(at, seen.chunk.problem, is_named=bool(self._named))
        return [*events, *state, *read, *self.unjudged.see(at, seen.chunk)]

    def _told(self, at: MonoNs) -> list[Event]:
        """The run, once its reading has begun: a line that is written after it was seen is not history."""
        untold, self._untold = self._untold, []
        return [replace(event, at=at) for event in untold]

    def end(self, at: MonoNs) -> list[Event]:
        """Nobody writes it any more: what it has left open of its tokens, by the best reading there is."""
        return [*self._lines.end(at)]

    def shortfall(self) -> str | None:
        """Why nothing that it has read until now was judged, in one line. None: something was."""
        told = self._state.shortfall()
        return None if told is None else f"{self._entry.run}: nothing of its log was judged: {told}"

    def _ended(self, at: MonoNs) -> list[Event]:
        """The end of its processes, once all that they wrote is read: the money of their last step is training's."""
        return self._end_of_processes(at) if self._has_ended and self._was_over else []

    def _end_of_processes(self, at: MonoNs) -> list[Event]:
        self._has_ended = False
        self._new_launch()
        return [*self.end(at), TrainerExited(at, self._entry.run, None)]

    def _new_launch(self) -> None:
        self._state.new_launch()
        self._lines.new_launch()

    def close(self) -> None:
        self._thread.close()

    def _ask(self, at: MonoNs) -> None:
        is_look, is_read = at >= self._look_at or self._is_pidfiles_over(), self._named is not None
        if is_look:
            self._look_at = MonoNs(at + LOOK_PERIOD_NS)
        if is_look or is_read:
            self._asked_at, self._was_over = at, self._has_ended or self._is_pidfiles_over()
            self._thread.ask(Asked(is_look, is_read))

    def _is_pidfiles_over(self) -> bool:
        """Whether the process that a pidfile has named has ended. Those of a unit or a job come and go."""
        named = self._named if self._entry.pidfile is not None else None
        return bool(named) and all(self._processes.is_gone(process) for process in named or ())

    def _unanswered(self, at: MonoNs) -> list[Event]:
        """Report once that a path does not answer. Without its processes the run is known from then on."""
        if not self._thread.is_busy or self._is_late or at - self._asked_at < UNANSWERED_NS:
            return []
        self._is_late = True
        run, late = self._entry.run, format_duration(at - self._asked_at)
        path = self._files.busy_with
        self._state.late(path)
        ended = self._end_of_processes(at) if self._has_ended else []
        known = self._told(at) or ([] if self._is_known else [self._opened(at, os.geteuid(), ())])
        text = (
            f"{path} has not answered for {late}: run {run} is not watched until it does; look at what is mounted there"
        )
        state = StreamState(at, run, self._state.problem)
        return [*known, *ended, state, SourceTrouble(at, run, "stream_unanswered", text)]

    def _opened(self, at: MonoNs, uid: int, processes: tuple[ProcessId, ...]) -> StreamOpened:
        self._is_known = True
        entry, is_fresh = self._entry, self._is_fresh
        return StreamOpened(at, entry.run, uid, entry.stage, dict(entry.labels), processes, is_fresh=is_fresh)

    def _read(self, at: MonoNs, chunk: Chunk) -> list[Event]:
        events: list[Event] = []
        faulty = chunk.faulty
        self._state.skip(faulty)  # Where among the lines they stood is not known.
        for line in chunk.lines:
            found = self._lines.read_line(line, at)
            self._state.see(line, found, at)
            if isinstance(found, list):
                faulty += 1
            else:
                events += found
        events += self._state.lacks(at, self._text)
        if chunk.rivals is not None:
            events.append(SourceTrouble(at, self._entry.run, "stream_rivals", chunk.rivals))
        if faulty:
            events.append(FramesLost(at, None, faulty, f"{self._entry.path}: lines that could not be read"))
        if chunk.position is not None and chunk.position != self._position_reported:
            self._position_reported = chunk.position
            row = chunk.position.row()
            if epochs := self._lines.epochs.state():
                row["epochs"] = epochs
            if tokens := self._lines.tokens.state():
                row["tokens"] = tokens
            if self._text is not None:
                row["text"] = self._text.state()
            events.append(StreamRead(at, self._entry.run, row))
        return events

    # --- which processes a halt would end ------------------------------------------------------------------

    def _look(self, at: MonoNs, seen: Seen) -> list[Event]:
        try:
            found = self._find(seen)
        except OSError:
            return []  # Out of descriptors: not seeing the processes does not mean that they ended.
        trouble = self._judge_names(at, found, seen)
        if found:
            self._is_left = False
        elif not self._named and seen.is_pidfile_new:
            self._is_left = self._is_left or names_who_has_ended(seen.pidfile, self._opened_s, self._processes)
        if self._distrust is not None:
            return [*self._disown(at, seen.log_owner), *trouble]
        first, known = self._named is None, self._saved_stream.processes if self._named is None else self._named
        living = tuple(process for process in known or () if not self._processes.is_gone(process))
        named = tuple(facts.process for facts in found)
        if not first and named == known:
            return trouble
        if not found and living and not first:
            # The pidfile was removed or emptied. Its process lives and is still the run.
            return trouble
        self._named = named or living
        rows = found or [row for process in living if (row := self._processes.facts(process.pid)) is not None]
        self._uids = {row.process: row.uid for row in rows}
        if known and not self._named and not first:
            self._has_ended = True
            return trouble
        ended, settled = list[Event](), list[Event]()
        if known and not set(named) & set(known):
            settled = self.end(at) if named and not first else []
            self._new_launch()
        if first:
            ended += [TrainerExited(at, self._entry.run, None)] if known and not self._named else []
            ended += self._go_on(at)
        if self._has_ended:  # Another launch has begun before that was told.
            settled += self._end_of_processes(at)
        if not set(named) <= set(known or ()):
            self._state.writers_are_named()
        owner = os.geteuid() if seen.log_owner is None else seen.log_owner
        uid = found[0].uid if found else owner
        others = tuple(sorted({facts.uid for facts in found} - {uid}))
        opened = replace(self._opened(at, uid, self._named), other_uids=others)
        return [*settled, opened, *trouble, *ended]

    def _find(self, seen: Seen) -> Sequence[ProcessFacts]:
        how, value = self._entry.ended_by or (None, "")
        if how is None:
            return []
        if how == "pidfile":
            return named_by_pidfile(seen.pidfile, self._processes)
        table = self._processes.table()
        inside = NamedProcesses(how, value).inside(table)
        # A manager stays one when what it managed has ended before it.
        still = {facts.process for facts in inside} & self._managers
        self._managers = still | managers(table, inside, seen.log_owner)
        found = [facts for facts in inside if facts.process not in self._managers]
        # The run is its log's owner's, if one of the processes is.
        return sorted(found, key=lambda facts: facts.uid != seen.log_owner)

    def _judge_names(self, at: MonoNs, found: Sequence[ProcessFacts], seen: Seen) -> list[Event]:
        """Believe a pidfile and its log about processes of those who decide what they say, and about no others.

        Names of units, jobs and cgroups stand in the governor's own configuration: they are root's word.
        """
        before, self._distrust = self._distrust, None
        if seen.pidfile is not None and found:
            facts = found[0]
            for what, deciders in (("its pidfile", seen.pidfile.deciders), ("its log", seen.log_deciders)):
                self._distrust = self._distrust or distrust(facts.process, facts.uid, what, deciders)
        if self._distrust is None or self._distrust == before:
            return []
        return [SourceTrouble(at, self._entry.run, "stream_untrusted", self._distrust)]

    def _distrust_log(self, at: MonoNs, deciders: Deciders) -> list[Event]:
        """Forget the named before a line of a log is judged that others than they may have put there since."""
        if self._entry.pidfile is None or not self._named:
            return []
        told = (distrust(process, uid, "its log", deciders) for process, uid in self._uids.items())
        self._distrust = next((text for text in told if text is not None), None)
        if self._distrust is None:
            return []
        return [*self._disown(at, None), SourceTrouble(at, self._entry.run, "stream_untrusted", self._distrust)]

    def _disown(self, at: MonoNs, log_owner: int | None) -> list[Event]:
        """Name nobody, also nobody who was named before. The run is not said to have ended."""
        if self._named == ():
            return []
        self._named, self._uids = (), {}
        uid = os.geteuid() if log_owner is None else log_owner
        return [replace(self._opened(at, uid, ()), is_distrusted=True)]

    def _go_on(self, at: MonoNs) -> list[Event]:
        """Continue where an earlier governor stopped, if one of the processes of that time still writes.

        Else what it had left open of that log's tokens is settled now.
        """
        row = self._saved_stream.position or {}
        saved = Position.of(self._saved_stream.position)
        self._lines.tokens.resume(row.get("tokens"))
        if saved is not None and set(self._saved_stream.processes) & set(self._named or ()):
            self._files.tail.go_on(saved)
            self._lines.epochs.resume(row.get("epochs"))
            if self._text is not None and isinstance(told := row.get("text"), Mapping):
                self._text.resume(told)
            return []
        self._is_fresh = True
        return self.end(at)


def named_by_pidfile(read: PidfileRead | None, processes: Processes) -> Sequence[ProcessFacts]:
    facts = processes.facts(read.pid) if read is not None else None
    if read is None or facts is None or _started_s(facts.process) > read.written_s + PIDFILE_SLACK_S:
        # The process is gone, or it is younger than the file, so its pid was reused.
        return []
    return [] if processes.is_gone(facts.process) else [facts]


def names_who_has_ended(read: PidfileRead | None, opened_s: float, processes: Processes) -> bool:
    """Whether a pidfile that was written since `opened_s` (wall time) names a process that is gone, and nobody's since.

    One of an earlier launch says nothing about this one. Nor does one that is absent, or whose number is another's.
    """
    if read is None or read.written_s + PIDFILE_SLACK_S < opened_s:
        return False
    facts = processes.facts(read.pid)
    return facts is None or (_started_s(facts.process) <= read.written_s and processes.is_gone(facts.process))


def distrust(process: ProcessId, uid: int, what: str, deciders: Deciders) -> str | None:
    """Why this process is not believed to be the run's, and what to do. None: it is."""
    found = stranger(uid, deciders)
    if found is None:
        return None
    who, place = found
    whose = f"is decided by uid {who} ({place})" if who >= 0 else f"is {place}"
    return (
        f"pid {process.pid} of uid {uid} is not ended by a halt: {what} {whose}; have root or uid {uid} alone own and "
        "write it and its directories, or name the processes by unit, cgroup or job"
    )


def _started_s(process: ProcessId) -> float:
    """Wall time at which a process of this boot began, by the present clock.

    A clock that was set forward makes the process look younger than its pidfile, so no process is named: safe.
    """
    since_boot_s = process.start_ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s
