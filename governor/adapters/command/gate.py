"""The moment between the command's fork and its exec, in which its launch is written down.

A process that waits here is ours still: it runs nothing of the command before it is let go. It reads from a pipe of
which we alone hold the other end, so if we are killed meanwhile it reads the pipe's end, and exits. At every instant
the command has not begun, or the journal has it.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

_GO: Final = b"g"
_PID_BYTES_MAX: Final = 32
_ENDING: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

Start = Callable[[Callable[[], None]], "subprocess.Popen[bytes]"]  # With what its process does before it is exec'd.


@dataclass(slots=True)
class _Gate:
    """Two pipes: by one the waiting process says its pid, by the other it is let go."""

    said: tuple[int, int] = field(default_factory=os.pipe)
    go: tuple[int, int] = field(default_factory=os.pipe)

    def wait(self) -> None:
        """For the command's process, between fork and exec: system calls alone, which take no lock of a thread."""
        os.close(self.go[1])  # Else it would wait for itself when we are gone.
        for one in _ENDING:  # Ours are not its own: what is sent to it here ends it, as it would end the program.
            if callable(signal.getsignal(one)):
                signal.signal(one, signal.SIG_DFL)
        os.write(self.said[1], str(os.getpid()).encode())
        if os.read(self.go[0], 1) != _GO:
            os._exit(1)

    def open(self) -> None:
        os.write(self.go[1], _GO)  # Into a pipe that we could read too: also where it has ended as it waited.


def start_waiting(
    start: Start, as_found: AbstractContextManager[None], tell: Callable[[int], None]
) -> subprocess.Popen[bytes]:
    """Start a process, and let it go when `tell`, which gets its pid, has returned. What `start` raises, it raises.

    `as_found`: the signals' dispositions are so until the process is there. `start` is called on a thread, since it
    returns only when the program runs. That thread lives as long as the program: to a program that asks for a signal
    at its parent's death (PR_SET_PDEATHSIG) the parent is the thread that has forked it.
    """
    gate, found, failed = _Gate(), list[subprocess.Popen[bytes]](), list[Exception]()
    is_done, is_let_go = threading.Event(), False

    def begin() -> None:
        try:
            found.append(start(gate.wait))
        except Exception as error:  # noqa: BLE001 # Raised again below.
            failed.append(error)
        finally:
            os.close(gate.said[1])  # Where nothing was forked, this is what the other thread reads.
            is_done.set()
        if found:
            _await_end(found[0].pid)

    starter = threading.Thread(target=begin, name="command", daemon=True)
    try:
        with as_found:
            _begin(starter, gate)
            pid = os.read(gate.said[0], _PID_BYTES_MAX)
        if pid:
            tell(int(pid))
            gate.open()
            is_let_go = True
    finally:
        # Whatever has failed: closed without the word, it lets nothing through.
        for fd in (gate.go[1], gate.go[0], gate.said[0]):
            os.close(fd)
        if starter.ident is not None:
            is_done.wait()
        if found and not is_let_go:
            found[0].wait()  # It has read the pipe's end.
    if failed:
        raise failed[0]
    return found[0]


def _await_end(pid: int) -> None:
    """Wait, and leave it to be reaped by others."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:  # It is reaped already.
        return
    except OSError:  # No free descriptor.
        threading.Event().wait()
        return
    with open(pidfd, "rb"):
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()


def _begin(starter: threading.Thread, gate: _Gate) -> None:
    try:
        starter.start()
    except RuntimeError as error:
        os.close(gate.said[1])
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error


def require_program(name: str, environ: Mapping[str, str]) -> None:
    """OSError where there is no such program, as its exec would raise it, before anything is noted.

    Whether one that is there may be run is exec's to say: access(2) asks for the real uid, without capabilities.
    """
    places = [name] if os.path.dirname(name) else [os.path.join(one, name) for one in os.get_exec_path(environ)]
    if not any(os.path.exists(place) for place in places):
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), name)
