"""Imported before anything slow: Ctrl-C while the command is still loading ends it as Ctrl-C does later, quietly."""

from __future__ import annotations

import os
import sys
from types import TracebackType

INTERRUPTED = 130  # exit_codes.ExitCode.INTERRUPTED, which is yet to be loaded; cli.py holds them equal.


def _quietly(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        os._exit(INTERRUPTED)  # Nothing is open yet, and nothing said.
    sys.__excepthook__(kind, error, where)


sys.excepthook = _quietly
