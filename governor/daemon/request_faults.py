"""The guard around one request: a fault in reading or answering it is answered, counted and logged, and ends nothing.

A fault while an event is applied is not caught here. The engine may have done half of it, so the governor starts anew
and goes on from the journal.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

LOGGED_MAX: Final = 32  # Kinds of faults that are logged; every one is counted.
ANSWER: Final[dict[str, Any]] = {
    "ok": False, "code": "internal_error",
    "error": "a fault of the governor's own in answering this; its log has it once, and the governor goes on",
}  # fmt: skip

log = structlog.get_logger("costgov")


@dataclass(slots=True)
class RequestFaults:
    """Safe from any thread."""

    total: int = 0
    _logged: set[tuple[str, str]] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.Lock)

    def guarded(self, work: Callable[[], None], refuse: Callable[[], None], is_acting: Callable[[], bool]) -> None:
        """Answer by `work`; where that fails, by `refuse`. A fault while it acts is the caller's."""
        try:
            work()
        except Exception as error:
            if is_acting():
                raise
            self._note(error)
            refuse()

    def _note(self, error: Exception) -> None:
        place = traceback.extract_tb(error.__traceback__)[-1]
        kind = type(error).__name__, f"{place.filename}:{place.lineno}"
        with self._lock:
            self.total += 1
            is_new = kind not in self._logged and len(self._logged) < LOGGED_MAX
            if is_new:
                self._logged.add(kind)
        if is_new:
            log.error("request_failed", traceback="".join(traceback.format_exception(error)))
