"""An incident's plots: each quantity that was judged, with its limit and the moment of the verdict."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from governor.core.base.units import NS_PER_S, format_duration
from governor.reports.causes import usd
from governor.reports.incident.judged import NODE_WIDE, SPEND, Judged, is_by_rule
from governor.reports.incident.seen import Quantity, Seen
from governor.text.binned import WIDE_FRAC, Column, fewer
from governor.text.moments import Snapshot
from governor.text.sketch import Sketch, sketch_lines
from governor.text.svg import CURVE, RED, Axis, Plot, figure
from governor.text.table import plain

VERDICT: Final = RED
BROKEN_MAX: Final = 50
DRAWN_MIN: Final = 2  # Records of a plot in a terminal. One is told by the verdict.
COLUMNS_MAX: Final = (600, 180)  # Of a wide and of a narrow drawing.
NEXT_TO_NONE_FRAC: Final = 0.01  # An axis of dollars begins at 0 below it.
NONE_SEEN: Final = "No plot: {why}."


class Span(NamedTuple):
    """Columns of a quantity, and where they end: at the verdict, or later."""

    columns: Sequence[Column]
    verdict_s: float

    @property
    def begin_s(self) -> float:
        return min(self.columns[0].at, self.verdict_s)

    @property
    def end_s(self) -> float:
        return max(self.columns[-1].at, self.verdict_s)

    def finite(self) -> list[Column]:
        return [column for column in self.columns if column.low <= column.high]


def unseen_text(snapshot: Snapshot, seen: Seen | None) -> str:
    """Why there is no plot, or an empty text."""
    if seen is None:
        return NONE_SEEN.format(why=f"of run {plain(snapshot['run'])} there is no recording that can be read")
    missing = [one.title for one in seen.judged if one.name not in seen.quantities]
    if not missing:
        return ""
    return f"Not in the recording before the verdict: {', '.join(missing)}."


def figures(snapshot: Snapshot, seen: Seen) -> str:
    """The plots as HTML. Of the first quantity the whole run is drawn as well, where it is longer."""
    drawn = []
    for judged in seen.judged:
        quantity = seen.quantities.get(judged.name)
        if quantity is None:
            continue
        close = Span(list(quantity.close), seen.verdict_s)
        drawn.append(_figure(judged, close, _caption(judged, quantity, close, seen)))
        if quantity.records > len(quantity.close) and not drawn[1:]:
            whole = Span(quantity.whole.columns, seen.verdict_s)
            text = f"All {quantity.records:,} records up to the verdict. Lowest and highest value of each place."
            drawn.append(_figure(judged, whole, text))
    lead = "What the rule judged comes first." if is_by_rule(snapshot) else "No rule judged these: they are context."
    return f'<p class="quiet">{lead}</p>{"".join(drawn)}' if drawn else ""


def _caption(judged: Judged, quantity: Quantity, close: Span, seen: Seen) -> str:
    """What the plot shows, in words: for those who do not see it too."""
    of = "" if judged.name in NODE_WIDE or seen.rank is None else f" of rank {seen.rank}"
    if judged.name == "gpu_busy":
        of = f" of GPU {plain(seen.gpu)}" if seen.gpu is not None else ", mean of the run's GPUs"
    finite, broken = close.finite(), sum(column.is_broken for column in close.columns)
    parts = [f"{judged.title}{of}"]
    if finite:
        low, high = min(column.low for column in finite), max(column.high for column in finite)
        parts.append(f"from {_amount(judged, low)} to {_amount(judged, high)}, last {_amount(judged, finite[-1].high)}")
    parts += [f"{limit.name} {_amount(judged, limit.value)}" for limit in judged.limits]
    if broken:
        parts.append(f"{broken} of {len(close.columns)} values are no number (triangles)")
    told = "; ".join(parts) + "."
    if judged.name == SPEND and len(close.columns) > 1:
        told += " From the ledger's hourly charges: straight between them."
    elif len(close.columns) > 1:
        told += f" The last {len(close.columns):,} records, {_length(close)}."
    late_s = seen.verdict_s - quantity.close[-1].at
    if late_s >= 1 and judged.name != SPEND:
        told += f" The last one came {_time(late_s)} before the verdict."
    return f"{told} {judged.note}".rstrip()


def _length(span: Span) -> str:
    return _time(span.end_s - span.begin_s)


def _time(seconds: float) -> str:
    return format_duration(round(max(0.0, seconds) * NS_PER_S))


def _amount(judged: Judged, value: float) -> str:
    return usd(value) if judged.name == SPEND and math.isfinite(value) else figure(value)


def _figure(judged: Judged, span: Span, caption: str) -> str:
    wide, narrow = (_plot(judged, span, is_narrow=is_narrow) for is_narrow in (False, True))
    label = html.escape(plain(f"Plot: {caption}"))
    return (
        f'<figure role="img" aria-label="{label}"><div class="wide" aria-hidden="true">{wide}</div>'
        f'<div class="narrow" aria-hidden="true">{narrow}</div>'
        f"<figcaption>{html.escape(plain(caption))}</figcaption></figure>\n"
    )


def _plot(judged: Judged, span: Span, *, is_narrow: bool) -> str:
    finite = span.finite()
    low, high, is_log = _scale(judged, finite)
    begin, end = span.begin_s, max(span.end_s, span.begin_s + 1e-9)
    across = [(begin, f"-{_time(span.verdict_s - begin)}")] if begin < span.verdict_s else []
    marks = dict.fromkeys((low, high)) if finite or judged.limits else ()
    plot = Plot(
        Axis(begin, end, marks=[*across, (span.verdict_s, "verdict")]),
        Axis(low, high, is_log=is_log, marks=[(value, _amount(judged, value)) for value in marks]),
        title=f"{judged.title}{', logarithmic' if is_log else ''}", height=200 if is_narrow else 240,
        width=380 if is_narrow else 1000, left=60 if is_narrow and judged.name != SPEND else 80,
        right=30 if is_narrow else 40, top=26, bottom=28,
    )  # fmt: skip
    for limit in judged.limits:
        plot.rule(limit.value, f"{limit.name} {_amount(judged, limit.value)}")
    columns = fewer(span.columns, COLUMNS_MAX[is_narrow])
    kept = [column for column in columns if column.low <= column.high]
    for _, own in groupby(kept, key=lambda column: column.piece):
        piece = list(own)
        if len(piece) == 1:
            plot.dots([(piece[0].at, piece[0].high, _amount(judged, piece[0].high))], CURVE, 3)
        else:
            plot.band([(column.at, column.low, column.high) for column in piece], CURVE)
    for column in [column for column in columns if column.is_broken][:BROKEN_MAX]:
        plot.triangle(column.at, VERDICT)
    plot.upright(span.verdict_s, VERDICT, "the verdict", is_dashed=False)
    return plot.svg()


def _scale(judged: Judged, finite: Sequence[Column]) -> tuple[float, float, bool]:
    """The lowest and the highest value, and whether their distance needs a logarithmic scale: never that of a sum."""
    values = [limit.value for limit in judged.limits]
    values += [column.low for column in finite] + [column.high for column in finite]
    if not values:
        return 0.0, 1.0, False
    low, high = min(values), max(values)
    if judged.name == SPEND:
        return (0.0 if low < high * NEXT_TO_NONE_FRAC else low), high, False
    middle = sorted(values)[len(values) // 2]
    return low, high, low > 0 and math.isfinite(high) and high > WIDE_FRAC * middle


# --- for a terminal ------------------------------------------------------------------------------------------


def sketched(seen: Seen) -> list[str]:
    """The first quantity that the recording has, in a few lines of text. Empty where it has none."""
    for judged in seen.judged:
        quantity = seen.quantities.get(judged.name)
        if quantity is None or len(quantity.close) < DRAWN_MIN:
            continue
        span = Span(list(quantity.close), seen.verdict_s)
        low, high, is_log = _scale(judged, span.finite())
        drawing = Sketch(
            [(column.at, column.low, column.high, column.piece) for column in span.finite()],
            [column.at for column in span.columns if column.is_broken],
            (span.begin_s, span.end_s),
            (low, high),
            judged.limits[0].value if judged.limits else None,
            is_log=is_log,
            told=partial(_amount, judged),
        )
        foot = (f"-{_time(span.verdict_s - span.begin_s)}", "verdict")
        return [_caption(judged, quantity, span, seen).replace(" (triangles)", " (x)"), *sketch_lines(drawing, foot)]
    return []
