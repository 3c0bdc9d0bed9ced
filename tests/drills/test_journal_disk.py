"""The journal on disks that fail as disks do: full, frozen, read-only, corrupt, and used by two governors."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from governor.adapters.journal.check import SCHEMA_VERSION
from governor.adapters.journal.reader import read_charges
from governor.adapters.journal.runtime_files import FALLBACK_BYTES_MAX
from governor.adapters.journal.writer import COMMIT_BOUND_S, RETRY_PERIOD_S, JournalLocked, SqliteJournal, open_journal
from governor.core.base.units import NS_PER_HOUR, MonoNs, UsdMicros, WallNs
from governor.core.money.charges import Charge, Line, LineKind, Payer, Place, Unit, charge_row
from governor.ports import Row

SAFETY_S = 60
ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")
needs_ext4 = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("mkfs.ext4") and shutil.which("fsfreeze") and Path("/dev/loop0").exists()),
    reason="needs root, loop devices, mkfs.ext4 and fsfreeze",
)


def row(n: int, size: int = 10) -> Row:
    return Row("transition", "run-1", "i-1", MonoNs(n), WallNs(n), "boot", {"n": n, "text": "x" * size})


def numbers(journal: SqliteJournal) -> list[int]:
    return [r.data["n"] for r in journal.rows(incident_id="i-1")]


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=SAFETY_S)


@contextmanager
def mounted(directory: Path, *options: str) -> Iterator[Path]:
    directory.mkdir()
    run("mount", *options, str(directory))
    try:
        yield directory
    finally:
        run("umount", "--lazy", str(directory))


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler:
        while filler.write(b"x" * 4096):
            pass


def wait_for_recovery(journal: SqliteJournal, fallback: Path) -> None:
    """Append until a row is durable and the fallback rows have moved home; each append waits on the worker itself."""
    deadline = time.monotonic() + RETRY_PERIOD_S + SAFETY_S
    while not journal.append([Row("probe", None, None, MonoNs(0), WallNs(0), "boot")], full=True) or (
        fallback.exists() and fallback.stat().st_size
    ):
        assert time.monotonic() < deadline, "the journal did not recover"


@needs_root
def test_a_full_disk_costs_durability_and_no_row(tmp_path: Path) -> None:
    with mounted(tmp_path / "state", "-t", "tmpfs", "-o", "size=512k", "tmpfs") as state:
        fallback = tmp_path / "run" / "journal-fallback.jsonl"
        journal, problem = open_journal(str(state / "journal.db"), str(tmp_path / "run"))
        assert problem is None
        assert journal.append([row(0)], full=True)
        with pytest.raises(OSError, match="No space left"):
            fill(state / "filler")
        count = 1
        while journal.append([row(count, 4000)], full=True):  # What the WAL had reserved may still take a few.
            count += 1
            assert count < 500
        assert journal.errors_total > 0
        assert "full" in (journal.problem or "")
        assert fallback.stat().st_size > 0
        assert not journal.save_incident("i-1", {"stage": "termed"})
        assert numbers(journal) == list(range(count + 1))
        assert journal.open_incidents() == [{"stage": "termed"}]
        (state / "filler").unlink()
        wait_for_recovery(journal, fallback)
        assert journal.problem is None
        journal.close()
        again, problem = open_journal(str(state / "journal.db"), str(tmp_path / "run"))
        assert problem is None
        assert numbers(again) == list(range(count + 1))
        assert again.open_incidents() == [{"stage": "termed"}]
        again.close()


@needs_root
def test_money_that_is_spent_on_a_full_disk_is_all_there_once_it_has_room(tmp_path: Path) -> None:
    """A thousand hours of eight runs: more than the fallback file has room for beside a halt's rows."""
    with mounted(tmp_path / "state", "-t", "tmpfs", "-o", "size=12m", "tmpfs") as state:
        path = state / "costgov.db"
        journal, problem = open_journal(str(path), str(tmp_path / "run"))
        assert problem is None
        keep_an_hour(journal, 0)
        assert journal.append([row(0)], full=True)
        with pytest.raises(OSError, match="No space left"):
            fill(state / "filler")
        for hour in range(1, HOURS):
            keep_an_hour(journal, hour)
        assert not journal.append([row(1)], full=True)
        fallback = tmp_path / "run" / "journal-fallback.jsonl"
        assert fallback.stat().st_size <= FALLBACK_BYTES_MAX
        assert journal.runs()["run-0"]["spend_usd_micros"] == sum(range(HOURS)) + HOURS, "budgets go on meanwhile"
        (state / "filler").unlink()
        wait_for_recovery(journal, fallback)
        journal.close()
        charges = list(read_charges(str(path)))
        assert len(charges) == len({one.charge_id for one in charges}) == HOURS * RUNS
        assert sum(one.usd_micros for one in charges) == RUNS * (sum(range(HOURS)) + HOURS)


