"""The signals that a governor answers. None that others commonly send may end it: the ranks would go on unwatched."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Final

# The service ends; `costgov run` passes the first two on to its command. Ctrl-\ is Ctrl-C's neighbour: SIGQUIT ends no
# service that may have a run to watch.
ENDING: Final = (signal.SIGTERM, signal.SIGINT)
RELOADING: Final = signal.SIGHUP
PASSED_ON: Final = (*ENDING, signal.SIGQUIT)  # To all of the command's process group, as a terminal does.
# To the command's process alone: who sends one to a pid means the program that `costgov run` stands in front of. Slurm
# (`--signal=USR1@90`, proctrack/cgroup) signals the processes that it has itself started, and no child of theirs.
# An alarm that was set before `exec costgov run` goes off in us.
PASSED_ON_ALONE: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
# Limits and timers of our own process, what init is told, and Ctrl-Z: the command is in a session of its own and would
# go on, under a governor that is stopped.
IGNORED: Final = (signal.SIGXCPU, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR, signal.SIGTSTP)
# What the kernel sends to whoever uses a terminal in the background (`stty tostop`) and has not ignored it. With a
# handler the same write is tried for ever.
OF_TERMINALS: Final = (signal.SIGTTOU, signal.SIGTTIN)
ANSWERED: Final = (*PASSED_ON, RELOADING, *PASSED_ON_ALONE, *IGNORED)
# How far apart a signal and its copy come at most: who passes it on may wait for a processor.
COPY_S: Final = 2.0


class Copies:
    """Which signals come to us a second time, through the process that stands in our former place (init_process.py).

    Each that it passes on is told in a pipe before it comes. One that has come directly and one that was passed on are
    the same, in either order, if they are near in time. Two of one kind are two.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._pipe: int | None = None
        self._told: set[int] = set()
        self._single: dict[int, tuple[bool, float]] = {}  # The last that has no copy yet: was it passed on, and when.

    def expect(self, pipe: int | None) -> None:
        """`pipe`: where the numbers of what is passed on to us stand. None: nobody passes signals on."""
        self._pipe = pipe

    def is_second(self, signum: int) -> bool:
        if self._pipe is None:
            return False
        with contextlib.suppress(OSError):
            self._told.update(os.read(self._pipe, 4096))
        at_s, was_passed_on = self._clock_s(), signum in self._told
        self._told.discard(signum)
        earlier = self._single.pop(signum, None)
        if earlier is not None and earlier[0] is not was_passed_on and at_s - earlier[1] <= COPY_S:
            return True
        self._single[signum] = (was_passed_on, at_s)
        return False


COPIES: Final = Copies()


def install(answer: Callable[[signal.Signals], None]) -> None:
    """Have `answer` called for each, once for what comes twice.

    A handler and not SIG_IGN: a command inherits what is ignored. For the same reason, what we were started to ignore
    stays ignored, except for the three that were always answered.
    """

    def on_signal(number: int, _frame: object) -> None:
        if not COPIES.is_second(number):
            answer(signal.Signals(number))

    for signum in ANSWERED:
        if signum in (*ENDING, RELOADING) or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, on_signal)

    wait_for_children()
    for signum in OF_TERMINALS:
        if signal.getsignal(signum) is signal.SIG_DFL:
            signal.signal(signum, signal.SIG_IGN)
            _SILENCED.add(signum)


_SILENCED: set[signal.Signals] = set()


def wait_for_children() -> None:
    """Whoever started us may ignore SIGCHLD. The kernel then keeps no exit code of a child, and says 0 of each."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextlib.contextmanager
def as_found() -> Iterator[None]:
    """Within it, a command that is started inherits nothing as ignored that was not so before us."""
    for signum in _SILENCED:
        signal.signal(signum, signal.SIG_DFL)
    try:
        yield
    finally:
        for signum in _SILENCED:
            signal.signal(signum, signal.SIG_IGN)


def ignore_all() -> None:
    for signum in ANSWERED:
        signal.signal(signum, signal.SIG_IGN)
