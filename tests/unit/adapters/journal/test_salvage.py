"""What comes out of a damaged journal agrees with itself: each budget with its charges, the node's moment with them."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.journal.db import Database
from governor.adapters.journal.reader import read_charges
from governor.adapters.journal.runtime_files import MIRROR_NAME, SNAPSHOTS_MAX, Entry, Fallback
from governor.adapters.journal.salvage import CHARGES_SURE_MAX
from governor.adapters.journal.writer import SqliteJournal, open_journal
from governor.core.base.units import NS_PER_HOUR, parse_utc, utc_text
from governor.core.money.charges import Payer, charge_row
from tests.unit.cost.ledger_file import ANNA, BEN, charge

BEGIN = parse_utc("2026-11-02T10:00:00Z")
PRICE = 55_040_000


def charges(hours: int) -> list[Entry]:
    """Anna's and Ben's, an hour each in turn."""
    entries = []
    for hour in range(hours):
        row = charge_row(charge(utc_text(BEGIN + hour * NS_PER_HOUR), 1.0, (ANNA, BEN)[hour % 2]))
        columns = {name: row[name] for name in ("charge_id", "run", "from_wall_ns", "to_wall_ns", "usd_micros")}
        entries.append({"seq": hour + 1, "table": "charges", **columns, "data": json.dumps(row)})
    return entries


def snapshot(seq: int, run: str, hours: int, **more: Any) -> Entry:
    """As it stood after so many hours."""
    moment = {"boot_id": "b", "boot_ns": hours * NS_PER_HOUR, "wall_ns": BEGIN + hours * NS_PER_HOUR}
    return {"seq": seq, "table": "runs", "run": run, "snapshot": json.dumps({"run": run, **moment, **more})}


def node(seq: int, hours: int) -> Entry:
    return snapshot(seq, "", hours, unallocated_usd_micros=0, carry=0, unpriced_ns=0)


def reopened(tmp_path: Path, entries: list[Entry], damage: bytes = b"no head of ours") -> tuple[SqliteJournal, str]:
    """Written, damaged at its head, and opened again."""
    path = tmp_path / "costgov.db"
    database = Database(str(path))
    database.write(entries, full=True)
    database.close()
    return reopened_as_it_is(tmp_path, damage)


def reopened_as_it_is(tmp_path: Path, damage: bytes = b"no head of ours") -> tuple[SqliteJournal, str]:
    path = tmp_path / "costgov.db"
    with path.open("r+b") as file:
        file.write(damage)
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert problem is not None
    return journal, problem


def of_a_newer_version(tmp_path: Path, entry: Entry) -> Path:
    path = tmp_path / "costgov.db"
    database = Database(str(path))
    database.write([entry], full=True)
    database.close()
    with closing(sqlite3.connect(path)) as newer:
        newer.execute("PRAGMA user_version = 99")
    return path


def test_a_snapshot_that_is_older_than_its_charges_goes_on_with_their_sum(tmp_path: Path) -> None:
    stale = [snapshot(20 + place, run, 2, spend_usd_micros=PRICE) for place, run in enumerate(("anna", "ben"))]
    journal, problem = reopened(tmp_path, [*charges(4), node(30, 2), *stale])
    runs = journal.runs()
    assert [runs[run]["spend_usd_micros"] for run in ("anna", "ben")] == [2 * PRICE, 2 * PRICE]
    assert runs[""]["wall_ns"] == BEGIN + 4 * NS_PER_HOUR
    assert runs[""]["boot_ns"] == 4 * NS_PER_HOUR, "no hour that has a charge is charged again"
    assert "4 charges ($220.16) and 2 runs were taken over, up to 2026-11-02T14:00:00Z" in problem
    journal.close()


def test_a_run_without_a_snapshot_goes_on_with_the_sum_of_its_charges(tmp_path: Path) -> None:
    journal, problem = reopened(tmp_path, charges(3))
    runs = journal.runs()
    assert {run: runs[run]["spend_usd_micros"] for run in ("anna", "ben")} == {"anna": 2 * PRICE, "ben": PRICE}
    assert (runs[""]["wall_ns"], runs[""]["boot_id"]) == (BEGIN + 3 * NS_PER_HOUR, "")
    assert "the budgets that were set live are lost" in problem
    journal.close()


def test_what_was_spent_and_has_no_charge_any_more_is_a_reconstructed_one(tmp_path: Path) -> None:
    whose = {"attempt": "3", "stage": "stage1", "labels": {"team": "nlp"}}
    anna = snapshot(21, "anna", 1, spend_usd_micros=2 * PRICE, **whose)
    journal, problem = reopened(tmp_path, [*charges(1), node(20, 1), anna])
    assert journal.runs()["anna"]["spend_usd_micros"] == 2 * PRICE
    assert "; $55.04 more that the runs had spent was in charges that cannot be read: a reconstructed" in problem
    read, lost = read_charges(str(tmp_path / "costgov.db"))
    assert (lost.usd_micros, lost.reconstructed, lost.place) == (PRICE, True, read.place)
    assert lost.payer == Payer("anna", "3", "stage1", (("team", "nlp"),))
    assert lost.from_wall == lost.to_wall == BEGIN + NS_PER_HOUR
    journal.close()
    again, problem = reopened_as_it_is(tmp_path)
    assert "more that the runs had spent" not in problem, "a second accident finds nothing missing"
    assert sum(one.usd_micros for one in read_charges(str(tmp_path / "costgov.db"))) == 2 * PRICE
    again.close()


def test_what_may_have_been_let_go_for_its_age_is_told_and_no_charge(tmp_path: Path) -> None:
    """A long journal drops its oldest charges: then what a run has spent and no charge says was not lost."""
    path = tmp_path / "costgov.db"
    database = Database(str(path))
    with closing(sqlite3.connect(path)) as many:
        many.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <= :count)"
            " INSERT INTO charges (charge_id, seq, run, from_wall_ns, to_wall_ns, usd_micros, data)"
            " SELECT i, i, 'anna', 0, 1, 1, '{}' FROM n",
            {"count": CHARGES_SURE_MAX},
        )
        many.commit()
    taken = database.take_over([snapshot(10**6, "anna", 1, spend_usd_micros=CHARGES_SURE_MAX + 1 + PRICE)])
    database.close()
    assert (taken.charges, taken.missing_usd_micros, taken.is_entered) == (CHARGES_SURE_MAX + 1, PRICE, False)


@pytest.mark.parametrize("absurd", [{"wall_ns": 10**30}, {"wall_ns": "now"}, {"spend_usd_micros": 10**30}])
def test_what_no_charge_can_say_is_told(tmp_path: Path, absurd: dict[str, Any]) -> None:
    anna = snapshot(21, "anna", 1, **{"spend_usd_micros": 2 * PRICE, **absurd})
    journal, problem = reopened(tmp_path, [*charges(1), node(20, 1), anna])
    assert "more that the runs had spent is in no charge that can be read" in problem
    assert len(list(read_charges(str(tmp_path / "costgov.db")))) == 1
    journal.close()


def test_a_charge_that_does_not_agree_with_itself_is_not_taken(tmp_path: Path) -> None:
    """A digit that has flipped is no money; the run's own account says what is missing."""
    forged = charges(2)
    forged[1] = {**forged[1], "usd_micros": 9_955_040_000}
    journal, problem = reopened(tmp_path, [*forged, node(20, 2), snapshot(21, "ben", 2, spend_usd_micros=PRICE)])
    came_over = [(one.payer.run, one.usd_micros) for one in read_charges(str(tmp_path / "costgov.db"))]
    assert came_over == [("anna", PRICE), ("ben", PRICE)]
    assert "$55.04 more that the runs had spent" in problem
    journal.close()


