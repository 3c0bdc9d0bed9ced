"""Lines of a log in bounded memory, and the errors for a log that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Final

# The longest real metrics line that we know is 40 kB (a histogram).
LINE_BYTES_MAX: Final = 1024 * 1024
_READ_BYTES: Final = 64 * 1024


class LogUnreadable(Exception):  # noqa: N818 - the condition is the name.
    """The message is one line: the log, the place in it, and the reason."""


class LogTorn(LogUnreadable):
    """The log ends in the middle, as after a power cut."""


def bounded_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number, from 1. None stands for a line that is too long to be a record."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
            while (rest := file.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line


def console_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """`bounded_lines` of a console: a progress bar ends its lines with a carriage return. Empty ones are left out."""
    number, rest, is_long = 1, b"", False
    while chunk := file.readline(_READ_BYTES):
        *lines, last = (rest + chunk).split(b"\n")
        *pieces, rest = last.split(b"\r")
        for ended in (*(line.split(b"\r") for line in lines), pieces):
            for piece in ended:
                if is_long or len(piece) > LINE_BYTES_MAX:
                    yield number, None
                elif piece:
                    yield number, piece
                is_long = False
            number += 1
        number -= 1  # The last line goes on.
        if len(rest) > LINE_BYTES_MAX:
            rest, is_long = b"", True
        elif is_long:
            rest = b""
    if is_long or rest:
        yield number, None if is_long else rest
