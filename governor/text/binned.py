"""A series of any length as so few columns as a page can show. Extremes are kept, so that a spike keeps its height."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

# A line whose largest value is this many times its median gets a logarithmic scale.
WIDE_FRAC: Final = 20.0
COLUMNS_MAX: Final = 1_200  # Wider than a page. Full columns are merged in pairs.


@dataclass(slots=True)
class Column:
    """The values at one place of the drawing: their range, and whether one was not finite."""

    at: float
    low: float
    high: float
    is_broken: bool = False
    piece: int = 0

    def take(self, other: Column) -> None:
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.is_broken |= other.is_broken


@dataclass(slots=True)
class Line:
    """One value of a log over time (seconds), or over steps for a log without times. Extremes are kept."""

    columns: list[Column] = field(default_factory=list)
    _per_column: int = 1
    _in_last: int = 0

    def add(self, at: float, value: float, piece: int = 0) -> None:
        """Values of one `piece` are joined. Another piece begins a line of its own."""
        columns = self.columns
        if columns and self._in_last < self._per_column and columns[-1].piece == piece:
            self._in_last += 1
            last = columns[-1]
            if not math.isfinite(value):
                last.is_broken = True
            else:
                last.low, last.high = min(last.low, value), max(last.high, value)
            return
        number = Column(at, value, value) if math.isfinite(value) else Column(at, math.inf, -math.inf, is_broken=True)
        number.piece = piece
        self._make_room()
        self.columns.append(number)
        self._in_last = 1

    def pieces(self) -> list[list[Column]]:
        """The columns that have a finite value, piece by piece."""
        finite = [column for column in self.columns if column.low <= column.high]
        return [list(own) for _, own in groupby(finite, key=lambda column: column.piece)]

    def scale(self) -> tuple[float, float, bool]:
        """The lowest and the highest value, and whether their distance needs a logarithmic scale."""
        finite = [column for column in self.columns if column.low <= column.high]
        if not finite:
            return 0.0, 1.0, False
        low, high = min(column.low for column in finite), max(column.high for column in finite)
        middle = sorted(column.high for column in finite)[len(finite) // 2]
        return low, high, low > 0 and high > WIDE_FRAC * middle

    def _make_room(self) -> None:
        if len(self.columns) < COLUMNS_MAX:
            return
        pieces = [list(own) for _, own in groupby(self.columns, key=lambda column: column.piece)]
        if len(pieces) > COLUMNS_MAX // 2:
            pieces = [self.columns]  # So many would not become fewer. They are too short to be seen.
        self.columns = [column for own in pieces for column in _halved(own)]
        self._per_column *= 2


def fewer(columns: Sequence[Column], most: int) -> list[Column]:
    """So few columns as a narrow page shows: `most`, and one more for each piece. Extremes stay, and pieces apart."""
    every = -(-len(columns) // most) or 1
    found: list[Column] = []
    for _, own in groupby(columns, key=lambda column: column.piece):
        mine = list(own)
        for begin in range(0, len(mine), every):
            first, *others = mine[begin : begin + every]
            merged = Column(first.at, first.low, first.high, first.is_broken, first.piece)
            for other in others:
                merged.take(other)
            found.append(merged)
    return found


def _halved(columns: list[Column]) -> list[Column]:
    halved = columns[::2]
    for kept, merged in zip(halved, columns[1::2], strict=False):
        kept.take(merged)
    return halved
