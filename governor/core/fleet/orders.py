"""Orders to a fleet: rows that say which runs shall not run, and which no rule shall halt (docs/adr/0029).

An order is a state. While its row is there it stands, also for runs that begin later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from governor.core.base.run_names import names_of
from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, DurationNs, WallNs
from governor.core.events.fleet_orders import Act, Order, OrdersRead
from governor.core.events.fleet_store import Kept
from governor.core.fleet.scopes import FLEET, ROOT, ROW_CHARS_MAX, checked_scope
from governor.core.money.budgets import parse_scope
from governor.core.money.group_totals import KEY_CHARS_MAX, keys_of

ORDER_ROWS: Final = f"{ROOT}order/"
ORDERS_MAX: Final = 256  # That stand at once. A person gives them.
REASON_CHARS_MAX: Final = 500
BY_CHARS_MAX: Final = 120
HOLD_MAX_NS: Final = 7 * NS_PER_DAY  # A hold that nobody remembers is a missing watchdog.
CLOCKS_APART_NS: Final = NS_PER_HOUR  # What is given elsewhere may be of a clock that is ahead.
NODE: Final = "node:"
SCOPES: Final = "fleet, stage:NAME, label:KEY=VALUE, node:NAME or run:NAME"
_ID: Final = re.compile(r"(halt|hold)-[0-9a-f]{6}")


def covers(order: Order, node: str, run: str, uid: int, stage: str | None, labels: Mapping[str, str]) -> bool:
    """`run`: as it is watched. Where the name was another user's, it has announced a part of that."""
    if order.scope == FLEET:
        return True
    kind, _, name = order.scope.partition(":")
    if kind == "node":
        return name == node
    if kind == "run":
        return run in names_of(name, uid)
    return order.scope in keys_of(stage, labels.items())


def checked_order_scope(text: str) -> str:
    """ValueError when no order can have this scope."""
    if len(text) <= KEY_CHARS_MAX and text.isprintable() and text.startswith(NODE) and text != NODE:
        return text
    try:
        if text.startswith("run:"):
            return parse_scope(text).text
        if text != "day":
            return checked_scope(text)
    except ValueError:
        pass
    raise ValueError(f"{text[:80]!r} is no scope of an order; write {SCOPES}")


# --- rows ---------------------------------------------------------------------------------------------------


def order_key(order_id: str) -> str:
    """ValueError when it is no id."""
    if _ID.fullmatch(order_id) is None:
        raise ValueError(f"{order_id[:40]!r} is no order's id, such as halt-3f9a1c")
    return ORDER_ROWS + order_id


def order_text(order: Order) -> str:
    return json.dumps({
        "v": 1, "act": order.act.value, "scope": order.scope, "reason": order.reason, "by": order.by,
        "given_wall_ns": order.given_wall, "until_wall_ns": order.until_wall, "is_unsaved": order.is_unsaved,
    })  # fmt: skip


def order_of(kept: Kept) -> Order | None:
    """None where it cannot be read: it orders nothing."""
    order_id = kept.key.removeprefix(ORDER_ROWS)
    if not kept.revision or _ID.fullmatch(order_id) is None or len(kept.value) > ROW_CHARS_MAX:
        return None
    try:
        return _read(order_id, json.loads(kept.value))
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _read(order_id: str, raw: Any) -> Order:
    act = Act(raw["act"])
    given, until, is_unsaved = raw["given_wall_ns"], raw["until_wall_ns"], raw["is_unsaved"]
    words = raw["reason"], raw["by"], raw["scope"]
    if raw["v"] != 1 or not order_id.startswith(act.value) or not isinstance(is_unsaved, bool):
        raise ValueError("an order of another form")
    if not all(isinstance(one, str) and one.strip() and one.isprintable() for one in words):
        raise ValueError("its words are no words")
    if len(raw["reason"]) > REASON_CHARS_MAX or len(raw["by"]) > BY_CHARS_MAX:
        raise ValueError("its words are too long")
    if not all(type(one) is int and 0 < one < 2**63 for one in (given, given if until is None else until)):
        raise ValueError("its times are no times")
    if act is Act.HOLD and (until is None or until - given > HOLD_MAX_NS):
        raise ValueError("a hold ends within 7 days")
    until_wall = None if until is None else WallNs(until)
    scope = checked_order_scope(raw["scope"])
    return Order(order_id, act, scope, raw["reason"], raw["by"], WallNs(given), until_wall, is_unsaved)


# --- what a governor knows ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Orders:
    standing: Sequence[Order] = ()
    is_read: bool = False  # Whether the store has said once which there are.
    unreadable: frozenset[str] = frozenset()
    # What was done, by order and run: when the run's attempt began.
    _done: dict[tuple[str, str], int] = field(default_factory=dict)

    def replace(self, read: OrdersRead, runs: Container[str]) -> frozenset[str]:
        """Take what the store has. `runs`: those that are managed. Returns the unreadable rows that are new."""
        self.standing, self.is_read = read.orders, True
        ids = {order.order_id for order in read.orders}
        self._done = {name: at for name, at in self._done.items() if name[0] in ids and name[1] in runs}
        before, self.unreadable = self.unreadable, frozenset(read.unreadable)
        return self.unreadable - before

    def rows(self) -> list[list[str]]:
        """For the journal: a governor that starts while nobody can be asked goes on with these."""
        return [[order_key(order.order_id), order_text(order)] for order in self.standing]

    def restore(self, rows: Sequence[Sequence[str]]) -> None:
        """They stand until the store has been read. One of TORN when these are no rows."""
        found = (order_of(Kept(str(key), str(text), 1)) for key, text in rows)
        self.standing = tuple(order for order in found if order is not None)

    def begin_with(self, read: OrdersRead) -> None:
        """Before the loop begins, which gets the same as an event and tells what is unreadable."""
        self.standing = read.orders

    def of(self, act: Act, wall: WallNs) -> list[Order]:
        """A hold that ends later than any may was given by a clock that is far ahead, or by nobody."""
        latest = wall + HOLD_MAX_NS + CLOCKS_APART_NS
        found = (order for order in self.standing if order.act is act and order.stands(wall))
        return [order for order in found if act is Act.HALT or (order.until_wall or 0) <= latest]

    def note_done(self, order: Order, run: str, attempt_at: int) -> bool:
        """Whether it was not done yet for this attempt of the run."""
        name = (order.order_id, run)
        if self._done.get(name) == attempt_at:
            return False
        self._done[name] = attempt_at
        return True


def left_of(order: Order, wall: WallNs) -> DurationNs:
    """How long a hold lasts from now on."""
    assert order.until_wall is not None
    return DurationNs(max(0, min(HOLD_MAX_NS, order.until_wall - wall)))
