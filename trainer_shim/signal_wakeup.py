"""The signal that wakes the listener: it only means "read your socket, or reconnect".

Python runs signal handlers on the main thread, between bytecodes: never while that sits in a collective. So the handler
does nothing that matters. C code writes to the interpreter's wakeup descriptor at delivery: that wakes the listener.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import weakref
from types import FrameType
from typing import Any, Callable, List, Mapping, Optional

from .guard import print_line

DEFAULT_SIGNAL = int(signal.SIGUSR1)
_WAKE = b"\0"  # No signal has number 0: it wakes the listener and nothing else.


class ReentrantEvent:
    """A threading.Event that a signal handler may set while its own thread sets it.

    An Event's lock would hang such a handler for good. SimpleQueue.put() is reentrant.
    """

    def __init__(self) -> None:
        self._calls: "queue.SimpleQueue[None]" = queue.SimpleQueue()

    def set(self) -> None:
        """Wake the waiter, now or when it comes to wait."""
        if self._calls.qsize() < 2:  # More say nothing more.
            self._calls.put(None)

    def wait(self, timeout_s: Optional[float]) -> None:
        """Return at a call, also at one made before, or after the time. Forgets the calls so far."""
        try:
            self._calls.get(timeout=timeout_s)
            while True:
                self._calls.get_nowait()
        except queue.Empty:
            pass


def signal_number(environ: Mapping[str, str]) -> int:
    """Read COSTGOV_SIGNAL ("USR2", "SIGUSR2", "12", "0" for none). Another word is reported: the default counts."""
    text = environ.get("COSTGOV_SIGNAL", "").strip().upper()
    if not text:
        return DEFAULT_SIGNAL
    if text in ("0", "NONE", "OFF"):
        return 0
    try:
        name = text if text.startswith("SIG") else "SIG" + text
        number = int(signal.Signals(int(text)) if text.isdigit() else signal.Signals[name])
    except (KeyError, ValueError):
        print_line("COSTGOV_SIGNAL=%.40s is no signal; using %d" % (text, DEFAULT_SIGNAL))
        return DEFAULT_SIGNAL
    return number


class SignalWakeup:
    """Owns a wakeable descriptor always, and a signal where it may. `number` is 0 where it may not."""

    def __init__(self) -> None:
        self.number = 0
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._handler = self._on_signal  # One object: a bound method is a new one at each access.
        self._previous: Any = signal.SIG_DFL
        self._previous_fd = -1
        _give_back_in_children(self)

    def fileno(self) -> int:
        """Readable when something happened: our signal, a wake(), or somebody else's signal."""
        return self._receiver.fileno()

    def install(self, number: int) -> None:
        """Take the signal over where nobody handles it. Only the main thread may: elsewhere the socket wakes us.

        Whose handler stands there means something else by the signal: a Slurm script saves, requeues and exits.
        """
        if not number or threading.current_thread() is not threading.main_thread():
            return
        previous = signal.getsignal(number)
        if previous not in (signal.SIG_DFL, signal.SIG_IGN) or _caught_in_c(number):
            return
        try:
            signal.signal(number, self._handler)
        except (OSError, ValueError):  # SIGKILL, SIGSTOP, or a sub-interpreter.
            return
        signal.siginterrupt(number, False)  # signal.signal() turns it on, and C code's read() would see EINTR.
        self._previous = previous
        self._previous_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self.number = number

    def replaced(self) -> bool:
        """Whether somebody replaced the handler since: our signal would then run, or kill, something of theirs."""
        return bool(self.number) and signal.getsignal(self.number) is not self._handler

    def wake(self) -> None:
        """Wake the listener. Any thread. Never blocks: whoever has a full buffer is awake."""
        try:
            self._sender.send(_WAKE)
        except OSError:
            pass

    def drain(self) -> bool:
        """Empty the descriptor, pass foreign signals on to a previous wakeup descriptor; True when ours came."""
        signalled = False
        while True:
            try:
                received = self._receiver.recv(4096)
            except OSError:  # Empty, or closed in a forked child.
                return signalled
            if not received:
                return signalled
            signalled = signalled or bool(self.number and self.number in received)
            if self._previous_fd >= 0:
                self._pass_on(received.replace(_WAKE, b""))

    def give_back(self) -> None:
        """Close, and take our handler and descriptor off. In a forked child too: a data-loader worker wakes nobody."""
        if self.number:
            if signal.getsignal(self.number) is self._handler:
                # The default action would kill a worker when the whole group is signalled, which its parent survives.
                signal.signal(self.number, _ignore_signal if self._previous == signal.SIG_DFL else self._previous)
            current = signal.set_wakeup_fd(-1)
            _put_back(self._previous_fd if current == self._sender.fileno() else current)
            self.number = 0
        self._receiver.close()
        self._sender.close()

    def _on_signal(self, number: int, _frame: Optional[FrameType]) -> None:
        # The wakeup descriptor was written already, unless an event loop has taken it: then this late one must do.
        try:
            self._sender.send(bytes((number,)))
        except OSError:
            pass

    def _pass_on(self, numbers: bytes) -> None:
        if numbers:
            try:
                os.write(self._previous_fd, numbers)
            except OSError:  # Its owner closed it, or it is full: theirs to watch.
                pass


def defer_end(may_end: Callable[[], bool]) -> List[int]:
    """From now on SIGTERM ends this process, whoever has a handler for it; before `may_end()` it is noted in the list.

    For a rank that stands still: Lightning's handler waits for a next step, which never comes. Only the main thread
    can do this. Elsewhere, and where SIGTERM has its default action already, nothing changes.
    """
    noted: List[int] = []

    def end(number: int, _frame: Optional[FrameType]) -> None:
        noted.append(number)
        if may_end():
            end_by(number)

    on_main = threading.current_thread() is threading.main_thread()
    if on_main and signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None):
        signal.signal(signal.SIGTERM, end)
    return noted


def end_by(number: int) -> None:
    """End this process by the default action of a signal. On the main thread."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _put_back(descriptor: int) -> None:
    if descriptor >= 0:
        try:
            signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
        except (OSError, ValueError):  # Its owner closed it meanwhile.
            pass


def _caught_in_c(number: int) -> bool:
    """Whether the kernel knows a handler. Python's table does not show those that C code installed later."""
    try:
        with open("/proc/self/status", encoding="ascii") as stream:
            masks = dict(line.split(":", 1) for line in stream)
        return bool(int(masks["SigCgt"], 16) >> (number - 1) & 1)
    except (OSError, KeyError, ValueError):
        return False


def _ignore_signal(_number: int, _frame: Optional[FrameType]) -> None:
    """Unlike SIG_IGN, a handler does not outlive exec: no program inherits our choice."""


def _give_back_in_children(wakeup: SignalWakeup) -> None:
    known = weakref.ref(wakeup)  # At-fork hooks cannot be taken back; this one must not keep the wakeup alive.

    def after_in_child() -> None:
        wakeup = known()
        if wakeup is not None:
            wakeup.give_back()

    os.register_at_fork(after_in_child=after_in_child)
