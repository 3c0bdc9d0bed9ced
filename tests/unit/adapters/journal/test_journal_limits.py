"""What the journal forgets, and what its fallback file holds and refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from governor.adapters.journal.db import Database, JournalReader, Limits
from governor.adapters.journal.runtime_files import CHATTER_BYTES_MAX, FALLBACK_BYTES_MAX, Entry, Fallback


def row(seq: int, kind: str = "verdict", incident_id: str | None = None, text: str = "") -> Entry:
    return {
        "seq": seq, "table": "journal", "kind": kind, "run": "r", "incident_id": incident_id, "mono_ns": 0,
        "wall_ns": 0, "boot_id": "b", "data": '{"text": "%s"}' % text,  # noqa: UP031 - braces of JSON.
    }  # fmt: skip


def incident(seq: int, name: str, *, is_open: bool) -> Entry:
    return {"seq": seq, "table": "incidents", "incident_id": name, "open": int(is_open), "snapshot": "{}"}


def seqs(rows: list[Entry]) -> list[int]:
    return [entry["seq"] for entry in rows]


def test_the_oldest_go_first_and_evidence_outlives_chatter(tmp_path: Path) -> None:
    limits = Limits(rows=5, rows_of_kind={"window": 2}, incident_rows=3, incidents=2, runs=2)
    database = Database(str(tmp_path / "journal.db"), limits)
    entries = [row(n, "effect", "i-1") for n in range(1, 5)]
    entries += [row(n, "window") for n in range(10, 14)] + [row(n) for n in range(20, 30)]
    entries += [incident(n, f"i-{n}", is_open=n == 1) for n in range(1, 6)]
    entries += [{"seq": n, "table": "runs", "run": f"run-{n}", "snapshot": "{}"} for n in range(1, 5)]
    database.write(entries, full=False)
    database.prune()
    assert seqs(database.rows("i-1", None, 100)) == [2, 3, 4]
    assert seqs(database.rows(None, None, 100)) == [2, 3, 4, 12, 13, *range(25, 30)]
    assert [e["incident_id"] for e in database.incidents(100, only_open=False)] == ["i-1", "i-4", "i-5"]
    assert [e["run"] for e in database.runs()] == ["run-3", "run-4"]
    database.close()


def test_windows_have_a_limit_of_their_own_and_take_nobody_elses_room(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "journal.db"), Limits(rows=1, rows_of_kind={"window": 2}))
    database.write([row(n, "window") for n in range(5)] + [row(8), row(9)], full=False)
    database.prune()
    assert seqs(database.rows(None, None, 100)) == [3, 4, 9]
    database.close()


def test_writing_twice_changes_nothing_and_an_older_snapshot_never_wins(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "journal.db"))
    entries = [row(1, text="a"), incident(2, "i", is_open=True), incident(3, "i", is_open=False)]
    database.write(entries, full=True)
    database.write([row(1, text="b"), incident(2, "i", is_open=True)], full=True)
    assert [e["data"] for e in database.rows(None, None, 10)] == ['{"text": "a"}']
    assert database.incidents(10, only_open=True) == []
    assert database.last_seq() == 3
    database.close()


def test_a_reader_reads_beside_the_governor(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "journal.db"))
    database.write([row(1)], full=True)
    reader = JournalReader(str(tmp_path / "journal.db"))
    assert seqs(reader.rows(None, None, 10)) == [1]
    database.write([row(2)], full=True)
    assert seqs(reader.rows(None, None, 10)) == [1, 2]
    reader.close()
    database.close()


def test_chatter_leaves_half_of_the_fallback_file_to_halts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fallback = Fallback(str(tmp_path))
    block = row(1, text="x" * 100_000)
    while fallback.append([block], full=False):
        assert Path(fallback.path).stat().st_size <= CHATTER_BYTES_MAX
    assert capsys.readouterr().err == ""
    assert fallback.append([block], full=True)
    while fallback.append([block], full=True):
        assert Path(fallback.path).stat().st_size <= FALLBACK_BYTES_MAX
    assert '"seq":1' in capsys.readouterr().err, "a halt's row goes to stderr rather than nowhere"
    assert fallback.lost_total == 2


def test_lines_that_are_torn_or_of_another_version_are_passed_over(tmp_path: Path) -> None:
    fallback = Fallback(str(tmp_path))
    fallback.append([row(1)], full=True)
    with Path(fallback.path).open("ab") as file:
        file.write(b'{"seq": 2, "table": "journal"}\n{"seq": 3, "table": "dreams"}\n[4]\n{"seq": "5"}\n{"se')
    assert seqs(Fallback(str(tmp_path)).read()[0]) == [1]


def test_rows_that_arrive_while_others_move_home_stay(tmp_path: Path) -> None:
    fallback = Fallback(str(tmp_path))
    fallback.append([row(1)], full=True)
    _, size = fallback.read()
    fallback.append([row(2)], full=True)
    fallback.forget(size)
    assert seqs(fallback.read()[0]) == [2]
    fallback.forget(fallback.read()[1])
    assert fallback.is_empty


def test_a_link_under_the_fallback_name_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    fallback = Fallback(str(tmp_path / "run"))
    Path(fallback.path).symlink_to(target)
    assert not fallback.append([row(1)], full=True)
    assert target.read_text() == "precious"
    assert '"seq":1' in capsys.readouterr().err


def a_run(seq: int, name: str, uid: int, worth: int) -> Entry:
    return {
        "seq": seq,
        "table": "runs",
        "run": name,
        "snapshot": json.dumps({"uid": uid, "worth": worth, "x": math.nan}),
    }


def test_one_users_runs_push_out_no_other_users_and_the_nodes_own_row_stays(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "journal.db"), Limits(runs=5))
    first = [{"seq": 1, "table": "runs", "run": "", "snapshot": "{}"}, a_run(2, "prod", 1000, 1)]
    database.write([*first, *(a_run(n, f"churn{n}", 12345, 2 if n == 3 else 1) for n in range(3, 20))], full=False)
    database.prune()
    assert [e["run"] for e in database.runs()] == ["", "prod", "churn3", "churn17", "churn18", "churn19"]
    database.close()


def a_halt(seq: int, name: str, uid: int, billed: tuple[str, ...] = ()) -> Entry:
    snapshot = json.dumps({"uid": uid, "stays_billed": billed})
    return {"seq": seq, "table": "incidents", "incident_id": name, "open": 0, "snapshot": snapshot}


def test_one_users_halts_push_out_no_other_users_halts_nor_their_evidence(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "journal.db"), Limits(incidents=5, incident_rows=10))
    halts = [a_halt(1, "good", 1000), a_halt(2, "billed", 12345, ("volume",))]
    halts += [a_halt(n, f"z{n}", 12345) for n in range(3, 60)]
    rows = [row(1, "verdict", "good"), row(2, "closed", "good")]
    rows += [row(10 * n + k, "effect", f"z{n}") for n in range(3, 60) for k in range(3)]
    database.write([*halts, *rows], full=False)
    database.prune()
    names = [e["incident_id"] for e in database.incidents(100, only_open=False)]
    assert names == ["good", "billed", "z57", "z58", "z59"]
    assert seqs(database.rows("good", None, 100)) == [1, 2]
    assert len(database.rows(None, None, 100)) == 10
    database.close()


def test_one_users_attempts_push_out_no_other_users_rows(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "journal.db"), Limits(rows=6))
    others = [{**row(n, "run"), "run": f"z{n}"} for n in range(10, 60)]
    mine = [{**row(n, "run"), "run": "prod"} for n in range(1, 4)]
    database.write([a_run(1, "prod", 1000, 1), *(a_run(n, f"z{n}", 12345, 1) for n in range(10, 60))], full=False)
    database.write([*mine, *others], full=False)
    database.prune()
    assert seqs(database.rows(None, None, 100)) == [1, 2, 3, 57, 58, 59]
    database.close()


def test_a_run_whose_row_is_gone_is_what_its_charges_add_up_to(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "journal.db"))
    charge = {"table": "charges", "run": "old", "from_wall_ns": 1, "to_wall_ns": 2, "usd_micros": 40, "data": "{}"}
    database.write([{**charge, "seq": n, "charge_id": f"c{n}"} for n in (1, 2)], full=True)
    [found] = database.run("old")
    assert json.loads(found["snapshot"]) == {"run": "old", "salvaged": True, "spend_usd_micros": 80}
    assert database.run("nobody") == []
    database.close()


def test_a_halt_never_takes_the_row_of_another_that_had_its_id(tmp_path: Path) -> None:
    def halt(seq: int, opened: int, stage: str, *, is_open: bool) -> Entry:
        told = {"incident_id": "i", "opened_wall_ns": opened, "stage": stage, "loss": math.nan}
        return {**incident(seq, "i", is_open=is_open), "snapshot": json.dumps(told)}

    database = Database(str(tmp_path / "journal.db"))
    database.write([halt(1, 100, "halted", is_open=False)], full=True)
    database.close()
    database = Database(str(tmp_path / "journal.db"))  # It does not remember what it has not read.
    database.write([halt(2, 200, "asked", is_open=True)], full=True)
    database.write([halt(3, 200, "halted", is_open=False)], full=True)
    rows = {e["incident_id"]: json.loads(e["snapshot"]) for e in database.incidents(10, only_open=False)}
    assert {name: (row["opened_wall_ns"], row["stage"]) for name, row in rows.items()} == {
        "i": (100, "halted"),
        "i~200": (200, "halted"),
    }
    database.close()
