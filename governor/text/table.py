"""A plain table as a person reads it, of any length. Every text from a trainer is made printable first."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from typing import Final, NamedTuple

COLUMNS_WITHOUT_TERMINAL: Final = 200  # A file or a pipe has no width: nothing is cut, nothing wraps.
GAP: Final = 2  # Columns of space between two columns.
TEXT_COLUMNS_MIN: Final = 12  # Less of a name tells two of them no longer apart.


class Head(NamedTuple):
    """A column's title. Numbers stand to the right, and are never cut; of the others, what `may_be_cut`."""

    title: str
    is_number: bool = False
    may_be_cut: bool = False


def render_rows(
    heads: Sequence[Head], rows: Sequence[Sequence[str]], *, total: bool, colour: bool, notes: Sequence[str] = ()
) -> str:
    """A plain table as text that ends with a newline; with `total` its last row is set apart as a sum.

    Cells that a trainer had a say in are made printable here. A terminal too narrow for what must not be cut wraps.
    """
    # By hand, and column by column: rich's own table takes three seconds for ten thousand rows.
    columns = [_plain_column(column) for column in zip([head.title for head in heads], *rows, strict=True)]
    screen = shutil.get_terminal_size((COLUMNS_WITHOUT_TERMINAL, 50)).columns if colour else COLUMNS_WITHOUT_TERMINAL
    natural = [_widest(column) for column in columns]
    widths = _fitted(natural, [colour and head.may_be_cut for head in heads], screen)
    # Where each character is one column wide and nothing is cut, Python's own form does.
    is_even = widths == natural and all(map(_is_narrow, columns))
    lines = _lines(columns, heads, widths) if is_even else _cut_lines(columns, heads, widths)
    said = [plain(note) for note in notes]
    if colour:
        width = max(screen, sum(widths) + GAP * len(widths))
        lines[0] = _styled(lines[0], "bold", width)
        if total:
            lines[-1] = _styled(lines[-1], "bold", width)
        said = [_styled(note, "dim", width) for note in said]
    return "\n".join([line.rstrip() for line in (*lines, *said)]) + "\n"


def fitting(rows: Sequence[Sequence[str]], may_be_cut: Sequence[bool], width: int) -> list[int]:
    """The widths of columns that should fit beside one another, titles among the rows; the last is cut first."""
    return _fitted([_widest(column) for column in zip(*rows, strict=True)], may_be_cut, width)


def _fitted(natural: Sequence[int], may_be_cut: Sequence[bool], width: int) -> list[int]:
    widths = list(natural)
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    for column in reversed(range(len(widths))):
        if excess > 0 and may_be_cut[column]:
            spared = min(excess, max(0, widths[column] - TEXT_COLUMNS_MIN))
            widths[column] -= spared
            excess -= spared
    return widths


def _plain_column(cells: Sequence[str]) -> Sequence[str]:
    """plain() of each, which changes none where all of them together are one printable line of single spaces."""
    line = "|".join(cells)
    is_plain = line.isprintable() and not any(space in line for space in ("  ", "| ", " |")) and line == line.strip()
    return cells if is_plain else [plain(cell) for cell in cells]


def _widest(column: Sequence[str]) -> int:
    return max(map(len if _is_narrow(column) else _columns_of, column))


def _is_narrow(column: Sequence[str]) -> bool:
    """Whether each of its characters takes one column of a terminal."""
    text = "".join(column)
    return text.isascii() or all(_columns_of(char) == 1 for char in set(text))


def _columns_of(cell: str) -> int:
    """How many columns of a terminal: a Chinese character takes two."""
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len

    return cell_len(cell)


def _lines(columns: Sequence[Sequence[str]], heads: Sequence[Head], widths: Sequence[int]) -> list[str]:
    sides = ("" if head.is_number else "-" for head in heads)
    form = (" " * GAP).join(f"%{side}{width}s" for side, width in zip(sides, widths, strict=True))
    return [form % row for row in zip(*columns, strict=True)]


def _cut_lines(columns: Sequence[Sequence[str]], heads: Sequence[Head], widths: Sequence[int]) -> list[str]:
    return [_row_text(row, heads, widths) for row in zip(*columns, strict=True)]


def _row_text(row: Sequence[str], heads: Sequence[Head], widths: Sequence[int]) -> str:
    texts = []
    for cell, head, width in zip(row, heads, widths, strict=True):
        used = _columns_of(cell)
        if used > width:
            from rich.cells import set_cell_size

            texts.append(set_cell_size(cell, width - 1) + "…")
        else:
            texts.append(" " * (width - used) + cell if head.is_number else cell + " " * (width - used))
    return (" " * GAP).join(texts)


def _styled(line: str, style: str, width: int) -> str:
    # Here and not above: a file needs none of it, and to load rich takes as long as a thousand rows.
    from rich.console import Console
    from rich.text import Text

    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=True, highlight=False, markup=False, emoji=False)
    console.print(Text(line, style=style), soft_wrap=True)
    return stream.getvalue().rstrip("\n")


def plain(text: object) -> str:
    """One printable line: a run's name or an operator's reason must not steer anyone's terminal."""
    line = " ".join(str(text).split())
    return line if line.isprintable() else "".join(char if char.isprintable() else " " for char in line)
