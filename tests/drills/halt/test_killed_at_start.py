"""costgov is killed around its command's first instruction: no command runs, or the next launch of it is refused."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from governor.cli.ended import ended_run
from tests.drills.halt.conftest import BIN, SAFETY_S, is_alive, until_gone

# What it does first is to say that it runs. It has left costgov's output, whose reader would wait for its end.
COMMAND = "echo $$ > {0}.new; mv {0}.new {0}; {1} exec sleep 3600 > /dev/null 2>&1"
AFTER_S = (0.0, 0.02, 0.05, 0.1, 0.3, 1.0)
BEFORE_S = (0.1, 0.03, 0.01)  # Of a start like the last one.


class Launch:
    """One name, with a state directory of its own."""

    def __init__(self, work: Path) -> None:
        work.mkdir()
        self.work, self.said = work, work / "pid"
        paths = {"COSTGOV_PATHS__STATE_DIR": f"{work}/state", "COSTGOV_PATHS__RUNTIME_DIR": f"{work}/run"}
        self.places = {**paths, "COSTGOV_CONTROL": f"{work}/run/control.sock"}

    def begin(self, first: str = "", said: Path | None = None) -> subprocess.Popen[bytes]:
        command = ["sh", "-c", COMMAND.format(said or self.said, first)]
        argv = [str(BIN / "costgov"), "run", "--price", "22", "--ceiling", "300", "--name", "job", "--", *command]
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def running(self) -> list[int]:
        """Whoever runs the command, looked for by its words: whether it has said so or not."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                words = (directory / "environ").read_bytes().split(b"\0")
                line = (directory / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            is_costgov = any(word.endswith(b"/costgov") for word in line)
            if not is_costgov and b"COSTGOV_RUN=job" in words and self._is_its(words):
                found.append(int(directory.name))
        return [pid for pid in found if is_alive(pid)]

    def _is_its(self, words: list[bytes]) -> bool:
        return all(f"{variable}={value}".encode() in words for variable, value in self.places.items())

    def holds(self) -> list[int]:
        """Ends what runs of the command, and checks that the journal knew all of it: by that a launch is refused."""
        left = self.running()
        try:
            known = ended_run("job")
            assert left == list(known.living if known is not None else ())
        finally:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        return left

    def kill(self, run: subprocess.Popen[bytes]) -> list[int]:
        run.kill()
        run.wait(SAFETY_S)
        return self.holds()

    def until_said(self, run: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + SAFETY_S
        while not self.said.exists():
            assert run.poll() is None
            assert time.monotonic() < deadline
            select.select([], [], [], 0.001)


@pytest.fixture
def launch(public: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Launch]:
    def make(name: str) -> Launch:
        made = Launch(public / name)  # A socket's path has 107 bytes at most.
        for variable, value in made.places.items():
            monkeypatch.setenv(variable, value)
        return made

    return make


def test_a_command_whose_first_act_is_to_kill_costgov_is_known(launch: Callable[[str], Launch]) -> None:
    """It was not for some 0.3 s: a second trainer began beside it."""
    one = launch("own")
    assert one.begin("kill -9 $PPID;").wait(SAFETY_S) == -signal.SIGKILL
    (left,) = one.running()
    try:
        second = one.begin(said=one.work / "second")
        assert second.wait(SAFETY_S) == 1
        assert not (one.work / "second").exists()
        shown = subprocess.run(
            [str(BIN / "costgov"), "status", "job"], capture_output=True, text=True, timeout=SAFETY_S, check=False
        )
        assert (shown.returncode, f"`kill {left}`" in shown.stdout) == (3, True), shown.stdout + shown.stderr
    finally:
        assert one.holds() == [left]


@pytest.mark.parametrize("after_s", AFTER_S)
def test_at_every_instant_of_a_kill_the_journal_has_the_command(
    launch: Callable[[str], Launch], after_s: float
) -> None:
    one = launch("after")
    run = one.begin()
    one.until_said(run)
    select.select([], [], [], after_s)
    assert len(one.kill(run)) == 1


def test_no_command_runs_that_the_journal_has_not_where_costgov_is_killed_as_it_starts_it(
    launch: Callable[[str], Launch],
) -> None:
    began, one = time.monotonic(), launch("whole")
    run = one.begin()
    one.until_said(run)
    lasted_s = time.monotonic() - began
    one.kill(run)
    for before_s in BEFORE_S:
        one = launch(f"before{before_s}")
        run = one.begin()
        select.select([], [], [], lasted_s - before_s)
        one.kill(run)


WAITS = """
import os, signal, subprocess, sys
from contextlib import nullcontext
from governor.adapters.command.gate import start_waiting

def start(wait):
    return subprocess.Popen(["touch", sys.argv[1]], preexec_fn=wait)

def tell(pid):
    print(pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

start_waiting(start, nullcontext(), tell)
"""


@pytest.mark.parametrize("number", range(3))
def test_what_waits_to_be_written_down_ends_with_who_would_write(tmp_path: Path, number: int) -> None:
    argv = [sys.executable, "-c", WAITS, str(tmp_path / "ran")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as run:
        # Its output is the waiting process's too: read to its end, both end.
        said = run.communicate(timeout=SAFETY_S)[0]
    assert run.returncode == -signal.SIGKILL
    until_gone(int(said), lambda: None)
    assert not (tmp_path / "ran").exists()
