"""A plot of a few lines of text, in braille dots: 80 columns, readable without colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from governor.text.svg import figure

ROWS: Final = 6
COLUMNS: Final = 64
LABEL: Final = 11
_EMPTY: Final = 0x2800
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # By row and column within a character.
_TALL, _WIDE = len(_DOTS), len(_DOTS[0])
_LIMIT: Final = "┄"
_BROKEN: Final = "x"


class Sketch(NamedTuple):
    """Values (x, low, high, piece), places of values that are no number, both ranges, and a limit.

    Values of one piece are joined.
    """

    values: Sequence[tuple[float, float, float, int]]
    broken: Sequence[float]
    across: tuple[float, float]
    up: tuple[float, float]
    limit: float | None = None
    is_log: bool = False
    told: Callable[[float], str] = figure  # A value as the axis has it.


def sketch_lines(drawing: Sketch, foot: tuple[str, str]) -> list[str]:
    """ROWS lines with the values at their left, and one below with the names of the two ends."""
    low, high = drawing.up
    cells = [[_EMPTY] * COLUMNS for _ in range(ROWS)]
    for column, least, most in _dots(drawing):
        for dot in range(least, most + 1):
            row = ROWS * _TALL - 1 - dot
            cells[row // _TALL][column // _WIDE] |= _DOTS[row % _TALL][column % _WIDE]
    shown = [[chr(cell) if cell != _EMPTY else " " for cell in row] for row in cells]
    told = drawing.told
    labels = {0: told(high), ROWS - 1: told(low)} if high > low else {ROWS // 2: told(high)}
    if drawing.limit is not None:
        row = ROWS - 1 - _up(drawing.limit, drawing) // _TALL
        shown[row] = [_LIMIT if cell == " " else cell for cell in shown[row]]
        labels[row] = told(drawing.limit)
    for x in drawing.broken:
        shown[0][_place(x, *drawing.across, COLUMNS)] = _BROKEN
    lines = [f"{labels.get(row, ''):>{LABEL}} │{''.join(cells).rstrip()}" for row, cells in enumerate(shown)]
    begin, end = foot
    return [*lines, f"{'':>{LABEL}} └{begin}{end:─>{max(len(end), COLUMNS - len(begin))}}"]


def _dots(drawing: Sketch) -> Iterator[tuple[int, int, int]]:
    """Each column of dots, with the lowest and the highest one that is drawn in it."""
    before: tuple[int, int, int] | None = None
    for x, bottom, top, piece in drawing.values:
        column = _place(x, *drawing.across, COLUMNS * _WIDE)
        least, most = _up(bottom, drawing), _up(top, drawing)
        if before is not None and before[2] == piece:
            at, begin, _ = before
            up = begin
            for between in range(at + 1, column):
                level = begin + round((most - begin) * (between - at) / (column - at))
                yield between, min(level, up), max(level, up)
                up = level
            least, most = min(least, max(up, least)), max(most, min(up, most))
        yield column, least, most
        before = column, _up(top, drawing), piece


def _up(value: float, drawing: Sketch) -> int:
    low, high = drawing.up
    if drawing.is_log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return _place(value, low, high, ROWS * _TALL)


def _place(value: float, low: float, high: float, places: int) -> int:
    """Halved, as the difference of the largest floats would be infinite."""
    length = high / 2 - low / 2
    share = (value / 2 - low / 2) / length if length > 0 else 0.5
    return min(places - 1, max(0, int(share * places)))
