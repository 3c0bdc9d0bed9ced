"""A table of metrics in CSV: a header, and rows that are appended below it.

Lightning's CSVLogger writes the whole file again, under more columns, when a metric is new; others write it again at
each epoch. So of a file that begins anew only those rows are news that come after the last one that was told.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from governor.core.base.units import read_float
from governor.wire.files.cutter import Read, line_of
from governor.wire.files.lines import LINE_BYTES_MAX, Lines
from governor.wire.jsonl import DEFAULT_FIELDS

COLUMNS_MAX: Final = 4_096
# Lines of one row: a quoted cell may have several. Behind as many, the first is torn.
ROW_LINES_MAX: Final = 16
# The header that goes into the journal. A longer one is read from the file again.
HEADER_KEPT_CHARS: Final = 16 * 1024
# Looks, a quarter of a second apart, at the end of a file that was written again, without the last row that was told.
# Whoever writes it again is done by then, so it is another table.
LOOKS_FOR_LAST_ROW: Final = 4
_LAST_BYTES: Final = 64 * 1024
# Such a line is of a row with more cells than there are names.
TOO_WIDE: Final = b"row: "
_FLAGS: Final = {"true": True, "false": False}
_NAMES: Final = frozenset(name for names in DEFAULT_FIELDS.values() for name in names)


# What csv.reader makes of quotes, in one pass. Each line is looked at once as the begin of a row and once as what a
# quoted cell goes on with, however many rows in vain it is taken for.
_INSIDE: Final = rb'(?:[^"]++|"")*+'
_CELL: Final = rb'(?:"' + _INSIDE + rb'"|[^",\r][^,\r]*+|)'
_OPENS: Final = re.compile(rb"(?:" + _CELL + rb',)*+"' + _INSIDE)
_GOES_ON: Final = re.compile(_INSIDE + rb'(?:",(?:' + _CELL + rb',)*+"' + _INSIDE + rb")?")
_CLOSES: Final = re.compile(_INSIDE + rb'"(?:,' + _CELL + rb")*+\r*+")


class _Line:
    """A line of a table, and what its quotes do."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._bare = text.removeprefix(codecs.BOM_UTF8)

    @cached_property
    def opens(self) -> bool:
        """Whether a row that begins with it goes on in the next line."""
        return _OPENS.fullmatch(self._bare) is not None

    @cached_property
    def goes_on(self) -> bool:
        """Whether a quoted cell of the line before goes on behind this one, or another one does."""
        return _GOES_ON.fullmatch(self._bare) is not None

    @cached_property
    def closes(self) -> bool:
        """Whether a row whose quoted cell was open ends with it."""
        return _CLOSES.fullmatch(self._bare) is not None


