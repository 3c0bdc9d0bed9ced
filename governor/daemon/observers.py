"""Several observers as one. Each gets every call, and none can end the governor."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from governor.core.base.units import MonoNs
from governor.ports import Observer

# Failures of one observer between two log lines: a failure at every tick is logged once a minute.
SAID_EVERY: Final = 240

log = structlog.get_logger("costgov")


@dataclass(slots=True)
class Observers:
    """A `ports.Observer`. Observers decide nothing, so a fault of one costs its output and no halt."""

    observers: Sequence[Observer]
    failed: Counter[int] = field(default_factory=Counter)  # Calls that raised, by the observer's place.

    @property
    def errors_total(self) -> int:
        return self.failed.total()

    def tick(self, node: Any, at: MonoNs) -> None:
        self._call("tick", node, at)

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        self._call("incident", snapshot)

    def alarm(self, name: str, run: str | None, text: str) -> None:
        self._call("alarm", name, run, text)

    def _call(self, call: str, *what: Any) -> None:
        for place, observer in enumerate(self.observers):
            try:
                getattr(observer, call)(*what)
            except Exception as error:  # noqa: BLE001 - the guard around observers, which only look.
                self.failed[place] += 1
                if self.failed[place] % SAID_EVERY == 1:
                    _log_failure(observer, call, error, self.failed[place])


def _log_failure(observer: Observer, call: str, error: Exception, total: int) -> None:
    where = traceback.extract_tb(error.__traceback__)[-1]
    fault = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"[:300]
    log.error("observer_failed", observer=type(observer).__name__, call=call, fault=fault, total=total)