HOURS, RUNS = 1_000, 8


def keep_an_hour(journal: SqliteJournal, hour: int) -> None:
    """Each of the runs has spent a little more than in the hour before, and closes its charge."""
    begin, line = WallNs(hour * NS_PER_HOUR), Line(LineKind.COMPUTE, "machine", Unit.HOUR, 1, "config", "2026-11-01")
    charges = [
        Charge(
            f"n/{hour}/{number}", Place("n"), Payer(f"run-{number}"), line, begin, WallNs(begin + NS_PER_HOUR),
            NS_PER_HOUR, UsdMicros(hour + 1),
        )
        for number in range(RUNS)
    ]  # fmt: skip
    spent = sum(range(hour + 1)) + hour + 1
    runs = {f"run-{number}": {"run": f"run-{number}", "spend_usd_micros": spent} for number in range(RUNS)}
    journal.save_runs(runs, [charge_row(one) for one in charges])


@needs_root
def test_rows_of_a_governor_that_ended_on_a_full_disk_are_found_by_the_next(tmp_path: Path) -> None:
    with mounted(tmp_path / "state", "-t", "tmpfs", "-o", "size=128k", "tmpfs") as state:
        first, _ = open_journal(str(state / "journal.db"), str(tmp_path / "run"))
        count = 0
        while first.append([row(count, 4000)], full=True):
            count += 1
        assert not first.save_incident("i-1", {"stage": "killed", "text": "x" * 200_000})  # Smaller ones may yet fit.
        first.close()
        second, _ = open_journal(str(state / "journal.db"), str(tmp_path / "run"))
        assert numbers(second) == list(range(count + 1))
        assert [snapshot["stage"] for snapshot in second.open_incidents()] == ["killed"]
        second.close()


@needs_root
def test_history_is_read_from_a_disk_without_room_for_a_byte(tmp_path: Path) -> None:
    with mounted(tmp_path / "state", "-t", "tmpfs", "-o", "size=256k", "tmpfs") as state:
        first, _ = open_journal(str(state / "journal.db"), str(tmp_path / "run"))
        assert first.append([row(0), row(1)], full=True)
        assert first.save_incident("i-1", {"stage": "killed"})
        first.close()
        assert {path.name for path in state.iterdir()} == {"journal.db", "journal.db.lock"}
        with pytest.raises(OSError, match="No space left"):
            fill(state / "filler")
        second, _ = open_journal(str(state / "journal.db"), str(tmp_path / "run"))
        assert second.open_incidents() == [{"stage": "killed"}]
        assert not second.append([row(2)], full=True)
        assert numbers(second) == [0, 1, 2]
        second.close()


@contextmanager
def ext4(directory: Path) -> Iterator[Path]:
    image = directory / "image"
    with image.open("wb") as file:
        file.truncate(16 * 1024 * 1024)
    run("mkfs.ext4", "-q", str(image))
    try:
        with mounted(directory / "state", "-o", "loop", str(image)) as state:
            yield state
    except subprocess.CalledProcessError as error:
        if "mount" in error.cmd:
            pytest.skip(f"no loop mount here: {error.stderr!r:.200}")
        raise


