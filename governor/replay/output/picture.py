"""A replayed log as one PNG of 1600 x 1000 pixels, with the contents of the page, for a report or a chat."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from governor.core.base.units import NS_PER_S, format_duration
from governor.replay.output.page import COLOURS, MARKS_MAX, cells, place
from governor.replay.play import Replay, ReplayVerdict
from governor.replay.trace import Trace
from governor.text.binned import Line
from governor.text.table import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXTRA: Final = "a PNG needs matplotlib: pip install 'costgov[plot]', or name FILE.html"
INCHES: Final = (16.0, 10.0)
DPI: Final = 100
ROWS_MAX: Final = 6  # Verdicts below the drawing. The page and --json have all.
ROW_CHARS_MAX: Final = 175  # As wide as the picture.
# As wide as the picture, in larger letters. The end of a path says more than its start.
NAME_CHARS_MAX: Final = 120
TICKS_MAX: Final = 10
TICKS_S: Final = (
    *(1, 2, 5, 10, 15, 30), *(60 * n for n in (1, 2, 5, 10, 15, 30)), *(3600 * n for n in (1, 2, 3, 6, 12)),
    *(86_400 * n for n in (1, 2, 7, 30)),
)  # fmt: skip
LEGEND: Final = "solid: a rule that enforces; dashed: one that only observes; triangle: a value that is no number"
NAMES_MAX: Final = 12  # Names of marks. More would overlap.
NAME_ROWS: Final = 3  # The names of marks alternate between this many heights.
VALUE_MAX: Final = 1e200
LAST_CODE_POINT: Final = 0x24F  # The last character that matplotlib's own font certainly has.
SIGNS: Final = frozenset("–—×≥≤→·…")


def is_there() -> bool:
    """Whether matplotlib is installed. It is imported only for a drawing."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(path: Path, name: str, replay: Replay, trace: Trace) -> None:
    """Write the picture of one log. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, dpi=DPI)
    FigureCanvasAgg(figure)
    marks = replay.verdicts[:MARKS_MAX]
    rows = _rows(replay.verdicts)
    _text(figure, 0.015, 0.975, name if len(name) <= NAME_CHARS_MAX else "…" + name[-NAME_CHARS_MAX:], size=13)
    _text(figure, 0.015, 0.948, verdict_line(replay), size=12, weight="bold", color=_colour_of(replay.verdicts))
    _text(figure, 0.985, 0.006, LEGEND, size=9, color="#57606a", ha="right")
    lines = trace.drawn()
    if lines:
        first, last = trace.span(_where(mark, trace) for mark in marks)
        bottom = 0.08 + 0.021 * len(rows)
        grid = figure.add_gridspec(len(lines), 1, left=0.06, right=0.985, top=0.86, bottom=bottom, hspace=0.22)
        panels: list[Axes] = [figure.add_subplot(grid[n, 0]) for n in range(len(lines))]
        for panel, (title, line) in zip(panels, lines, strict=True):
            _panel(panel, title, line, marks, trace)
            panel.set_xlim(first, last if last > first else first + 1)
            panel.tick_params(labelbottom=panel is panels[-1])
        _places(panels, trace)
        _names(panels[0], marks, trace)
    else:
        _text(figure, 0.015, 0.5, "It holds no step with a loss, a gradient norm or a time.", size=12)
    for number, row in enumerate(rows):
        _text(figure, 0.015, 0.006 + 0.021 * (len(rows) - number), row, size=9, family="monospace")
    figure.savefig(path, format="png")


def verdict_line(replay: Replay) -> str:
    """The result for the log in one line: the first halt of each policy counts."""
    lines = []
    for policy in replay.policies:
        own = [one for one in replay.verdicts if one.policy == policy.name]
        halt = next((one for one in own if one.response == "halt"), None)
        others = f"; {len(own)} verdicts in all" if len(own) > 1 else f"; 1 verdict of {own[0].rule}" if own else ""
        if halt is None:
            lines.append(f"{policy.name}: no halt{others}")
            continue
        would = "halt" if halt.mode == "enforce" else "would halt (observe mode)"
        at = "" if halt.t is None else f", {format_duration(round(halt.t * NS_PER_S))}"
        others = f"; {len(own)} verdicts in all" if len(own) > 1 else ""
        lines.append(f"{policy.name}: {would} by {halt.rule} at step {halt.step}{at}{others}")
    return " | ".join(lines)


def _rows(verdicts: Sequence[ReplayVerdict]) -> list[str]:
    rows = [" · ".join(cell for cell in cells(one) if cell) for one in verdicts[:ROWS_MAX]]
    more = len(verdicts) - len(rows)
    return [*rows, f"{more:,} more are not shown"] if more > 0 else rows


def _panel(panel: Axes, title: str, line: Line, marks: Sequence[ReplayVerdict], trace: Trace) -> None:
    """A band from the lowest to the highest value of each place, so that a spike of one step keeps its height."""
    is_log = line.scale()[2]
    panel.set_ylabel(title + (" (log)" if is_log else ""))
    if is_log:
        panel.set_yscale("log")
    for piece in line.pieces():
        at = [column.at for column in piece]
        lows, highs = [_within(column.low) for column in piece], [_within(column.high) for column in piece]
        panel.fill_between(at, lows, highs, color="#0969da", alpha=0.35, linewidth=0)
        panel.plot(at, highs, color="#0969da", linewidth=1.2, marker="." if len(at) < 2 else None)
    broken = [column.at for column in line.columns if column.is_broken]
    panel.plot(broken, [1.03] * len(broken), "v", color=COLOURS["halt"], clip_on=False, markersize=6,
               transform=panel.get_xaxis_transform())  # fmt: skip
    known = [(where, mark) for mark in marks if (where := _where(mark, trace)) is not None]
    panel.vlines(
        [where for where, _ in known], 0, 1, transform=panel.get_xaxis_transform(), linewidth=1.2,
        colors=[_colour(mark) for _, mark in known],
        linestyles=["solid" if mark.mode == "enforce" else "dashed" for _, mark in known],
    )  # fmt: skip
    panel.grid(alpha=0.25)
    panel.margins(y=0.08)


def _within(value: float) -> float:
    """The value clipped to what an axis can hold: near the largest floats its own sums overflow."""
    size = min(max(abs(value), 1 / VALUE_MAX), VALUE_MAX) if value else 0.0
    return math.copysign(size, value)


def _names(panel: Axes, marks: Sequence[ReplayVerdict], trace: Trace) -> None:
    """Each rule's name above its first mark, with the number of its marks."""
    times = Counter(mark.rule for mark in marks)
    firsts = {mark.rule: mark for mark in reversed(marks)}
    known = [(where, mark) for mark in firsts.values() if (where := _where(mark, trace)) is not None]
    left, right = panel.get_xlim()
    for number, (where, mark) in enumerate(sorted(known, key=lambda one: one[0])[:NAMES_MAX]):
        count = f" ×{times[mark.rule]}" if times[mark.rule] > 1 else ""
        beside = where < left + 0.8 * (right - left)
        panel.annotate(
            _plain(mark.rule) + count, (where, 1.0), xycoords=panel.get_xaxis_transform(),
            xytext=(3 if beside else -3, 13 + 12 * (number % NAME_ROWS)), textcoords="offset points",
            ha="left" if beside else "right", color=_colour(mark), fontsize=10, parse_math=False,
        )  # fmt: skip


