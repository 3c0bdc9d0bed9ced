"""Commands over a directory that a person names: a FIFO in the place of a file ends none of them in a wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from governor.adapters.command import launch_lock
from governor.adapters.machine import lock_file
from governor.cli.common import ExitCode
from tests.unit.cli.test_ended import call, home, leave
from tests.unit.cli.test_report import account
from tests.unit.replay.recorded_file import Written

__all__ = ["home"]  # A fixture.

LIMIT_S = 60  # A command that waits would do so for ever.
JOURNAL = "runs/gpt/costgov.db"
BESIDE = ("", "-journal", "-wal", "-shm")
COMMANDS = {"report": ("report", "gpt", "--json"), "export": ("export", "gpt", "--jsonl", "to"), "cost": ("cost",)}
PLACES = (f"{JOURNAL}.lock", f"{JOURNAL}-journal", f"{JOURNAL}-wal", JOURNAL, "recordings/gpt/000001.jsonl")


def costgov(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "governor.cli.main"]
    return subprocess.run([*program, *words], cwd=home, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture
def ran(home: Path) -> Path:
    """A run that no governor was seen to leave, with its recording."""
    leave(home, time=account().snapshot(), alive=True, end=None)
    Written("gpt", 1_780_000_000).hello(0).steps(range(1, 61), 10, 1.0).save(home / "state" / "recordings")
    return home


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("place", PLACES)
def test_a_fifo_below_the_state_directory_holds_no_command(ran: Path, place: str, command: str) -> None:
    path = ran / "state" / place
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert costgov(ran, *COMMANDS[command]).returncode in (ExitCode.OK, ExitCode.FAILED)


@pytest.mark.parametrize("name", ["causes.jsonl", "performance_metrics.jsonl", ".costgov-export.json"])
@pytest.mark.parametrize("command", [("goodput", "to"), ("export", "gpt", "--jsonl", "to"), ("policy", "replay", "to")])
def test_a_fifo_in_an_export_holds_no_command(ran: Path, name: str, command: tuple[str, ...]) -> None:
    assert costgov(ran, *COMMANDS["export"]).returncode == ExitCode.OK
    path = ran / "to" / name
    path.unlink()
    os.mkfifo(path)
    assert costgov(ran, *command).returncode in (ExitCode.OK, ExitCode.FAILED, ExitCode.USAGE)


def test_a_log_that_is_a_fifo_without_a_reader_is_refused(home: Path) -> None:
    os.mkfifo(home / "out")
    done = costgov(home, "run", "--log", "out", "--", "true")
    assert done.returncode == ExitCode.USAGE


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir])
def test_of_what_is_no_file_nobody_holds_the_lock(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "lock")
    assert lock_file.holder(str(tmp_path / "lock")) is None


def put_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("beside", ["", "-journal"])
@pytest.mark.parametrize("words", [("report", "gpt"), ("cost",), ("incident", "list"), ("status", "gpt")])
def test_what_is_beside_the_file_that_a_link_leads_to_holds_no_command(
    ran: Path, words: tuple[str, ...], beside: str
) -> None:
    journal, elsewhere = ran / "state" / JOURNAL, ran / "elsewhere.db"
    journal.rename(elsewhere)
    journal.symlink_to(elsewhere)
    put_fifo(Path(f"{elsewhere}{beside}"))
    assert costgov(ran, *words).returncode in (ExitCode.OK, ExitCode.FAILED, ExitCode.NO_GOVERNOR)


@pytest.mark.parametrize("name", ["launch.lock", "launch.lock.new", *(f"costgov.db{beside}" for beside in BESIDE)])
def test_a_fifo_keeps_no_command_from_its_start(
    ran: Path, short_tmp: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COSTGOV_PATHS__RUNTIME_DIR", str(short_tmp / "run"))
    monkeypatch.setenv("COSTGOV_CONTROL", str(short_tmp / "run" / "control.sock"))
    put_fifo(ran / "state" / "runs" / "gpt" / name)
    done = costgov(ran, "run", "--name", "gpt", "--", "touch", "ran")
    assert (done.returncode, (ran / "ran").exists()) == (0, True), done.stderr


def test_a_launch_lock_that_is_a_fifo_is_made_anew(tmp_path: Path) -> None:
    os.mkfifo(launch_lock.path_of(tmp_path))
    held = launch_lock.join(tmp_path)
    assert held is not None
    assert launch_lock.is_held(tmp_path)
    os.close(held)
    assert launch_lock.is_held(tmp_path) is False


@pytest.mark.parametrize("beside", BESIDE)
def test_status_says_that_the_journal_cannot_be_read(ran: Path, beside: str) -> None:
    path = ran / "state" / JOURNAL
    put_fifo(Path(f"{path}{beside}"))
    code, _, said = call("status", "gpt")
    assert (code, str(path) in said) == (ExitCode.NO_GOVERNOR, True)
