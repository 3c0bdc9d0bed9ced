"""Dates of any year: what lies beyond all that a journal can hold bounds nothing, and a bill's own are a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from governor.cli.common import ExitCode
from tests.golden.cost.conftest import Call

BILL = Path(__file__).parent / "bill_focus.csv"
COMMANDS: list[tuple[str, ...]] = [
    ("--json",),
    ("--by", "day", "--json"),
    ("stages", "--json"),
    ("export", "--focus"),
    ("reconcile", str(BILL), "--json"),
]
EARLY = ["0000-01-01", "0001-01-01", "1677-09-20", "1969-12-31T23:59:59Z"]
BOUNDS = ('  "since"', '  "until"')  # As they were given.
LATE = ["2262-04-11T23:47:17Z", "2262-04-12", "9999-12-31"]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_bounds_beyond_all_time_are_none(words: tuple[str, ...], ledger: Path, costgov: Call) -> None:
    def figures(*bounds: str) -> tuple[int, str]:
        done = costgov(*words, *bounds)
        return done.code, "".join(line for line in done.out.splitlines() if not line.startswith(BOUNDS))

    whole = figures()
    if words[0] != "stages":  # What counts from a run's first dollar is hidden by any --since.
        assert [figures("--since", since) for since in EARLY] == [whole] * len(EARLY)
    assert [figures("--until", until) for until in LATE] == [whole] * len(LATE)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_time_in_which_nothing_was_is_a_line_at_most(words: tuple[str, ...], ledger: Path, costgov: Call) -> None:
    for bounds in [("--since", since) for since in LATE] + [("--until", until) for until in EARLY]:
        done = costgov(*words, *bounds)
        assert done.code in (ExitCode.OK, ExitCode.FAILED), done
        assert done.err.count("\n") <= 1


@pytest.mark.parametrize("date", ["9999-12-31", "2262-04-11", "9999999999999", "0001-01-01"])
@pytest.mark.parametrize("command", [("cost", "reconcile"), ("audit",)], ids=" ".join)
def test_a_bill_of_such_a_day_is_a_line(
    command: tuple[str, ...], date: str, ledger: Path, anything: Call, tmp_path: Path
) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(f"When,Amount\n2026-11-02,5\n{date},5\n")
    done = anything(*command, str(bill), "--map", "date=When", "--map", "amount=Amount")
    assert (done.code, done.out) == (ExitCode.FAILED, "")
    assert done.err.splitlines()[-1] == f'{bill}:3: When: "{date}" is no time of a bill, which lies from 1970 to 2261'
    assert "internal" not in done.err


def test_an_open_period_is_compared(ledger: Path, costgov: Call, tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(BILL.read_text().replace("2026-12-01T00:00:00Z", "9999-12-31T23:59:59Z"))
    done = costgov("reconcile", str(bill), "--json")
    assert done.code == costgov("reconcile", str(BILL)).code
    assert json.loads(done.out)["until"] == "2026-12-01T00:00:00Z"
