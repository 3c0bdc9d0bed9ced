"""Charges are read from journals of any version, beside their writer, in the order of time."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from governor.adapters.journal.check import open_read_only
from governor.adapters.journal.reader import PAGE_ROWS, ChargesUnreadable, Unreadable, journal_paths, read_charges
from governor.adapters.journal.writer import open_journal
from governor.core.base.units import parse_utc
from governor.core.money.charges import charge_row
from tests.unit.cost.ledger_file import a_month, charge, write_ledger


def test_they_come_back_in_the_order_of_time(tmp_path: Path) -> None:
    write_ledger(tmp_path / "costgov.db", a_month())
    found = list(read_charges(str(tmp_path / "costgov.db")))
    assert sorted(found, key=lambda one: (one.from_wall, one.charge_id)) == found
    assert sorted(found, key=lambda one: one.charge_id) == sorted(a_month(), key=lambda one: one.charge_id)


@pytest.mark.parametrize(
    ("since", "until", "begins"),
    [
        ("2026-11-02T10:30:00Z", "2026-11-02T11:00:00Z", ["10:00", "10:00"]),  # The hour, and the disk's day.
        ("2026-11-02T11:00:00Z", "2026-11-02T11:30:00Z", ["10:00", "11:00"]),
        ("2026-11-04T03:00:00Z", None, []),
        (None, "2026-11-02T10:00:00Z", []),
    ],
)
def test_a_window_takes_what_touches_it(
    tmp_path: Path, since: str | None, until: str | None, begins: list[str]
) -> None:
    write_ledger(tmp_path / "costgov.db", a_month())
    window = [None if bound is None else parse_utc(bound) for bound in (since, until)]
    found = read_charges(str(tmp_path / "costgov.db"), *window)
    assert [f"{one.from_wall % 86_400_000_000_000 // 3_600_000_000_000}:00" for one in found] == begins


def test_pages_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """All begin at one instant: the page's bound falls between charges that only their names tell apart."""
    many = [charge("2026-11-02", 1.0, charge_id=f"node-1/a/{number}") for number in range(PAGE_ROWS + 3)]
    write_ledger(tmp_path / "costgov.db", many)
    names = [one.charge_id for one in read_charges(str(tmp_path / "costgov.db"))]
    assert len(names) == len(set(names)) == PAGE_ROWS + 3


def test_a_reader_in_the_middle_holds_up_no_checkpoint(tmp_path: Path) -> None:
    path = str(tmp_path / "costgov.db")
    write_ledger(tmp_path / "costgov.db", [charge("2026-11-02", 1.0, charge_id=f"node-1/a/{n}") for n in range(3)])
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("UPDATE charges SET seq = seq + 1")
        reader = read_charges(path)
        next(reader)
        writer.execute("UPDATE charges SET seq = seq + 1")
        busy, in_wal, moved = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        reader.close()
    assert (busy, in_wal, moved) == (0, 0, 0), "a snapshot is held between two rows"


def test_beside_a_running_governor_as_a_charge_grows(tmp_path: Path) -> None:
    path = str(tmp_path / "costgov.db")
    journal, problem = open_journal(path, str(tmp_path / "runtime"))
    assert problem is None
    try:
        for hours in (0.25, 0.5):
            grown = charge("2026-11-02", hours)
            assert journal.save_runs({}, [charge_row(grown)])
            journal.runs()  # Answered behind the commit.
            assert list(read_charges(path)) == [grown]
    finally:
        journal.close()


def test_a_journal_of_a_version_without_charges_has_none(tmp_path: Path) -> None:
    path = tmp_path / "costgov.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE runs (run TEXT)")
    assert list(read_charges(str(path))) == []


def test_what_is_no_database_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "costgov.db"
    path.write_text("not a database " * 100)
    with pytest.raises(ChargesUnreadable) as raised:
        list(read_charges(str(path)))
    what = "the governor keeps it aside at its next start and takes over what can still be read"
    assert str(raised.value) == f"{path}: corrupt (file is not a database); {what}"


def test_a_row_that_is_no_charge_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "costgov.db"
    write_ledger(path, [charge("2026-11-02")])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("""UPDATE charges SET data = '{"charge_id": 1}'""")
    with pytest.raises(ChargesUnreadable, match=r"charge node-1/2026-11-02/anna/.* of run anna, .*read \(KeyError"):
        list(read_charges(str(path)))


def test_one_that_is_gone_when_it_is_asked_for_its_name_is_told_all_the_same(tmp_path: Path) -> None:
    path = str(tmp_path / "costgov.db")
    write_ledger(tmp_path / "costgov.db", [charge("2026-11-02", charge_id=name) for name in ("a", "b")])
    told: list[Unreadable] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("UPDATE charges SET data = '{' WHERE charge_id = 'b'")
        reader = read_charges(path, unread=told.append)
        next(reader)
        writer.execute("DELETE FROM charges")  # As a governor does beyond its limit.
        assert list(reader) == []
    assert [row.name for row in told] == ["charge (not found again)"]


def test_the_journal_written_last_comes_first(tmp_path: Path) -> None:
    names = ["costgov.db", "runs/a/costgov.db", "runs/b/costgov.db"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (number, number))
    assert journal_paths(tmp_path) == [str(tmp_path / name) for name in reversed(names)]
    assert journal_paths(tmp_path / "none") == []


def test_a_fifo_in_the_journals_place_is_an_error_and_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "costgov.db"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)  # So that who does open it for reading gets on, and fails here.
    try:
        with pytest.raises(sqlite3.OperationalError, match="not a regular file"):
            open_read_only(str(path))
    finally:
        os.close(writer)
