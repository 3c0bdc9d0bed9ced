"""Lines, each of them a record: JSONL, and the consoles of trainers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.wire.files.cutter import HEAD_BYTES, Read

LINE_BYTES_MAX: Final = 256 * 1024  # The longest real metrics line we know is 40 kB (a histogram).


class Lines:
    """`Cutter` of lines. It tells them as they are."""

    head_bytes = HEAD_BYTES
    ahead = 0
    wants_begin = holds = False
    problem: str | None = None

    def __init__(self, *, is_console: bool = False) -> None:
        """`is_console`: a progress bar ends its lines with a carriage return alone."""
        self.faulty = 0
        self._ends = (b"\n", b"\r") if is_console else (b"\n",)
        self._partial = b""
        self._oversized = False  # Inside a line that is too long: skip to its end.

    @property
    def behind(self) -> int:
        return len(self._partial)

    @property
    def is_past(self) -> bool:
        return self._oversized

    def begin(self, end: int, read: Read) -> int:
        # Reading begins inside a line, whose first half is history.
        self._partial, self._oversized = b"", end > 0 and read(1, end - 1) not in self._ends
        return end

    def anew(self) -> None:
        self._partial, self._oversized = b"", False

    def give(self, data: bytes) -> list[bytes]:
        text = self._partial + data
        for end in self._ends[1:]:
            text = text.replace(end, b"\n")
        *lines, partial = text.split(b"\n")
        if lines and self._oversized:
            lines.pop(0)  # The end of the line that is being skipped.
            self._oversized = False
        if self._oversized or len(partial) > LINE_BYTES_MAX:
            if not self._oversized:
                self.faulty += 1
            self._oversized = True
            partial = b""
        self._partial = partial
        if b"\0" in text:  # A machine that lost power leaves zeros, and the next line behind them.
            lines = [line.lstrip(b"\0") or line for line in lines]
        self.faulty += sum(len(line) > LINE_BYTES_MAX for line in lines)
        return [line for line in lines if len(line) <= LINE_BYTES_MAX]

    def leave_out(self, count: int) -> None:
        assert count == 0

    def drop(self) -> int:
        return 0

    def at_end(self, *, grew: bool) -> list[bytes]:
        return []

    def rest(self) -> list[bytes]:
        self.faulty += bool(self._partial)
        self.anew()
        return []

    def state(self) -> None:
        return None

    def go_on(self, offset: int, state: Mapping[str, Any], read: Read) -> int:
        return self.begin(offset, read)
