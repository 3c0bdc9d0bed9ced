"""Imported before anything slow: Ctrl-C while the command is still loading ends it as Ctrl-C does later, quietly."""

from __future__ import annotations

import os
import signal
import sys
from types import TracebackType

INTERRUPTED = 130  # exit_codes.ExitCode.INTERRUPTED, which is yet to be loaded; cli.py holds them equal.


def _quietly(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        os._exit(INTERRUPTED)  # Nothing is open yet, and nothing said.
    sys.__excepthook__(kind, error, where)


def exit_code_stands() -> None:
    """What it all came to is known: from here on no signal makes another exit code of it.

    The interpreter gives our handlers back before it has ended; who insists would meet the default action then. What a
    signal is told to ignore it leaves alone.
    """
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)


sys.excepthook = _quietly
