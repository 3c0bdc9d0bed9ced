"""Reads CSV files with a header, in bounded memory. Each error is a line that names file, row and column."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache, partial
from typing import IO, Final, TypeVar

from governor.core.base.printable import cut, printable
from governor.core.base.secrets import redacted
from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, parse_utc

T = TypeVar("T")
GZIP_MAGIC: Final = b"\x1f\x8b"
# A bill's row has some thousand characters. Of a file that is none, a "row" may be all of it.
ROW_CHARS_MAX: Final = 1024 * 1024
COLUMNS_MAX: Final = 4_096  # A CUR report with a column for each of a thousand tags has a quarter of it.
COLUMNS_SHOWN: Final = 10
SHOWN_CHARS_MAX: Final = 40  # Of a name or a cell.
_TEXT_CHARS_MAX: Final = 600


class TableError(Exception):
    """The message is one line: file, row, column if known, what is wrong."""

    def __init__(self, file: str, text: str, *, row: int | None = None, column: str | None = None) -> None:
        place = f"{file}:{row}" if row is not None else file
        said = cut(text, _TEXT_CHARS_MAX)
        # A cell that is repeated may hold anything.
        super().__init__(
            printable(f"{place}: {cut(column, SHOWN_CHARS_MAX)}: {said}" if column else f"{place}: {said}")
        )


class RowTooLongError(ValueError):
    """The message is the reason alone."""


class RowLines:
    """The lines that a reader of CSV takes. Those of one row are bounded in all: a quoted cell may have many."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._chars = 0

    def __iter__(self) -> RowLines:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self._chars += len(line)
        if self._chars > ROW_CHARS_MAX:
            raise RowTooLongError(f"a row of more than {ROW_CHARS_MAX:,} characters: this is no table")
        return line

    def begin_row(self) -> None:
        self._chars = 0


@contextmanager
def opened_csv(stream: io.RawIOBase, file: str) -> Iterator[CsvTable]:
    """The table in a raw stream, which is closed with it: UTF-8 with or without a byte order mark, or gzip."""
    with io.BufferedReader(stream) as data:
        is_packed = data.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)  # A pipe cannot be rewound.
        plain = gzip.GzipFile(fileobj=data) if is_packed else data
        with io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as text:
            yield CsvTable(text, file)


