"""How a command ends when nothing is wrong with it, or only with itself: no incident, and its own exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drills.halt.conftest import HERE, Halted, Run

Trainee = Callable[..., Halted]


@pytest.mark.parametrize(("mode", "code"), [("finish", 0), ("crash", 3)])
def test_a_trainer_that_ends_by_itself_is_no_incident_and_its_code_is_ours(
    mode: str, code: int, trainee: Trainee
) -> None:
    done = trainee(mode)
    assert done.code == code, done.output
    assert done.incidents == []


def test_a_launcher_that_exits_first_leaves_its_ranks_watched_until_their_halt(
    costgov_run: Run, tmp_path: Path
) -> None:
    argv = json.dumps([sys.executable, str(HERE / "trainee.py"), "polite", str(tmp_path)])
    launch = f"import subprocess, json; subprocess.Popen(json.loads({argv!r}))"
    done = costgov_run([sys.executable, "-c", launch])
    assert done.incident["halt_stage"] == "HALTED", done.output
    assert done.running() == []
