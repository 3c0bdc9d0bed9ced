"""Signals that others send: a governor outlives every one that does not mean it, and a command gets those for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.drills.halt.conftest import BIN, POLICY, SAFETY_S, Service, configuration

# It tells of each signal that comes, and ends itself by the code that it was told.
HEARS = """
import os, signal, sys
for name in ("USR1", "USR2", "ALRM", "QUIT", "TERM", "INT"):
    signal.signal(getattr(signal, "SIG" + name), lambda number, _: print(signal.Signals(number).name, flush=True))
print(os.getpid(), flush=True)
sys.stdin.readline()
sys.exit(7)
"""
IGNORED = ("SIGXCPU", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGTSTP")
IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFSZ")
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `costgov run` with its lines in said, and return it when the command has said its first line."""
    started: list[subprocess.Popen[str]] = []

    def make(argv: list[str], *prefix: str) -> subprocess.Popen[str]:
        policy = tmp_path / "policy.toml"
        policy.write_text(POLICY.format(stop="processes"))
        command = [*prefix, str(BIN / "costgov"), "run", "--config", str(configuration(tmp_path)), "--policy"]
        command += [str(policy), "--name", "drill", "--", *argv]
        with (tmp_path / "said").open("wb") as said:
            # As a shell with job control does: in a group of its own, which Ctrl-Z can stop.
            run = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, process_group=0
            )
        started.append(run)
        assert next_line(run)
        return run

    yield make
    for run in started:
        with run:  # Closes its standard input, at whose end the command ends.
            pass


def next_line(run: subprocess.Popen[str]) -> str:
    """The command's next line. Fails at once when the governor has ended: the command may live on without a word."""
    assert run.stdout is not None
    ended = os.pidfd_open(run.pid)
    try:
        ready, _, _ = select.select([run.stdout, ended], [], [], SAFETY_S)
    finally:
        os.close(ended)
    # Both may be there: a line, and the end that followed it.
    assert run.stdout in ready, "the governor has ended" if ready else "no line came"
    return run.stdout.readline()


def test_a_run_passes_on_what_is_meant_for_its_command_and_goes_on(start: Start) -> None:
    run = start([sys.executable, "-c", HEARS])
    for name in ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGUSR1", "SIGUSR1", "SIGUSR1", "SIGQUIT", "SIGTERM"):
        run.send_signal(signal.Signals[name])
        assert next_line(run) == f"{name}\n"
    run.communicate("\n", timeout=SAFETY_S)
    assert run.returncode == 7


def test_a_run_ignores_limits_and_timers_that_are_its_own_and_ctrl_z(start: Start, tmp_path: Path) -> None:
    run = start([sys.executable, "-c", HEARS])
    for name in (*IGNORED, *IGNORED_BY_PYTHON):
        run.send_signal(signal.Signals[name])
        run.send_signal(signal.Signals[name])
    output, _ = run.communicate("\n", timeout=SAFETY_S)
    assert (run.returncode, output) == (7, "")
    said = (tmp_path / "said").read_text().splitlines()
    assert sorted(line for line in said if "ignored" in line) == sorted(
        f"costgov: {name} is ignored" for name in IGNORED
    )


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGQUIT"])
def test_a_command_that_handles_no_signal_ends_by_it_as_without_costgov(name: str, start: Start) -> None:
    run = start([sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.readline()"])
    run.send_signal(signal.Signals[name])
    assert run.wait(SAFETY_S) == 128 + signal.Signals[name]


def test_what_the_caller_ignored_stays_ignored_for_the_command(start: Start) -> None:
    masks = "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('SigIgn')], flush=True)"
    ignoring = ["sh", "-c", 'trap "" USR1; exec "$@"', "sh"]
    run = start([sys.executable, "-c", f"import sys; print(1, flush=True); sys.stdin.readline(); {masks}"], *ignoring)
    run.send_signal(signal.SIGUSR1)
    ignored, _ = run.communicate("\n", timeout=SAFETY_S)
    assert run.returncode == 0
    assert int(ignored, 16) >> (signal.SIGUSR1 - 1) & 1


# A shell with job control: its terminal is its own, and the command is in the background. 99: the command was stopped.
SHELL = """
import fcntl, os, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
run = subprocess.Popen(sys.argv[1:], process_group=0)
_, status = os.waitpid(run.pid, os.WUNTRACED)
if os.WIFSTOPPED(status):
    run.kill()
sys.exit(99 if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status))
"""


def test_a_run_in_the_background_of_a_terminal_is_stopped_by_no_line_that_it_prints(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(stop="processes"))
    master, slave = os.openpty()
    settings = termios.tcgetattr(slave)
    settings[3] |= termios.TOSTOP
    termios.tcsetattr(slave, termios.TCSANOW, settings)
    script = f"grep SigIgn /proc/self/status > {tmp_path}/ignored; exit 7"
    command = [str(BIN / "costgov"), "run", "--config", str(configuration(tmp_path)), "--policy", str(policy)]
    command += ["--name", "drill", "--", "sh", "-c", script]
    shell = subprocess.Popen(
        [sys.executable, "-c", SHELL, *command], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    said = b""
    with contextlib.suppress(OSError):  # EIO: nobody has the terminal any more.
        while chunk := os.read(master, 4096):
            said += chunk
    os.close(master)
    assert shell.wait(SAFETY_S) == 7, said.decode()
    assert b"costgov:" in said
    ignored = int((tmp_path / "ignored").read_text().split()[1], 16)
    assert not ignored >> (signal.SIGTTOU - 1) & 1, "the command's own are as they were"


def test_the_exit_code_is_the_commands_if_whoever_started_us_ignores_children(start: Start) -> None:
    ignoring = [sys.executable, "-c", IGNORING]
    run = start(["sh", "-c", "echo up; read line; exit 3"], *ignoring)
    run.communicate("\n", timeout=SAFETY_S)
    assert run.returncode == 3


IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_daemon_is_ended_by_no_signal_that_does_not_mean_it(service: Callable[..., Service]) -> None:
    governor = service()
    governor.start()
    assert governor.process is not None
    ignored = ("SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", *IGNORED)
    for name in (*ignored, *IGNORED_BY_PYTHON, *ignored):
        governor.process.send_signal(signal.Signals[name])
    governor.until(lambda: governor.ask({"cmd": "ping"}) is not None, "it answers")
    governor.process.terminate()
    assert governor.process.wait(SAFETY_S) == 0
    lines = [json.loads(line) for line in governor.log_at_end().splitlines()]
    assert sorted(line["signal"] for line in lines if line["event"] == "signal_ignored") == sorted(ignored)
