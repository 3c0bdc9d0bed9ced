"""A test run that is interrupted, killed or careless leaves no process behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SAFETY_S = 90.0


def start(place: Path, *options: str, ends: str = "waits") -> subprocess.Popen[str]:
    environ = {**os.environ, "CG_DRILL_PLACE": str(place), "CG_DRILL_ENDS": ends}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(HERE / "left_behind.py")]
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def started(place: Path, run: subprocess.Popen[str]) -> list[int]:
    """Pidfds of governor, trainer and orphans."""
    deadline = time.monotonic() + SAFETY_S
    pidfd = os.pidfd_open(run.pid)
    while not (place / "pids").exists():
        assert time.monotonic() < deadline
        assert not select.select([pidfd], [], [], 0.05)[0], run.communicate()[0]
    os.close(pidfd)
    return [os.pidfd_open(pid) for pid in json.loads((place / "pids").read_text())]


def assert_all_end(pidfds: list[int]) -> None:
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], SAFETY_S)[0]
        os.close(pidfd)


def is_running(pid: int) -> bool:
    """A zombie is not: who reaps it is not asked here."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda signum: signum.name)
def test_an_interrupted_run_leaves_nothing_behind(signum: signal.Signals, tmp_path: Path) -> None:
    run = start(tmp_path)
    pidfds = started(tmp_path, run)
    run.send_signal(signum)
    assert_all_end(pidfds)
    run.communicate(timeout=SAFETY_S)
    assert run.returncode in (-signum, pytest.ExitCode.INTERRUPTED)


def test_workers_that_outlive_their_controller_are_ended_too(tmp_path: Path) -> None:
    run = start(tmp_path, "-n1")
    pidfds = started(tmp_path, run)
    run.kill()
    assert_all_end(pidfds)
    run.communicate(timeout=SAFETY_S)


def test_a_run_that_ends_well_and_leaves_a_process_fails_and_names_it(tmp_path: Path) -> None:
    run = start(tmp_path, ends="at once")
    output, _ = run.communicate(timeout=SAFETY_S)
    _, _, orphan = json.loads((tmp_path / "pids").read_text())
    assert "1 passed" in output
    assert f"left behind by the tests:\n  {orphan}: " in output
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert not is_running(orphan)
