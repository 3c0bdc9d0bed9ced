"""Give and release an order to the fleet, and see how far it is. No governor is asked."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from governor.app.fleet_rows import Failure, failure_of
from governor.app.fleet_view import covered, is_known, look, order_document, scopes_of
from governor.core.base.printable import printable
from governor.core.base.units import DurationNs, WallNs
from governor.core.events.fleet_orders import Act, Order
from governor.core.events.fleet_store import Answer, Transaction
from governor.core.fleet.orders import (
    BY_CHARS_MAX,
    CLOCKS_APART_NS,
    ORDER_ROWS,
    ORDERS_MAX,
    REASON_CHARS_MAX,
    checked_order_scope,
    order_key,
    order_of,
    order_text,
)
from governor.core.fleet.presence import LIVE_ROWS, NODE_ROWS
from governor.daemon.fleet.paging import forget_holder, whole
from governor.remote_ports import FleetStore

SCOPES_SHOWN: Final = 12
LOOK_EVERY_S: Final = 1.0
HOLDS_MAX: Final = ORDERS_MAX // 2  # Holds leave room for halts.


def now() -> WallNs:
    return WallNs(time.time_ns())


def new_order(act: Act, scope: str, reason: str, lasts: DurationNs | None, *, is_unsaved: bool = False) -> Order:
    """ValueError: its scope or its reason can be none."""
    words = printable(reason.strip())
    if not words or len(words) > REASON_CHARS_MAX:
        raise ValueError(f"a reason has 1 to {REASON_CHARS_MAX} characters")
    given, order_id = now(), f"{act.value}-{secrets.token_hex(3)}"
    until = WallNs(given + lasts) if lasts is not None else None
    return Order(order_id, act, checked_order_scope(scope), words, _who(), given, until, is_unsaved)


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return printable(f"{user}@{socket.gethostname()}")[:BY_CHARS_MAX]


def give(store: FleetStore, order: Order) -> dict[str, Any] | Failure:
    """Put it. From then on it stands, whatever this command does."""
    standing = whole(store, ORDER_ROWS, 2 * ORDERS_MAX)
    if standing.answer is not Answer.READ and standing.reason != "too_large":
        return failure_of(standing)
    long_ago = WallNs(now() - CLOCKS_APART_NS)  # By others' clocks, an order that is over here may stand.
    over = [kept.key for kept in standing.rows if (one := order_of(kept)) is not None and not one.stands(long_ago)]
    for first in range(0, len(over), ORDERS_MAX // 4):
        store.transact(Transaction((), (), tuple(over[first:][: ORDERS_MAX // 4])))
    if len(standing.rows) - len(over) >= (ORDERS_MAX if order.act is Act.HALT else HOLDS_MAX):
        return Failure(f"{len(standing.rows) - len(over)} orders stand: release some (`costgov fleet orders`)")
    key = order_key(order.order_id)
    reply = store.transact(Transaction(((key, 0),), ((key, order_text(order)),)))
    if reply.answer is not Answer.APPLIED:
        return failure_of(reply, "see `costgov fleet orders`")
    return order_document(order, now())


def release(store: FleetStore, order_id: str) -> dict[str, Any] | Failure:
    """Take it back: what it has halted stays halted, and what it holds is held no more."""
    try:
        key = order_key(order_id)
    except ValueError as error:
        return Failure(str(error))
    found = store.read([key])
    if found.answer is not Answer.READ:
        return failure_of(found)
    if not found.rows[0].revision:
        return Failure(f"no order {order_id} stands", is_absent=True)
    reply = store.transact(Transaction((), (), (key,)))
    if reply.answer is not Answer.APPLIED:
        return failure_of(reply, "see `costgov fleet orders`")
    order = order_of(found.rows[0])
    return {"id": order_id, "released": True} | ({} if order is None else order_document(order, now()))


def orders(store: FleetStore) -> dict[str, Any] | Failure:
    found = whole(store, ORDER_ROWS, 2 * ORDERS_MAX)
    if found.answer is not Answer.READ:
        return failure_of(found)
    read = [(kept.key, order_of(kept)) for kept in found.rows]
    return {
        "orders": [order_document(order, now()) for _, order in read if order is not None],
        "unreadable": [key for key, order in read if order is None],
    }


@dataclass(frozen=True, slots=True)
class Left:
    """Parts of runs that a halt covers and that have not ended, as their governors have said."""

    parts: list[Mapping[str, Any]]
    is_whole: bool  # Else there may be more: a row cannot be read, or lacks labels.
    known: list[str]  # Some scopes that live runs have: one of them was meant, perhaps.

    @property
    def is_over(self) -> bool:
        return self.is_whole and not self.parts


def left(store: FleetStore, order: Order) -> Left | Failure:
    seen = look(store, now())
    if isinstance(seen, Failure):
        return seen
    parts = [
        {
            "run": part.row.run,
            "node": part.node,
            "state": part.row.state,
            "halt_stage": part.row.halt_stage,
            "silent": part.is_silent,
        }
        for part in covered(seen, order)
    ]
    return Left(list(parts), is_known(seen, order), scopes_of(seen)[:SCOPES_SHOWN])


def await_end(store: FleetStore, order: Order, wait_s: float, tell: Callable[[Left], None]) -> Left | Failure:
    """Look until nothing is left, or the time is over. Returns what is left. `tell`: each look."""
    ends_at = time.monotonic() + wait_s
    while True:
        found = left(store, order)
        if not isinstance(found, Failure):
            tell(found)
            if found.is_over:
                return found
        if time.monotonic() >= ends_at:
            return found
        time.sleep(min(LOOK_EVERY_S, max(0.0, ends_at - time.monotonic())))


def forget(store: FleetStore, holder: str) -> dict[str, Any] | Failure:
    """Take a silent governor's rows away: it is gone for good. What it was granted is settled apart."""
    keys = (f"{LIVE_ROWS}{holder}", f"{NODE_ROWS}{holder}") if holder.count("~") == 2 and "/" not in holder else ()
    found = store.read(keys) if keys else None
    if found is not None and found.answer is not Answer.READ:
        return failure_of(found)
    if found is None or not found.rows[1].revision:
        return Failure(f'no governor "{holder[:80]}" has a row: see `costgov fleet --nodes --json`', is_absent=True)
    if found.rows[0].revision:
        return Failure(f"{holder}: it speaks; end it first, or wait until its lease has ended")
    reply = forget_holder(store, holder)
    return {"holder": holder, "forgotten": True} if reply.answer is Answer.APPLIED else failure_of(reply)
