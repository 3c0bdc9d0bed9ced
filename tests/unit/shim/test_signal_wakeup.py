"""Real signals, each case in an interpreter of its own: handlers are the process's, not ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_shim.signal_wakeup import DEFAULT_SIGNAL, signal_number

PRELUDE = """
import ctypes, os, select, signal, socket, sys, threading, time
from trainer_shim.signal_wakeup import SignalWakeup
wakeup = SignalWakeup()

def send(pid=None):
    os.kill(pid or os.getpid(), signal.SIGUSR1)

def signalled():
    ready, _, _ = select.select([wakeup], [], [], 20)
    assert ready, "nothing arrived"
    return wakeup.drain()
"""


def child(body: str) -> str:
    """Run the script, return what it printed; a failed assertion in it fails here with its text."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", PRELUDE + body],  # The shim needs nothing of site-packages.
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr}"
    return done.stdout


def test_a_ring_wakes_the_listener() -> None:
    child("wakeup.install(signal.SIGUSR1); send(); assert signalled(); assert not wakeup.drain()")


def test_a_nudge_wakes_and_is_no_ring() -> None:
    child("wakeup.install(signal.SIGUSR1); wakeup.wake(); assert not signalled()")


def test_a_thread_hears_it_while_the_main_thread_sits_in_a_restarting_system_call() -> None:
    """As in a collective: no bytecode runs on the main thread, and the call must not fail with EINTR either."""
    child(
        """
wakeup.install(signal.SIGUSR1)
read_end, write_end = os.pipe()
heard = []
def listen():
    heard.append(signalled())
    os.write(write_end, b"x")  # Only now the main thread gets on.
threading.Thread(target=listen, daemon=True).start()
threading.Thread(target=send, daemon=True).start()
buffer = ctypes.create_string_buffer(1)
assert ctypes.CDLL(None).read(read_end, buffer, 1) == 1, "interrupted"
assert heard == [True]
"""
    )


def test_a_handler_of_the_script_stays_and_is_not_run_at_our_request() -> None:
    child(
        """
handler = lambda number, frame: sys.exit("requeued")  # As Slurm scripts do.
signal.signal(signal.SIGUSR1, handler)
wakeup.install(signal.SIGUSR1)
assert wakeup.number == 0  # The governor sends none.
assert signal.getsignal(signal.SIGUSR1) is handler
wakeup.wake()
assert not signalled()
"""
    )


def test_a_previous_wakeup_descriptor_is_put_back_at_the_end() -> None:
    child(
        """
receiver, sender = socket.socketpair()
receiver.settimeout(20)
sender.setblocking(False)
signal.set_wakeup_fd(sender.fileno())
wakeup.install(signal.SIGUSR1)
wakeup.give_back()
send()
assert receiver.recv(16) == bytes((signal.SIGUSR1,))
"""
    )


def test_a_previous_wakeup_descriptor_still_gets_every_signal() -> None:
    child(
        """
theirs, sender = socket.socketpair()
sender.setblocking(False)
signal.set_wakeup_fd(sender.fileno())
signal.signal(signal.SIGUSR2, lambda *_: None)
wakeup.install(signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR2)
assert not signalled(), "another signal is not ours"
wakeup.wake()
wakeup.drain()
assert theirs.recv(10) == bytes([signal.SIGUSR2])
"""
    )


def test_an_event_loop_that_takes_the_descriptor_away_only_delays_us() -> None:
    child(
        """
import asyncio
wakeup.install(signal.SIGUSR1)
async def busy():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, lambda: None)
asyncio.run(busy())
send()
assert signalled()
"""
    )


def test_a_replaced_handler_is_noticed() -> None:
    child(
        """
wakeup.install(signal.SIGUSR1)
assert not wakeup.replaced()
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
assert wakeup.replaced()
"""
    )


def test_a_handler_in_c_is_left_alone_and_so_is_a_foreign_thread() -> None:
    child(
        """
import faulthandler
faulthandler.register(signal.SIGUSR1)
wakeup.install(signal.SIGUSR1)
assert wakeup.number == 0
thread = threading.Thread(target=wakeup.install, args=(signal.SIGUSR2,))
thread.start()
thread.join()
assert wakeup.number == 0
wakeup.install(signal.SIGKILL)
assert wakeup.number == 0
"""
    )


def test_a_forked_child_neither_wakes_us_nor_dies_of_it() -> None:
    child(
        """
wakeup.install(signal.SIGUSR1)
ready, report = os.pipe()
kid = os.fork()
if kid == 0:
    assert not wakeup.number
    os.write(report, b"x")
    signal.sigtimedwait([signal.SIGTERM], 0)
    signal.pause()  # Our signal ends the pause; the default action would have ended the child.
    os._exit(7)
os.read(ready, 1)
deadline = time.monotonic() + 20
while os.waitpid(kid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
    send(kid)  # Again, should the first one come before pause().
else:
    pass
assert not select.select([wakeup], [], [], 0)[0], "the child's signal woke the parent"
"""
    )


def test_a_child_gets_it_back_as_it_was_ignored() -> None:
    child(
        """
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
wakeup.install(signal.SIGUSR1)
kid = os.fork()
if kid == 0:
    os._exit(9 if signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN else 1)
assert os.waitstatus_to_exitcode(os.waitpid(kid, 0)[1]) == 9
"""
    )


def test_programs_started_by_a_forked_child_inherit_the_default_action() -> None:
    child(
        """
wakeup.install(signal.SIGUSR1)
kid = os.fork()
if kid == 0:
    os.execv(sys.executable, [sys.executable, "-c", "import signal; exit(signal.getsignal(10) != signal.SIG_DFL)"])
assert os.waitpid(kid, 0)[1] == 0
"""
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", DEFAULT_SIGNAL),
        ("USR2", signal.SIGUSR2),
        ("sigusr2", signal.SIGUSR2),
        ("12", 12),
        ("0", 0),
        ("none", 0),
        ("USR9", DEFAULT_SIGNAL),
        ("999", DEFAULT_SIGNAL),
    ],
)
def test_the_signal_is_configurable(text: str, number: int) -> None:
    assert signal_number({"COSTGOV_SIGNAL": text}) == number


def test_a_framework_s_handler_of_sigterm_ends_nothing_until_the_work_is_saved_and_keeps_nothing_alive_after() -> None:
    body = """
from trainer_shim.signal_wakeup import defer_end
assert defer_end(lambda: True) == [] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
signal.signal(signal.SIGTERM, lambda number, frame: print("swallowed"))
saved = []
noted = defer_end(lambda: bool(saved))
os.kill(os.getpid(), signal.SIGTERM)
assert noted == [signal.SIGTERM]
pid = os.fork()
if pid == 0:
    saved.append(True)
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == signal.SIGTERM
print("saved first")
"""
    assert child(body) == "saved first\n"
