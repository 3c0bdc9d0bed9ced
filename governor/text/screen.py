"""Where text is shown: the width, and whether colour is allowed."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple, TextIO

from governor.core.base.printable import printable
from governor.core.base.units import is_whole

COLUMNS_UNKNOWN: Final = 80  # For a terminal that does not report its width.
# The indent of the continuation lines of a wrapped text.
HANG: Final = 2
_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_KEPT: Final = re.compile(r"(\x1b\[[0-9;]*m|\n)")
_BREAKS: Final = re.compile(r"(\n)")


class Screen(NamedTuple):
    """`columns` is None for a file or a pipe: it has no width, so nothing is wrapped."""

    columns: int | None
    is_coloured: bool


FILE: Final = Screen(None, False)


class Styled(str):
    """A text with its style on a coloured screen, such as "bold red"."""

    __slots__ = ("style",)
    style: str

    def __new__(cls, text: str, style: str = "") -> Styled:
        made = super().__new__(cls, text)
        made.style = style
        return made


def screen_of(stream: TextIO | None) -> Screen:
    """The screen of `stream`. NO_COLOR (no-color.org) and TERM=dumb turn colour off."""
    if stream is None or stream.closed or not stream.isatty():
        return FILE
    is_coloured = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Screen(_columns_of(stream), is_coloured)


def _columns_of(stream: TextIO) -> int:
    stated = os.environ.get("COLUMNS", "")
    if is_whole(stated) and int(stated):
        return int(stated)
    try:
        return os.get_terminal_size(stream.fileno()).columns or COLUMNS_UNKNOWN
    except (OSError, ValueError):
        return COLUMNS_UNKNOWN


def styled(text: str, style: str, screen: Screen) -> str:
    if not (text and style and screen.is_coloured):
        return text
    codes = ";".join(_CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def show(text: str, screen: Screen) -> str:
    """The text in its own style, if it has one."""
    return styled(text, text.style, screen) if isinstance(text, Styled) else text


def shown_lines(text: str, screen: Screen, hang: int = HANG) -> list[str]:
    """The text in its own style, in as many lines as the screen needs. A file gets one line."""
    if screen.columns is None or width(text) <= screen.columns:
        return [show(text, screen)]
    lead = len(text) - len(text.lstrip(" "))
    columns = screen.columns - lead
    first, *rest = wrapped(text.lstrip(" "), columns - hang, first=columns)
    style = text.style if isinstance(text, Styled) else ""
    lines = [" " * lead + first, *(" " * (lead + hang) + line for line in rest)]
    return [styled(line, style, screen) for line in lines]


def tamed(text: str, screen: Screen) -> str:
    """The text without what could steer the terminal. Line breaks stay, and our own styles where there is colour."""
    if text.isprintable():
        return text
    kept = _KEPT if screen.is_coloured else _BREAKS
    return "".join(one if kept.fullmatch(one) else printable(one, " ") for one in kept.split(text))


def flow(parts: Sequence[str], screen: Screen, gap: str = "  ") -> list[str]:
    """Parts side by side, each in its style. A part that does not fit begins another line."""
    lines: list[list[str]] = [[]]
    for part in parts:
        used = sum(width(one) + len(gap) for one in lines[-1]) + (HANG if len(lines) > 1 else 0)
        if screen.columns is not None and lines[-1] and used + width(part) > screen.columns:
            lines.append([])
        lines[-1].append(part)
    told: list[str] = []
    for number, line in enumerate(lines):
        lead = " " * HANG if number else ""
        if len(line) == 1:
            told += shown_lines(Styled(lead + line[0], line[0].style if isinstance(line[0], Styled) else ""), screen)
        else:
            told.append(lead + gap.join(show(part, screen) for part in line))
    return told


def width(text: str) -> int:
    """The width in terminal columns. A Chinese character takes two, a combining accent none."""
    if text.isascii():
        return len(text)
    return sum(_width_of(char) for char in text)


def _width_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Me", "Mn", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def without_colour(text: str) -> str:
    return _ESCAPES.sub("", text)


def wrapped(text: str, columns: int, first: int | None = None) -> list[str]:
    """Lines of at most `columns` columns (the first: `first`), wrapped between words, or inside an overlong word."""
    columns = max(columns, 2)  # The widest character must fit.
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if width(joined) <= (columns if first is None or len(lines) > 1 else first):
            lines[-1] = joined
        else:
            lines += _pieces(word, columns)
    return [line for line in lines if line] or [""]


def _pieces(word: str, columns: int) -> list[str]:
    """A long name breaks after one of its marks, if one is in the second half of the line."""
    pieces = []
    while width(word) > columns:
        end = columns
        while width(word[:end]) > columns:
            end -= 1
        mark = max(word.rfind(char, 0, end) for char in "-/_.,:=") + 1
        end = mark if mark > end // 2 else end
        pieces.append(word[:end])
        word = word[end:]
    return [*pieces, word]
