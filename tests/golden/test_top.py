"""The screen of `costgov top` at 80 x 24 and narrower, as text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from governor.cli.top.drawing import draw
from governor.cli.top.seen import Row, Seen, Watched
from governor.text.screen import Screen, width, without_colour
from tests.golden.board_cases import HALTING, HELD, USD_PER_HOUR, YOUNG, run_row

GOLDEN = Path(__file__).parent / "top"
GOVERNOR: Final = {
    "node": "gpu-17", "run": None, "pid": 7, "mode": "enforce", "price_usd_per_hour": USD_PER_HOUR,
    "cloud": {"will": "stop i-0abc"},
}  # fmt: skip


def seen(*runs: dict[str, Any]) -> Seen:
    return Seen((GOVERNOR,), tuple(Row("/run/costgov/control.sock", GOVERNOR, run) for run in runs))


def watched(selected: int, *runs: dict[str, Any], silent_s: float | None = None) -> Watched:
    told = Watched()
    told.take(seen(*runs), 0.0)
    told.move(selected)
    if silent_s is not None:
        told.take(Seen(problem="no governor"), 0.0)
    return told


BOTH: Final = (run_row(), run_row(**YOUNG))
MANY: Final = [run_row(run=f"run-{number:02}-of-a-sweep", step=number) for number in range(20)]
CASES: Final = {
    "two_runs": (watched(0, *BOTH), 80, 24, ""),
    "young": (watched(1, *BOTH), 80, 24, ""),
    "halting": (watched(0, run_row(**HALTING, **HELD)), 80, 24, "llama-8b: halting, incident llama-8b.gpu-17.2"),
    "away": (watched(0, *BOTH, silent_s=0.0), 80, 24, ""),
    "many": (watched(14, *MANY), 80, 24, ""),
    "none": (watched(0), 80, 24, ""),
    "wide": (watched(0, *BOTH), 140, 40, ""),
    "small": (watched(0, *BOTH), 60, 14, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_the_screen_reads_as_agreed(case: str) -> None:
    """`make golden-update` rewrites the files; read the diff."""
    told, columns, lines_max, notice = CASES[case]
    lines = draw(told, Screen(columns, False), lines_max, 12.0, notice)
    assert len(lines) == lines_max
    assert all(width(line) <= columns for line in lines)
    assert [without_colour(line) for line in draw(told, Screen(columns, True), lines_max, 12.0, notice)] == lines
    text = "\n".join(lines) + "\n"
    path = GOLDEN / f"{case}.txt"
    if os.environ.get("COSTGOV_GOLDEN_UPDATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text