def test_rows_longer_than_a_page_come_over_whole(tmp_path: Path) -> None:
    """A halt's snapshot is followed over its overflow pages, of whichever length its tail is."""
    sizes = (3_000, 4_061, 4_062, 9_000, 60_001)
    kept = {f"i-{size}": {"incident_id": f"i-{size}", "text": "x" * size} for size in sizes}
    entries: list[Entry] = [
        {"seq": seq, "table": "incidents", "incident_id": name, "open": 1, "snapshot": json.dumps(one)}
        for seq, (name, one) in enumerate(kept.items(), 1)
    ]
    journal, _ = reopened(tmp_path, entries)
    assert {one["incident_id"]: one for one in journal.open_incidents()} == kept
    journal.close()


def test_a_file_without_its_last_commits_does_not_lower_a_budget(tmp_path: Path) -> None:
    """Whole to SQLite: the WAL is gone, or yesterday's copy was put in place. The runtime directory knows better."""
    path = tmp_path / "costgov.db"
    journal, _ = open_journal(str(path), str(tmp_path / "run"))
    assert journal.save_runs({"anna": {"run": "anna", "spend_usd_micros": 5}})
    journal.close()
    yesterday = path.read_bytes()
    journal, _ = open_journal(str(path), str(tmp_path / "run"))
    assert journal.save_runs({"anna": {"run": "anna", "spend_usd_micros": 9}})
    journal.close()
    path.write_bytes(yesterday)
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert journal.runs()["anna"]["spend_usd_micros"] == 9
    assert problem is not None
    assert "its last commits are lost" in problem
    journal.close()
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert (journal.runs()["anna"]["spend_usd_micros"], problem) == (9, None), "and the file knows it, too"
    journal.close()


