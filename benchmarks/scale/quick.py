"""The command line of the programs that measure growth: as every benchmark's, and --quick, and --svg of one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.table import Row, as_json, as_text


def program(doc: str | None, measure: Callable[[bool, Path | None], Sequence[Row]]) -> None:
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of the table")
    parser.add_argument("--quick", action="store_true", help="few sizes and few samples: whether it works at all")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the figures there, where the program can")
    told = parser.parse_args()
    rows = measure(told.quick, told.svg)
    sys.stdout.write((as_json(rows) if told.json else as_text(rows)) + "\n")
