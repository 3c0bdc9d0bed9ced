"""The journal's write-ahead log: its blocks are there before a halt needs them, and it is emptied beside one."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from governor.adapters.journal.db import Database
from governor.adapters.journal.file_set import WAL_BYTES_LAID_OUT
from governor.adapters.journal.lock import JournalLocked
from governor.adapters.journal.runtime_files import Entry
from governor.adapters.journal.writer import open_journal


def row(seq: int, size: int = 10) -> Entry:
    return {
        "seq": seq, "table": "journal", "kind": "verdict", "run": "r", "incident_id": "i-1", "mono_ns": 0,
        "wall_ns": 0, "boot_id": "b", "data": "x" * size,
    }  # fmt: skip


def seqs(database: Database) -> list[int]:
    return [entry["seq"] for entry in database.rows(None, None, 10_000)]


def test_commits_of_a_halt_make_no_file_longer(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "j.db"))
    wal = tmp_path / "j.db-wal"
    assert wal.stat().st_size == WAL_BYTES_LAID_OUT
    assert wal.stat().st_blocks * 512 >= WAL_BYTES_LAID_OUT, "blocks, not a hole: a hole is filled by each commit"
    for seq in range(20):
        database.write([row(seq, 8_000)], full=True)
    assert wal.stat().st_size == WAL_BYTES_LAID_OUT
    database.close()


def test_what_was_committed_is_found_again_behind_a_laid_out_log(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    first = Database(str(path))
    first.write([row(1), row(2)], full=True)
    for name in ("j.db", "j.db-wal"):  # As a governor that was killed leaves them.
        (tmp_path / f"killed-{name}").write_bytes((tmp_path / name).read_bytes())
    first.close()
    second = Database(str(tmp_path / "killed-j.db"))
    assert seqs(second) == [1, 2]
    second.close()


def test_a_checkpoint_begins_the_log_anew_and_loses_nothing(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "j.db"))
    for seq in range(300):  # Six times what is laid out, if nobody emptied it.
        database.write([row(seq, 4_000)], full=False)
        if seq % 25 == 24:
            database.checkpoint()
    assert (tmp_path / "j.db-wal").stat().st_size == WAL_BYTES_LAID_OUT
    assert seqs(database) == list(range(300))
    database.close()


def test_a_log_that_is_removed_is_noticed_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    database = Database(str(path))
    database.write([row(1), row(2)], full=True)
    assert database.keep_in_place() is None
    (tmp_path / "j.db-wal").unlink()
    assert "j.db-wal was removed while in use; it is written anew" in str(database.keep_in_place())
    assert database.keep_in_place() is None
    database.write([row(3)], full=True)
    for name in ("j.db", "j.db-wal"):  # As a governor that was killed leaves them.
        (tmp_path / f"killed-{name}").write_bytes((tmp_path / name).read_bytes())
    second = Database(str(tmp_path / "killed-j.db"))
    assert seqs(second) == [1, 2, 3]
    assert not list(tmp_path.glob("*replaced*")), "what is written anew was ours"
    second.close()
    database.close()


def test_a_lock_that_is_removed_lets_no_second_governor_in(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "j.db"))
    (tmp_path / "j.db.lock").unlink()
    assert "taken again" in str(database.keep_in_place())
    assert database.keep_in_place() is None
    with pytest.raises(JournalLocked):
        Database(str(tmp_path / "j.db"))
    (tmp_path / "j.db.lock").unlink()
    with closing(Database(str(tmp_path / "j.db"))):
        assert "another governor" in str(database.keep_in_place())
    database.close()


def test_the_next_governor_has_what_the_one_before_had_metered(tmp_path: Path) -> None:
    for number in range(3):
        journal, problem = open_journal(str(tmp_path / "j.db"), str(tmp_path / "run"))
        assert problem is None
        assert journal.metered() == ({"boot_ns": number} if number else None)
        journal.save_runs({"": {"run": ""}})
        for noted in (10**6, number + 1):  # The last one counts. Only a SIGKILL within a millisecond loses it.
            journal.note_metered({"boot_ns": noted})
        journal.close()
    for damaged in (b"{", b"5", b"[" * 400, b"\xff" * 20):
        with (tmp_path / "j.db.lock").open("r+b") as lock:
            lock.seek(32)
            lock.write(damaged + b"\n")
        with closing(Database(str(tmp_path / "j.db"))) as database:
            assert database.lock.metered() is None


def test_a_file_that_is_cut_in_place_is_said_once(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "j.db"))
    database.write([row(seq, 4_000) for seq in range(50)], full=True)
    database.checkpoint()
    assert database.keep_in_place() is None
    os.truncate(tmp_path / "j.db", 4096)
    assert "was cut from" in str(database.keep_in_place())
    assert database.keep_in_place() is None
    database.close()
