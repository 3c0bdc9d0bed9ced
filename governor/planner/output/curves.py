"""Small drawings for plans: curves over lengths or sizes that double, as SVG that fetches nothing."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH, HEIGHT = 760, 380  # Of one drawing, in SVG units.
LEFT, RIGHT, TOP, BOTTOM = 60, 210, 40, 50  # Its margins: the names of the curves stand at the right.
LABEL_GAP: Final = 15  # Two names nearer than this would lie over each other.
COLOURS: Final = ("#0969da", "#bf3989", "#1a7f37", "#bc4c00", "#8250df", "#57606a")


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
        return LEFT + (math.log2(place) - first) / ((last - first) or 1.0) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - math.log2(value)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="20" class="title">{html.escape(drawing.title)}</text>']
    for power in range(low, high + 1):
        at = y(2.0**power)
        parts.append(f'<path d="M{LEFT} {at:.1f} H{WIDTH - RIGHT}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{2.0**power:g}</text>')
    for place, name in zip(drawing.places, drawing.place_names, strict=True):
        parts.append(f'<text x="{x(place):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{name}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{html.escape(drawing.across)}</text>')
    if drawing.rule:
        at = y(drawing.rule[0])
        parts.append(f'<path d="M{LEFT} {at:.1f} H{WIDTH - RIGHT}" class="rule"/>')
        edge, name = WIDTH - RIGHT - 4, html.escape(drawing.rule[1])
        parts.append(f'<text x="{edge}" y="{at - 4:.1f}" class="quiet" text-anchor="end">{name}</text>')
    labels = _spread([y(curve.values[-1]) for curve in drawing.curves])
    for number, (curve, label) in enumerate(zip(drawing.curves, labels, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(p):.1f},{y(v):.1f}" for p, v in zip(drawing.places, curve.values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        name = html.escape(curve.name)
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{label + 4:.1f}" fill="{colour}">{name}</text>')
    return f'<g transform="translate(0 {y_offset})" fill="#24292f">{"".join(parts)}</g>'


def document(drawings: Sequence[Drawing]) -> str:
    """One SVG with the drawings below one another."""
    height = HEIGHT * len(drawings)
    inner = "\n".join(svg(drawing, HEIGHT * number) for number, drawing in enumerate(drawings))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{html.escape("; ".join(drawing.title for drawing in drawings))}">\n'
        "<style>text{font:12px system-ui,sans-serif}.title{font-weight:600;"
        "font-size:14px}.grid{stroke:#d0d7de}.rule{stroke:#57606a;stroke-dasharray:2 3}.quiet{fill:#57606a}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n{inner}\n</svg>\n'
    )


def _spread(wanted: Sequence[float]) -> list[float]:
    """Places for the names, each at its curve's end or as little below as it takes to be read."""
    placed: dict[int, float] = {}
    lowest = -math.inf
    for index in sorted(range(len(wanted)), key=lambda i: wanted[i]):
        lowest = max(wanted[index], lowest + LABEL_GAP)
        placed[index] = lowest
    return [placed[index] for index in range(len(wanted))]
