"""What a person must know of a followed log: it cannot be read, is not there, is not understood, or lacks something."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from governor.adapters.trainers.understanding import Understanding
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Event, PhaseChange, Step
from governor.core.events.machine import SourceTrouble
from governor.core.events.streams import StreamState
from governor.settings.streams import JSONL, Jsonl
from governor.wire.formats import LineFormat

# A trace of a warning between two records is shorter.
UNREAD_MAX: Final = 20


@dataclass(slots=True)
class LogState:
    """Of one log. Each state is told when it begins, and once."""

    entry: Jsonl
    is_awaited: bool = False  # It is the launched command's: that it is not there is told, whoever is named.
    had_record: bool = False  # An earlier governor has understood something of the present attempt.
    was_read: bool = False
    problem: str | None = None  # As it was told.
    _is_foreign: bool = False
    _is_lack_told: bool = False
    _unread: int = 0  # Lines in a row.
    _fault: str = ""
    _is_unread_told: bool = False
    _was_judged: bool = False  # The launch that has ended last.
    understanding: Understanding = field(init=False)

    def __post_init__(self) -> None:
        self.understanding = self._begun()
        self.understanding.has_record = self.had_record

    def _begun(self) -> Understanding:
        name = None if self.entry.format == JSONL else self.entry.format
        return Understanding(format=name, by_option=self.entry.by_option)

    def new_launch(self) -> None:
        """It may write another log."""
        self._was_judged = self.understanding.has_record
        self.understanding = self._begun()
        self._unread, self._is_unread_told = 0, False

    def writers_are_named(self) -> None:
        """A launch has begun, and nothing of it was judged yet."""
        self._was_judged = False

    def see(self, line: bytes, found: Sequence[object], at: MonoNs) -> None:
        """Note a line, and what a RecordReader made of it."""
        self.understanding.see(line, found, at)
        if isinstance(found, list):
            self.skip(1, "; ".join(found))
        elif any(isinstance(event, Step | PhaseChange) for event in found):
            self._unread, self._is_unread_told = 0, False

    def skip(self, count: int, fault: str = "") -> None:
        """Note lines that could not be read."""
        self._unread += count
        self._fault = fault or self._fault

    def late(self, path: str) -> None:
        """`path` does not answer. The caller tells it."""
        self.problem, self._is_foreign = f"{path} does not answer", False

    def news(self, at: MonoNs, problem: str | None, *, is_named: bool) -> list[Event]:
        """What has become of it. `problem`: why it cannot be read now. `is_named`: somebody is said to write it.

        Without a process that is said to write it, a file that never was there is awaited.
        """
        self.was_read = self.was_read or problem is None
        if not self.was_read and problem is not None:
            is_absent = self.is_awaited and problem.endswith(os.strerror(errno.ENOENT))
            advice = "; name the file that the trainer writes" if is_absent else ""
            problem = f"{problem}{advice}" if self.is_awaited or is_named else None
        seen = self.understanding
        is_foreign = problem is None and ((self._is_foreign and not seen.has_record) or seen.is_foreign(at))
        if is_foreign and self._is_foreign:
            return self._row_unread(at)  # More such lines are no news.
        if is_foreign:
            problem = self._not_understood()
        told: list[Event] = []
        if problem != self.problem:
            self.problem, self._is_foreign = problem, is_foreign
            told.append(StreamState(at, self.entry.run, problem, is_foreign))
        return [*told, *self._row_unread(at)]

    def _not_understood(self) -> str:
        return f"{self.understanding.problem(str(self.entry.path))}; {self.understanding.advice()}"

    def _row_unread(self, at: MonoNs) -> list[Event]:
        """Tell once that a log which was understood no longer is."""
        if self._unread < UNREAD_MAX or self._is_unread_told or not self.understanding.has_record:
            return []
        self._is_unread_told = True
        why = f" ({self._fault})" if self._fault else ""
        text = (
            f"{self.entry.path}: the last {self._unread} lines could not be read{why}: what they say is not judged; "
            "look at what is written there"
        )
        return [SourceTrouble(at, self.entry.run, "lines_unread", text)]

    def lacks(self, at: MonoNs, text: LineFormat | None) -> list[Event]:
        """Tell once what a text log does not say of its tokens, and what to write."""
        lacks = text.missing() if text is not None and not self._is_lack_told else None
        if lacks is None or not self.understanding.has_record:
            return []
        self._is_lack_told = True
        return [SourceTrouble(at, self.entry.run, "tokens_read", f"{self.entry.path}: {lacks}")]

    def shortfall(self) -> str | None:
        """Of a log that is over: why nothing of it was judged, in one line. None: something was."""
        if self.understanding.has_record or (self._was_judged and not self.understanding.lines):
            return None
        if self.understanding.lines:
            return self._not_understood()
        return self.problem or f"{self.entry.path}: nothing was written to it"
