"""The signals that a governor answers. None that others commonly send may end it: the ranks would go on unwatched."""

from __future__ import annotations

import contextlib
import signal
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


def install(answer: Callable[[signal.Signals], None]) -> None:
    """Have `answer` called for each.

    A handler and not SIG_IGN: a command inherits what is ignored. For the same reason, what we were started to ignore
    stays ignored, except for the three that were always answered.
    """
    for signum in ANSWERED:
        if signum in (*ENDING, RELOADING) or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, lambda number, _frame: answer(signal.Signals(number)))

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
