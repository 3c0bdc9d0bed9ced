"""The data for a drawing of a log. It is bounded: a log of ten million steps takes as much as a short one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Step
from governor.core.runs.line_steps import steps_of_line

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
        number = Column(at, value, value) if math.isfinite(value) else Column(at, math.inf, -math.inf, is_broken=True)
        number.piece = piece
        if self._in_last < self._per_column and self.columns and self.columns[-1].piece == piece:
            self.columns[-1].take(number)
        else:
            self._make_room()
            self.columns.append(number)
            self._in_last = 0
        self._in_last += 1

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


def _halved(columns: list[Column]) -> list[Column]:
    halved = columns[::2]
    for kept, merged in zip(halved, columns[1::2], strict=False):
        kept.take(merged)
    return halved


@dataclass(slots=True)
class Trace:
    """The lines of one log. Pass each step to `see`, with the log's time or None."""

    loss: Line = field(default_factory=Line)
    grad_norm: Line = field(default_factory=Line)
    step_s: Line = field(default_factory=Line)
    tokens_per_s: Line = field(default_factory=Line)
    steps: Line = field(default_factory=Line)  # Which steps are where, for the labels of a time axis.
    is_timed: bool = True
    _last_at: MonoNs | None = None
    _last_step: int = 0
    _told_at: int | None = None  # The last step that told tokens.
    _piece: int = 0  # Another one begins where the step goes back: with an attempt that resumes.

    def see(self, step: Step, t: float | None) -> None:
        if step.rank != 0:
            return  # Only one rank is drawn. All ranks would make a band of noise.
        self.is_timed = t is not None
        at = float(step.step) if t is None else t
        self._piece += step.step < self._last_step
        self.steps.add(at, step.step, self._piece)
        if step.loss is not None:
            self.loss.add(at, step.loss, self._piece)
        if step.grad_norm is not None:
            self.grad_norm.add(at, step.grad_norm, self._piece)
        seconds = step.step_s
        if seconds is None and t is not None and self._last_at is not None and step.step > self._last_step:
            seconds = (step.at - self._last_at) / NS_PER_S / (step.step - self._last_step)
        self._last_at, self._last_step = step.at, step.step
        if seconds is not None:
            self.step_s.add(at, seconds, self._piece)
            if step.tokens is not None and seconds > 0:
                self.tokens_per_s.add(at, step.tokens / self._steps_of(step) / seconds, self._piece)
        if step.tokens is not None:
            self._told_at = step.step

    def _steps_of(self, step: Step) -> int:
        """How many steps its tokens are of. See core.runs.line_steps."""
        if step.connection is not None or step.line_steps is not None:
            return max(1, step.line_steps or 1)
        return steps_of_line(step.step, step.held.lines[-1][0] if step.held is not None else self._told_at)

    def drawn(self) -> list[tuple[str, Line]]:
        """The lines that have values, with their names."""
        named = (
            ("loss", self.loss),
            ("gradient norm", self.grad_norm),
            ("step time, s", self.step_s),
            ("tokens per second", self.tokens_per_s),
        )
        return [(name, line) for name, line in named if line.columns]

    def span(self, places: Iterable[float | None]) -> tuple[float, float]:
        """The range of the lines and of these places."""
        at = [column.at for _, line in self.drawn() for column in line.columns]
        first, last = min(at, default=0.0), max(at, default=0.0)
        return first, max([last, *(place for place in places if place is not None)])
