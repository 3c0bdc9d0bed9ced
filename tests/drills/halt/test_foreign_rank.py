"""Another run of the same user that speaks to the socket of `costgov run`: halted by itself, our command trains on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.halt.conftest import BIN, HERE, SAFETY_S, Service


class Beside(Service):
    """A governor beside one command, in place of the service."""

    def start(self) -> None:
        argv = [str(BIN / "costgov"), "run", "--config", str(self.config), "--policy", str(self.policy)]
        argv += ["--name", "mine", "--", sys.executable, str(HERE / "trainee.py"), "healthy", str(self.work)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        self.until(lambda: self.own_step() > 30, "our command trains")

    def own_step(self) -> int:
        status: dict[str, Any] = self.ask({"cmd": "status"}) or {"runs": []}
        return next((run["step"] or 0 for run in status["runs"] if run["run"] == "mine"), 0)


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    made = Beside(tmp_path)
    made.start()
    yield made
    made.end()


def test_a_foreign_run_on_our_socket_is_halted_alone(beside: Beside, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    environ = {**os.environ, "COSTGOV_SOCKET": str(tmp_path / "run" / "trainer.sock"), "COSTGOV_RUN": "theirs"}
    argv = [sys.executable, str(HERE / "trainee.py"), "polite", str(theirs)]
    foreign = subprocess.Popen(argv, env=environ, stderr=subprocess.DEVNULL, start_new_session=True)
    beside.trainees.append(foreign)
    foreign.wait(SAFETY_S)
    incident = beside.until_stage("HALTED")
    assert incident["run"] == "theirs"
    (own_pid,) = json.loads((tmp_path / "pids").read_text())
    assert own_pid not in [target["pid"] for target in (*incident["targets"], *incident["launchers"])]
    assert "theirs" in incident["resume"], "not our command, which would train something else"
    at = beside.own_step()
    beside.until(lambda: beside.own_step() > at, "our command trains on")
    assert beside.process is not None
    beside.process.send_signal(signal.SIGTERM)  # As a person would; it goes on to the command.
    assert beside.process.wait(SAFETY_S) == 128 + signal.SIGTERM, "its own end, not that of a halt"
