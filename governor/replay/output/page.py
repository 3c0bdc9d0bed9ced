"""One self-contained page of replayed logs: each log's values over time, with the verdicts of the rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from governor.core.base.units import NS_PER_S, format_duration
from governor.replay.play import Replay, ReplayVerdict
from governor.replay.trace import Trace
from governor.text import page as web
from governor.text.binned import Line
from governor.text.page import quiet, table
from governor.text.svg import Axis, Plot
from governor.text.table import Head

MARKS_MAX: Final = 200  # A reader does not read a thousand rows of the same rule.
BROKEN_MAX: Final = 50  # More triangles overlap.
COLOUR: Final = "#0072b2"
COLOURS: Final = {"halt": "#d1242f", "checkpoint": "#bf8700", "warn": "#bf8700", "watch": "#57606a"}
_HOW_TO_READ: Final = (
    "Solid marks: rules that enforce. Dashed: rules that only observe. A triangle at the top: a value that is no "
    "number."
)
_HEADS: Final = (
    Head("policy"), Head("rule"), Head("response"), Head("step", is_number=True), Head("time"), Head("what"),
)  # fmt: skip


def page(sections: Iterable[str]) -> str:
    return web.page("costgov policy replay", quiet(_HOW_TO_READ) + "\n".join(sections))


def section(name: str, replay: Replay, trace: Trace) -> str:
    """One log: its drawings, then a row for each verdict."""
    marks = replay.verdicts[:MARKS_MAX]
    first, last = trace.span(verdict.t if trace.is_timed else verdict.step for verdict in marks)
    drawings = [_drawing(title, line, marks, first, last, trace) for title, line in trace.drawn()]
    empty = quiet("It holds no step with a loss, a gradient norm or a time.")
    return web.section(name, "".join(drawings or [empty]) + _rows(replay))


def _drawing(title: str, line: Line, marks: Sequence[ReplayVerdict], first: float, last: float, trace: Trace) -> str:
    low, high, is_log = line.scale()
    across, up = dict.fromkeys((first, last)), dict.fromkeys((low, high))  # Only one entry where both ends are equal.
    plot = Plot(
        Axis(first, last, marks=[(at, place(at, trace)) for at in across]),
        Axis(low, high, is_log=is_log, marks=[(value, f"{value:.4g}") for value in up]),
        title=f"{title}{', logarithmic' if is_log else ''}", height=200, left=70, right=40, top=22, bottom=28,
    )  # fmt: skip
    for piece in line.pieces():
        plot.band([(column.at, column.low, column.high) for column in piece], COLOUR)
    for column in [column for column in line.columns if column.is_broken][:BROKEN_MAX]:
        plot.triangle(column.at, COLOURS["halt"])
    for verdict in marks:
        where = verdict.t if trace.is_timed else verdict.step
        if where is not None:
            colour = COLOURS.get(verdict.response, COLOURS["watch"])
            plot.upright(float(where), colour, f"{verdict.rule}: {verdict.text}", is_dashed=verdict.mode != "enforce")
    return plot.svg()


def _rows(replay: Replay) -> str:
    if not replay.verdicts:
        return quiet("No rule would have done anything.")
    rows = [cells(verdict) for verdict in replay.verdicts[:MARKS_MAX]]
    more = len(replay.verdicts) - len(rows)
    return table(_HEADS, rows) + quiet(f"{more:,} more are not shown." if more > 0 else "")


def cells(verdict: ReplayVerdict) -> tuple[str, ...]:
    """The row of a verdict: policy, rule, response, step, time, text."""
    time = "" if verdict.t is None else format_duration(round(verdict.t * NS_PER_S))
    response = verdict.response if verdict.mode == "enforce" else f"would {verdict.response}"
    return verdict.policy, verdict.rule, response, str(verdict.step), time, verdict.text


def place(at: float, trace: Trace) -> str:
    """A place on the drawing's axis, in words."""
    return format_duration(round(at * NS_PER_S)) if trace.is_timed else f"step {at:,.0f}"
