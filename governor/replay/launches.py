"""A recording with several launches of its run: what lies between two of them is nobody's time, unless it was charged.

The engine counts so too: a run whose processes are gone holds the node no more, and where it is charged for the time
until it speaks again, as one whose launcher goes on is, that was its restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from governor.core.attribution.account import TimeAccount
from governor.core.base.units import NS_PER_HOUR, BootNs, MonoNs, UsdMicros
from governor.replay.play import LogClock
from governor.wire.recorded import is_exit, is_frame, is_gap, is_halt, is_note


class LogTime(Protocol):
    """What is asked of `goodput.LogTime`, which reads the same records of one launch."""

    price: UsdMicros | None
    paid: Callable[[MonoNs], int] | None
    clock: LogClock
    account: TimeAccount

    def read(self, record: dict[str, Any]) -> str | None: ...


class Launches:
    """Reads records into `time`, in their order.

    `time.paid` says what was charged. A time that has a price in its place is charged for what the run held.
    """

    def __init__(self, time: LogTime) -> None:
        self._time = time
        self._is_gone = False  # No process of the run is left, and nobody has spoken since.
        self._is_halted = False
        self._gone_ns = 0
        if (price := time.price) is not None and time.paid is None:
            time.paid = lambda now: self._worth(now, price)

    def read(self, record: dict[str, Any]) -> str | None:
        """Count one record. Returns what is wrong with it."""
        is_own = is_frame(record) or is_note(record)
        if self._is_gone and is_own and not is_gap(record):
            self._let_go(record)
            self._is_gone = False
        fault = self._time.read(record)
        # Of a halted launch no end is recorded: what it was charged behind its verdict is in the restart then.
        self._is_gone = self._is_gone or is_exit(record) or (self._is_halted and is_gap(record))
        self._is_halted = is_halt(record) or (self._is_halted and not is_frame(record) and not is_exit(record))
        if self._is_gone:
            self._let_go(record)
        return fault

    def _let_go(self, record: dict[str, Any]) -> None:
        """Count until this record that the run held nothing. What it was charged is counted as it speaks again."""
        clock, account = self._time.clock, self._time.account
        before = clock.now
        clock.read_frame(record)
        now = MonoNs(clock.now)
        self._gone_ns += now - before
        account.tick(now, BootNs(now), BootNs(clock.began), account.spent_usd_micros, holds=False, is_unbroken=True)

    def _worth(self, now: MonoNs, price: UsdMicros) -> int:
        return price * (now - self._time.clock.began - self._gone_ns) // NS_PER_HOUR
