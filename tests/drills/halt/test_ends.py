"""How a command ends when nothing is wrong with it, or only with itself: no incident, and its own exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from governor.adapters.journal.db import JournalReader
from governor.adapters.journal.runtime_files import MIRROR_NAME
from tests.drills.halt.conftest import (
    BIN,
    HERE,
    POLICY,
    SAFETY_S,
    Halted,
    Run,
    begin,
    configuration,
    end_of,
    until_gone,
)

Trainee = Callable[..., Halted]


@pytest.mark.parametrize(("mode", "code"), [("finish", 0), ("crash", 3)])
def test_a_trainer_that_ends_by_itself_is_no_incident_and_its_code_is_ours(
    mode: str, code: int, trainee: Trainee, tmp_path: Path
) -> None:
    (tmp_path / "go_on").touch()
    done = trainee(mode)
    assert done.code == code, done.output
    assert done.incidents == []


@pytest.mark.parametrize("launcher", ["leaves a child", "setsid"])
def test_a_launcher_that_exits_first_leaves_its_ranks_watched_until_their_halt(
    launcher: str, costgov_run: Run, tmp_path: Path
) -> None:
    argv = [sys.executable, str(HERE / "trainee.py"), "polite", str(tmp_path)]
    launch = f"import subprocess, json; subprocess.Popen(json.loads({json.dumps(argv)!r}))"
    done = costgov_run(["setsid", *argv] if launcher == "setsid" else [sys.executable, "-c", launch])
    assert done.incident["halt_stage"] == "HALTED", done.output
    assert done.running() == []


LAUNCHER = """
import os, signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
left = subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL)
print(os.getpid(), left.pid, flush=True)
"""


def test_who_is_left_behind_unannounced_is_named_and_no_socket_stays(tmp_path: Path) -> None:
    """`sleep` plays a trainer without attach(), put into the background. Told to leave, nobody waits a minute.

    It ignores the signals that it gets behind its launcher's end.
    """
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(stop="processes"))
    argv = [str(BIN / "costgov"), "run", "--config", str(configuration(tmp_path)), "--policy", str(policy)]
    argv += ["--name", "drill", "--", sys.executable, "-c", LAUNCHER]
    with (tmp_path / "said").open("wb") as said:
        run = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=said)
    assert run.stdout is not None
    launcher, left = map(int, run.stdout.readline().split())
    try:
        until_gone(launcher, lambda: None)
        # To its last moment: whoever insists changes nothing about how it ends.
        until_gone(run.pid, lambda: run.send_signal(signal.SIGTERM))
        assert run.wait(SAFETY_S) == 0
        line = next(text for text in (tmp_path / "said").read_text().splitlines() if "UNWATCHED" in text)
        assert f"(pid {left})" in line
        assert "$98.32/h" in line
        reader = JournalReader(str(tmp_path / "state" / "costgov.db"))
        assert [json.loads(row["data"])["name"] for row in reader.rows(None, "alarm", 10)] == ["left_behind"]
        reader.close()
        left_over = [path.name for path in (tmp_path / "run").iterdir()]
        assert left_over == [MIRROR_NAME], "neither sockets nor their locks; a copy of the journal's newest state"
    finally:
        os.kill(left, signal.SIGKILL)
        run.stdout.close()


def test_a_signal_behind_their_launchers_end_ends_the_ranks_that_train_on(tmp_path: Path) -> None:
    argv = [sys.executable, str(HERE / "trainee.py"), "finish", str(tmp_path)]
    launch = f"import os, subprocess, json; subprocess.Popen(json.loads({json.dumps(argv)!r})); print(os.getpid())"
    run = begin(tmp_path, [sys.executable, "-c", launch])
    assert run.stdout is not None
    until_gone(int(run.stdout.readline()), lambda: None)
    pids = tmp_path / "pids"
    while not pids.exists():
        assert run.poll() is None, "it watches who trains on"
    run.send_signal(signal.SIGTERM)
    done = end_of(run, tmp_path)
    assert done.code == 128 + signal.SIGTERM, done.output
    assert "goes to what it has left" in done.output
    assert done.running() == []


def test_no_second_trainer_is_launched_beside_the_one_that_a_killed_governor_left(tmp_path: Path) -> None:
    """Both would write the same checkpoints."""
    trainer = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"
    first = begin(tmp_path, [sys.executable, "-c", trainer])
    assert first.stdout is not None
    assert first.stderr is not None
    left = int(first.stdout.readline())
    try:
        until_gone(first.pid, lambda: first.kill() if knows_of(tmp_path, left) else None)
        first.wait()
        second = end_of(begin(tmp_path, ["true"]), tmp_path)
        assert second.code == 1, second.output
        assert f"not launched: an earlier launch of drill still runs, unwatched (pid {left}: " in second.output
    finally:
        os.kill(left, signal.SIGKILL)
        first.stdout.close()
        first.stderr.close()
    until_gone(left, lambda: None)
    assert end_of(begin(tmp_path, ["true"]), tmp_path).code == 0


def knows_of(work: Path, pid: int) -> bool:
    """Whether the journal has the launched command."""
    try:
        with contextlib.closing(JournalReader(str(work / "state" / "costgov.db"))) as reader:
            launched = [json.loads(entry["snapshot"]).get("launched") for entry in reader.runs()]
    except sqlite3.Error:  # It is being made.
        return False
    return any(process["pid"] == pid for one in launched if one is not None for process in one["processes"])
