"""Bills of the five forms with more than one difference planted: each has its cause, its amount and its resource."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from governor.cli.common import ExitCode
from tests.golden.cost.conftest import Call
from tests.golden.cost.test_bill_forms import FORMS, HOURS, Row, focus, map_words, plain_rows, stamp, told
from tests.unit.cost.ledger_file import charge, write_ledger


@pytest.fixture
def machine(state_dir: Path) -> Path:
    write_ledger(state_dir / "costgov.db", [charge(stamp(n)) for n in range(HOURS)])
    return state_dir


def reconciled(costgov: Call, tmp_path: Path, text: str, *words: str) -> tuple[int, dict[str, Any]]:
    (tmp_path / "bill.csv").write_text(text)
    done = costgov("reconcile", str(tmp_path / "bill.csv"), "--json", *words)
    assert done.err == ""
    return done.code, json.loads(done.out)


@pytest.mark.parametrize("form", ["focus", "cur", "hourly"])
@pytest.mark.parametrize("shift", [9, -7])
def test_a_bill_in_local_time_that_is_not_final_says_what_nobody_can_tell(
    form: str, shift: int, machine: Path, costgov: Call, tmp_path: Path
) -> None:
    """Twelve hours are not billed yet: $660.48."""
    code, document = reconciled(costgov, tmp_path, FORMS[form](plain_rows(shift)[:-12]), *map_words(form))
    assert (code, document["shift_hours"], document["shift_may_be"]) == (ExitCode.DIFFERS, shift, [0])
    assert told(document) == {("not_final", "i-0aaa", "-660.480000")}
    lines = costgov("reconcile", str(tmp_path / "bill.csv"), *map_words(form)).out.splitlines()
    assert lines[1] == (
        f"its times may lie {abs(shift)} h {'before' if shift < 0 else 'after'} ours, as in local time: compared so "
        "moved; as ours they fit as well, with other hours missing"
    )


def test_an_outage_at_the_begin_may_be_local_time_and_is_compared_as_it_stands(
    state_dir: Path, costgov: Call, tmp_path: Path
) -> None:
    """The governor came six hours late: $330.24."""
    write_ledger(state_dir / "costgov.db", [charge(stamp(n)) for n in range(6, HOURS)])
    (tmp_path / "bill.csv").write_text(focus(plain_rows()))
    document = json.loads(costgov("reconcile", str(tmp_path / "bill.csv"), "--json").out)
    assert (document["shift_hours"], document["shift_may_be"]) == (0, [-6])
    assert told(document) == {("ours_missing", "i-0aaa", "330.240000")}
    assert costgov("reconcile", str(tmp_path / "bill.csv")).out.splitlines()[1] == (
        "its times may be in local time: 6 h before ours they fit as well; compared as they stand"
    )


Told = tuple[str, str | None, str]


def _volume(rows: list[Row]) -> list[Row]:
    return [*rows, (*rows[0][:2], Decimal(0), Decimal("412.33"), "vol-0forgotten", "storage")]


def _credit(rows: list[Row]) -> list[Row]:
    return [*rows, (*rows[0][:2], Decimal(0), Decimal("-40.00"), "", "credit")]


# What is planted in rows of 72 hours, and what has to be told of it.
PLANTED: dict[str, tuple[Callable[[list[Row]], list[Row]], Told]] = {
    "double hour": (lambda rows: [*rows, rows[30]], ("too_many_hours", "i-0aaa", "55.040000")),
    "dearer hour": (
        lambda rows: [*rows[:40], (*rows[40][:3], Decimal("60.00"), *rows[40][4:]), *rows[41:]],
        ("price", "i-0aaa", "4.960000"),
    ),
    "not final": (lambda rows: rows[:60], ("not_final", "i-0aaa", "-660.480000")),
    "forgotten volume": (_volume, ("resource_not_metered", "vol-0forgotten", "412.330000")),
    "credit": (_credit, ("not_metered", None, "-40.000000")),
}
# The rows of these are planted first: the others do not count rows.
ORDER = ("double hour", "dearer hour", "not final", "forgotten volume", "credit")
SETS = [*combinations(ORDER, 1), *combinations(ORDER, 2), ("not final", "forgotten volume", "credit")]

# It has no times to shift. Its month has room for an hour that nobody metered, and is over.
OF_AN_INVOICE = {"too_many_hours": "ours_missing", "not_final": "theirs_missing"}
# The five forms, and other units of one of them.
WRITTEN: dict[str, Callable[[list[Row]], str]] = {
    **FORMS,
    "focus in seconds": partial(focus, unit="Seconds", times=3600),
    "focus in GPU-hours": partial(focus, unit="GPU-Hours", times=8, category="AI and Machine Learning"),
}


def planted(names: tuple[str, ...], shift: int) -> tuple[list[Row], set[Told]]:
    rows = plain_rows(shift)
    late = "not final" in names
    rows = PLANTED["not final"][0](rows) if late else rows
    for name in names:
        rows = rows if name == "not final" else PLANTED[name][0](rows)
    return rows, {PLANTED[name][1] for name in names}


@pytest.mark.parametrize("form", WRITTEN)
@pytest.mark.parametrize("shift", [0, 9, -7])
@pytest.mark.parametrize("names", SETS, ids=" and ".join)
def test_each_difference_and_each_two_of_them_are_told_as_they_were_planted(
    form: str, shift: int, names: tuple[str, ...], machine: Path, costgov: Call, tmp_path: Path
) -> None:
    rows, want = planted(names, shift)
    if form == "invoice":
        if {"double hour", "not final"} <= {*names}:
            return  # One row of a month has their sum.
        want = {(OF_AN_INVOICE.get(cause, cause), *rest) for cause, *rest in want}  # type: ignore[misc]
    code, document = reconciled(costgov, tmp_path, WRITTEN[form](rows), *map_words(form))
    assert told(document) == want
    assert document["shift_hours"] == (0 if form == "invoice" else shift)
    assert (code == 0) is (names == ("credit",))


@pytest.mark.parametrize("form", ["focus", "cur", "hourly"])
@pytest.mark.parametrize("shift", [0, 9, -7])
def test_a_begun_hour_is_granularity_beside_a_zone_a_volume_and_hours_not_billed_yet(
    form: str, shift: int, state_dir: Path, costgov: Call, tmp_path: Path
) -> None:
    """The machine begins at a quarter past: $13.76 of the bill's first full hour."""
    rest = [charge(stamp(n)) for n in range(1, HOURS)]
    write_ledger(state_dir / "costgov.db", [charge(stamp(0).replace("08:00:00", "08:15:00"), 0.75), *rest])
    rows, want = planted(("not final", "forgotten volume"), shift)
    _, document = reconciled(costgov, tmp_path, FORMS[form](rows), *map_words(form))
    assert told(document) == want | {("granularity", "i-0aaa", "13.760000")}
    assert document["shift_hours"] == shift
