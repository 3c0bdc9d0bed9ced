"""A table for people, of any length. Text from trainers is made printable first.

Nothing is ever cut. On a narrow terminal, texts wrap within their column. If that is not enough, the last columns
move to a second line of the row, and their titles to a second line of titles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from governor.core.base.printable import printable
from governor.text.screen import HANG, Screen, Styled, show, shown_lines, styled, width, wrapped

GAP: Final = 2  # Columns of space between two columns.
# In fewer columns, two names can no longer be distinguished.
TEXT_COLUMNS_MIN: Final = 12
# A text that needs more lines moves its column to the second line instead.
LINES_MAX: Final = 3


class Head(NamedTuple):
    """A column's title. Numbers are right-aligned and never wrap; other columns wrap if `may_wrap`."""

    title: str
    is_number: bool = False
    may_wrap: bool = False


class _Layout(NamedTuple):
    """The columns on each line of a row, and the width of every column."""

    lines: Sequence[Sequence[int]]
    widths: Sequence[int]


def render_rows(
    heads: Sequence[Head], rows: Sequence[Sequence[str]], *, total: bool, screen: Screen, notes: Sequence[str] = ()
) -> str:
    """A table as text that ends with a newline. `total`: the last row is set apart as a sum.

    Cells are made printable here. A cell may be `Styled`.
    """
    # Column by column: row by row takes a hundred times as long for ten thousand rows.
    columns = [_plain_column(column) for column in zip([head.title for head in heads], *rows, strict=True)]
    natural = [max(map(width, column)) for column in columns]
    layout = _layout(heads, natural, screen.columns)
    is_plain = not screen.is_coloured or not any(isinstance(cell, Styled) for column in columns for cell in column)
    # If each character is one column wide and nothing wraps, Python's own formatting does.
    if is_plain and len(layout.lines) == 1 and layout.widths == natural and all(map(_is_narrow, columns)):
        lines = [[line] for line in _even_lines(columns, heads, natural)]
    else:
        lines = [list(_row_lines(row, heads, layout, screen)) for row in zip(*columns, strict=True)]
    lines[0] = [styled(line, "bold", screen) for line in lines[0]]
    if total:
        lines[-1] = [styled(line, "bold", screen) for line in lines[-1]]
    told = [line for row in lines for line in row]
    for note in notes:
        told += shown_lines(Styled(plain(note), note.style if isinstance(note, Styled) else "dim"), screen)
    return "\n".join(told) + "\n"


def fits(heads: Sequence[Head], rows: Sequence[Sequence[str]], screen: Screen) -> bool:
    """Whether each row takes one line of the screen, apart from wrapped texts."""
    natural = [max(map(width, column)) for column in zip([head.title for head in heads], *rows, strict=True)]
    return len(_layout(heads, natural, screen.columns).lines) == 1


def _layout(heads: Sequence[Head], natural: Sequence[int], columns: int | None) -> _Layout:
    every = [range(len(heads))]
    if columns is None:
        return _Layout(every, natural)
    widths = list(natural)
    excess = sum(widths) + GAP * (len(widths) - 1) - columns
    # From the right: the last text matters least.
    for column in reversed(range(len(widths))):
        spared = max(0, min(excess, widths[column] - _least(heads[column], natural[column])))
        widths[column] -= spared
        excess -= spared
    return _Layout(every, widths) if excess <= 0 else _folded(heads, natural, columns)


def _least(head: Head, natural: int) -> int:
    return min(natural, max(TEXT_COLUMNS_MIN, -(-natural // LINES_MAX))) if head.may_wrap else natural


def _folded(heads: Sequence[Head], natural: Sequence[int], columns: int) -> _Layout:
    """As many columns on each line as fit, in their order."""
    lines: list[list[int]] = [[]]
    widths = []
    left = columns
    for column, wanted in enumerate(natural):
        if lines[-1] and left < GAP + _least(heads[column], wanted):
            lines.append([])
            left = columns - HANG
        room = left - GAP if lines[-1] else left
        widths.append(min(wanted, max(room, 1)))
        left = room - widths[-1]
        lines[-1].append(column)
    return _Layout(lines, widths)


def _even_lines(columns: Sequence[Sequence[str]], heads: Sequence[Head], widths: Sequence[int]) -> list[str]:
    sides = ("" if head.is_number else "-" for head in heads)
    form = (" " * GAP).join(f"%{side}{columns}s" for side, columns in zip(sides, widths, strict=True))
    return [(form % row).rstrip() for row in zip(*columns, strict=True)]


def _row_lines(row: Sequence[str], heads: Sequence[Head], layout: _Layout, screen: Screen) -> Iterator[str]:
    for number, line in enumerate(layout.lines):
        lead = " " * HANG if number else ""
        broken = [_broken(row[column], layout.widths[column]) for column in line]
        for place in range(max(map(len, broken))):
            cells = [texts[place] if place < len(texts) else "" for texts in broken]
            shown = (
                _filled(cell, layout.widths[column], heads[column].is_number, screen)
                for column, cell in zip(line, cells, strict=True)
            )
            yield (lead + (" " * GAP).join(shown)).rstrip()


def _broken(cell: str, columns: int) -> list[str]:
    if width(cell) <= columns:
        return [cell]
    style = cell.style if isinstance(cell, Styled) else ""
    return [Styled(line, style) for line in wrapped(cell, columns)]


def _filled(cell: str, columns: int, is_number: bool, screen: Screen) -> str:
    space = " " * (columns - width(cell))
    return space + show(cell, screen) if is_number else show(cell, screen) + space


def _plain_column(cells: Sequence[str]) -> Sequence[str]:
    """plain() of each cell, skipped if all cells together are one printable line of single spaces."""
    line = "|".join(cells)
    is_plain = line.isprintable() and not any(space in line for space in ("  ", "| ", " |")) and line == line.strip()
    return cells if is_plain else [_plain_cell(cell) for cell in cells]


def _plain_cell(cell: str) -> str:
    return Styled(plain(cell), cell.style) if isinstance(cell, Styled) else plain(cell)


def _is_narrow(column: Sequence[str]) -> bool:
    """Whether each of its characters takes one terminal column."""
    text = "".join(column)
    return text.isascii() or all(width(char) == 1 for char in set(text))


def plain(text: object) -> str:
    """One printable line: a run's name or an operator's reason must not steer a terminal."""
    return printable(" ".join(str(text).split()), " ")