class CsvTable:
    """`columns`, and `rows()`, which runs once. A row is the number of its last line and its cells by column."""

    def __init__(self, text: IO[str], file: str) -> None:
        """Read the header."""
        self.file = file
        self._lines = RowLines(iter(partial(text.readline, ROW_CHARS_MAX + 1), ""))
        self._reader = csv.reader(self._lines, strict=True)
        first = next(self._read(), None)
        if first is None:
            raise TableError(file, "the file is empty")
        if len(first[1]) > COLUMNS_MAX:
            raise TableError(file, f"{len(first[1]):,} columns, and no bill has more than {COLUMNS_MAX:,}", row=1)
        self.columns = [name.strip() for name in first[1]]
        seen: set[str] = set()
        for name in self.columns:
            if name in seen:
                raise TableError(file, "this column stands there twice", row=1, column=redacted([name])[0])
            seen.add(name)

    def columns_text(self) -> str:
        """What it has, for an error: not the whole first line, which in another kind of file may be a secret."""
        if len(self.columns) == 1:
            return "its first line is one column: are its cells separated by commas?"
        shown = ", ".join(cut(name, SHOWN_CHARS_MAX) for name in redacted(self.columns[:COLUMNS_SHOWN]))
        more = len(self.columns) - COLUMNS_SHOWN
        return f"it has {shown}{f' and {more:,} more' if more > 0 else ''}"

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the rows. Raises `TableError` at the first malformed row, and at the end if there was no row."""
        for number, cells in self.lists():
            yield number, dict(zip(self.columns, cells, strict=True))

    def lists(self) -> Iterator[tuple[int, list[str]]]:
        """The rows as lists of cells, in the order of the columns. Raises as `rows` does."""
        count = 0
        for number, cells in self._read():
            if len(cells) != len(self.columns):
                text = f"{len(cells)} cells under {len(self.columns)} columns"
                raise TableError(self.file, text, row=number)
            count += 1
            yield number, cells
        if count == 0:
            raise TableError(self.file, "a header and no row")

    def _read(self) -> Iterator[tuple[int, list[str]]]:
        """Rows that are not blank. The reader decodes ahead, so a bad byte lies in the named row or soon after it."""
        try:
            for cells in self._reader:
                self._lines.begin_row()
                if cells:
                    yield self._reader.line_num, cells
        except UnicodeDecodeError as error:
            text = f"not UTF-8 (byte 0x{error.object[error.start]:02x}, in this row or soon after)"
            raise TableError(self.file, text, row=self._reader.line_num + 1) from None
        except RowTooLongError as error:
            raise TableError(self.file, str(error), row=self._reader.line_num + 1) from None
        except csv.Error as error:
            raise TableError(self.file, str(error), row=self._reader.line_num) from None
        except (OSError, EOFError, zlib.error) as error:
            raise TableError(self.file, f"cannot be read: {error}") from None


# Dollars or units. A larger number is of another kind.
AMOUNT_MAX: Final = 10**15
NUMBER_CHARS_MAX: Final = 100  # Python writes out and reads no integer of more than 4,300 digits.
# Years that a journal's nanoseconds can hold. Before the first and from the last on is no time of a bill.
YEARS: Final = (1970, 2262)
_FIRST, _LAST = (parse_utc(f"{year}-01-01") for year in YEARS)
_DIGIT: Final = re.compile("[0-9]")
_NUMBER: Final = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?", re.ASCII)
_OFFSET: Final = re.compile(r"(.*\d:\d\d(?::\d\d(?:\.\d+)?)?)\s?([+-])(\d\d):?(\d\d)?", re.ASCII)


class Row:
    """A row's cells under our names of the columns. A column that the file lacks is not there."""

    __slots__ = ("_file", "_names", "_number", "cells")

    def __init__(self, file: str, number: int, names: Mapping[str, str], cells: dict[str, str]) -> None:
        self._file, self._number, self._names = file, number, names
        self.cells = cells

    def error(self, column: str, text: str) -> TableError:
        return TableError(self._file, text, row=self._number, column=self._names.get(column, column))

    def number(self, column: str) -> Fraction:
        return self._read(column, number_of)

    def said(self, column: str) -> str:
        """The cell, for an error."""
        return cut(self.cells[column], SHOWN_CHARS_MAX)

    def moment(self, column: str, read: Callable[[str], int] | None = None) -> int:
        at = self._moment(column, read)
        if not _FIRST <= at < _LAST:
            text = f'"{self.said(column)}" is no time of a bill, which lies from {YEARS[0]} to {YEARS[1] - 1}'
            raise self.error(column, text)
        return at

    def end(self, column: str, read: Callable[[str], int] | None = None) -> int | None:
        """The moment at which something ends. None: it is open, which exports write as 9999-12-31."""
        return None if self._moment(column, read) >= _LAST else self.moment(column, read)

    def _moment(self, column: str, read: Callable[[str], int] | None) -> int:
        cell = self.cells[column]
        if not _DIGIT.search(cell):  # "Total", "Balance due", or nothing.
            text = f'"{self.said(column)}" is no date; if this row is the sum of others, remove it from the file'
            raise self.error(column, text)
        return self._read(column, read or moment_of)

    def _read(self, column: str, read: Callable[[str], T]) -> T:
        try:
            return read(self.cells[column])
        except ValueError as error:
            raise self.error(column, str(error)) from None


# A bill repeats its amounts and times: an hour's price, an hour's begin.
@lru_cache(maxsize=65_536)
def number_of(text: str) -> Fraction:
    """A plain number. ValueError says what is wrong with it."""
    if len(text) > NUMBER_CHARS_MAX or not _NUMBER.fullmatch(text):
        raise ValueError(f'"{cut(text, SHOWN_CHARS_MAX)}" is no number')
    return checked(Fraction(text), text)


@lru_cache(maxsize=65_536)
def half_unit(text: str) -> Fraction:
    """Half a unit of the last digit of a number that was read: what rounding may have changed in it."""
    mantissa, _, exponent = text.strip().lower().partition("e")
    digits = len(mantissa.partition(".")[2]) - int(exponent or 0)
    return Fraction(1, 2) / Fraction(10) ** digits


def checked(number: Fraction, text: str) -> Fraction:
    """The number, if a bill may have it. ValueError otherwise."""
    if abs(number.numerator) > AMOUNT_MAX * number.denominator:
        raise ValueError(f"{cut(text, SHOWN_CHARS_MAX)} is more than any bill has: is this another column's?")
    return number


@lru_cache(maxsize=65_536)
def moment_of(text: str) -> int:
    """Wall nanoseconds of a UTC date or time, or of a time with its offset, as in "…T10:00:00+02:00"."""
    found = _OFFSET.fullmatch(text)
    if found is None:
        return parse_utc(text)
    hours, minutes = int(found[3]), int(found[4] or 0)
    if hours > 14 or minutes > 59:
        raise ValueError(f'"{cut(text, SHOWN_CHARS_MAX)}" has an offset from UTC that no zone has')
    offset = hours * NS_PER_HOUR + minutes * NS_PER_MINUTE
    return parse_utc(found[1]) + (-offset if found[2] == "+" else offset)
