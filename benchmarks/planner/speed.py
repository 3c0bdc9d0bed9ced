"""How far the predicted speed is off on published measurements, and on those of sources that the fit has not seen.

python -m benchmarks.planner.speed [FOLDER] [--refit] [--quick]   FOLDER holds throughput_dev.csv
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.planner import accuracy, peer_speeds
from benchmarks.planner.accuracy import Predicted
from benchmarks.planner.measured_speeds import TABLE, Measured, measured
from benchmarks.planner.speed_fit import errors, fit
from governor.planner.model.compute import Constants
from governor.planner.model.predict import Z80, band_of, spread_of

LEFT_OUT_ROUNDS = 3  # from the constants of all rows: the fit without one source is near
GUESSED = 0.5  # the share of peak that llm-analysis is told


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help=f"holds {TABLE}; without it the package's own rows alone")
    parser.add_argument("--refit", action="store_true", help="fit the constants anew and print them as JSON")
    parser.add_argument("--quick", action="store_true", help="do not leave sources out, which takes minutes")
    options = parser.parse_args(arguments)
    folder = options.folder if options.folder is not None and (options.folder / TABLE).exists() else None
    if options.folder is not None and folder is None:
        print(f"skipped: {options.folder / TABLE} is not there; the rows of benchmarks/data alone")
    rows = measured(folder)
    if options.refit:
        print(json.dumps(asdict(fit(rows)), indent=1))
        return 0
    seen = errors(rows, Constants())
    print(f"speed, {len(rows)} rows of {len({row.source for row in rows})} sources: {_summary(seen)}")
    _print_peer(rows)
    if not options.quick:
        _print_left_out(rows, seen)
    return 0


def left_out(rows: Sequence[Measured]) -> dict[str, float]:
    """The error of each row by constants fitted without its source."""
    with multiprocessing.Pool() as pool:
        parts = pool.starmap(_without, [(rows, source) for source in sorted({row.source for row in rows})], 1)
    return {row_id: error for part in parts for row_id, error in part}


def _without(rows: Sequence[Measured], source: str) -> list[tuple[str, float]]:
    constants = fit([row for row in rows if row.source != source], LEFT_OUT_ROUNDS, Constants())
    own = [row for row in rows if row.source == source]
    return list(zip((row.row_id for row in own), errors(own, constants), strict=True))


def _print_left_out(rows: Sequence[Measured], seen: Sequence[float]) -> None:
    unseen = left_out(rows)
    inside = {row.row_id: _is_inside(row, unseen[row.row_id]) for row in rows}
    print(f"each source left out of the fit: {_summary(unseen.values())}")
    print(f"80 % intervals hold {statistics.mean(inside.values()):.0%} of the left-out rows")
    classes = accuracy.grouped((_predicted(row, unseen[row.row_id]), _classes(row)) for row in rows)
    print(f"\nby what a row runs and leaves to guess, each source left out of the fit\n{accuracy.class_table(classes)}")
    print(f"intervals that are not of 80 %: {', '.join(accuracy.missed_classes(classes)) or 'none'}")
    print(f"\n{'source':<36} {'rows':>5} {'median':>7} {'p90':>6}   {'left out':>8} {'p90':>6} {'bias':>6} {'held':>5}")
    by_source: dict[str, list[tuple[float, float, bool]]] = defaultdict(list)
    for row, error in zip(rows, seen, strict=True):
        by_source[row.source].append((error, unseen[row.row_id], inside[row.row_id]))
    for source, found in sorted(by_source.items()):
        fitted, left, held = zip(*found, strict=True)
        print(
            f"{source:<36} {len(found):>5} {_median(fitted):>7.1%} {_p90(fitted):>6.1%}   {_median(left):>8.1%} "
            f"{_p90(left):>6.1%} {statistics.median(left):>+6.0%} {statistics.mean(held):>5.0%}"
        )
    medians = [_median([left for _, left, _ in found]) for found in by_source.values()]
    print(f"{'mean of the sources':<36} {'':>5} {'':>7} {'':>6}   {statistics.mean(medians):>8.1%}")


def _classes(row: Measured) -> list[str]:
    return accuracy.classes_of(row.setup, row.assumed)


def _predicted(row: Measured, error: float) -> Predicted:
    mid = (1 + error) * row.tokens_per_gpu_s
    band = band_of(mid, row.setup, row.assumed)
    return Predicted(row.row_id, row.source, row.tokens_per_gpu_s, mid, band.low, band.high)


def _is_inside(row: Measured, error: float) -> bool:
    return abs(math.log(1 + error)) <= Z80 * spread_of(row.setup, row.assumed)


def _print_peer(rows: Sequence[Measured]) -> None:
    if not peer_speeds.is_here():
        print("llm-analysis: not installed (pip install llm-analysis), so not beside")
        return
    covered = [row for row in rows if peer_speeds.is_covered(row)]
    found = [(row, peer_speeds.speed(row, GUESSED)) for row in covered]
    theirs = [(row, speed / row.tokens_per_gpu_s - 1) for row, speed in found if speed is not None]
    ours = errors([row for row, _ in theirs], Constants())
    print(
        f"llm-analysis, told that {GUESSED:.0%} of peak are reached: answers {len(theirs)} of {len(rows)} rows: "
        f"{_summary(error for _, error in theirs)}; ours on these: {_summary(ours)}"
    )


def _summary(found: Iterable[float]) -> str:
    listed = list(found)
    return f"median error {_median(listed):.1%}, p90 {_p90(listed):.1%}"


def _median(found: Sequence[float]) -> float:
    return statistics.median(map(abs, found))


def _p90(found: Sequence[float]) -> float:
    return sorted(map(abs, found))[int(0.9 * len(found))]


if __name__ == "__main__":
    raise SystemExit(main())
