"""Imported before anything slow: Ctrl-C during the imports exits quietly, as it does later, and their time counts."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from governor.daemon import signals

# Our first moment by CLOCK_BOOTTIME, and what the interpreter's own start had taken of the processors by then, in ns.
ENTERED = time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.process_time_ns()

# exit_codes.ExitCode.INTERRUPTED, which is not loaded yet. cli.main checks that they are equal.
INTERRUPTED = 130


def _quietly(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        os._exit(INTERRUPTED)  # Nothing is open, and nothing has been printed.
    sys.__excepthook__(kind, error, where)


def exit_code_stands() -> None:
    """Ignore signals from here on: the result is known, and no signal may change the exit code.

    The interpreter restores the default handlers before it has ended, so a later signal would meet the default action.
    It leaves ignored signals alone.
    """
    signals.ignore_all()


sys.excepthook = _quietly
