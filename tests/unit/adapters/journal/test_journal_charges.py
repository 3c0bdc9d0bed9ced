"""Charges in the journal's file: one row each however often it is written, and room for them in files of before."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

from governor.adapters.journal.check import SCHEMA_VERSION
from governor.adapters.journal.db import _MIGRATIONS, Database, Limits
from governor.adapters.journal.runtime_files import CHARGES_HELD_MAX, CHATTER_BYTES_MAX, ROW_BYTES_MAX, Fallback
from governor.adapters.journal.writer import SqliteJournal, open_journal
from governor.core.base.units import MonoNs, WallNs
from governor.ports import Row

SAFETY_S = 60.0


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


# --- while the file takes nothing -------------------------------------------------------------------------------


def refusing(path: Path, *, refuse: bool) -> None:
    """As a full disk: the file stays open and readable, and takes no row."""
    with sqlite3.connect(path) as beside:
        for table in ("journal", "charges", "runs"):
            if refuse:
                beside.execute(
                    f"CREATE TRIGGER full_{table} BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'disk full'); END"
                )
            else:
                beside.execute(f"DROP TRIGGER full_{table}")


def row(kind: str, size: int = 0) -> Row:
    return Row(kind, "r", None, MonoNs(1), WallNs(1), "boot-1", {"text": "x" * size})


def filled(path: Path, runtime: Path) -> SqliteJournal:
    """A journal whose disk is full, and whose fallback file takes nothing any more that is not a halt's."""
    journal, problem = open_journal(str(path), str(runtime))
    assert problem is None
    refusing(path, refuse=True)
    size = ROW_BYTES_MAX // 2
    journal.append([row("alarm", size) for _ in range(CHATTER_BYTES_MAX // size - 1)], full=False)
    while size:  # To the last hundred bytes.
        journal.append([row("alarm", size)], full=False)
        size //= 2
    return journal


def settled(journal: SqliteJournal) -> bool:
    """Wait until the worker has answered for all that was told before; return whether this row was committed."""
    return journal.append([row("verdict")], full=True)


def until_settled(journal: SqliteJournal) -> None:
    """Wait until a row is committed. One may be answered for before it is, where the disk or the processor is busy."""
    deadline = time.monotonic() + SAFETY_S
    while not settled(journal):
        assert time.monotonic() < deadline


def test_charges_told_while_there_is_no_file_come_home_with_the_next_governor(tmp_path: Path) -> None:
    path = tmp_path / "state" / "costgov.db"
    (tmp_path / "state").write_text("a file where a directory should be")
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert problem is not None
    journal.save_runs({"r": {"spend": 9}}, [charge("closed", 7), charge("open", 2, 5)])
    journal.close()
    (tmp_path / "state").unlink()
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert problem is None
    until_settled(journal)
    journal.close()
    assert kept(path) == [("closed", "r", 7, 7), ("open", "r", 2, 2)]


def test_a_charge_that_neither_disk_nor_fallback_takes_is_written_with_the_next_commit(tmp_path: Path) -> None:
    """It is told once, when it is closed; all that is told again every ten seconds needs no such care."""
    path = tmp_path / "costgov.db"
    journal = filled(path, tmp_path / "run")
    journal.save_runs({"r": {"spend": 7}}, [charge("closed", 6), charge("growing", 1, 5)])
    assert not settled(journal)
    refusing(path, refuse=False)
    journal.save_runs({"r": {"spend": 9}}, [charge("growing", 3, 5)])
    until_settled(journal)
    assert kept(path) == [("closed", "r", 6, 6), ("growing", "r", 3, 3)]
    journal.close()


def test_a_governor_that_ends_beside_a_full_disk_leaves_its_charges_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "costgov.db"
    journal = filled(path, tmp_path / "run")
    journal.save_runs({"r": {"spend": 7}}, [charge("closed", 6)])
    assert not settled(journal)
    journal.close()
    refusing(path, refuse=False)
    journal, _ = open_journal(str(path), str(tmp_path / "run"))
    until_settled(journal)
    journal.close()
    assert kept(path) == [("closed", "r", 6, 6)]


def test_what_was_answered_for_is_in_the_fallback_file_when_chatter_has_filled_its_half(tmp_path: Path) -> None:
    """A hold, set on a disk that has been full for long: the next governor goes by it, also on another disk."""
    runtime = tmp_path / "run"
    journal = filled(tmp_path / "costgov.db", runtime)
    assert not journal.save_runs({"r": {"hold_reason": "debugging"}}, [charge("open", 2)], full=True)
    # As SIGKILL leaves it, but for the mirror that is being written, which has its name only when it is whole.
    left = shutil.copytree(runtime, tmp_path / "left", ignore=shutil.ignore_patterns("*.new"))
    journal.close()
    after, _ = open_journal(str(tmp_path / "another" / "costgov.db"), str(left))
    assert after.runs() == {"r": {"hold_reason": "debugging"}}
    after.close()  # Not `settled`: to bring 4 MB home may take a busy machine longer than a halt waits for a commit.
    assert kept(tmp_path / "another" / "costgov.db") == [("open", "r", 2, 2)]


def test_a_charge_of_what_was_answered_for_is_held_as_others_are(tmp_path: Path) -> None:
    fallback = Fallback(str(tmp_path / "no" / "such"))
    (tmp_path / "no" / "such").rmdir()  # Nothing can be written.
    entry = {"seq": 1, "table": "charges", **charge("closed", 6), "data": "{}"}
    assert not fallback.append([entry], full=True)
    assert fallback.held() == [entry]


def test_what_memory_holds_for_a_disk_is_bounded_and_the_newest_stays(tmp_path: Path) -> None:
    fallback = Fallback(str(tmp_path / "no" / "such"))
    (tmp_path / "no" / "such").rmdir()  # Nothing can be written.
    for number in range(CHARGES_HELD_MAX + 3):
        entry = {"seq": number, "table": "charges", **charge(f"c{number % (CHARGES_HELD_MAX + 2)}", 1), "data": "{}"}
        assert not fallback.append([entry], full=False)
    held = fallback.held()
    assert len(held) == CHARGES_HELD_MAX
    assert (held[0]["charge_id"], held[-1]["charge_id"], held[-1]["seq"]) == ("c3", "c0", CHARGES_HELD_MAX + 2)
    fallback.let_go(held[:10])
    assert len(fallback.held()) == CHARGES_HELD_MAX - 10
