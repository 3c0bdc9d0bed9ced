"""A governor that fails by its own fault: the halt goes on, or the command does and is said to be unwatched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from governor.cli.common import ExitCode
from governor.cli.run.supervise import GOVERNORS_MAX
from tests.drills.halt.conftest import HERE, POLICY, SAFETY_S, configuration, until_gone
from trainer_shim.wire import HALT_EXIT_CODE


def _failing(work: Path, times: int, mode: str, where: str = "engine") -> tuple[list[str], dict[str, str]]:
    """The command line, and its environment."""
    policy = work / "policy.toml"
    policy.write_text(POLICY.format(stop="processes"))
    argv = [sys.executable, str(HERE / "failing_governor.py"), str(times), str(configuration(work)), str(policy), where]
    argv += [sys.executable, str(HERE / "trainee.py"), mode, str(work)]
    return argv, {**os.environ, "PYTHONPATH": str(HERE.parents[2])}


def _run(work: Path, times: int, where: str = "engine") -> subprocess.CompletedProcess[str]:
    argv, environ = _failing(work, times, "polite", where)
    return subprocess.run(argv, capture_output=True, text=True, timeout=SAFETY_S, env=environ, check=False)


def _incident(work: Path) -> dict[str, Any]:
    reports = sorted((work / "state" / "incidents").glob("*.json"))
    assert len(reports) == 1
    return dict(json.loads(reports[0].read_text()))


def test_a_governor_that_fails_while_it_halts_comes_back_and_finishes_the_halt(tmp_path: Path) -> None:
    done = _run(tmp_path, 2)
    assert done.returncode == HALT_EXIT_CODE, done.stderr
    assert done.stderr.count("by a fault of its own") == 2
    incident = _incident(tmp_path)
    assert incident["halt_stage"] == "HALTED"
    for pid in json.loads((tmp_path / "pids").read_text()):
        assert not Path(f"/proc/{pid}").exists()


def test_a_governor_that_always_fails_ends_a_command_whose_halt_was_decided(tmp_path: Path) -> None:
    done = _run(tmp_path, 1_000)
    assert done.returncode == ExitCode.NEEDS_HUMAN, done.stderr
    assert "whose halt was decided" in done.stderr
    for pid in json.loads((tmp_path / "pids").read_text()):
        assert not Path(f"/proc/{pid}").exists()


def test_a_governor_that_always_fails_leaves_a_healthy_command_alone_and_says_so(tmp_path: Path) -> None:
    """To its end: this one fails behind its training, and is told how to go on, as after any bad end."""
    argv, environ = _failing(tmp_path, 1_000, "finish")
    argv[6:] = ["sh", "-c", '"$@"; exit 7', "sh", *argv[6:]]
    said = tmp_path / "said"
    with said.open("wb") as stderr:
        run = subprocess.Popen(argv, env=environ, stderr=stderr)
    try:
        until_gone(run.pid, lambda: "UNWATCHED" in said.read_text() and (tmp_path / "go_on").touch())
    finally:
        (tmp_path / "go_on").touch()  # Nobody else ends the trainee.
    assert run.wait(SAFETY_S) == 7, said.read_text()
    assert said.read_text().count("by a fault of its own") == GOVERNORS_MAX
    assert re.search(
        r"UNWATCHED.*^resume +(cd \S+ && )?costgov run .*--again", said.read_text(), re.DOTALL | re.MULTILINE
    )


def test_a_terminal_that_always_fails_costs_no_governor_and_no_halt(tmp_path: Path) -> None:
    done = _run(tmp_path, 1_000_000, where="console")
    assert done.returncode == HALT_EXIT_CODE, done.stderr
    assert "by a fault of its own" not in done.stderr
    assert _incident(tmp_path)["halt_stage"] == "HALTED"
