"""The one shape of every benchmark's result: a row, beside a peer measured in the same run; as a table or as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One figure. `p99` is the bad tail: the slowest 1 %, or the worst where there are fewer than 100 samples."""

    what: str
    unit: str
    median: float
    p99: float
    samples: int
    aim: str = ""  # "p99 < 10"; empty: reported for comparison only.
    peer: str = ""
    peer_median: float | None = None
    note: str = ""
    peer_at_least: bool = False  # The peer was not seen to end: its figure is how long it was waited for.

    @property
    def ratio(self) -> float | None:
        """Ours by the peer's."""
        return self.median / self.peer_median if self.peer_median else None


def row(
    what: str, unit: str, samples: Sequence[float], *, more_is_better: bool = False, peer: str = "",
    peer_samples: Sequence[float] = (), aim: str = "", note: str = "", peer_at_least: bool = False,
) -> Row:  # fmt: skip
    """Sum samples up."""
    return Row(
        what,
        unit,
        statistics.median(samples),
        p99(samples, more_is_better=more_is_better),
        len(samples),
        aim,
        peer,
        statistics.median(peer_samples) if peer_samples else None,
        note,
        peer_at_least,
    )


def p99(samples: Sequence[float], *, more_is_better: bool = False) -> float:
    """Nearest rank, from the bad side."""
    ordered = sorted(samples, reverse=more_is_better)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def as_json(rows: Sequence[Row]) -> str:
    return json.dumps([{**asdict(one), "ratio": one.ratio} for one in rows])


def from_json(text: str) -> list[Row]:
    return [Row(**{key: value for key, value in one.items() if key != "ratio"}) for one in json.loads(text)]


COLUMNS = ("what", "unit", "median", "p99", "aim", "peer", "peer's", "ratio")


def cells(one: Row) -> tuple[str, ...]:
    peer_figure = "" if one.peer_median is None else _figure(one.peer_median)
    ratio = "" if one.ratio is None else f"{one.ratio:.2g}"
    if one.peer_at_least:
        peer_figure, ratio = f"> {peer_figure}", f"< {ratio}"
    return (one.what, one.unit, _figure(one.median), _figure(one.p99), one.aim, one.peer, peer_figure, ratio)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_text(rows: Sequence[Row]) -> str:
    """A plain table; notes stand below it."""
    lines = [COLUMNS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    figures = {2, 3, 6, 7}
    text = [
        "  ".join(
            cell.rjust(width) if column in figures else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*text, *(f"{one.what}: {one.note}" for one in rows if one.note)])


def program(doc: str | None, measure: Callable[[], Sequence[Row]]) -> None:
    """The command line that every benchmark has."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of the table")
    arguments: Any = parser.parse_args()
    rows = measure()
    print(as_json(rows) if arguments.json else as_text(rows))
