"""Charges in the journal's file: one row each however often it is written, and room for them in files of before."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from governor.adapters.journal_db import _MIGRATIONS, SCHEMA_VERSION, Database, Limits
from governor.adapters.journal_sqlite import open_journal


def charge(name: str, usd_micros: int, from_wall_ns: int = 0, run: str = "r") -> dict[str, Any]:
    row = {"charge_id": name, "run": run, "from_wall_ns": from_wall_ns, "to_wall_ns": from_wall_ns + 1}
    return {**row, "usd_micros": usd_micros, "stage": None}


def kept(path: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT charge_id, run, usd_micros, data FROM charges ORDER BY from_wall_ns").fetchall()
    return [(*row[:3], json.loads(row[3])["usd_micros"]) for row in rows]


def test_a_growing_charge_is_one_row_and_may_change_hands(tmp_path: Path) -> None:
    path = tmp_path / "costgov.db"
    journal, problem = open_journal(str(path), str(tmp_path))
    assert problem is None
    journal.save_runs({"r": {"spend": 1}}, [charge("c1", 1), charge("c2", 7, 5, run="")])
    journal.save_runs({"r": {"spend": 3}}, [charge("c1", 3), charge("c2", 9, 5)])
    journal.close()
    assert kept(path) == [("c1", "r", 3, 3), ("c2", "r", 9, 9)]


def test_charges_are_numbered_before_the_runs_they_are_kept_with(tmp_path: Path) -> None:
    """The next governor numbers on from the highest run: a charge above it could never be written again."""
    path = tmp_path / "costgov.db"
    journal, _ = open_journal(str(path), str(tmp_path))
    journal.save_runs({"": {}}, [charge("c1", 1), charge("c2", 2)])
    journal.close()
    with sqlite3.connect(path) as database:
        [[highest_charge]] = database.execute("SELECT max(seq) FROM charges").fetchall()
        [[highest_run]] = database.execute("SELECT max(seq) FROM runs").fetchall()
    assert highest_charge < highest_run


def test_a_file_of_before_gets_its_table_and_keeps_its_history(tmp_path: Path) -> None:
    path = tmp_path / "costgov.db"
    with sqlite3.connect(path) as old:
        old.executescript(f"{_MIGRATIONS[0]} PRAGMA user_version = 1;")
        old.execute("INSERT INTO runs VALUES ('r', 1, '{}')")
    database = Database(str(path))
    assert [row["run"] for row in database.runs()] == ["r"]
    database.close()
    assert kept(path) == []
    with sqlite3.connect(path) as now:
        assert now.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_the_oldest_charges_go_first(tmp_path: Path) -> None:
    path = tmp_path / "costgov.db"
    database = Database(str(path), Limits(charges=2))
    entries = [
        {**charge(f"c{n}", n, n), "seq": n, "table": "charges", "data": json.dumps(charge("", n))} for n in range(5)
    ]
    database.write(entries, full=False)
    database.prune()
    database.close()
    assert [row[0] for row in kept(path)] == ["c3", "c4"]
