"""How runs ended, as their journals say it: of several journals, the latest word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from governor.adapters.journal.db import Database
from governor.adapters.journal.reader import ChargesUnreadable, Unreadable
from governor.adapters.journal.run_ends import HaltRow, RunEnds
from tests.unit.replay.recorded_file import halt_entry, journal_entry, run_entries, run_row


def journal(path: Path, *entries: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    database = Database(str(path))
    database.write(entries, full=False)
    database.close()
    return str(path)


def test_the_last_words_on_a_run_and_its_halts(tmp_path: Path) -> None:
    ends = RunEnds()
    end = {"exit_code": 1, "cause": "out of GPU memory"}
    began = {"attempt": "a", "policy": "p", "uid": 0, "world_size": 1}
    ends.read(
        journal(
            tmp_path / "a.db",
            *run_entries([run_row("r", 50, end=end), run_row("alive", 60, alive=True)]),
            halt_entry("r.2", "r", None, 30, None),
            halt_entry("r.1", "r", "nan", 10, 20),
            journal_entry(1, "run", "r", 5, began),
            journal_entry(2, "run", "r", 25, began),
            journal_entry(3, "run", "r", 40, {"completed": True, "step": 4}),
            journal_entry(4, "ended", "r", 45, {"completed": False}),
        )
    )
    row = ends.runs["r"]
    assert (row.exit_code, row.cause, row.is_alive, row.has_completed) == (1, "out of GPU memory", False, False)
    assert (row.began_wall, row.ended_wall) == (25, 45), "a completion begins nothing"
    assert ends.runs["alive"].is_alive
    assert ends.halts_of("r", 0) == [HaltRow("r.1", "r", "nan", 10, 20), HaltRow("r.2", "r", None, 30, None)]
    assert [halt.incident_id for halt in ends.halts_of("r", 21)] == ["r.2"], "what was over before is another story"


def test_of_two_journals_the_later_row_counts(tmp_path: Path) -> None:
    ends = RunEnds()
    ends.read(journal(tmp_path / "new.db", *run_entries([run_row("r", 90, completed=True)])))
    ends.read(journal(tmp_path / "old.db", *run_entries([run_row("r", 10, alive=True)])))
    assert ends.runs["r"].has_completed


def test_a_row_that_is_not_ours_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = journal(
        tmp_path / "a.db",
        {"table": "runs", "run": "torn", "seq": 1, "snapshot": "[1]"},
        *run_entries([run_row("r", 50)]),
        {"table": "incidents", "incident_id": "x.1", "seq": 2, "open": 0, "snapshot": '{"run": "x"}'},
    )
    told: list[Unreadable] = []
    ends = RunEnds()
    ends.read(path, told.append)
    assert [*ends.runs] == ["r"]
    assert [row.name for row in told] == ["how it ended", "incident x.1"]


def test_a_file_that_is_no_journal_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no journal" * 1_000)
    with pytest.raises(ChargesUnreadable):
        RunEnds().read(str(tmp_path / "a.db"))
