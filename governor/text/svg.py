"""Small drawings for plans: curves over lengths or sizes that double, as SVG that fetches nothing."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

CURVES_WIDTH, HEIGHT = 760, 380  # Of one drawing, in SVG units.
LEFT, RIGHT, TOP, BOTTOM = 60, 210, 40, 50  # Its margins: the names of the curves stand at the right.
LABEL_GAP: Final = 15  # Two names nearer than this would lie over each other.
CURVES_COLOURS: Final = ("#0969da", "#bf3989", "#1a7f37", "#bc4c00", "#8250df", "#57606a")


@dataclass(frozen=True, slots=True)
class Curve:
    """A value for each of the drawing's places."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Both axes double from mark to mark. `rule` is a value that divides good from bad, with its name."""

    title: str
    places: Sequence[float]
    place_names: Sequence[str]
    across: str  # what the places are
    curves: Sequence[Curve]
    rule: tuple[float, str] | None = None


def svg(drawing: Drawing, y_offset: int = 0) -> str:
    """One drawing as a group; see `document` for a file of them."""
    every = [value for curve in drawing.curves for value in curve.values]
    every += [drawing.rule[0]] if drawing.rule else []
    low, high = math.floor(math.log2(min(every))), math.ceil(math.log2(max(every)))
    high = max(high, low + 1)
    first, last = math.log2(drawing.places[0]), math.log2(drawing.places[-1])

    def x(place: float) -> float:
        return LEFT + (math.log2(place) - first) / ((last - first) or 1.0) * (CURVES_WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - math.log2(value)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="20" class="title">{html.escape(drawing.title)}</text>']
    for power in range(low, high + 1):
        at = y(2.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f} H{CURVES_WIDTH - RIGHT}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{2.0**power:g}</text>')
    for place, name in zip(drawing.places, drawing.place_names, strict=True):
        parts.append(f'<text x="{x(place):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{name}</text>')
    middle = (LEFT + CURVES_WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{html.escape(drawing.across)}</text>')
    if drawing.rule:
        at = y(drawing.rule[0])
        parts.append(f'<path d="M{LEFT} {at:.1f} H{CURVES_WIDTH - RIGHT}" class="rule"/>')
        edge, name = CURVES_WIDTH - RIGHT - 4, html.escape(drawing.rule[1])
        parts.append(f'<text x="{edge}" y="{at - 4:.1f}" class="quiet" text-anchor="end">{name}</text>')
    labels = _spread([y(curve.values[-1]) for curve in drawing.curves])
    for number, (curve, label) in enumerate(zip(drawing.curves, labels, strict=True)):
        colour = CURVES_COLOURS[number % len(CURVES_COLOURS)]
        points = " ".join(f"{x(p):.1f},{y(v):.1f}" for p, v in zip(drawing.places, curve.values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        name = html.escape(curve.name)
        parts.append(f'<text x="{CURVES_WIDTH - RIGHT + 10}" y="{label + 4:.1f}" fill="{colour}">{name}</text>')
    return f'<g transform="translate(0 {y_offset})" fill="#24292f">{"".join(parts)}</g>'


def document(drawings: Sequence[Drawing]) -> str:
    """One SVG with the drawings below one another."""
    height = HEIGHT * len(drawings)
    inner = "\n".join(svg(drawing, HEIGHT * number) for number, drawing in enumerate(drawings))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CURVES_WIDTH} {height}" role="img" '
        f'aria-label="{html.escape("; ".join(drawing.title for drawing in drawings))}">\n'
        "<style>text{font:12px system-ui,sans-serif}.title{font-weight:600;"
        "font-size:14px}.grid{stroke:#d0d7de}.rule{stroke:#57606a;stroke-dasharray:2 3}.quiet{fill:#57606a}</style>\n"
        f'<rect width="{CURVES_WIDTH}" height="{height}" fill="#ffffff"/>\n{inner}\n</svg>\n'
    )


def _spread(wanted: Sequence[float]) -> list[float]:
    """Places for the names, each at its curve's end or as little below as it takes to be read."""
    placed: dict[int, float] = {}
    lowest = -math.inf
    for index in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        lowest = max(wanted[index], lowest + LABEL_GAP)
        placed[index] = lowest
    return [placed[index] for index in range(len(wanted))]


# Drawings for the pages of plans, as SVG text: stacked bars, and curves or points over two logarithmic scales.


WIDTH: Final = 1_000  # Of a drawing, in SVG units; it grows and shrinks with the page.
LABELS: Final = 210  # Room for what stands left of the bars.
BAR: Final = 22
GAP: Final = 12
# Okabe and Ito's colours, which people who see few colours tell apart, on light and on dark ground.
COLOURS: Final = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a300", "#888888", "#7f4fc9",
    "#8b5a2b", "#00b3b3", "#a4262c", "#6b8e23", "#ff7fa7",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bar:
    """Parts beside one another, by name. `limit`: a mark; `told`: what stands behind the bar."""

    label: str
    parts: Mapping[str, float]
    told: str
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y, what a pointer tells), joined where `is_line`."""

    name: str
    points: Sequence[tuple[float, float, str]]
    is_line: bool = True
    is_edge: bool = False  # The border of a cloud of other series: in the colour of the text.


def colours_of(names: Sequence[str]) -> dict[str, str]:
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}


def legend(colours: Mapping[str, str]) -> str:
    items = "".join(
        f'<li><i style="background:{colour}"></i>{html.escape(name)}</li>' for name, colour in colours.items()
    )
    return f'<ul class="legend">{items}</ul>'


def stacked(bars: Sequence[Bar], colours: Mapping[str, str], unit: str) -> str:
    """A bar a row, all to one scale."""
    room = WIDTH - LABELS - 150
    most = max((max(sum(bar.parts.values()), bar.limit or 0.0) for bar in bars), default=0.0) or 1.0
    drawn = []
    for row, bar in enumerate(bars):
        y, x = GAP + row * (BAR + GAP), float(LABELS)
        drawn.append(_text(LABELS - 8, y + BAR * 0.7, _short(bar.label, 32), "end"))
        for name, value in bar.parts.items():
            width = room * value / most
            told = html.escape(f"{name}: {figure(value)} {unit}")
            drawn.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0):.2f}" height="{BAR}" fill="{colours[name]}">'
                f"<title>{told}</title></rect>"
            )
            x += width
        if bar.limit is not None:
            at = LABELS + room * bar.limit / most
            drawn.append(f'<path class="limit" d="M{at:.1f} {y - 4}v{BAR + 8}"/>')
            x = max(x, at)
        drawn.append(_text(x + 8, y + BAR * 0.7, bar.told))
    return _svg("".join(drawn), GAP + len(bars) * (BAR + GAP))


def curves(series: Sequence[Series], x_title: str, y_title: str, height: int = 340) -> str:
    """Both scales are logarithmic: what costs twice as much is as far away everywhere."""
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    left, right, top, bottom = 90, 20, 14, 48
    x_low, x_high = _span([point[0] for point in points])
    y_low, y_high = _span([point[1] for point in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / x_low) / math.log(x_high / x_low)
        up = math.log(y / y_low) / math.log(y_high / y_low)
        return left + across * (WIDTH - left - right), height - bottom - up * (height - top - bottom)

    drawn = [_axes(place, (x_low, x_high), (y_low, y_high), height - bottom, left)]
    drawn.append(_text((left + WIDTH) / 2, height - 8, x_title, "middle"))
    middle = (height - bottom) / 2
    drawn.append(f'<g transform="rotate(-90 16 {middle})">{_text(16, middle, y_title, "middle")}</g>')
    colours = colours_of([one.name for one in series])
    for one in series:
        if one.is_edge:
            colours[one.name] = "currentColor"
        at = [(*place(x, y), told) for x, y, told in one.points]
        if one.is_line and len(at) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in at)
            drawn.append(f'<path class="curve" d="M{path}" stroke="{colours[one.name]}"/>')
        radius = 4 if one.is_line else 2.5
        drawn += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colours[one.name]}">'
            f"<title>{html.escape(told)}</title></circle>"
            for x, y, told in at
        ]
    return legend(colours) + _svg("".join(drawn), height)


def _axes(place: object, x_span: tuple[float, float], y_span: tuple[float, float], floor: float, left: float) -> str:
    assert callable(place)
    drawn = []
    for value in _ticks(*x_span):
        x, _ = place(value, y_span[0])
        drawn.append(f'<path class="grid" d="M{x:.1f} 14V{floor}"/>{_text(x, floor + 18, figure(value), "middle")}')
    for value in _ticks(*y_span):
        _, y = place(x_span[0], value)
        drawn.append(
            f'<path class="grid" d="M{left} {y:.1f}H{WIDTH - 20}"/>{_text(left - 8, y + 4, figure(value), "end")}'
        )
    return "".join(drawn)


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low / 1.3, high * 1.3) if high < 1.5 * low else (low / 1.08, high * 1.08)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 of each power of ten; of many powers, the powers alone; of less than one, more of them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high > 1e5 * low else (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [step * 10.0**power for power in powers for step in steps]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside or [low * 1.3, high / 1.3]


def figure(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _svg(inner: str, height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{inner}</svg>'
