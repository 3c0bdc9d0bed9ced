"""A CSV file with a header, row by row. Whatever is wrong with it is one line that names the file and the row."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final

GZIP_MAGIC: Final = b"\x1f\x8b"


class TableError(Exception):
    """The message is one line: file, row, column where there is one, what is wrong."""

    def __init__(self, file: str, text: str, *, row: int | None = None, column: str | None = None) -> None:
        place = f"{file}:{row}" if row is not None else file
        super().__init__(f"{place}: {column}: {text}" if column else f"{place}: {text}")


@contextmanager
def opened(stream: io.RawIOBase, file: str) -> Iterator[Table]:
    """The table in a raw stream, which is closed with it: UTF-8 with or without a byte order mark, or gzip."""
    with io.BufferedReader(stream) as data:
        is_packed = data.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)  # A pipe cannot be rewound.
        plain = gzip.GzipFile(fileobj=data) if is_packed else data
        with io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as text:
            yield Table(text, file)


class Table:
    """`columns`, and `rows()` once: the number of the row's last line in the file, and its cells by column."""

    def __init__(self, text: IO[str], file: str) -> None:
        """Read the header."""
        self.file = file
        self._reader = csv.reader(text, strict=True)
        first = next(self._read(), None)
        if first is None:
            raise TableError(file, "the file is empty")
        self.columns = [name.strip() for name in first[1]]
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise TableError(file, "this column stands there twice", row=1, column=name)

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Raises `TableError` at the first row that is none, and at the end when there was no row."""
        count = 0
        for number, cells in self._read():
            if len(cells) != len(self.columns):
                text = f"{len(cells)} cells under {len(self.columns)} columns"
                raise TableError(self.file, text, row=number)
            count += 1
            yield number, dict(zip(self.columns, cells, strict=True))
        if count == 0:
            raise TableError(self.file, "a header and no row")

    def _read(self) -> Iterator[tuple[int, list[str]]]:
        """Rows that are not blank. The reader decodes ahead, so a bad byte lies in the row named or soon after it."""
        try:
            for cells in self._reader:
                if cells:
                    yield self._reader.line_num, cells
        except UnicodeDecodeError as error:
            text = f"not UTF-8 (byte 0x{error.object[error.start]:02x}, in this row or soon after)"
            raise TableError(self.file, text, row=self._reader.line_num + 1) from None
        except csv.Error as error:
            raise TableError(self.file, str(error), row=self._reader.line_num) from None
        except (OSError, EOFError, zlib.error) as error:
            raise TableError(self.file, f"cannot be read: {error}") from None
