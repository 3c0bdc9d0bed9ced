"""`costgov run --log-format`: a trainer that knows nothing of costgov is watched by what it prints, and unharmed."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.journal.db import JournalReader
from governor.cli.common import ExitCode
from governor.core.base.units import NS_PER_S
from tests.drills.halt.conftest import BIN, HERE, POLICY, SAFETY_S, configuration, is_alive
from tests.unit.wire.formats.written import LENGTH, WRITERS, run
from trainer_shim.wire import HALT_EXIT_CODE

ROOT = HERE.parents[2]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}
NEVER = 0


def printed(steps: int, nan_from: int = NEVER) -> str:
    return "".join(f"{line}\n" for line in WRITERS["megatron"](run(steps, broken_from=nan_from or None)))


class Launch:
    """`costgov run` over the printing trainer."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.config = configuration(work)
        self.policy = work / "policy.toml"
        self.policy.write_text(POLICY.format(stop="processes"))
        self.process: subprocess.Popen[bytes] | None = None

    def argv(self, options: str, *trainer: object) -> list[str]:
        ours = [str(BIN / "costgov"), "run", "--config", str(self.config), "--policy", str(self.policy)]
        ours += ["--name", "drill", *options.split(), "--"]
        return [*ours, sys.executable, str(HERE / "prints_steps.py"), str(self.work), *map(str, trainer)]

    def begin(self, options: str, *trainer: object, **streams: Any) -> subprocess.Popen[bytes]:
        argv = self.argv(options, *trainer)
        self.process = subprocess.Popen(argv, env=ENVIRON, **streams)
        return self.process

    def run(self, options: str, *trainer: object) -> subprocess.CompletedProcess[str]:
        argv = self.argv(options, *trainer)
        return subprocess.run(argv, env=ENVIRON, capture_output=True, text=True, timeout=SAFETY_S, check=False)

    def incident(self) -> dict[str, Any]:
        (report,) = (self.work / "state" / "incidents").glob("*.json")
        return dict(json.loads(report.read_text()))

    def trainer(self) -> int:
        return int(json.loads((self.work / "pids").read_text())[0])

    def until(self, look: Callable[[], Any], what: str) -> None:
        """Look again at what the trainer leaves in a file, until it does."""
        deadline = time.monotonic() + SAFETY_S
        nothing = select.poll()
        while not look():
            assert time.monotonic() < deadline, f"not seen: {what}"
            nothing.poll(20)

    def until_printed(self) -> None:
        self.until((self.work / "printed").exists, "the trainer has printed all")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    made = Launch(tmp_path)
    yield made
    (tmp_path / "go_on").touch()
    if made.process is not None:
        made.process.kill()
        made.process.wait(SAFETY_S)


OUTPUT = f"--log-format megatron - --sequence-length {LENGTH} --gpus 8"


def test_a_nan_that_it_prints_ends_it_and_what_it_has_printed_is_shown(launch: Launch) -> None:
    done = launch.run(OUTPUT, 60, 0.05, 40)
    assert done.returncode == HALT_EXIT_CODE, done.stderr
    incident = launch.incident()
    assert (incident["run"], incident["reason"], incident["halt_stage"]) == ("drill", "loss_nan", "HALTED")
    assert not is_alive(launch.trainer())
    assert incident["step"] == 40
    assert incident["opened_mono_ns"] - int((launch.work / "nan_at").read_text()) < 2 * NS_PER_S
    assert printed(60, 40).startswith(done.stdout), "whole lines, each once, in order"
    assert " iteration       40/" in done.stdout
    assert f"--name drill {OUTPUT} -- " in incident["resume"]
    assert (launch.work / "state" / "output.log").stat().st_mode & 0o777 == 0o600


def test_it_ends_by_itself_with_all_that_it_has_printed_on_standard_output(launch: Launch) -> None:
    """Whatever costgov itself says is on standard error, with the tokens that the lines tell."""
    (launch.work / "go_on").touch()
    done = launch.run(OUTPUT, 500, 0, NEVER)
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed(500)
    assert "drill: ended with exit code 0; step 500; " in done.stderr


