"""Exceptions that nobody catches: the governor learns of them before the process ends. The script's own hooks go on."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import Any, Callable, Dict, Optional, Type

from trainer_shim.guard import guarded
from trainer_shim.wire import TEXT_CHARS_MAX

FRAMES_MAX = 200  # Of a traceback: an endless recursion has a thousand, all alike.
_LIBRARIES = ("-packages" + os.sep, os.path.dirname(os.__file__) + os.sep, "<frozen ")


class Failures:
    """Chains sys.excepthook and threading.excepthook between install() and give_back().

    `send` gets {"name", "text", "place", "thread"}. SystemExit is no failure: Python calls no hook for it.
    """

    def __init__(self, send: Callable[[Dict[str, Any]], Any]) -> None:
        self._send = send
        self._in_main: Any = None
        self._in_thread: Any = None

    def install(self) -> None:
        self._in_main, sys.excepthook = sys.excepthook, self._on_exception
        self._in_thread, threading.excepthook = threading.excepthook, self._on_thread_exception

    def give_back(self) -> None:
        """Take our hooks off. One that somebody has chained to ours stays, and calls the one before ours through us."""
        if self._in_main is not None and sys.excepthook == self._on_exception:
            sys.excepthook = self._in_main
        if self._in_thread is not None and threading.excepthook == self._on_thread_exception:
            threading.excepthook = self._in_thread

    def _on_exception(
        self, kind: Type[BaseException], error: BaseException, traceback: Optional[TracebackType]
    ) -> None:
        try:
            self._report(kind, error, traceback, None)
        finally:  # A second Ctrl-C may come in between.
            self._in_main(kind, error, traceback)

    def _on_thread_exception(self, args: Any) -> None:
        try:
            if args.exc_type is not SystemExit:
                name = getattr(args.thread, "name", None) or "unknown"
                self._report(args.exc_type, args.exc_value, args.exc_traceback, name)
        finally:
            self._in_thread(args)

    @guarded()
    def _report(
        self,
        kind: Type[BaseException],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
        thread: Optional[str],
    ) -> None:
        failure = {
            "name": _clipped(_name(kind)),
            "text": _clipped(_first_line(error)),
            "place": _clipped(_place(traceback)),
            "thread": _clipped(thread),
        }
        self._send({key: value for key, value in failure.items() if value is not None})


def _clipped(text: Optional[str]) -> Optional[str]:
    return None if text is None else text[:TEXT_CHARS_MAX].encode("utf-8", "replace").decode("utf-8")


def _name(kind: Type[BaseException]) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else "%s.%s" % (module, kind.__qualname__)


def _first_line(error: Optional[BaseException]) -> Optional[str]:
    lines = str(error)[: 8 * TEXT_CHARS_MAX].splitlines()
    return next((line.strip() for line in lines if line.strip()), None)


def _place(traceback: Optional[TracebackType]) -> Optional[str]:
    """Where it was raised: the innermost frame that is not a library's, else the innermost."""
    innermost = own = None
    for _ in range(FRAMES_MAX):
        if traceback is None:
            break
        innermost = traceback
        if not any(part in traceback.tb_frame.f_code.co_filename for part in _LIBRARIES):
            own = traceback
        traceback = traceback.tb_next
    found = own or innermost
    if found is None:
        return None
    code = found.tb_frame.f_code
    return "%s:%s:%d" % (os.path.basename(code.co_filename), code.co_name, found.tb_lineno)
