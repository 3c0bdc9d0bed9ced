"""Every Journal: what was appended is read back in order, snapshots replace, incidents stay open until closed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from governor.adapters.journal.writer import open_journal
from governor.core.base.units import MonoNs, WallNs
from governor.ports import Journal, Row
from tests.contract.fakes import BOOT_ID, FakeJournal


def row(kind: str = "verdict", incident_id: str | None = None, **data: object) -> Row:
    return Row(kind, "run-1", incident_id, MonoNs(5), WallNs(6), BOOT_ID, data)


def sqlite_journal(directory: Path) -> Journal:
    journal, problem = open_journal(str(directory / "state" / "journal.db"), str(directory / "run"))
    assert problem is None
    return journal


def journal_without_a_file(directory: Path) -> Journal:
    """The state directory cannot be had: memory and the fallback file alone carry the contract."""
    (directory / "state").write_text("a file where a directory should be")
    journal, problem = open_journal(str(directory / "state" / "journal.db"), str(directory / "run"))
    assert problem is not None
    return journal


@pytest.fixture(
    params=[sqlite_journal, journal_without_a_file, lambda _: FakeJournal()], ids=["sqlite", "nofile", "fake"]
)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    make: Callable[[Path], Journal] = request.param
    journal = make(tmp_path)
    yield journal
    journal.close()


def test_rows_come_back_oldest_first_and_whole(journal: Journal) -> None:
    rows = [row("transition", "i-1", stage="asked", n=1), row("effect", "i-1", nested={"a": [1, "x"]})]
    journal.append(rows, full=True)
    assert journal.rows() == rows


def test_rows_are_found_by_incident_by_kind_and_by_age(journal: Journal) -> None:
    journal.append(
        [row("effect", "i-1", n=n) for n in range(3)] + [row("effect", "i-2"), row("done", "i-1")], full=False
    )
    assert [r.data["n"] for r in journal.rows(incident_id="i-1", kind="effect")] == [0, 1, 2]
    assert [r.kind for r in journal.rows(incident_id="i-1", last=2)] == ["effect", "done"]
    assert [r.incident_id for r in journal.rows(kind="effect", last=1)] == ["i-2"]
    assert journal.rows(last=0) == []


def test_what_is_not_json_becomes_text_instead_of_failing_a_halt(journal: Journal) -> None:
    journal.append([row(path=Path("/x"), loss=math.inf)], full=True)
    (found,) = journal.rows()
    assert found.data == {"path": "/x", "loss": math.inf}


def test_text_that_no_encoder_takes_costs_no_row(journal: Journal) -> None:
    broken = Row("verdict", "run-\udcff", "i-\ud800", MonoNs(1), WallNs(1), BOOT_ID, {"text": "\ud800"})
    journal.append([broken, row(n=2)], full=True)
    assert [r.data for r in journal.rows()] == [{"text": "\ud800"}, {"n": 2}]


def test_an_incident_stays_open_until_it_is_closed(journal: Journal) -> None:
    journal.save_incident("i-1", {"id": "i-1", "stage": "asked"})
    journal.save_incident("i-2", {"id": "i-2", "stage": "asked"})
    journal.save_incident("i-1", {"id": "i-1", "stage": "termed"})
    assert journal.open_incidents() == [{"id": "i-1", "stage": "termed"}, {"id": "i-2", "stage": "asked"}]
    journal.close_incident("i-1", {"id": "i-1", "stage": "halted"})
    assert [snapshot["id"] for snapshot in journal.open_incidents()] == ["i-2"]
    assert [snapshot["stage"] for snapshot in journal.incidents()] == ["halted", "asked"]
    assert [snapshot["id"] for snapshot in journal.incidents(last=1)] == ["i-2"]


def test_an_incident_and_the_history_behind_it_are_kept_together(journal: Journal) -> None:
    journal.save_incident("i-1", {"id": "i-1", "stage": "asked"}, [row("verdict"), row("transition", "i-1", n=1)])
    journal.close_incident("i-1", {"id": "i-1", "stage": "halted"}, [row("transition", "i-1", n=2)])
    assert [r.kind for r in journal.rows()] == ["verdict", "transition", "transition"]
    assert [r.data["n"] for r in journal.rows(incident_id="i-1")] == [1, 2]
    assert journal.incidents() == [{"id": "i-1", "stage": "halted"}]


def test_a_run_keeps_its_last_state(journal: Journal) -> None:
    journal.save_runs({"run-1": {"spend": 1}, "run-2": {"spend": 5}})
    journal.save_runs({"run-1": {"spend": 2}})
    assert journal.runs() == {"run-1": {"spend": 2}, "run-2": {"spend": 5}}


def test_rows_that_belong_to_what_is_kept_of_runs_are_kept_with_it(journal: Journal) -> None:
    journal.save_runs({"run-1": {"tokens": 1}}, [], [row("window", n=1)])
    journal.append([row("window", n=2)], full=False)
    assert [r.data["n"] for r in journal.rows(kind="window")] == [1, 2]


def test_an_empty_append_is_durable(journal: Journal) -> None:
    assert journal.append([], full=True)


def test_durable_is_said_only_with_a_disk(tmp_path: Path) -> None:
    stuck = FakeJournal()
    stuck.is_stuck = True
    for journal, durable in ((sqlite_journal(tmp_path), True), (stuck, False)):
        assert journal.append([row()], full=True) is durable
        assert journal.save_incident("i-1", {}) is durable
        assert bool(journal.errors_total) is not durable
        journal.close()


def test_history_is_no_strangers_to_read(tmp_path: Path) -> None:
    journal = sqlite_journal(tmp_path)
    journal.append([row()], full=True)
    files = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "state").iterdir()}
    assert files == {
        "journal.db": 0o640, "journal.db-wal": 0o640, "journal.db-shm": 0o640, "journal.db.lock": 0o600,
    }  # fmt: skip
    journal.close()


def test_one_run_is_found_by_its_name_and_an_unknown_one_leaves_no_trace(journal: Journal) -> None:
    journal.save_runs({"a": {"run": "a", "uid": 7}, "b": {"run": "b"}}, full=True)
    found: SimpleQueue[object] = SimpleQueue()
    assert journal.find_run("a", found.put)
    assert found.get(timeout=10) == {"run": "a", "uid": 7}
    if journal.find_run("c", found.put) and journal.errors_total == 0:  # Without its file it may never know.
        assert found.get(timeout=10) is None


def test_the_ids_of_all_halts_are_known_open_or_closed(journal: Journal) -> None:
    journal.save_incident("i-1", {"opened_wall_ns": 1})
    journal.close_incident("i-2", {"opened_wall_ns": 2})
    assert journal.incident_ids() == {"i-1", "i-2"}
