"""What of a followed log no rule has judged: it was gone before it was read, or the command ended first."""

from __future__ import annotations

from governor.adapters.trainers.jsonl_tail import Chunk
from governor.core.base.units import MonoNs
from governor.core.events.inputs import Event
from governor.core.events.machine import SourceTrouble

ALARM = "log_unjudged"


def emptied(at: MonoNs, run: str, path: str) -> SourceTrouble:
    """The command has cut off its own output. How much it printed since the last look nobody knows."""
    text = (
        f"{path}: the command has emptied its own output, as `> /dev/stderr` does to a file: lines that it printed up "
        "to half a second before may be lost, neither shown nor judged; write `>&2` there, or have a log file watched"
    )
    return SourceTrouble(at, run, ALARM, text)


class Unjudged:
    """Of one log. Its alarm is told again when twice as much is gone: a burst is one or two lines, not thousands."""

    def __init__(self, run: str, path: str) -> None:
        self._run, self._path = run, path
        self._gone = self._told = self._unread = 0

    def see(self, at: MonoNs, chunk: Chunk) -> list[Event]:
        self._gone += chunk.gone
        self._unread = chunk.unread
        if self._gone == 0 or self._gone < 2 * self._told:
            return []
        self._told = self._gone
        text = (
            f"{self._path}: {self._gone} bytes were freed or cut off before they were read, so what they said is not "
            "judged: more came at once than is followed; have the trainer write a log of its steps alone"
        )
        return [SourceTrouble(at, self._run, ALARM, text)]

    def end(self, at: MonoNs) -> list[Event]:
        """The command has ended, and nobody reads on."""
        return [SourceTrouble(at, self._run, ALARM, self.line)] if self._unread and self.line is not None else []

    @property
    def line(self) -> str | None:
        """What to say at the end. None: all was judged."""
        if not self._unread and not self._gone:
            return None
        parts = (
            f"{self._gone} bytes were freed or cut off before they were read" if self._gone else "",
            f"{self._unread} bytes were not read when the command had ended" if self._unread else "",
        )
        return f"{self._path}: {' and '.join(filter(None, parts))}: nothing of them was judged"
