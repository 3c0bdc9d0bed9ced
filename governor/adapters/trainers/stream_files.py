"""What a stream's thread does: it looks at the files of one `[[jsonl]]` entry, one question at a time.

All of it may wait for a file server. Nothing here is called by the governor's loop, except `busy_with`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from governor.adapters.trainers.deciders import Deciders, PidfileRead, read_pidfile
from governor.adapters.trainers.jsonl_tail import Chunk, JsonlTail
from governor.adapters.trainers.log_directory import DirectoryTail

# How long an idle thread may take to close its file.
CLOSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Asked:
    """`is_look`: also the pidfile, and who decides what both files say. `is_read`: the log's new lines."""

    is_look: bool
    is_read: bool


@dataclass(frozen=True, slots=True)
class Seen:
    is_look: bool
    is_read: bool
    pidfile: PidfileRead | None
    log_owner: int | None
    log_deciders: Deciders
    chunk: Chunk
    is_news: bool
    is_pidfile_new: bool = False  # It was written since the question before.


# What tells that a pidfile was written: device, inode, size and time. None: there is none.
_Mark = tuple[int, int, int, int] | None


class StreamFiles:
    """The files of one stream, as its thread sees them.

    A pidfile that was written since the last question is read with this one. Its process may not live long.
    """

    def __init__(self, tail: JsonlTail | DirectoryTail, pidfile: str | None) -> None:
        self.tail = tail
        self.busy_with = tail.path  # Read by the loop, to tell what does not answer.
        self._pidfile = pidfile
        self._problem: str | None = None
        self._mark: _Mark = None  # Of the pidfile, as it was read last.
        self._is_first = True

    def answer(self, asked: Asked) -> Seen:
        found, owner = None, None
        is_first, self._is_first = self._is_first, False
        is_written = self._is_pidfile_written()
        is_look = asked.is_look or is_written
        if is_look and self._pidfile is not None:
            found = read_pidfile(self._pidfile)
        self.busy_with = self.tail.path
        if not asked.is_read:
            self.tail.begin()
        if is_look:
            self.tail.trace()
            owner = self.tail.owner
        chunk = self.tail.read() if asked.is_read else Chunk()
        is_told = bool(chunk.lines or chunk.faulty or chunk.rivals) or chunk.problem != self._problem
        is_news = not asked.is_read or is_written or is_told
        self._problem = chunk.problem
        return Seen(
            is_look, asked.is_read, found, owner, dict(self.tail.deciders), chunk, is_news,
            is_pidfile_new=is_written and not is_first,
        )  # fmt: skip

    def _is_pidfile_written(self) -> bool:
        """Note the pidfile as it is now. It is read after that: what is written meanwhile is seen next time."""
        if self._pidfile is None:
            return False
        self.busy_with = self._pidfile
        before, self._mark = self._mark, _mark(self._pidfile)
        return self._mark not in (None, before)

    def close(self) -> None:
        self.tail.close()


def _mark(path: str) -> _Mark:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


class Answerer(Protocol):
    """Who answers a stream's questions. A test may answer at once."""

    @property
    def is_busy(self) -> bool:
        """Whether a question is unanswered, or its answer not taken."""

    def ask(self, asked: Asked) -> None: ...

    def wait(self, bound_s: float) -> None:
        """Wait until the question is answered, at most so long."""

    def take(self) -> Seen | None: ...

    def close(self) -> None: ...


@dataclass
class StreamThread:
    """Answers one question at a time, on a thread that begins with the first. At most one answer waits to be taken."""

    name: str
    files: StreamFiles
    wake: Callable[[], None]
    is_busy: bool = False
    _questions: queue.SimpleQueue[Asked | None] = field(default_factory=queue.SimpleQueue)
    _answers: queue.SimpleQueue[Seen] = field(default_factory=queue.SimpleQueue)
    _answered: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def ask(self, asked: Asked) -> None:
        assert not self.is_busy
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._go_on, name=self.name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # No thread can be started; the next poll tries again.
                return
            self._thread = thread
        self.is_busy = True
        self._answered.clear()
        self._questions.put(asked)

    def wait(self, bound_s: float) -> None:
        if self.is_busy:
            self._answered.wait(bound_s)

    def take(self) -> Seen | None:
        try:
            seen = self._answers.get_nowait()
        except queue.Empty:
            if self._thread is not None and not self._thread.is_alive():
                self.is_busy = False  # Its fault was printed. The next question starts another thread.
            return None
        self.is_busy = False
        return seen

    def close(self) -> None:
        """End the thread. One that a file server holds up is left: it does not keep the process."""
        self._questions.put(None)
        if self._thread is not None and not self.is_busy:
            self._thread.join(CLOSE_S)

    def _go_on(self) -> None:
        with contextlib.closing(self.files):
            while (asked := self._questions.get()) is not None:
                seen = self.files.answer(asked)
                self._answers.put(seen)
                self._answered.set()
                if seen.is_news:
                    self.wake()
