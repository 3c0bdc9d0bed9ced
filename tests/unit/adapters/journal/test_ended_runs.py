"""What ended runs leave behind: the oldest goes, and never what is alive or unfinished."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.command.output import make_output
from governor.adapters.exporters.report_files import ReportFiles
from governor.adapters.journal.ended_runs import REMOVED_AT_ONCE_MAX, RUNS_KEPT_MAX, RUNTIME_IDLE_S, prune
from governor.adapters.journal.reader import JOURNALS_MAX
from governor.adapters.journal.runtime_files import FALLBACK_NAME, MIRROR_NAME
from governor.adapters.journal.writer import open_journal
from governor.adapters.machine import lock_file
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
    prune(tmp_path / "runs" / "aged-0", None, kept_max=3)
    assert left(tmp_path) == ["aged-0", "aged-1", "aged-2", "not-ours"]


def test_what_is_alive_or_unfinished_or_unreadable_stays(tmp_path: Path) -> None:
    a_journal(tmp_path, "ours", 0)
    alive = a_journal(tmp_path, "alive", 10)
    a_journal(tmp_path, "halting", 20, nan_halt() | {"closed_wall_ns": None}, is_open=True)
    broken = a_journal(tmp_path, "broken", 30)
    (broken / "costgov.db").write_bytes(b"no database" * 100)
    a_journal(tmp_path, "ended", 5)
    lock = lock_file.take(str(alive / "costgov.db.lock"))
    prune(tmp_path / "runs" / "ours", None, kept_max=1)
    lock_file.drop(str(alive / "costgov.db.lock"), lock)
    assert left(tmp_path) == ["alive", "broken", "halting", "ours"]


def test_what_cannot_be_removed_does_not_keep_the_rest(tmp_path: Path) -> None:
    for number in range(REMOVED_AT_ONCE_MAX + 1):
        broken = tmp_path / "runs" / f"broken-{number:03d}"
        broken.mkdir(parents=True)
        (broken / "costgov.db").write_bytes(b"no database" * 100)
        os.utime(broken / "costgov.db", (number, number))
    a_journal(tmp_path, "ended", 5, nan_halt())
    a_journal(tmp_path, "ours", 0)
    prune(tmp_path / "runs" / "ours", None, kept_max=1)
    assert len(left(tmp_path)) == REMOVED_AT_ONCE_MAX + 2
    assert "ended" not in left(tmp_path)


def test_the_end_of_a_run_removes_a_few_and_the_oldest_first(tmp_path: Path) -> None:
    for age_s in range(5):
        a_journal(tmp_path, f"aged-{age_s}", age_s)
    prune(tmp_path / "runs" / "aged-0", None, kept_max=1, removed_max=2)
    assert left(tmp_path) == ["aged-0", "aged-1", "aged-2"]


def test_all_that_a_governor_writes_goes_with_its_journal(tmp_path: Path) -> None:
    ended = a_journal(tmp_path, "ended", 0)
    (ended / "costgov.db").write_bytes(b"no database" * 100)
    journal, notice = open_journal(str(ended / "costgov.db"), str(tmp_path / "run"))  # Sets the corrupt one aside.
    journal.close()
    assert notice is not None
    ReportFiles(ended / "incidents").incident(nan_halt())
    (ended / "incidents" / ".run7.gpu-17.2.md.new").touch()  # A draft of a governor that was killed.
    for suffix in ("-wal", "-shm", ".lock"):
        (ended / f"costgov.db{suffix}").touch()
    for _ in range(2):  # Of two launches under --log-format NAME -.
        make_output(ended / "output.log").close()
    os.utime(ended / "costgov.db", (1, 1))
    a_journal(tmp_path, "ours", 0)
    prune(tmp_path / "runs" / "ours", None, kept_max=1)
    assert left(tmp_path) == ["ours"]


@pytest.mark.parametrize("foreign", ["weights.pt", "checkpoint/weights.pt", "incidents/notes.md", "costgov.db.bak"])
def test_a_directory_with_anything_else_in_it_stays_whole(tmp_path: Path, foreign: str) -> None:
    ended = a_journal(tmp_path, "ended", 5, nan_halt())
    ReportFiles(ended / "incidents").incident(nan_halt())
    (ended / foreign).parent.mkdir(exist_ok=True)
    (ended / foreign).touch()
    before = sorted(ended.rglob("*"))
    a_journal(tmp_path, "ours", 0)
    prune(tmp_path / "runs" / "ours", None, kept_max=1)
    assert sorted(ended.rglob("*")) == before


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
    assert left(tmp_path) == ["alive", "fresh", "strange"]


@pytest.mark.parametrize(
    ("ending", "goes"), [("ended", True), ("killed", True), ("alive", False), ("halting", False), ("unread", False)]
)
def test_a_young_runtime_directory_goes_where_its_journal_says_that_the_run_is_over(
    tmp_path: Path, ending: str, goes: bool
) -> None:
    """A socket that nobody listens on any more was the answer that every command of another user got."""
    state, runs = tmp_path / "state", tmp_path / "runs"
    a_journal(state, "one", 0, nan_halt() | {"closed_wall_ns": None}, is_open=ending == "halting")
    journal = state / "runs" / "one" / "costgov.db"
    if ending == "unread":
        journal.write_bytes(b"no database" * 100)
    (runs / "one").mkdir(parents=True)
    for name in ("control.sock", "trainer.sock", MIRROR_NAME, FALLBACK_NAME):
        (runs / "one" / name).touch()
    lock = lock_file.take(f"{journal}.lock") if ending in ("alive", "killed") else -1
    if ending == "killed":
        lock_file.leave_note(lock, "metered until then")
        os.close(lock)
    prune(state / "runs" / "one", runs / "one")
    assert left(tmp_path) == ([] if goes else ["one"])
    if ending == "killed":
        assert b"metered until then" in Path(f"{journal}.lock").read_bytes(), "the next launch charges up to it"
    if ending == "alive":
        os.close(lock)


def test_another_users_runtime_directory_stays(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        os.utime(tmp_path / "runs" / name, (1, 1))
    is_root = os.geteuid() == 0  # Nobody else can give a directory away.
    if is_root:
        os.chown(tmp_path / "runs" / "theirs", 12345, -1)
    prune(None, tmp_path / "runs" / "ours")
    assert left(tmp_path) == (["theirs"] if is_root else [])


def test_directories_that_are_not_below_runs_are_left_alone(tmp_path: Path) -> None:
    a_journal(tmp_path, "aged", 50)
    prune(tmp_path / "state", tmp_path / "run", kept_max=0)
    assert left(tmp_path) == ["aged"]
