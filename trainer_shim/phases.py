"""What the training thread does outside its steps: `with phase("eval"):`, `with data():`. CURRENT is our meter."""

from __future__ import annotations

import threading
from typing import Any, Optional, Set

from .guard import print_line
from .meter import StepMeter
from .wire import PHASES

_UNKNOWN: Set[str] = set()


class _Current:
    """Loaders and phases are often made before the engine that they will serve."""

    __slots__ = ("meter",)

    def __init__(self) -> None:
        self.meter: Optional[StepMeter] = None


CURRENT = _Current()


class phase:  # noqa: N801  A context manager that reads like the statement it is.
    """Mark the enclosed code as `name`, one of wire.PHASES. Any other name counts as idle and is reported once.

    The governor then allows the pauses that belong to it: an evaluation is not a hang.
    """

    def __init__(self, name: str) -> None:
        if name not in PHASES and name not in _UNKNOWN:
            _UNKNOWN.add(name)
            print_line("phase %r is not one of %s: counted as idle" % (name, ", ".join(PHASES)))
        self._name = name if name in PHASES else "idle"
        self._meter: Optional[StepMeter] = None
        self._part: Optional[int] = None

    def __enter__(self) -> phase:
        meter = CURRENT.meter
        if meter is not None and meter.progress.main_thread_id == threading.get_ident():
            self._meter = meter
            self._part = meter.enter_phase(self._name)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.exit_phase(self._part)


class data:  # noqa: N801  As `phase`.
    """Mark the enclosed code as the fetching of a batch, where neither a torch DataLoader nor wrap_loader() does it.

    The governor then knows a rank that sleeps in its data from one that saves, and does not wait as long for it; and,
    between two micro-steps, from one that hangs in its step, and waits longer.
    """

    __slots__ = ("_meter", "_part")

    def __init__(self) -> None:
        self._meter: Optional[StepMeter] = None
        self._part: Optional[int] = None

    def __enter__(self) -> data:
        meter = CURRENT.meter
        if meter is not None and meter.progress.main_thread_id == threading.get_ident():
            self._meter = meter
            self._part = meter.enter_fetch()
            meter.progress.enter_fetch(meter.clock.since_ns, None)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        meter, self._meter = self._meter, None
        if meter is not None:
            meter.exit_fetch(self._part, not any(exc_info))
            meter.progress.leave_fetch(meter.clock.since_ns)
