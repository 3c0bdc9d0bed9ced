"""Lines of a log in bounded memory, and what every reader says of a log that it cannot read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Final

LINE_BYTES_MAX: Final = 1024 * 1024  # The longest real metrics line we know is 40 kB (a histogram).


class LogUnreadable(Exception):  # noqa: N818 - the condition is the name.
    """The message is one line: which log, where in it, and why."""


class LogTorn(LogUnreadable):
    """It ends in the middle, as after a power cut."""


def bounded_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number, from 1; None stands for one too long to be a record."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
            while (rest := file.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line
