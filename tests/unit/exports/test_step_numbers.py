"""A recording whose steps have numbers that no step has: they are left out and counted, and the others are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from governor.cli.common import ExitCode
from governor.core.base.units import COUNT_MAX
from tests.unit.cli.test_ended import call
from tests.unit.exports.exported import RUN, hello, leave_journal, leave_recording, read_lines, step
from tests.unit.exports.test_export import export

ABSURD = [COUNT_MAX, 10**400, -1]
STEPS = 20


def leave(state: Path, rank: int, told: dict[str, Any]) -> None:
    good = [step(10 + n, n, rank=of) for n in range(1, STEPS + 1) for of in (0, 1)]
    lines = [hello(0), hello(0, rank=1), *good]
    lines.insert(12, step(15, 6, rank=rank, loss="nan", **told))
    leave_recording(state, lines)
    leave_journal(state, [], [])


@pytest.mark.parametrize("number", ABSURD)
@pytest.mark.parametrize("name", ["step", "attempt_step"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_report_draws_the_others_and_counts_it(state: Path, rank: int, name: str, number: int) -> None:
    leave(state, rank, {name: number})
    code, text, said = call("report", RUN, "--json")
    document = json.loads(text)
    stability = document["stability"]
    assert (code, stability["steps"], stability["first_nonfinite_step"]) == (ExitCode.OK, STEPS, None)
    assert "skipped" in said + " ".join(document["not_verified"])


@pytest.mark.parametrize("number", ABSURD)
@pytest.mark.parametrize("name", ["step", "attempt_step"])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_export_has_the_others_and_counts_it(
    state: Path, tmp_path: Path, rank: int, name: str, number: int
) -> None:
    leave(state, rank, {name: number})
    code, text, said = export(RUN, "--jsonl", str(tmp_path / "to"), "--json")
    assert (code, json.loads(text)["lines_unread"], bool(said)) == (0, 1, True)
    drawn = [one["step"] for one in read_lines(tmp_path / "to/training_metrics.jsonl") if "loss" in one]
    assert drawn == list(range(1, STEPS + 1))
