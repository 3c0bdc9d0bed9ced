"""Between its fork and its exec a command waits until its launch is written down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import chdir, nullcontext
from pathlib import Path

import pytest

from governor.adapters.command.gate import require_program, start_waiting

SAFETY_S = 20.0


class Says:
    """A program that says one word, and whether it has: its reader comes to the end when nobody is left who might."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        self.started = list[subprocess.Popen[bytes]]()

    def start(self, wait: Callable[[], None]) -> subprocess.Popen[bytes]:
        argv = ["echo", "ran"]
        self.started.append(subprocess.Popen(argv, stdout=self.writes, preexec_fn=wait))  # noqa: PLW1509
        return self.started[0]

    def said(self) -> bytes:
        os.close(self.writes)
        with os.fdopen(self.reads, "rb") as said:
            told = said.read()
        self.started[0].wait(SAFETY_S)
        return told


def test_the_program_runs_when_its_pid_was_told() -> None:
    program, told = Says(), list[int]()
    process = start_waiting(program.start, nullcontext(), told.append)
    assert (program.said(), process.returncode, told) == (b"ran\n", 0, [process.pid])


def test_no_program_runs_that_could_not_be_told_of() -> None:
    """Let go first and written down then, it would have run."""
    program = Says()

    def cannot(_pid: int) -> None:
        raise ChildProcessError("no journal")

    with pytest.raises(ChildProcessError, match="no journal"):
        start_waiting(program.start, nullcontext(), cannot)
    assert program.said() == b""


KILLED = """
import os, signal, subprocess
from contextlib import nullcontext
from governor.adapters.command.gate import start_waiting

def start(wait):
    return subprocess.Popen(["echo", "ran"], preexec_fn=wait)

def tell(pid):
    print(pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

start_waiting(start, nullcontext(), tell)
"""


def test_who_waits_ends_with_who_would_let_it_go() -> None:
    """With an end of the pipe of its own to hold open, it would wait for ever behind a `kill -9`."""
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        pidfd = os.pidfd_open(pid)
        try:  # Its output is the waiting process's too: at its end, both have ended.
            assert run.communicate(timeout=SAFETY_S)[0] == b""
        except subprocess.TimeoutExpired:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            raise
        finally:
            os.close(pidfd)


def test_what_cannot_be_run_is_told_by_its_true_error() -> None:
    """A NUL in an argument was an IndexError."""
    told = list[int]()

    def start(wait: Callable[[], None]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["echo", "a\0b"], preexec_fn=wait)  # noqa: PLW1509

    with pytest.raises(ValueError, match="null byte"):
        start_waiting(start, nullcontext(), told.append)
    assert told == []


def test_a_name_of_no_program_is_refused_before_anything_is_noted(tmp_path: Path) -> None:
    """Whether one that is there may be run is not asked here: access(2) knows no capabilities."""
    (tmp_path / "data").write_text("no program")
    require_program(str(tmp_path / "data"), os.environ)
    with pytest.raises(FileNotFoundError):
        require_program(str(tmp_path / "none"), os.environ)
    with pytest.raises(FileNotFoundError):
        require_program("data", {"PATH": "/nowhere:/usr/bin"})


def test_an_empty_path_is_where_we_are(tmp_path: Path) -> None:
    (tmp_path / "train").touch(0o755)
    with chdir(tmp_path):
        require_program("train", {"PATH": ""})
        with pytest.raises(FileNotFoundError):
            require_program("other", {"PATH": ""})


def test_the_thread_that_has_forked_it_lives_as_long_as_it() -> None:
    """To who asks for a signal at its parent's death (`setpriv --pdeathsig`, bwrap, tini) that is its parent."""

    def start(wait: Callable[[], None]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE, preexec_fn=wait)  # noqa: PLW1509

    before = set(threading.enumerate())
    child = start_waiting(start, nullcontext(), lambda _pid: None)
    (thread,) = set(threading.enumerate()) - before
    assert thread.is_alive()
    child.communicate(b"", SAFETY_S)
    thread.join(SAFETY_S)
    assert not thread.is_alive()


def test_a_signal_to_the_process_that_waits_ends_it() -> None:
    """Ours has a handler for it, of which the program knows nothing."""
    program = Says()
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        child = start_waiting(program.start, nullcontext(), lambda pid: os.kill(pid, signal.SIGTERM))
        assert (program.said(), child.wait(SAFETY_S)) == (b"", -signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
