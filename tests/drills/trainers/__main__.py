"""The table of trainers and faults. `python -m tests.drills.trainers [NAME…] [--fault nan|ceiling|hang] [--json]`.

Without a name every trainer is played. --keep DIR keeps the reports and outputs of the cells there.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import signal
import sys
from pathlib import Path

from tests.drills.trainers.harness import FAULT_AT, FAULTS, Cell, bench
from tests.drills.trainers.registry import TRAINERS

WIDTHS = (24, 8, 8, 18, 19)
TITLES = ("trainer", "fault", "halted", "saved", "last good", "resumed")


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.drills.trainers", description=__doc__)
    asked.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TRAINERS))
    asked.add_argument("--fault", choices=FAULTS, action="append", help="only this one; may be repeated")
    asked.add_argument("--at", type=int, default=FAULT_AT, metavar="STEP", help="where it breaks: default %(default)s")
    asked.add_argument("--json", action="store_true", help="one object a cell instead of the table")
    asked.add_argument("--keep", type=Path, metavar="DIR", help="keep reports and outputs there")
    told = asked.parse_args()
    if unknown := [name for name in told.names if name not in TRAINERS]:
        asked.error(f"no such trainer: {', '.join(unknown)}")
    chosen = [TRAINERS[name] for name in told.names or TRAINERS]
    cells: list[Cell] = []
    notes: list[str] = []
    if not told.json:
        print(_row(TITLES))
    for trainer in chosen:
        with bench(trainer, fault_at=told.at) as at:
            for fault in told.fault or FAULTS:
                cell = at.cell(fault)
                cells.append(cell)
                if told.keep:
                    _keep(told.keep, cell, at.golden.output)
                print(json.dumps(cell.as_json()) if told.json else _line(cell, notes), flush=True)
    if not told.json:
        print("\n".join(["", *notes, *_below({name for trainer in chosen for name in trainer.packages})]))
    return 0 if all(cell.ok for cell in cells) else 1


def _row(fields: tuple[str, ...]) -> str:
    return "".join(f"{text:<{width}}" for text, width in zip(fields, WIDTHS, strict=False)) + fields[-1]


def _line(cell: Cell, notes: list[str]) -> str:
    texts = [cell.trainer, cell.fault]
    for held in (cell.halted, cell.saved, cell.last_good, cell.resumed):
        mark = ""
        if not held.ok and held.why:
            notes.append(f"({len(notes) + 1}) {held.why}")
            mark = f" ({len(notes)})"
        texts.append(f"{held.text}{mark}")
    return _row(tuple(texts))


def _below(packages: set[str]) -> list[str]:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(packages))
    return [f"{datetime.datetime.now(datetime.UTC).date().isoformat()}: {versions}"]


def _keep(directory: Path, cell: Cell, golden: str) -> None:
    place = directory / f"{cell.trainer}-{cell.fault}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "incident.json").write_text(json.dumps(cell.incident, indent=1))
    for name, text in zip(("golden", "broken", "resumed"), (golden, *cell.outputs), strict=False):
        (place / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # As Ctrl-C: what runs is ended.
    sys.exit(main())
