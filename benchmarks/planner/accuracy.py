"""How far predictions lie from published measurements: by source, with each source left out of the fit, and in bands.

Shared by the benchmarks of the planner. Their tables are not part of this repository: `--data FOLDER` or
COSTGOV_PLANNER_DATA says where they are.
"""

from __future__ import annotations

import csv
import math
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from governor.planner.model.setup import Kernel, Setup

ENVIRONMENT = "COSTGOV_PLANNER_DATA"
Row = Mapping[str, str]
Model = TypeVar("Model")


@dataclass(frozen=True)
class Predicted:
    """One row beside its measurement, in the same unit. `low` and `high`: the 80 % interval."""

    row_id: str
    source: str
    measured: float
    predicted: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def error(self) -> float:
        """Signed, as a fraction of what was measured."""
        return self.predicted / self.measured - 1

    @property
    def is_within(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Summary:
    rows: int
    median: float  # of |error|
    p90: float
    bias: float  # median of the signed error
    within: float | None  # share of rows in their interval; None: there are none


def summed_up(predicted: Sequence[Predicted]) -> Summary:
    errors = sorted(abs(one.error) for one in predicted)
    return Summary(
        len(errors),
        statistics.median(errors),
        errors[min(int(0.9 * len(errors)), len(errors) - 1)],
        statistics.median(one.error for one in predicted),
        sum(one.is_within for one in predicted) / len(errors) if math.isfinite(predicted[0].high) else None,
    )


def by_source(predicted: Iterable[Predicted]) -> dict[str, list[Predicted]]:
    groups: dict[str, list[Predicted]] = {}
    for one in predicted:
        groups.setdefault(one.source, []).append(one)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def left_out(
    rows: Sequence[Row],
    source_of: Callable[[Row], str],
    fit: Callable[[Sequence[Row]], Model],
    predict: Callable[[Model, Row], Predicted],
) -> list[Predicted]:
    """Leave one source out: each row predicted by what was fitted to the rows of all other sources."""
    found = []
    for source in sorted({source_of(row) for row in rows}):
        model = fit([row for row in rows if source_of(row) != source])
        found += [predict(model, row) for row in rows if source_of(row) == source]
    return found


def table(columns: Mapping[str, Sequence[Predicted]]) -> str:
    """A line a source and one for all, with the figures of each column (such as "fitted" and "left out") beside. The
    first column has every row; others may lack some."""
    sources = list(by_source(next(iter(columns.values()))))
    width = max(len(name) for name in [*sources, "all rows"])
    heads = "".join(f"  {name:>31}" for name in columns)
    lines = [
        f"{'':{width}} {'rows':>5}{heads}",
        f"{'':{width}} {'':>5}" + "  median    p90    bias in band" * len(columns),
    ]
    for source in [*sources, None]:
        groups = [[one for one in found if source in (None, one.source)] for found in columns.values()]
        cells = "".join(_cells(summed_up(group)) if group else " " * 33 for group in groups)
        lines.append(f"{source or 'all rows':{width}} {len(groups[0]):>5}{cells}")
    return "\n".join(lines)


ROWS_MIN = 20  # A class of fewer rows says little about its interval.
WITHIN = (0.70, 0.90)  # what an interval of 80 % may hold of a class that says something


def class_table(classes: Mapping[str, Sequence[Predicted]]) -> str:
    """A line a class of rows (what they run, what was guessed), with whether its interval holds four of five."""
    width = max(len("all rows"), *map(len, classes))
    lines = [f"{'':{width}} {'rows':>5} {'sources':>7}  median    p90    bias in band"]
    for name, group in sorted(classes.items()):
        verdict = "few rows" if len(group) < ROWS_MIN else "" if _is_four_of_five(group) else "NOT 80 %"
        line = f"{name:{width}} {len(group):>5} {len(by_source(group)):>7}{_cells(summed_up(group))}  {verdict}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def missed_classes(classes: Mapping[str, Sequence[Predicted]]) -> list[str]:
    """Those with enough rows whose intervals hold too few of them, or too many."""
    return sorted(name for name, group in classes.items() if len(group) >= ROWS_MIN and not _is_four_of_five(group))


def _is_four_of_five(group: Sequence[Predicted]) -> bool:
    within = summed_up(group).within
    return within is not None and WITHIN[0] <= within <= WITHIN[1]


def classes_of(setup: Setup, assumed: Sequence[str]) -> list[str]:
    """What a row runs, and what it leaves to guess."""
    guessed = [f"guessed: {name}" for name in sorted({one.split()[0] for one in assumed})] or ["nothing guessed"]
    shape = "mixture" if setup.shape.is_moe else "dense"
    kernel = "not named" if setup.kernel is Kernel.USUAL else setup.kernel.value
    return [
        f"{setup.framework}, {shape}", f"precision: {setup.precision.bits} bits", f"attention kernel: {kernel}",
        f"checkpointing: {setup.checkpointing}", *guessed,
    ]  # fmt: skip


def grouped(found: Iterable[tuple[Predicted, Sequence[str]]]) -> dict[str, list[Predicted]]:
    """The rows of each class; one row is of several."""
    groups: dict[str, list[Predicted]] = {}
    for one, names in found:
        for name in names:
            groups.setdefault(name, []).append(one)
    return groups


def _cells(one: Summary) -> str:
    within = "-" if one.within is None else f"{one.within:.0%}"
    return f"  {one.median:>6.1%} {one.p90:>6.1%} {one.bias:>+7.1%} {within:>7}"


def worst(predicted: Sequence[Predicted], count: int) -> str:
    ordered = sorted(predicted, key=lambda one: -abs(math.log(one.predicted / one.measured)))[:count]
    return "\n".join(
        f"{one.row_id}  {one.error:>+7.0%}  measured {one.measured:,.1f}, predicted {one.predicted:,.1f}  {one.source}"
        for one in ordered
    )


def rows_of(name: str, folder: str | None) -> list[Row] | None:
    """The rows of a table; None where there is none, and then a line says so."""
    where = folder or os.environ.get(ENVIRONMENT)
    if not where:
        print(f"skipped: no measurements: say --data FOLDER or {ENVIRONMENT}=FOLDER, which holds {name}")
        return None
    path = Path(where) / name
    if not path.is_file():
        print(f"skipped: there is no {path}")
        return None
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def repository_of(row: Row) -> str:
    """Who measured: the first word of the source, a repository or the name of a paper."""
    return row["source"].split()[0]