class Rows:
    """`Cutter` of a CSV file."""

    head_bytes = 16 * 1024  # A metric that is new may come behind many others.
    ahead = 0
    problem: str | None = None

    def __init__(self) -> None:
        self._lines = Lines()
        self._faulty = 0
        self._header: list[str] = []
        self._open: list[_Line] = []  # Lines of a row whose quoted cell goes on.
        self._first = ""  # Digest of the file's first row.
        self._last_digest = ""  # Of the last one that was told, or was told before this reader came.
        self._last_row: dict[str, str] | None = None
        self._is_first = True  # The next row is the file's first.
        self._seeks = False  # Rows up to the last one that was told are no news.
        self._looks = 0
        self.wants_begin = False

    @property
    def faulty(self) -> int:
        return self._faulty + self._lines.faulty

    @property
    def is_past(self) -> bool:
        return self._lines.is_past

    @property
    def holds(self) -> bool:
        return self._seeks

    @property
    def behind(self) -> int:
        return self._lines.behind + sum(len(line.text) + 1 for line in self._open)

    def begin(self, end: int, read: Read) -> int:
        self._read_begin(read, end)
        last = read(min(end, _LAST_BYTES), max(0, end - _LAST_BYTES)).split(b"\n")[:-1]
        if len(last) > 1:
            self._know(self._digest_of(last[-1]))
        self._is_first = not self._header
        return self._lines.begin(end, read)

    def _read_begin(self, read: Read, end: int) -> None:
        """The header and the first row, if the first `end` bytes have them whole."""
        whole = read(min(end, LINE_BYTES_MAX), 0).split(b"\n")[:-1]
        if whole:
            self._header = _cells([whole[0]])
        self._first = self._digest_of(whole[1]) if len(whole) > 1 else ""

    def anew(self) -> None:
        """Of a table of which a row was told, seek that row; the second time, tell them all."""
        self._lines.anew()
        self._seeks = bool(self._last) and not self.wants_begin
        self._know(self._last if self._seeks else "")
        if not self._seeks:
            self._first = ""
        self._header, self._open, self._looks = [], [], 0
        self._is_first, self.wants_begin = True, False

    def give(self, data: bytes) -> list[bytes]:
        return [told for line in self._lines.give(data) for cells in self._rows(line) for told in self._see(cells)]

    def is_cut_off(self, line: bytes) -> bool:
        """Whether a line, which is not given yet, has fewer cells than names: of a line without an end it is a part."""
        return not self._open and b'"' not in line and 0 < len(_cells([line])) < len(self._header)

    def _rows(self, line: bytes) -> Iterator[list[str]]:
        """The cells of the rows that end with this line. A row that is torn, or is none, is left out by its lines."""
        if not self._open and b'"' not in line:
            if cells := _cells([line]):
                yield cells
            else:
                self._faulty += bool(line.strip())
            return
        waiting = [_Line(line)]
        while waiting:
            one = waiting.pop()
            goes_on = one.goes_on if self._open else one.opens
            self._open.append(one)
            if goes_on and len(self._open) < ROW_LINES_MAX:
                continue  # A quoted cell goes on.
            is_row = not goes_on and (len(self._open) == 1 or one.closes)
            if is_row and (cells := _cells([each.text for each in self._open])):
                self._open = []
                yield cells
                continue
            first, *after = self._open
            self._faulty += bool(first.text.strip())
            self._open = []
            waiting += reversed(after)

    def _see(self, cells: list[str]) -> list[bytes]:
        # A trainer that was launched again may write its header below what was there.
        if not self._header or self._is_again(cells) or is_header(cells):
            self._header = [cell.strip() for cell in cells[:COLUMNS_MAX]]
            return []
        if len(cells) > len(self._header):
            # Said as it is, so that a file of other things is seen to be none of rows.
            return [TOO_WIDE + ",".join(cells).encode("utf-8", "replace")]
        row = {name: cell for name, cell in zip(self._header, cells, strict=False) if cell}
        if self._is_first:
            self._is_first, digest = False, _digest(row)
            if self._seeks and self._first and digest != self._first:
                self._seeks = False  # Another table.
            self._first = digest
        if self._seeks:
            self._seeks = _digest(row) != self._last
            return []
        self._last_row = row
        return [line_of({name: value_of(cell) for name, cell in row.items()})] if row else []

    def _is_again(self, cells: list[str]) -> bool:
        return cells[0].strip() == self._header[0] and [cell.strip() for cell in cells] == self._header

    @property
    def _last(self) -> str:
        """The digest of the last row that was told."""
        return self._last_digest if self._last_row is None else _digest(self._last_row)

    def _know(self, last: str) -> None:
        self._last_digest, self._last_row = last, None

    def _digest_of(self, line: bytes) -> str:
        cells = _cells([line])
        return _digest({name: cell for name, cell in zip(self._header, cells, strict=False) if cell})

    def leave_out(self, count: int) -> None:
        assert count == 0

    def drop(self) -> int:
        return 0

    def at_end(self, *, grew: bool) -> list[bytes]:
        if self._seeks:
            self._looks += 1
            self.wants_begin = self._looks >= LOOKS_FOR_LAST_ROW
        return []

    def rest(self) -> list[bytes]:
        self._faulty += bool(self._open)
        self._open = []
        return self._lines.rest()

    def state(self) -> dict[str, Any] | None:
        header = self._header if sum(map(len, self._header)) <= HEADER_KEPT_CHARS else None
        return {"header": header, "first": self._first, "last": self._last, "seeks": self._seeks}

    def go_on(self, offset: int, state: Mapping[str, Any], read: Read) -> int:
        if "last" not in state:
            return self.begin(offset, read)
        self._open, self._looks, self.wants_begin = [], 0, False
        self._read_begin(read, offset)
        header = state.get("header")
        if isinstance(header, list) and header and all(isinstance(name, str) for name in header):
            self._header = header[:COLUMNS_MAX]
        first, last = state.get("first"), state.get("last")
        self._first = first if isinstance(first, str) else self._first
        self._know(last if isinstance(last, str) else "")
        self._is_first, self._seeks = not self._first, state.get("seeks") is True
        return self._lines.begin(offset, read)


def is_header(cells: Sequence[str]) -> bool:
    """Whether these are names alone, and one of them is usual in a log of training."""
    if any(not cell or type(value_of(cell)) is not str for cell in cells):
        return False
    return not _NAMES.isdisjoint(cell.strip() for cell in cells)


def _cells(lines: Sequence[bytes]) -> list[str]:
    """The cells of a row. [] for what is no row, or not all of one."""
    texts = [line.decode("utf-8-sig", "replace") + "\n" for line in lines]
    try:
        return next(csv.reader(texts, strict=True), [])
    except csv.Error:
        return []


def _digest(row: Mapping[str, str]) -> str:
    """Of what a row says, under whatever columns it stands. "" for nothing."""
    told = "\0".join(sorted(f"{name}={cell}" for name, cell in row.items()))
    return hashlib.blake2b(told.encode("utf-8", "replace"), digest_size=12).hexdigest() if row else ""


def value_of(cell: str) -> float | bool | str:
    """What a cell of a log says: a number, a flag, or the text that it is."""
    try:
        return read_float(cell)
    except ValueError:
        return _FLAGS.get(cell.lower(), cell)
