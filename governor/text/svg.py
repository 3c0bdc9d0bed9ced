"""SVG drawings that fetch nothing: curves, points and bands over two axes, and stacked bars."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

WIDTH: Final = 1_000  # In SVG units; the drawing scales with the page.
LABELS: Final = 210  # Room left of the bars.
BAR: Final = 22
GAP: Final = 12
LINE: Final = 15  # Names nearer than this would overlap.
# Okabe and Ito's colours, which colour-blind readers can distinguish, on light and dark backgrounds.
COLOURS: Final = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a300", "#888888", "#7f4fc9",
    "#8b5a2b", "#00b3b3", "#a4262c", "#6b8e23", "#ff7fa7",
)  # fmt: skip
CURVE: Final = COLOURS[0]  # Of a drawing with one curve.
CURVE_ON_DARK: Final = "#56b4e9"
RED: Final = "#d1242f"
RED_ON_DARK: Final = "#ff8a80"
STYLE: Final = """svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
.title { font-weight: 600; } .quiet { opacity: .7; }
.grid { stroke: currentColor; opacity: .14; } .curve { fill: none; stroke-width: 2; }
.limit { stroke: currentColor; stroke-width: 2; stroke-dasharray: 4 2; }
.rule { stroke: currentColor; stroke-dasharray: 2 3; opacity: .7; }
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`. `marks` are named values, chosen here if none are given."""

    low: float
    high: float
    title: str = ""
    is_log: bool = False
    marks: Sequence[tuple[float, str]] | None = None

    def part(self, value: float) -> float:
        """The position of a value along the axis, 0 to 1."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        # Both terms are halved because the difference of the largest floats would be infinite. Half the smallest is 0.
        length = high / 2 - low / 2
        return (value / 2 - low / 2) / length if length > 0 else 0.5

    def marked(self) -> Sequence[tuple[float, str]]:
        return [(tick, figure(tick)) for tick in _ticks(self.low, self.high)] if self.marks is None else self.marks


def axis_over(values: Sequence[float], title: str) -> Axis:
    """A logarithmic axis, a little longer than the values need. Equal ratios have equal lengths."""
    low, high = min(values), max(values)
    around = 1.3 if high < 1.5 * low else 1.08
    return Axis(low / around, high * around, title, is_log=True)


@dataclass(slots=True)
class Plot:
    """Two axes with marks and grid, and the parts drawn between them, in order."""

    x: Axis
    y: Axis
    height: int = 340
    width: int = WIDTH
    left: int = 90
    right: int = 20
    top: int = 14
    bottom: int = 48
    title: str = ""
    _parts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        floor, edge = self.height - self.bottom, self.width - self.right
        for value, name in self.x.marked():
            across = self._across(value)
            self._parts.append(f'<path class="grid" d="M{across:.1f} {self.top}V{floor}"/>')
            self._parts.append(_text(across, floor + 18, name, "middle"))
        for value, name in self.y.marked():
            up = self._up(value)
            self._parts.append(f'<path class="grid" d="M{self.left} {up:.1f}H{edge}"/>')
            self._parts.append(_text(self.left - 8, up + 4, name, "end"))
        if self.title:
            self._parts.append(_text(self.left, self.top - 8, self.title, kind="title"))
        if self.x.title:
            self._parts.append(_text((self.left + edge) / 2, self.height - 8, self.x.title, "middle"))
        if self.y.title:
            middle = (self.top + floor) / 2
            self._parts.append(
                f'<g transform="rotate(-90 16 {middle})">{_text(16, middle, self.y.title, "middle")}</g>'
            )

    def _across(self, value: float) -> float:
        return self.left + self.x.part(value) * (self.width - self.left - self.right)

    def _up(self, value: float) -> float:
        floor = self.height - self.bottom
        return floor - self.y.part(value) * (floor - self.top)

    def _points(self, points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self._across(x):.1f},{self._up(y):.1f}" for x, y in points)

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        self._parts.append(f'<polyline class="curve" points="{self._points(points)}" stroke="{colour}"/>')

    def dots(self, points: Sequence[tuple[float, float, str]], colour: str, radius: float) -> None:
        """Points, each with its tooltip."""
        self._parts += [
            f'<circle cx="{self._across(x):.1f}" cy="{self._up(y):.1f}" r="{radius}" fill="{colour}">'
            f"<title>{html.escape(note)}</title></circle>"
            for x, y, note in points
        ]

    def band(self, columns: Sequence[tuple[float, float, float]], colour: str) -> None:
        """From the lowest to the highest value at each x, so that a spike of one step keeps its height."""
        upper = self._points([(x, high) for x, _, high in columns])
        lower = self._points([(x, low) for x, low, _ in reversed(columns)])
        self._parts.append(f'<polygon points="{upper} {lower}" fill="{colour}" fill-opacity=".35" stroke="{colour}"/>')

    def upright(self, x: float, colour: str, note: str, *, is_dashed: bool, href: str = "") -> None:
        """A vertical line at an event. `href`: a place in the page that tells more of it."""
        dash = ' stroke-dasharray="4 3"' if is_dashed else ""
        at, long = self._across(x), self.height - self.bottom - self.top
        title = f"<title>{html.escape(note)}</title>"
        drawn = f'<path d="M{at:.1f} {self.top} v{long}" stroke="{colour}"{dash}>{title}</path>'
        if href:
            wider = f'<path d="M{at:.1f} {self.top} v{long}" stroke="transparent" stroke-width="12"/>'
            drawn = f'<a href="{html.escape(href)}" aria-label="{html.escape(note)}">{drawn}{wider}</a>'
        self._parts.append(drawn)

    def triangle(self, x: float, colour: str) -> None:
        """A mark above the plot, for a value that cannot be drawn."""
        self._parts.append(f'<path d="M{self._across(x):.1f} {self.top} l-4 -8 h8 z" fill="{colour}"/>')

    def rule(self, y: float, name: str) -> None:
        """A horizontal line at a value that divides good from bad."""
        up, edge = self._up(y), self.width - self.right
        self._parts.append(f'<path class="rule" d="M{self.left} {up:.1f}H{edge}"/>')
        self._parts.append(_text(edge - 4, up - 4, name, "end", "quiet"))

    def names(self, ends: Sequence[tuple[float, str, str]]) -> None:
        """(y, name, colour) at the right end of each curve, moved down just enough to be readable."""
        lowest, edge = -math.inf, self.width - self.right
        for y, name, colour in sorted(ends, key=lambda end: self._up(end[0])):
            lowest = max(self._up(y), lowest + LINE)
            self._parts.append(f'<path class="curve" d="M{edge + 8} {lowest:.1f}h12" stroke="{colour}"/>')
            self._parts.append(_text(edge + 26, lowest + 4, name))

    def inner(self) -> str:
        return "".join(self._parts)

    def svg(self) -> str:
        return _svg(self.inner(), self.width, self.height, self.title)


def standalone(plots: Sequence[Plot]) -> str:
    """A separate file with the plots below one another, dark on white in every viewer."""
    wide, tall = max(plot.width for plot in plots), sum(plot.height for plot in plots)
    drawn, y = [], 0
    for plot in plots:
        drawn.append(f'<g transform="translate(0 {y})">{plot.inner()}</g>')
        y += plot.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" role="img" color="#24292f" '
        f'aria-label="{html.escape("; ".join(plot.title for plot in plots))}">\n<style>{STYLE}</style>\n'
        f'<rect width="{wide}" height="{tall}" fill="#ffffff"/>\n{chr(10).join(drawn)}\n</svg>\n'
    )


# --- series with a legend ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y, tooltip), joined if `is_line`."""

    name: str
    points: Sequence[tuple[float, float, str]]
    is_line: bool = True
    # The border of a cloud of other series, drawn in the colour of the text.
    is_edge: bool = False


def colours_of(names: Sequence[str]) -> dict[str, str]:
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}


def legend(colours: Mapping[str, str]) -> str:
    items = "".join(
        f'<li><i style="background:{colour}"></i>{html.escape(name)}</li>' for name, colour in colours.items()
    )
    return f'<ul class="legend">{items}</ul>'


def curves(series: Sequence[Series], x_title: str, y_title: str, height: int = 340) -> str:
    """Curves over two logarithmic scales."""
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    plot = Plot(axis_over([x for x, _, _ in points], x_title), axis_over([y for _, y, _ in points], y_title), height)
    colours = colours_of([one.name for one in series])
    for one in series:
        if one.is_edge:
            colours[one.name] = "currentColor"
        if one.is_line and len(one.points) > 1:
            plot.line([(x, y) for x, y, _ in one.points], colours[one.name])
        plot.dots(one.points, colours[one.name], 4 if one.is_line else 2.5)
    return legend(colours) + plot.svg()


# --- bars ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """Named parts side by side. `limit`: a mark; `note`: the text after the bar."""

    label: str
    parts: Mapping[str, float]
    note: str
    limit: float | None = None


def stacked(bars: Sequence[Bar], colours: Mapping[str, str], unit: str) -> str:
    """One bar a row, all to one scale."""
    room = WIDTH - LABELS - 150
    most = max((max(sum(bar.parts.values()), bar.limit or 0.0) for bar in bars), default=0.0) or 1.0
    drawn = []
    for row, bar in enumerate(bars):
        y, x = GAP + row * (BAR + GAP), float(LABELS)
        drawn.append(_text(LABELS - 8, y + BAR * 0.7, _short(bar.label, 32), "end"))
        for name, value in bar.parts.items():
            width = room * value / most
            note = html.escape(f"{name}: {figure(value)} {unit}")
            drawn.append(
                f'<rect x="{x:.1f}" y="{y}" width="{max(width, 0):.2f}" height="{BAR}" fill="{colours[name]}">'
                f"<title>{note}</title></rect>"
            )
            x += width
        if bar.limit is not None:
            at = LABELS + room * bar.limit / most
            drawn.append(f'<path class="limit" d="M{at:.1f} {y - 4}v{BAR + 8}"/>')
            x = max(x, at)
        drawn.append(_text(x + 8, y + BAR * 0.7, bar.note))
    return _svg("".join(drawn), WIDTH, GAP + len(bars) * (BAR + GAP))


# --- parts ---------------------------------------------------------------------------------------------------


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 of each power of ten. Over many powers, the powers alone; within one power, more steps."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high > 1e5 * low else (1, 2, 5) if high > 10 * low else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [step * 10.0**power for power in powers for step in steps]
    inside = [tick for tick in ticks if low <= tick <= high]
    return inside or [low * 1.3, high / 1.3]


def figure(value: float) -> str:
    if 1000 <= value < 1e12:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{html.escape(text)}</text>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _svg(inner: str, wide: float, tall: float, note: str = "") -> str:
    label = f' aria-label="{html.escape(note)}"' if note else ""
    return f'<svg viewBox="0 0 {wide} {tall}" role="img"{label}>{inner}</svg>'
