"""A report as one self-contained page: bars and curves by hand, light and dark, from a phone's width on.

Each curve is drawn twice, for wide and for narrow screens: letters in one drawing would be too small on a phone.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from governor.core.base.units import NS_PER_S, format_duration
from governor.reports.causes import seconds, usd, words
from governor.reports.run.sections import Section, adding_up, sections, share, title_of
from governor.reports.run.series import Mark, RunSeries
from governor.text import page as web
from governor.text.binned import Column, Line, fewer
from governor.text.page import quiet, table
from governor.text.svg import CURVE, RED, Axis, Plot, figure, legend
from governor.text.table import plain

# Of the bar. A cause has one colour in all reports. Each has a contrast of 3 with the page, light and dark. Nothing but
# training is green, nothing but what ends it is red.
COLOUR_OF: Final = {
    "productive": "#2da44e",
    "data_starvation": "#0072b2", "loop_code": "#96652d", "straggler": "#8250df", "load_imbalance": "#a678d8",
    "exposed_communication": "#c9731a", "pipeline_bubble": "#a07c1e", "optimizer_offload": "#0e8fa8",
    "recompute": "#5384c4", "checkpoint_stall": "#bf8700", "evaluation": "#c2519f", "compile_and_warm_up": "#6a72d9",
    "start_up": "#2f86eb", "restart": "#a3479f", "lost_steps": "#b4531a", "throttling": "#d9771a",
    "other_tenants": "#8d6e63", "hardware": "#b23b4b", "hang": "#e5534b", "halt": "#cf222e", "shut_down": "#5f7fa0",
    "idle": "#7d86a8", "not_told_yet": "#8f8a80", "unknown": "#808080",
}  # fmt: skip
MARKS: Final = {
    "halt": RED, "gap": RED, "attempt": "#bf8700", "exit": "#bf8700", "save": "#57606a",
    "evaluation": "#8250df",
}  # fmt: skip
MARKS_DRAWN_MAX: Final = 150  # More are one grey wall.
BROKEN_MAX: Final = 50
NARROW_COLUMNS_MAX: Final = 360  # Of a phone's pixels.
NO_NUMBER: Final = "A triangle at the top is a value that is no number."
_ORDER: Final = ("loss", "step time, s", "tokens per second", "gradient norm", "loss scale", "GPU busy")

_STYLE: Final = (
    web.THEME
    + """
.bar { display: flex; height: 2rem; border-radius: 4px; overflow: hidden; margin: .5rem 0; }
.bar i { display: block; min-width: 1px; }
figure { margin: .6rem 0 1.4rem; } figcaption { font-size: .92em; opacity: .85; }
td { overflow-wrap: break-word; }
"""
)


def page(document: Mapping[str, Any], series: RunSeries | None, halts: Sequence[tuple[str, str]] = ()) -> str:
    """The whole page. What a run or a person named is escaped, and cannot steer it.

    `halts`: incidents by id, each with its section. Their marks on the time line link to them.
    """
    linked = frozenset(incident for incident, _ in halts)
    drawn = {"causes": _bar(document), "time line": _curves(series, linked)} if series is not None else {
        "causes": _bar(document)
    }  # fmt: skip
    return web.page(
        plain(title_of(document)), _body(sections(document), drawn) + "".join(one for _, one in halts), _STYLE
    )


def plain_page(title: str, found: Sequence[Section]) -> str:
    """Sections without drawings."""
    return web.page(plain(title), _body(found, {}), _STYLE)


def _body(found: Sequence[Section], drawn: Mapping[str, str]) -> str:
    parts = []
    for section in found:
        inner = "".join(f"<p>{_text(line)}</p>" for line in section.lines) + drawn.get(section.key, "")
        if section.table is not None:
            rows = [[plain(cell) for cell in row] for row in section.table.rows]
            inner += table(section.table.heads, rows)
        if section.items:
            inner += "<ul>" + "".join(f"<li>{_text(item)}</li>" for item in section.items) + "</ul>"
        parts.append(web.section(section.title, inner))
    if not any(section.key == "time line" for section in found):
        parts.append(web.section("Time line", drawn.get("time line", "")))
    return "".join(parts)


def _text(text: str) -> str:
    return html.escape(plain(text))


# --- where the time went -------------------------------------------------------------------------------------


def _bar(document: Mapping[str, Any]) -> str:
    """All of the run's time in one bar, with its causes as wide as they are long."""
    whole = document["wall_s"]
    if not whole:
        return ""
    causes = [one for one in document["causes"] if one["s"] > 0]
    dollars = adding_up([document["productive_usd"], *(one["usd"] for one in causes)], document["usd"])
    keys = ["productive", *(one["cause"] for one in causes)]
    names = [words(key) for key in keys]
    lengths = [document["productive_s"], *(one["s"] for one in causes)]
    # A newer costgov's cause has none yet.
    colours = {name: COLOUR_OF.get(key, COLOUR_OF["unknown"]) for key, name in zip(keys, names, strict=True)}
    pieces = "".join(
        f'<i style="width:{100 * length / whole:.3f}%;background:{colours[name]}" '
        f'title="{_text(f"{name}: {seconds(length)}, {share(length / whole)}, {paid}")}"></i>'
        for name, length, paid in zip(names, lengths, dollars[:-1], strict=True)
    )
    and_of = f" and of {usd(document['usd'])}" if document["usd"] is not None else ""
    label = f"{share(document['goodput'])} of {seconds(whole)}{and_of} was productive"
    return f'<div class="bar" role="img" aria-label="{_text(label)}">{pieces}</div>{legend(colours)}'


