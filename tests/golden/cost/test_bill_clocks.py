"""Bills by the clock on a wall, over the night in which it goes back: hours that are there twice, and a day of 25."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from governor.core.base.units import NS_PER_HOUR, parse_utc, utc_text
from tests.golden.cost.conftest import Call
from tests.unit.cost.ledger_file import charge, write_ledger

CHANGE = parse_utc("2026-10-25T01:00:00Z")  # In Berlin it is 03:00 and then 02:00.
PRICE = "55.04"


def hours(begin: str, count: int) -> list[int]:
    first = parse_utc(begin)
    return [first + n * NS_PER_HOUR for n in range(count)]


def on_the_wall(at: int) -> str:
    """In Berlin, without its zone."""
    return utc_text(at + (2 if at < CHANGE else 1) * NS_PER_HOUR).rstrip("Z")


@pytest.fixture
def used(state_dir: Path) -> list[int]:
    """48 hours without a pause."""
    found = hours("2026-10-24T12:00:00Z", 48)
    write_ledger(state_dir / "costgov.db", [charge(utc_text(at)) for at in found])
    return found


HOURLY = ("--map", "date=Begin", "--map", "hours=Hours", "--map", "amount=Cost", "--map", "resource=Machine")


def test_hours_by_a_clock_that_goes_back_agree_and_say_so(used: list[int], costgov: Call, tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text("Begin,Hours,Cost,Machine\n" + "".join(f"{on_the_wall(at)},1,{PRICE},i-0aaa\n" for at in used))
    done = costgov("reconcile", str(bill), *HOURLY)
    assert done.code == 0
    assert done.out.splitlines()[1] == (
        "its times lie 2 h after ours, and 1 h after ours from 2026-10-25 03:00 of its own on, where clocks change: "
        "compared so moved"
    )
    document = json.loads(costgov("reconcile", str(bill), "--json", *HOURLY).out)
    assert (document["shift_hours"], document["shift_changes"], document["differences"]) == (
        2, {"at": "2026-10-25T03:00:00", "shift_hours": 1}, [],
    )  # fmt: skip


def test_a_day_of_25_hours_is_said_to_be_perhaps_one(used: list[int], costgov: Call, tmp_path: Path) -> None:
    days = Counter(on_the_wall(at)[:10] for at in used)
    bill = tmp_path / "bill.csv"
    bill.write_text(
        "Begin,Hours,Cost,Machine\n"
        + "".join(f"{day},{count},{float(PRICE) * count:.2f},i-0aaa\n" for day, count in days.items())
    )
    done = costgov("reconcile", str(bill), *HOURLY)
    [row] = [line for line in done.out.splitlines() if "billed more than the clock has" in line]
    assert days["2026-10-25"] == 25
    assert row.endswith("clocks change on this day: in local time it has 25 hours")