def _places(panels: Sequence[Axes], trace: Trace) -> None:
    """Ticks below the panels: the time and the step at that time, or only steps for a log without times."""
    panel = panels[-1]
    left, right = panel.get_xlim()
    if trace.is_timed:
        apart = next(
            (seconds for seconds in TICKS_S if right - left <= seconds * TICKS_MAX), (right - left) / TICKS_MAX
        )
        ticks = [apart * n for n in range(math.ceil(left / apart), math.floor(right / apart) + 1)]
    else:
        ticks = [tick for tick in panel.get_xticks() if left <= tick <= right]
    for one in panels:
        one.set_xticks(ticks)
    panel.set_xticklabels([_plain(_place(tick, trace)) for tick in ticks])


def _place(at: float, trace: Trace) -> str:
    if not trace.is_timed:
        return place(at, trace)
    before = list(itertools.takewhile(lambda column: column.at <= at, trace.steps.columns))
    return f"{place(at, trace) if at else 0}\n" + (f"step {before[-1].high:,.0f}" if before else "")


def _where(mark: ReplayVerdict, trace: Trace) -> float | None:
    return mark.t if trace.is_timed else mark.step


def _colour(mark: ReplayVerdict) -> str:
    return COLOURS.get(mark.response, COLOURS["watch"])


def _colour_of(marks: Sequence[ReplayVerdict]) -> str:
    return COLOURS["halt"] if any(one.response == "halt" for one in marks) else "black"


def _text(figure: Figure, x: float, y: float, text: str, **style: Any) -> None:
    line = _plain(text)
    figure.text(
        x, y, line if len(line) <= ROW_CHARS_MAX else line[: ROW_CHARS_MAX - 1] + "…", parse_math=False, **style
    )


def _plain(text: str) -> str:
    """The characters that the font can draw. Others would fill the terminal with matplotlib's warnings."""
    lines = [plain(line) for line in text.split("\n")]
    return "\n".join("".join(c if ord(c) <= LAST_CODE_POINT or c in SIGNS else "?" for c in line) for line in lines)
