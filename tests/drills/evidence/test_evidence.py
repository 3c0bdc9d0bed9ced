"""Two real ranks on gloo, of which one sleeps in its data: what `costgov evidence` says of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.halt.conftest import BIN, POLICY, Service

SLEEPER = Path(__file__).parents[1] / "halt" / "sleeper.py"
SLEEP_AT = 100
SAFETY_S = 60


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Service]:
    """A governor, and a run that hangs: rank 1 sleeps before step 100, rank 0 waits for it in the all-reduce."""
    service = Service(tmp_path, policy=POLICY)
    environ = {**os.environ, "COSTGOV_SOCKET": str(tmp_path / "run" / "trainer.sock"), "OMP_NUM_THREADS": "1"}
    trainer: subprocess.Popen[bytes] | None = None
    try:
        service.start()
        with (tmp_path / "trainer.log").open("wb") as log:
            argv = [sys.executable, str(SLEEPER), str(tmp_path), "-1", "0", str(SLEEP_AT)]
            trainer = subprocess.Popen(argv, env=environ, stdout=log, stderr=log, start_new_session=True)
        service.until(lambda: service.step() >= SLEEP_AT, "the run has come to where it hangs")
        yield service
    finally:
        if trainer is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(trainer.pid, signal.SIGKILL)
            trainer.wait(SAFETY_S)
        service.end()


def evidence(service: Service, *options: str) -> dict[str, Any]:
    argv = [str(BIN / "costgov"), "evidence", "drill", "--control", str(service.work / "run" / "control.sock")]
    done = subprocess.run([*argv, *options, "--json"], capture_output=True, text=True, timeout=SAFETY_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_run_that_hangs_is_shown_with_the_rank_that_is_behind(hanging: Service) -> None:
    found = evidence(hanging, "--collectives", "--stacks")
    (group,) = found["collectives"]["groups"]
    assert found["collectives"]["problems"] == {}
    assert group["behind"] == [1], group
    last = group["ranks"]
    assert last["0"]["number"] == last["1"]["number"] + 1
    assert last["0"]["operation"].endswith("all_reduce") or last["0"]["operation"].endswith("allreduce")
    if shutil.which("py-spy", path=str(BIN)) is None:
        pytest.skip("needs py-spy for the stacks; the collectives are right")
    asleep = next(row for row in found["stacks"] if row["rank"] == 1)
    assert asleep["problem"] is None, asleep
    assert asleep["threads"][0]["name"] == "MainThread"
    assert asleep["threads"][0]["frames"][0].startswith("sleeper.py:Sleepy.__getitem__:")
