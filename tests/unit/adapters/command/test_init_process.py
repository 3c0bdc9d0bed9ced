"""`costgov run` leaves the place to which others' orphans come, and whoever waits there for it notices nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SAFETY_S = 60
# A server was started before `exec costgov run`.
GOES_ON = """
import os, signal, subprocess, sys
from governor.adapters.command.init_process import leave_place
from governor.adapters.command.orphans import BeforeChildren

before = os.getpid()
server = subprocess.Popen(["cat"], stdin=subprocess.PIPE) if "server" in sys.argv else None
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("written once")
leave_place()
print(os.getpid() == before, os.getppid() == before, BeforeChildren.look().is_alone, flush=True)
print(signal.sigwait({signal.SIGUSR1}).name, flush=True)
if "dies" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(86)
"""


@pytest.mark.parametrize(
    ("how", "told", "code"),
    [
        ("server", "False True True", 86),
        ("server dies", "False True True", 128 + signal.SIGKILL),
        ("alone", "True False True", 86),
    ],
)
def test_who_had_children_goes_on_below_what_passes_signals_on_and_ends_with_its_code(
    how: str, told: str, code: int
) -> None:
    argv = [sys.executable, "-c", GOES_ON, *how.split()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["written once\n", f"{told}\n"]
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "SIGUSR1\n"
        assert process.wait(SAFETY_S) == code


# A terminal's Ctrl-C comes to all of its foreground by itself. What takes our place must not pass it on again.
FROM_TERMINAL = """
import os, pty, signal

pid, terminal = pty.fork()
if pid == 0:
    import subprocess
    from governor.adapters.command.init_process import leave_place
    server = subprocess.Popen(["sleep", "60"], process_group=0)
    waited_for = {signal.SIGINT, signal.SIGUSR1}  # Taken in this order where both have come.
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    leave_place()
    os.write(1, b"up;")
    while (told := signal.sigwait(waited_for)) != signal.SIGUSR1:
        os.write(1, b"SIGINT;")
    os.kill(server.pid, signal.SIGKILL)  # It is no child of ours any more.
    os.write(1, b"over;")
    os._exit(0)
seen = b""
def until(what):
    global seen
    while what not in seen:
        seen += os.read(terminal, 1000)
until(b"up;")
os.write(terminal, b"\\x03")
until(b"SIGINT;")
os.kill(pid, signal.SIGUSR1)
until(b"over;")
print(seen.count(b"SIGINT;"))
os.waitpid(pid, 0)
"""


def test_ctrl_c_on_its_terminal_comes_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FROM_TERMINAL], capture_output=True, text=True, timeout=SAFETY_S, check=False
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


# As a service manager's stop, which each process of the group gets, and a shell's `kill %1` after it.
TO_THE_GROUP = """
import os, signal, subprocess
from governor.adapters.command.init_process import leave_place
from governor.daemon import signals

server = subprocess.Popen(["sleep", "60"], process_group=0)
signals.COPIES.expect(leave_place())
heard = os.pipe()
signals.install(lambda signum: os.write(heard[1], bytes([signum])))
print("up", flush=True)
while (told := os.read(heard[0], 1)[0]) != signal.SIGTERM:
    print(signal.Signals(told).name, flush=True)
os.kill(server.pid, signal.SIGKILL)  # It is no child of ours any more.
print("over", flush=True)
os._exit(0)
"""


def test_a_signal_to_its_process_group_comes_once_each_time() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TO_THE_GROUP], stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.killpg(process.pid, signal.SIGUSR1)
        assert process.stdout.readline() == "SIGUSR1\n"
        process.send_signal(signal.SIGTERM)  # Passed on after the copy, whose number is lower.
        assert process.stdout.read() == "over\n"
        assert process.wait(SAFETY_S) == 0