def test_a_halt_that_has_ended_does_not_go_on_where_the_file_lost_its_end(tmp_path: Path) -> None:
    """Resumed, it would stop the machine of whoever came back after it."""
    path = tmp_path / "costgov.db"
    journal, _ = open_journal(str(path), str(tmp_path / "run"))
    journal.save_incident("i-1", {"incident_id": "i-1", "stage": "termed"})
    journal.close()
    before = path.read_bytes()
    journal, _ = open_journal(str(path), str(tmp_path / "run"))
    journal.close_incident("i-1", {"incident_id": "i-1", "stage": "halted"})
    journal.close()
    path.write_bytes(before)
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert "its last commits are lost" in str(problem)
    assert journal.open_incidents() == []
    assert journal.incidents() == [{"incident_id": "i-1", "stage": "halted"}]
    journal.close()


@pytest.mark.parametrize("runs", [1, SNAPSHOTS_MAX + 1])
def test_a_runtime_directory_that_had_no_room_begins_no_halt_again(tmp_path: Path, runs: int) -> None:
    """It knows what was known when it had room: older than the file, so it is not the file that lacks something."""
    path, mirror = tmp_path / "costgov.db", tmp_path / "run" / MIRROR_NAME
    journal, _ = open_journal(str(path), str(tmp_path / "run"))
    journal.save_runs({f"run-{number}": {"run": f"run-{number}"} for number in range(runs)})
    journal.save_incident("i-1", {"incident_id": "i-1"})
    journal.close()
    stale = mirror.read_bytes()
    journal, _ = open_journal(str(path), str(tmp_path / "run"))
    journal.close_incident("i-1", {"incident_id": "i-1"})
    journal.save_runs({f"run-{number}": {"run": f"run-{number}"} for number in range(1_000, 1_000 + runs)})
    journal.close()
    mirror.write_bytes(stale)
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert (problem, journal.open_incidents()) == (None, [])
    journal.close()


