"""What ended runs leave behind: the oldest goes, and never what is alive or unfinished."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from governor.adapters import lock_file
from governor.adapters.charges_db import JOURNALS_MAX
from governor.adapters.journal_sqlite import open_journal
from governor.pruning import RUNS_KEPT_MAX, RUNTIME_IDLE_S, prune
from tests.golden.report_cases import nan_halt


def a_journal(
    state: Path, name: str, age_s: int, snapshot: dict[str, Any] | None = None, is_open: bool = False
) -> Path:
    directory = state / "runs" / name
    directory.mkdir(parents=True)
    journal, _ = open_journal(str(directory / "costgov.db"), str(directory))
    if snapshot is not None:
        incident_id = str(snapshot["incident_id"])
        assert (journal.save_incident if is_open else journal.close_incident)(incident_id, snapshot)
    journal.close()
    os.utime(directory / "costgov.db", (time.time() - age_s,) * 2)
    return directory


def left(state: Path) -> list[str]:
    return sorted(path.name for path in (state / "runs").iterdir())


def test_the_newest_journals_are_kept(tmp_path: Path) -> None:
    for age_s in range(5):
        a_journal(tmp_path, f"aged-{age_s}", age_s, nan_halt())
    (tmp_path / "runs" / "not-ours").mkdir()
    prune(tmp_path / "runs" / "aged-0", tmp_path / "elsewhere", kept_max=3)
    assert left(tmp_path) == ["aged-0", "aged-1", "aged-2", "not-ours"]


def test_what_is_alive_or_unfinished_or_unreadable_stays(tmp_path: Path) -> None:
    a_journal(tmp_path, "ours", 0)
    alive = a_journal(tmp_path, "alive", 10)
    a_journal(tmp_path, "halting", 20, nan_halt() | {"closed_wall_ns": None}, is_open=True)
    broken = a_journal(tmp_path, "broken", 30)
    (broken / "costgov.db").write_bytes(b"no database" * 100)
    a_journal(tmp_path, "ended", 5)
    lock = lock_file.take(str(alive / "costgov.db.lock"))
    prune(tmp_path / "runs" / "ours", tmp_path / "elsewhere", kept_max=1)
    lock_file.drop(str(alive / "costgov.db.lock"), lock)
    assert left(tmp_path) == ["alive", "broken", "halting", "ours"]


def test_no_more_are_kept_than_the_commands_read() -> None:
    assert RUNS_KEPT_MAX + 1 == JOURNALS_MAX, "the service's own journal is one of them"


@pytest.mark.parametrize("holds", [(), ("control.sock", "trainer.sock", "control.sock.lock", "trainer.sock.lock")])
def test_runtime_directories_of_ended_runs_go(tmp_path: Path, holds: tuple[str, ...]) -> None:
    runs = tmp_path / "runs"
    for name in ("ours", "ended", "alive", "fresh", "strange"):
        (runs / name).mkdir(parents=True)
        for file in holds:
            (runs / name / file).touch()
    (runs / "strange" / "notes").touch()
    lock = lock_file.take(str(runs / "alive" / "control.sock.lock"))
    for name in ("ours", "ended", "alive", "strange"):
        os.utime(runs / name, (time.time() - RUNTIME_IDLE_S - 60,) * 2)
    prune(tmp_path / "elsewhere", runs / "ours")
    lock_file.drop(str(runs / "alive" / "control.sock.lock"), lock)
    assert left(tmp_path) == ["alive", "fresh", "ours", "strange"]


def test_directories_that_are_not_below_runs_are_left_alone(tmp_path: Path) -> None:
    a_journal(tmp_path, "aged", 50)
    prune(tmp_path / "state", tmp_path / "run", kept_max=0)
    assert left(tmp_path) == ["aged"]