def test_killed_costgov_leaves_it_unharmed_and_the_next_launch_says_that_it_trains(launch: Launch) -> None:
    costgov = launch.begin(OUTPUT, 100, 0.05, NEVER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    launch.until((launch.work / "pids").exists, "the trainer has begun")
    costgov.kill()
    costgov.wait(SAFETY_S)
    launch.until_printed()
    assert is_alive(launch.trainer())
    refused = launch.run(OUTPUT, 1, 0, NEVER)
    assert refused.returncode == ExitCode.FAILED
    assert f"not launched: an earlier launch of drill still runs, unwatched (pid {launch.trainer()}" in refused.stderr
    assert (launch.work / "state" / "output.log").read_text() == printed(100), "the refused launch left it alone"
    trainer = launch.trainer()
    (launch.work / "go_on").touch()
    launch.until(lambda: not is_alive(trainer), "the trainer has ended")
    again = launch.run(OUTPUT, 3, 0, NEVER)
    assert (again.returncode, again.stdout) == (0, printed(3)), again.stderr
    assert (launch.work / "state" / "output.log.1").read_text() == printed(100), "nobody has shown it"


def test_a_terminal_that_nobody_reads_holds_up_neither_it_nor_its_halt(launch: Launch) -> None:
    ours, theirs = pty.openpty()
    try:
        costgov = launch.begin(OUTPUT, 4_000, 0, 4_000, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        launch.until_printed()
        assert costgov.wait(SAFETY_S) == HALT_EXIT_CODE
        assert launch.incident()["halt_stage"] == "HALTED"
    finally:
        os.close(ours)


def test_the_file_of_log_is_followed_and_nothing_is_copied(launch: Launch) -> None:
    log = launch.work / "train.log"
    done = launch.run(f"{OUTPUT} --log {log}", 60, 0.05, 40)
    assert done.returncode == HALT_EXIT_CODE, done.stderr
    assert done.stdout == ""
    assert printed(60, 40).startswith(log.read_text())
    assert not (launch.work / "state" / "output.log").exists()


def test_a_log_that_it_writes_is_its_own_run(launch: Launch) -> None:
    log = launch.work / "metrics.jsonl"
    done = launch.run(f"--log-format jsonl {log}", 60, 0.05, 40, "jsonl", log)
    assert done.returncode == HALT_EXIT_CODE, done.stderr
    assert (launch.incident()["run"], launch.incident()["step"]) == ("drill", 40)


def test_a_governor_that_comes_back_loses_no_line_and_repeats_none(launch: Launch) -> None:
    """Neither of what is shown nor of what is counted."""
    (launch.work / "go_on").touch()
    argv = [sys.executable, str(HERE / "failing_governor.py"), "3", str(launch.config), str(launch.policy), "engine"]
    argv += [sys.executable, str(HERE / "prints_steps.py"), str(launch.work), "120", "0.05", "0"]
    environ = {**ENVIRON, "LOG_FORMAT": "megatron"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=SAFETY_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("by a fault of its own") == 3
    assert done.stdout == printed(120)
    assert "; step 120; " in done.stderr
    journal = JournalReader(str(launch.work / "state" / "costgov.db"))
    (row,) = journal.run("drill")
    journal.close()
    known = json.loads(row["snapshot"])
    assert (known["step"], known["tokens_total"]) == (120, 120 * 64 * LENGTH)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_as_ever(launch: Launch, signum: signal.Signals) -> None:
    costgov = launch.begin(OUTPUT, 10, 0, NEVER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    launch.until_printed()
    costgov.send_signal(signum)
    shown, _ = costgov.communicate(timeout=SAFETY_S)
    assert costgov.returncode == 128 + signum
    assert shown.decode().startswith(printed(10))


def test_ranks_that_attach_are_the_run_whatever_they_print(launch: Launch) -> None:
    """Their output is shown. That it is of another format than was said is no trouble of theirs."""
    argv = launch.argv(OUTPUT)
    argv[-2:] = [str(HERE / "trainee.py"), "polite", str(launch.work)]
    done = subprocess.run(argv, env=ENVIRON, capture_output=True, text=True, timeout=SAFETY_S, check=False)
    assert done.returncode == HALT_EXIT_CODE, done.stderr
    incident = launch.incident()
    assert (incident["run"], incident["reason"]) == ("drill", "loss_nan")
    assert incident["checkpoint"] is not None, "a rank was asked for it"
    assert "unwatched" not in done.stderr


def on_a_terminal(launch: Launch, *trainer: object) -> str:
    """What a person sees of it."""
    ours, theirs = pty.openpty()
    costgov = launch.begin(OUTPUT, *trainer, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], SAFETY_S)[0]:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # So ends a terminal.
            break
    os.close(ours)
    costgov.wait(SAFETY_S)
    return seen.decode().replace("\r\n", "\n")


def test_on_a_terminal_no_line_stands_inside_another(launch: Launch) -> None:
    (launch.work / "go_on").touch()
    seen = on_a_terminal(launch, 60, 0.1, NEVER)
    last = [line.rpartition("\r\x1b[2K")[2] for line in seen.split("\n")]
    lines = printed(60).splitlines()
    assert [line for line in last if line in lines] == lines, "each once, whole, in order"
    assert seen.count("\r\x1b[2K") > 6, "the live line is drawn between them"
