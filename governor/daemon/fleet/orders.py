"""The thread that waits for orders to the fleet: it reads all, waits for a change behind that, and reads again."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from governor.core.base.printable import cut, printable
from governor.core.base.units import NS_PER_S
from governor.core.events.fleet_orders import OrdersRead
from governor.core.events.fleet_store import Answer, Kept
from governor.core.events.inputs import Event
from governor.core.events.machine import SourceTrouble
from governor.core.fleet.orders import ORDER_ROWS, ORDERS_MAX, order_of
from governor.daemon.fleet.paging import whole
from governor.ports import Clock
from governor.remote_ports import FleetStore

# A watch that nobody answers, as behind a cut, costs so long at most. A thousand governors read 33 times a second.
WAIT_S: Final = 30.0
AGAIN_S: Final = 1.0
AGAIN_MAX_S: Final = 10.0
KEY_SHOWN_MAX: Final = 200  # Of an unreadable row.
SILENT_NS: Final = 30 * NS_PER_S  # An election takes 10 s.

log = structlog.get_logger("costgov")


class OrderWatch:
    def __init__(
        self, store: FleetStore, clock: Clock, post: Callable[[Event], None], *, wait_s: float = WAIT_S,
        again_s: float = AGAIN_S, spread: float = 0.0,
    ) -> None:  # fmt: skip
        """`spread`: of a fleet's governors each has another, between 0 and 1."""
        self._spread = spread
        self._store, self._clock, self._post, self._wait_s, self._again_s = store, clock, post, wait_s, again_s
        self._ending, self._has_read = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="fleet-orders", daemon=True)
        self._since = clock.mono()  # Without an answer.
        self._is_told = False
        self._last: OrdersRead | None = None

    @property
    def has_read(self) -> bool:
        return self._last is not None

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def begin(self) -> None:
        """RuntimeError: no thread can be started."""
        self._since = self._clock.mono()
        self._thread.start()

    def await_first(self, wait_s: float) -> OrdersRead | None:
        """The orders as they were read last. None: the store has not said within this time which there are."""
        self._has_read.wait(wait_s)
        return self._last

    def close(self) -> None:
        """It may be waiting for a change: nobody waits for that."""
        self._ending.set()
        self._store.close()

    def _work(self) -> None:
        failures = 0
        while not self._ending.is_set():
            try:
                reason = self._turn()
            except Exception:  # noqa: BLE001 - a fault of ours must not leave the node without orders.
                log.error("fleet_orders_failed", traceback=traceback.format_exc(limit=3))
                reason = "fault"
            failures = failures + 1 if reason else 0
            if reason and not self._ending.is_set():
                self._not_read(reason)
                self._ending.wait(min(AGAIN_MAX_S, self._again_s * failures))

    def _turn(self) -> str:
        """Read, and wait for a change. Why nothing was read, or nothing."""
        found = whole(self._store, ORDER_ROWS, ORDERS_MAX)
        if found.answer is not Answer.READ:
            return found.reason or found.answer.value
        self._tell({kept.key: kept for kept in found.rows}, is_cut=found.is_cut)
        changed = self._store.wait(ORDER_ROWS, found.revision, self._wait_s)
        if changed.answer is not Answer.READ:
            self._ending.wait(self._again_s)
            return ""
        self._since = self._clock.mono()
        if changed.rows:
            # At once, as etcd told it. What is read next makes it whole, and a thousand need not all read together.
            known = {kept.key: kept for kept in (*found.rows, *changed.rows)}
            self._tell({key: kept for key, kept in known.items() if kept.revision}, is_cut=found.is_cut)
            self._ending.wait(self._again_s * self._spread)
        return ""

    def _tell(self, rows: Mapping[str, Kept], *, is_cut: bool) -> None:
        at = self._clock.mono()
        orders = {key: order_of(kept) for key, kept in rows.items()}
        unreadable = [cut(printable(key), KEY_SHOWN_MAX) for key, order in orders.items() if order is None]
        if is_cut:
            unreadable.append(f"{ORDER_ROWS}: more than {ORDERS_MAX}; release some")
        known = tuple(order for order in orders.values() if order is not None)
        self._last = OrdersRead(at, known, tuple(unreadable))
        self._post(self._last)
        self._has_read.set()
        if self._is_told:
            self._post(SourceTrouble(at, None, "fleet_again", "the fleet's etcd answers again: its orders are known"))
        self._since, self._is_told = at, False

    def _not_read(self, reason: str) -> None:
        at = self._clock.mono()
        log.debug("fleet_orders_unread", reason=reason)
        if self._is_told or at - self._since < SILENT_NS:
            return
        self._is_told = True
        stand = "those of before stand" if self._last is not None else "none is known"
        text = f"the fleet's etcd does not say which orders there are ({reason}): {stand}"
        self._post(SourceTrouble(at, None, "fleet_silent", text))