# --- curves --------------------------------------------------------------------------------------------------


def _curves(series: RunSeries | None, linked: Collection[str]) -> str:
    if series is None or not series.lines:
        return ""
    names = [name for name in _ORDER if name in series.lines]
    rare = [mark for mark in series.marks if mark.kind != "save"]
    marks = [*rare, *(mark for mark in series.marks if mark.kind == "save")][:MARKS_DRAWN_MAX]
    kinds = {mark.kind: MARKS[mark.kind] for mark in marks if mark.kind in MARKS}
    broken = any(column.is_broken for name in names for column in series.lines[name].columns)
    drawn = [_curve(name, series.lines[name], series.length_s, marks, linked) for name in names]
    return legend(kinds) + (quiet(NO_NUMBER) if broken else "") + "".join(drawn)


def _curve(name: str, line: Line, last: float, marks: Sequence[Mark], linked: Collection[str]) -> str:
    wide = _plot(name, line, line.columns, last, marks, linked, is_narrow=False)
    narrow = _plot(name, line, fewer(line.columns, NARROW_COLUMNS_MAX), last, marks, linked, is_narrow=True)
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


def _plot(
    name: str, line: Line, columns: Sequence[Column], last: float, marks: Sequence[Mark], linked: Collection[str], *,
    is_narrow: bool,
) -> str:  # fmt: skip
    low, high, is_log = line.scale()
    across, up = dict.fromkeys((0.0, max(last, 1e-9))), dict.fromkeys((low, high))
    plot = Plot(
        Axis(0.0, max(last, 1e-9), marks=[(at, format_duration(round(at * NS_PER_S))) for at in across]),
        Axis(low, high, is_log=is_log, marks=[(value, figure(value)) for value in up]),
        title=f"{name}{', logarithmic' if is_log else ''}", height=190 if is_narrow else 200,
        width=380 if is_narrow else 1000, left=60 if is_narrow else 70, right=24 if is_narrow else 40,
        top=24, bottom=28,
    )  # fmt: skip
    for mark in marks:
        if mark.kind in MARKS:
            note = f"{mark.kind}{f' at step {mark.step}' if mark.step is not None else ''}: {plain(mark.text)}"
            incident = mark.text.removeprefix("halt ") if mark.kind == "halt" else None
            href = f"#{web.anchor(incident)}" if incident in linked else ""
            plot.upright(mark.at_s, MARKS[mark.kind], note, is_dashed=mark.kind not in ("halt", "gap"), href=href)
    finite = [column for column in columns if column.low <= column.high]
    for _, own in groupby(finite, key=lambda column: column.piece):
        plot.band([(column.at, column.low, column.high) for column in own], CURVE)
    for column in [column for column in columns if column.is_broken][:BROKEN_MAX]:
        plot.triangle(column.at, MARKS["halt"])
    return plot.svg()
