"""Charges added up as they are read come to what the pure tally says of them one by one, to the micro-dollar."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governor.adapters.journal.reader import LONG_PAGE_ROWS, ChargesUnreadable, read_charges
from governor.adapters.journal.sums import read_sums
from governor.adapters.journal.writer import open_journal
from governor.cli.cost.charges import Scope, Unread, charges_in, sums_in
from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, UsdMicros, WallNs, parse_utc
from governor.core.money.charges import Charge, Line, LineKind, Payer, Place, Unit, charge_row
from governor.core.money.reports.cost import Group, tally, tally_sums
from tests.sweeps import share_of
from tests.unit.cost.ledger_file import a_month, charge, write_ledger

GROUPINGS = ("run", "stage", "day", "node", "line", "label:team", "label:it's")
BEGIN = parse_utc("2026-11-02")
names = st.sampled_from(["", "anna", "ben", "naïve \ud800", "a'b"])
lines = st.builds(
    lambda kind, unit, price, day: Line(kind, f"{kind.value} thing", unit, price, "said", day),
    st.sampled_from(LineKind), st.sampled_from(Unit), st.integers(0, 10**8), st.sampled_from(["2026-11-01", "2026"]),
)  # fmt: skip
payers = st.builds(
    Payer, names, st.just("1"), st.none() | names,
    st.sampled_from([(), (("team", "nlp"),), (("it's", "x"), ("team", ""))]),
)  # fmt: skip
ledgers = st.lists(
    st.builds(
        lambda payer, line, node, begin, length, quantity, micros, again: Charge(
            "", Place(node), payer, line, WallNs(BEGIN + begin), WallNs(BEGIN + begin + length), quantity,
            UsdMicros(micros), again,
        ),
        payers, lines, st.sampled_from(["n-1", "n-2"]),
        # Around the bounds of days and of the asked time, where a cut is or is not one.
        st.sampled_from([-BEGIN - 1, -BEGIN, 0, 1, NS_PER_DAY - NS_PER_HOUR, NS_PER_DAY - 1])
        | st.integers(0, 3 * NS_PER_DAY),
        st.sampled_from([0, 1, NS_PER_HOUR, NS_PER_DAY, 3 * NS_PER_DAY]),
        st.integers(0, 10**15), st.integers(0, 10**12), st.booleans(),
    ),
    min_size=3, max_size=30,
)  # fmt: skip
SCOPES = (
    (None, None, ()),
    (1, None, ()),
    (None, NS_PER_DAY - 1, ("anna",)),
    (NS_PER_DAY - 1, 2 * NS_PER_DAY, ("naïve \ud800", "")),
)


Write = Callable[[list[Charge]], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Write]:
    """Write a ledger in the place of the one before it, and tell its directory: to make a journal costs the most."""
    directory = tmp_path_factory.mktemp("ledger")
    path = directory / "costgov.db"
    journal, _ = open_journal(str(path), str(directory / "runtime"))

    def write(ledger: list[Charge]) -> Path:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM charges")
        assert journal.save_runs({}, [charge_row(replace(one, charge_id=str(n))) for n, one in enumerate(ledger)])
        journal.runs()  # Answered behind the commit.
        return directory

    yield write
    journal.close()


def shown(groups: list[Group]) -> list[Group]:
    """Without the unit, where it is that of whichever compute charge came last."""
    return [replace(group, unit=None) for group in groups]


@settings(deadline=None, max_examples=share_of(30))
@given(ledgers)
def test_sums_come_to_what_the_charges_come_to(written: Write, ledger: list[Charge]) -> None:
    directory = written(ledger)
    for since, until, runs in SCOPES:
        scope = Scope(*(None if bound is None else BEGIN + bound for bound in (since, until)), runs)
        charges = list(charges_in(directory, scope, Unread(scope)))
        for by in GROUPINGS:
            assert shown(tally_sums(sums_in(directory, scope, by, Unread(scope)), by)) == shown(tally(charges, by))


def test_pages_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    count = LONG_PAGE_ROWS + 3
    dice = random.Random(7)
    many = [
        charge("2026-11-02T23:30:00Z", 1.0, charge_id=f"node-1/a/{number}", usd_micros=dice.randrange(10**9))
        for number in range(count)
    ]
    write_ledger(tmp_path / "costgov.db", many)
    path = str(tmp_path / "costgov.db")
    charges = list(read_charges(path))
    for by in ("run", "day", "line"):  # One ledger for all: to write it costs more than to read it.
        assert tally_sums(read_sums(path, by), by) == tally(charges, by)


def test_what_is_alike_comes_as_one(tmp_path: Path) -> None:
    """Else it would be right, and as slow as the charges one by one."""
    hours = [f"2026-11-02T{hour:02}:00:00Z" for hour in range(24)]
    write_ledger(tmp_path / "costgov.db", [charge(hour) for hour in hours])
    for by in ("run", "day", "stage"):
        assert [one.charges for one in read_sums(str(tmp_path / "costgov.db"), by)] == [24]


def test_a_growing_charge_is_counted_once(tmp_path: Path) -> None:
    path = str(tmp_path / "costgov.db")
    journal, _ = open_journal(path, str(tmp_path / "runtime"))
    try:
        for hours in (0.25, 0.5):
            assert journal.save_runs({}, [charge_row(charge("2026-11-02", hours))])
        journal.runs()  # Answered behind the commit.
        [one] = read_sums(path, "run")
        assert (one.charges, one.charge.quantity) == (1, NS_PER_HOUR // 2)
    finally:
        journal.close()


def test_a_journal_of_a_version_without_charges_has_none(tmp_path: Path) -> None:
    path = tmp_path / "costgov.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE runs (run TEXT)")
    assert list(read_sums(str(path), "run")) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("""'{"charge_id": 1}'""", "KeyError: 'node'"),
        ("""json_set(data, '$.quantity', 1.5)""", "its quantity or amount is no whole number"),
        ("""json_set(data, '$.line', 'magic')""", "'magic' is not a valid LineKind"),
        ("""json_remove(data, '$.unit')""", "None is not a valid Unit"),
        ("'{'", "JSONDecodeError"),
    ],
)
def test_a_row_that_is_no_charge_is_one_line(tmp_path: Path, data: str, said: str) -> None:
    path = tmp_path / "costgov.db"
    write_ledger(path, a_month())
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE charges SET data = {data} WHERE run = 'anna'")
    with pytest.raises(ChargesUnreadable, match=said) as raised:
        list(read_sums(str(path), "run"))
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_what_is_no_database_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "costgov.db"
    path.write_text("not a database " * 100)
    with pytest.raises(ChargesUnreadable, match=r"corrupt .*; the governor keeps it aside at its next start"):
        list(read_sums(str(path), "run"))