@needs_ext4
def test_a_frozen_disk_holds_up_nobody_and_loses_nothing(tmp_path: Path) -> None:
    with ext4(tmp_path) as state:
        fallback = tmp_path / "run" / "journal-fallback.jsonl"
        journal, problem = open_journal(str(state / "journal.db"), str(tmp_path / "run"))
        assert problem is None
        assert journal.append([row(0)], full=True)
        run("fsfreeze", "--freeze", str(state))
        try:
            begun = time.monotonic()
            assert not journal.append([row(1)], full=True)
            # The bound is the product's promise; SAFETY_S allows for a machine that does not run us.
            assert COMMIT_BOUND_S <= time.monotonic() - begun < SAFETY_S
            for n in range(2, 12):  # Known to be stuck: none of these waits again.
                assert not journal.append([row(n)], full=True)
            assert not journal.save_incident("i-1", {"stage": "killed"})
            assert numbers(journal) == list(range(12))
            assert journal.open_incidents() == [{"stage": "killed"}]
            assert fallback.stat().st_size > 0
        finally:
            run("fsfreeze", "--unfreeze", str(state))
        wait_for_recovery(journal, fallback)
        assert numbers(journal) == list(range(12))
        journal.close()
        rows = sqlite3.connect(f"file:{state}/journal.db?mode=ro", uri=True)
        assert rows.execute("SELECT count(*) FROM journal WHERE incident_id = 'i-1'").fetchone() == (12,)
        rows.close()


@needs_ext4
def test_what_waits_before_a_row_that_is_answered_for_is_where_that_row_is(tmp_path: Path) -> None:
    """A hold, and the record of who set it: a governor that is killed while its disk hangs has confirmed both."""
    with ext4(tmp_path) as state:
        runtime = tmp_path / "run"
        journal, _ = open_journal(str(state / "journal.db"), str(runtime))
        assert journal.append([row(0)], full=True)
        run("fsfreeze", "--freeze", str(state))
        try:
            assert journal.save_runs({"anna": {"run": "anna", "hold_reason": "debugging"}})
            assert not journal.append([row(1)], full=True)
            # As SIGKILL leaves it, but for a mirror in the making.
            left = shutil.copytree(runtime, tmp_path / "left", ignore=shutil.ignore_patterns("*.new"))
        finally:
            run("fsfreeze", "--unfreeze", str(state))
        wait_for_recovery(journal, runtime / "journal-fallback.jsonl")
        journal.close()
        after, _ = open_journal(str(tmp_path / "another" / "journal.db"), str(left))
        assert after.runs() == {"anna": {"run": "anna", "hold_reason": "debugging"}}
        assert numbers(after) == [1]
        after.close()


@needs_ext4
def test_a_start_on_a_frozen_disk_goes_on_with_what_the_runtime_directory_knows(tmp_path: Path) -> None:
    """Within its bound: of this boot it has every budget and every halt under way."""
    with ext4(tmp_path) as state:
        path, runtime = str(state / "journal.db"), str(tmp_path / "run")
        journal, _ = open_journal(path, runtime)
        journal.save_runs({"anna": {"run": "anna", "spend_usd_micros": 5}})
        assert journal.save_incident("i-1", {"incident_id": "i-1"})
        journal.close()
        run("fsfreeze", "--freeze", str(state))
        try:
            journal, problem = open_journal(path, runtime)
            assert "no answer from the disk" in str(problem)
            assert journal.runs() == {"anna": {"run": "anna", "spend_usd_micros": 5}}
            assert journal.open_incidents() == [{"incident_id": "i-1"}]
        finally:
            run("fsfreeze", "--unfreeze", str(state))
        wait_for_recovery(journal, tmp_path / "run" / "journal-fallback.jsonl")
        journal.close()


