"""One self-contained page of replayed logs: each log's numbers over its time, with what the rules would have done."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from governor.core.base.units import NS_PER_S, format_duration
from governor.replay.output.trace import Column, Line, Trace
from governor.replay.play import Replay, Told

WIDTH, HEIGHT, LEFT, TOP = 1_000, 150, 70, 18  # Of one drawing, and of its margins, in SVG units.
MARKS_MAX: Final = 200  # A rule that fires a thousand times says so in as many lines that nobody reads.
COLOURS: Final = {"halt": "#d1242f", "checkpoint": "#bf8700", "warn": "#bf8700", "watch": "#57606a"}
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h2 { font-size: 1rem; margin: 2rem 0 .25rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }
.quiet { opacity: .65; }
"""


def page(sections: Iterable[str]) -> str:
    """The whole page: nothing in it is fetched from anywhere."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>costgov policy replay</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>costgov policy replay</h1>\n"
        '<p class="quiet">Solid marks: rules that enforce. Dashed: rules that only observe. A triangle at the top: a '
        "value that is no number.</p>\n" + "\n".join(sections) + "\n</body></html>\n"
    )


def section(name: str, replay: Replay, trace: Trace) -> str:
    """One log: its drawings, then a row for each verdict."""
    marks = replay.told[:MARKS_MAX]
    first, last = trace.span(told.t if trace.is_timed else told.step for told in marks)
    drawings = [_drawing(title, line, marks, first, last, trace) for title, line in trace.drawn()]
    empty = '<p class="quiet">It holds no step with a loss, a gradient norm or a time.</p>'
    return f"<section><h2>{html.escape(name)}</h2>\n{''.join(drawings) or empty}\n{_rows(replay)}</section>"


def _drawing(title: str, line: Line, marks: Sequence[Told], first: float, last: float, trace: Trace) -> str:
    finite = [column for column in line.columns if column.low <= column.high]
    low, high, is_log = line.scale()
    span = last - first or 1.0

    def x(at: float) -> float:
        return LEFT + (at - first) / span * (WIDTH - LEFT)

    def y(value: float) -> float:
        below, above, own = (low, high, value) if not is_log else (math.log(low), math.log(high), math.log(value))
        part = (own / 2 - below / 2) / (above / 2 - below / 2) if above > below else 0.5  # Halved: no sum overflows.
        return TOP + (1 - part) * HEIGHT

    parts = [_curve(finite, x, y)]
    parts += [f'<path d="M{x(c.at):.1f} {TOP} l-4 -8 h8 z" fill="#d1242f"/>' for c in line.columns if c.is_broken][:50]
    for told in marks:
        where = told.t if trace.is_timed else told.step
        if where is not None:
            dash = "" if told.mode == "enforce" else ' stroke-dasharray="4 3"'
            colour = COLOURS.get(told.response, COLOURS["watch"])
            at = x(float(where))
            parts.append(
                f'<path d="M{at:.1f} {TOP} v{HEIGHT}" stroke="{colour}"{dash}><title>{_title(told)}</title></path>'
            )
    scale = ", logarithmic" if is_log else ""
    ends = (f'<text x="{LEFT}" y="{TOP + HEIGHT + 14}">{place(first, trace)}</text>'
            f'<text x="{WIDTH}" y="{TOP + HEIGHT + 14}" text-anchor="end">{place(last, trace)}</text>')  # fmt: skip
    edge = LEFT - 6
    labels = (
        f'<text x="{LEFT}" y="12">{title}{scale}</text>'
        f'<text x="{edge}" y="{TOP + 10}" text-anchor="end">{high:.4g}</text>'
        f'<text x="{edge}" y="{TOP + HEIGHT}" text-anchor="end">{low:.4g}</text>'
    )
    box = f'viewBox="0 0 {WIDTH} {TOP + HEIGHT + 20}" role="img" aria-label="{title}"'
    return f"<svg {box}>{labels}{''.join(parts)}{ends}</svg>"


def _curve(columns: Sequence[Column], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """A band from the lowest to the highest of each place: a spike of one step is as tall as it was."""
    if not columns:
        return ""
    upper = " ".join(f"{x(column.at):.1f},{y(column.high):.1f}" for column in columns)
    lower = " ".join(f"{x(column.at):.1f},{y(column.low):.1f}" for column in reversed(columns))
    return f'<polygon points="{upper} {lower}" fill="#0969da" fill-opacity=".35" stroke="#0969da"/>'


def _rows(replay: Replay) -> str:
    if not replay.told:
        return '<p class="quiet">No rule would have done anything.</p>'
    head = "".join(f"<th>{name}</th>" for name in ("policy", "rule", "response", "step", "time", "what"))
    rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in cells(told)) for told in replay.told[:MARKS_MAX]]
    more = len(replay.told) - len(rows)
    said = f'<p class="quiet">{more:,} more are not shown.</p>' if more > 0 else ""
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{said}"


def cells(told: Told) -> tuple[str, ...]:
    """A row of what was told: policy, rule, response, step, time, what."""
    time = "" if told.t is None else format_duration(round(told.t * NS_PER_S))
    response = told.response if told.mode == "enforce" else f"would {told.response}"
    return told.policy, told.rule, response, str(told.step), time, told.text


def _title(told: Told) -> str:
    return html.escape(f"{told.rule}: {told.text}")


def place(at: float, trace: Trace) -> str:
    """A place of the drawing, in words."""
    return format_duration(round(at * NS_PER_S)) if trace.is_timed else f"step {at:,.0f}"
