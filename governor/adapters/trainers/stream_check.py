"""What `costgov doctor` says of one `[[jsonl]]` entry: a look at its files that waits for nobody."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from governor.adapters.machine.regular_file import NotRegularError
from governor.adapters.trainers.deciders import Walk, read_pidfile
from governor.adapters.trainers.log_directory import rivals_text
from governor.adapters.trainers.log_readers import cutter_of, directory_of, text_log
from governor.adapters.trainers.streams import distrust, named_by_pidfile
from governor.adapters.trainers.understanding import Understanding
from governor.core.base.units import MonoNs
from governor.ports import Processes
from governor.settings.streams import JSONL, Jsonl
from governor.wire import files
from governor.wire.jsonl import field_map
from governor.wire.records import RecordReader

# A file server that takes longer would hold up the watch as well.
ANSWER_S: Final = 3.0
# The begin shows what a log is, its end what is written now.
PART_BYTES: Final = 64 * 1024
# Of formats that are read from their begin, which may have pictures and configurations before the first step.
CUT_BYTES: Final = 256 * 1024
CUT_READS: Final = 8
# Two files of one directory that were written since then have two writers.
AT_A_TIME_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a stream is not watched, or its processes not ended, and what to do."""

    text: str
    advice: str


@dataclass(slots=True)
class StreamCheck:
    """One look. `is_there`: whether the log exists already."""

    entry: Jsonl
    processes: Processes
    is_there: bool = False
    faults: tuple[Fault, ...] = ()
    _busy_with: str = ""
    _done: list[list[Fault]] = field(default_factory=list)

    def run(self) -> None:
        thread = threading.Thread(target=self._look, name="doctor", daemon=True)
        thread.start()
        thread.join(ANSWER_S)
        if self._done:
            self.faults = tuple(self._done[0])
        else:
            text = f"{self._busy_with} does not answer within {ANSWER_S:g} s"
            self.faults = (Fault(text, "look at what is mounted there: the run would be unwatched"),)

    def _look(self) -> None:
        self._done.append([*self._log_faults(), *self._pidfile_faults()])

    def _log_faults(self) -> Iterator[Fault]:
        path = self._busy_with = str(self.entry.path)
        directory = directory_of(self.entry)
        try:
            found = directory.here(time.time() - AT_A_TIME_S) if directory is not None else (path,)
        except OSError as error:
            yield Fault(f"{path}: {error.strerror}", _READ)
            return
        if not found:
            return  # The trainer's first file is waited for.
        if len(found) > 1:
            told, _, advice = rivals_text(path, found).partition("; ")
            yield Fault(told, advice)
        path = found[0]
        fd = _opened(path, Walk(), "", "name the file that the trainer writes")
        if not isinstance(fd, int):
            yield from fd
            return
        self.is_there = True
        try:
            yield from self._understood(path, fd)
        except OSError as error:
            yield Fault(f"{path}: {error.strerror}", _READ)
        finally:
            os.close(fd)

    def _understood(self, path: str, fd: int) -> Iterator[Fault]:
        text = text_log(self.entry)
        reader = RecordReader(self.entry.run, field_map(self.entry.fields), text)
        name = None if self.entry.format == JSONL else self.entry.format
        understanding = Understanding(format=name, by_option=self.entry.by_option)
        size = os.fstat(fd).st_size
        if self.entry.format in files.NAMES:
            yield from self._cut(path, fd, reader, understanding)
            return
        begins = (0,) if size <= PART_BYTES else (0, max(PART_BYTES, size - PART_BYTES))
        for begin in begins:
            lines = os.pread(fd, PART_BYTES, begin).split(b"\n")
            whole = lines[1 if begin else 0 : -1]  # A part's first and last line may be torn.
            for line in whole:
                understanding.see(line, reader.read_line(line, MonoNs(0)), MonoNs(0))
        if understanding.is_foreign_at_a_look(is_whole=size <= 2 * PART_BYTES):
            yield Fault(understanding.problem(path), understanding.advice())

    def _cut(self, path: str, fd: int, reader: RecordReader, understanding: Understanding) -> Iterator[Fault]:
        """Of a format that is read from its begin."""
        cutter = cutter_of(self.entry)
        cutter.anew()
        at, told = 0, list[bytes]()
        for _ in range(CUT_READS):
            data = os.pread(fd, CUT_BYTES, at)
            told += cutter.give(data)
            at += len(data) + cutter.ahead
            cutter.leave_out(cutter.ahead)
            if not data or cutter.problem is not None:
                break
        problem = cutter.problem
        for line in (*told, *cutter.rest()):
            understanding.see(line, reader.read_line(line, MonoNs(0)), MonoNs(0))
        if problem is not None:
            yield Fault(f"{path}: {problem}", "name a log of that format, or say in format what this one is")
        elif understanding.is_foreign_at_a_look(is_whole=True):
            yield Fault(understanding.problem(path), understanding.advice())

    def _pidfile_faults(self) -> Iterator[Fault]:
        if self.entry.pidfile is None:
            return
        path = self._busy_with = str(self.entry.pidfile)
        fd = _opened(path, Walk(), ", so it names nobody", "have the launcher write its pid there")
        if not isinstance(fd, int):
            yield from fd
            return
        os.close(fd)
        log, read = Walk(), read_pidfile(path)
        for facts in named_by_pidfile(read, self.processes):
            try:
                os.close(log.open_regular(str(self.entry.path)))
            except OSError:
                pass  # Its directories are known all the same.
            for what, deciders in (("its pidfile", read.deciders if read else {}), ("its log", log.deciders)):
                text = distrust(facts.process, facts.uid, what, deciders)
                if text is not None:
                    told, _, advice = text.partition("; ")
                    yield Fault(told, advice)
                    return


_READ: Final = "give the governor's user read access"


def _opened(path: str, walk: Walk, so: str, advice: str) -> int | tuple[Fault, ...]:
    """A descriptor, or what is wrong with the file; nothing is, if it does not exist yet."""
    try:
        return walk.open_regular(path)
    except FileNotFoundError:
        return ()
    except NotRegularError:
        return (Fault(f"{path}: not a regular file{so}", advice),)
    except OSError as error:
        return (Fault(f"{path}: uid {os.geteuid()} may not read it: {error.strerror}", _READ),)