@needs_root
def test_who_had_no_room_to_begin_anew_leaves_none_of_it_behind(tmp_path: Path) -> None:
    """What was left of an attempt takes the room of the next one, and of the rows of a halt."""
    with mounted(tmp_path / "state", "-t", "tmpfs", "-o", "size=4m", "tmpfs") as state:
        path = state / "journal.db"
        journal, _ = open_journal(str(path), str(tmp_path / "run"))
        journal.append([row(n, 2000) for n in range(200)], full=True)
        journal.close()
        with path.open("r+b") as file:
            file.write(b"no head of ours")
        left = state / "journal.db.new"
        left.write_bytes(bytes(3 * 1024 * 1024))
        journal, problem = open_journal(str(path), str(tmp_path / "run"))
        assert "a fresh journal is begun" in str(problem)
        assert numbers(journal) == list(range(200))
        assert not left.exists()
        journal.close()


@needs_root
def test_a_read_only_disk_is_named_and_gone_on_without(tmp_path: Path) -> None:
    with mounted(tmp_path / "state", "-t", "tmpfs", "-o", "ro", "tmpfs") as state:
        journal, problem = open_journal(str(state / "journal.db"), str(tmp_path / "run"))
        assert problem is not None
        assert "Read-only file system" in problem
        assert "\n" not in problem
        assert not journal.append([row(0)], full=True)
        assert numbers(journal) == [0]
        journal.close()


def test_a_corrupt_file_is_kept_aside_and_a_fresh_one_begun(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.db"
    path.parent.mkdir()
    path.write_bytes(b"this is not a database, but somebody may want to look at it" * 100)
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    (aside,) = path.parent.glob("journal.db.corrupt-*")
    assert problem == (
        f"{path}: corrupt; kept as {aside}, a fresh journal is begun: nothing of what was spent could be read; "
        "a daemon charges what passed since the boot anew"
    )
    assert aside.read_bytes().startswith(b"this is not a database")
    assert journal.append([row(0)], full=True)
    assert numbers(journal) == [0]
    journal.close()


def test_a_page_torn_in_the_middle_is_noticed_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.db"
    journal, _ = open_journal(str(path), str(tmp_path / "run"))
    journal.append([row(n, 2000) for n in range(50)], full=True)
    journal.close()
    with path.open("r+b") as file:
        file.seek(5 * 4096)
        file.write(os.urandom(4096))
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert problem is not None
    assert "corrupt; kept as" in problem
    assert journal.append([row(0)], full=True)
    journal.close()


def test_a_journal_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.db"
    path.parent.mkdir()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    journal, problem = open_journal(str(path), str(tmp_path / "run"))
    assert problem == f"{path}: written by a newer costgov (schema 99, we know {SCHEMA_VERSION})" + (
        "; install that one, or move the file away"
    )
    assert not journal.append([row(0)], full=True)
    assert numbers(journal) == [0]
    journal.close()
    check = sqlite3.connect(path)
    assert check.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    check.close()


HOLDER = """
import sys
from governor.adapters.journal.writer import open_journal
journal, problem = open_journal(sys.argv[1], sys.argv[2])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_governor_is_refused_by_the_pid_of_the_first_and_admitted_after_its_death(tmp_path: Path) -> None:
    path, runtime = str(tmp_path / "state" / "journal.db"), str(tmp_path / "run")
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path, runtime], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert first.stdout is not None
    assert first.stdin is not None
    try:
        assert first.stdout.readline() == b"open\n"
        with pytest.raises(JournalLocked, match=rf"another governor \(pid {first.pid}\) uses this journal"):
            open_journal(path, runtime)
    finally:
        first.kill()
        first.wait(SAFETY_S)
        first.stdin.close()
        first.stdout.close()
    journal, problem = open_journal(path, runtime)
    assert problem is None
    journal.close()
