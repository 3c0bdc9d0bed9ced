"""Two real ranks on gloo, of which one sleeps in its data, or none does: what `costgov evidence` says of them."""

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
NEVER = 10**7
SAFETY_S = 60


@contextlib.contextmanager
def governed(work: Path, sleep_at: int) -> Iterator[Service]:
    """A governor, and a run of two ranks in which rank 1 sleeps before step `sleep_at`."""
    service = Service(work, policy=POLICY)
    environ = {**os.environ, "COSTGOV_SOCKET": str(work / "run" / "trainer.sock"), "OMP_NUM_THREADS": "1"}
    trainer: subprocess.Popen[bytes] | None = None
    try:
        service.start()
        with (work / "trainer.log").open("wb") as log:
            argv = [sys.executable, str(SLEEPER), str(work), "-1", "0", str(sleep_at)]
            trainer = subprocess.Popen(
                argv, env=environ, stdout=log, stderr=log, start_new_session=True, cwd=work
            )  # fmt: skip
        service.until(lambda: service.step() >= SLEEP_AT, "the run has come to where it may hang")
        yield service
    finally:
        if trainer is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(trainer.pid, signal.SIGKILL)
            trainer.wait(SAFETY_S)
        service.end()


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Service]:
    """Rank 0 waits for rank 1 in the all-reduce."""
    with governed(tmp_path, SLEEP_AT) as service:
        yield service


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Service]:
    with governed(tmp_path, NEVER) as service:
        yield service


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


def test_a_few_steps_of_one_rank_are_profiled_while_the_run_trains(training: Service) -> None:
    found = evidence(training, "--profile", "3", "--rank", "1")["profile"]
    assert found["problem"] is None, found
    assert (found["rank"], found["steps"], found["on_device"]) == (1, 3, False)
    assert found["wall_s"] > 0
    assert any("addmm" in one["name"] or "linear" in one["name"] for one in found["operators"]), found["operators"]
    trace = Path(found["path"])
    assert trace.parent == training.work / "costgov-profile"
    assert trace.name.startswith("rank1-")
    step = training.step()
    training.until(lambda: training.step() > step, "the run trains on")


def test_a_rank_that_is_not_there_is_not_profiled(hanging: Service) -> None:
    argv = [str(BIN / "costgov"), "evidence", "drill", "--control", str(hanging.work / "run" / "control.sock")]
    done = subprocess.run([*argv, "--profile", "1", "--rank", "7"], capture_output=True, text=True, timeout=SAFETY_S)
    assert done.returncode != 0
    assert "no rank 7" in done.stderr
    assert "Traceback" not in done.stderr