@pytest.mark.parametrize("fault", [b"\xff", b"}"])
@pytest.mark.parametrize("table", ["runs", "incidents"])
def test_one_byte_amiss_in_what_a_start_reads_costs_its_row_alone(tmp_path: Path, table: str, fault: bytes) -> None:
    """SQLite calls such a file whole. Neither the start nor the journal is lost to it."""
    path = tmp_path / "costgov.db"
    database = Database(str(path))
    open_ones: list[Entry] = [
        {"seq": 40, "table": "incidents", "incident_id": name, "open": 1, "snapshot": json.dumps({"incident_id": name})}
        for name in ("i-1", "i-2")
    ]
    spent = [snapshot(20 + place, run, 2, spend_usd_micros=PRICE) for place, run in enumerate(("anna", "ben"))]
    database.write([*charges(2), node(30, 2), *spent, *open_ones], full=True)
    database.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        name = "run = 'anna'" if table == "runs" else "incident_id = 'i-1'"
        torn = "CAST(substr(CAST(snapshot AS BLOB), 1, 1) || ? || substr(CAST(snapshot AS BLOB), 3) AS TEXT)"
        connection.execute(f"UPDATE {table} SET snapshot = {torn} WHERE {name}", (fault,))
    before = path.read_bytes()
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert "a fresh journal is begun: 2 charges ($110.08) and 2 runs" in str(problem)
    assert {run: journal.runs()[run]["spend_usd_micros"] for run in ("anna", "ben")} == {"anna": PRICE, "ben": PRICE}
    kept = [one["incident_id"] for one in journal.open_incidents()]
    assert kept == (["i-1", "i-2"] if table == "runs" else ["i-2"])
    assert journal.save_incident("i-3", {"incident_id": "i-3"}), "durable"
    [aside] = tmp_path.glob("*.corrupt-*Z")
    assert aside.read_bytes() == before
    journal.close()


@pytest.mark.parametrize(("name", "fault"), [(b"tablerunsruns", b"tablerun\xee"), (b"seq INTEGER NOT NULL", b"sep")])
def test_one_byte_amiss_in_the_schema_costs_no_journal(tmp_path: Path, name: bytes, fault: bytes) -> None:
    """What SQLite says of the one is no text to Python; the other it calls whole."""
    path = tmp_path / "costgov.db"
    database = Database(str(path))
    database.write([*charges(2), node(30, 2), snapshot(20, "anna", 2, spend_usd_micros=PRICE)], full=True)
    database.close()
    content = path.read_bytes()
    assert name in content
    path.write_bytes(content.replace(name, fault + name[len(fault) :]))
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert "a fresh journal is begun: 2 charges ($110.08) and 2 runs" in str(problem)
    assert journal.runs()["anna"]["spend_usd_micros"] == PRICE
    assert journal.save_incident("i-1", {"incident_id": "i-1"}), "durable"
    journal.close()


def test_a_row_with_a_number_that_no_row_has_is_passed_over(tmp_path: Path) -> None:
    """One bit of its nine bytes: to write it would end the journal's thread."""
    path = tmp_path / "costgov.db"
    database = Database(str(path))
    rows: list[Entry] = [
        {"seq": seq, "table": "journal", "kind": "k", "run": None, "incident_id": None, "mono_ns": 1, "wall_ns": 1,
         "boot_id": "b", "data": "{}"}
        for seq in (1, -2)
    ]  # fmt: skip
    database.write([*rows, *charges(1)], full=True)
    database.close()
    with path.open("r+b") as file:
        file.write(b"no head of ours")
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert "1 charges ($55.04)" in str(problem)
    assert [row.kind for row in journal.rows(kind="k")] == ["k"]
    journal.close()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_holds_up_no_start(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "costgov.db"
    make(path)
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert problem == f"{path}: is no file; move it away"
    journal.close()


def test_what_the_fallback_file_was_told_last_outranks_what_the_file_still_has(tmp_path: Path) -> None:
    """The governor before us ended while its disk took nothing; today it cannot be opened at all."""
    path = of_a_newer_version(tmp_path, snapshot(1, "anna", 1, spend_usd_micros=7))
    Fallback(str(tmp_path / "run")).append([snapshot(2, "anna", 2, spend_usd_micros=9)], full=True)
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert problem is not None
    assert journal.runs()["anna"]["spend_usd_micros"] == 9
    journal.close()


def test_a_file_that_may_not_be_opened_still_says_what_was_spent(tmp_path: Path) -> None:
    """Of a newer version, on a disk that is read only now: nothing is written, and no budget begins anew."""
    path = of_a_newer_version(tmp_path, snapshot(1, "anna", 1, spend_usd_micros=7))
    before = path.read_bytes()
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert problem is not None
    assert problem.endswith("install that one, or move the file away")
    assert journal.runs()["anna"]["spend_usd_micros"] == 7
    journal.close()
    assert path.read_bytes() == before
