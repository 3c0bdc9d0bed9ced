"""The thread that waits for orders: it reads, waits, reads again, and says when it cannot."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import pytest

from governor.core.base.units import WallNs
from governor.core.events.fleet_orders import Act, Order, OrdersRead
from governor.core.events.fleet_store import Answer, Transaction
from governor.core.events.machine import SourceTrouble
from governor.core.fleet.orders import ORDER_ROWS, ORDERS_MAX, order_key, order_text
from governor.daemon.fleet.orders import SILENT_NS, OrderWatch
from governor.remote_ports import FleetReply
from tests.contract.fakes import FakeClock
from tests.contract.fleet.fake_store import FakeFleetStore

SAFETY_S = 30.0
ORDER = Order("halt-00000a", Act.HALT, "fleet", "x", "ann@ops", WallNs(1))


class Store(FakeFleetStore):
    """With a network that can be cut."""

    is_cut = False
    faults = 0
    when_waited: Callable[[], None] = staticmethod(lambda: None)
    on_cut: Callable[[], None] = staticmethod(lambda: None)

    def range(self, prefix: str, limit: int, after: str = "") -> FleetReply:
        if self.faults:
            self.faults -= 1
            raise ArithmeticError("a fault of ours")
        if self.is_cut:
            self.on_cut()
            return FleetReply(Answer.UNREACHABLE, reason="timeout")
        return super().range(prefix, limit, after)

    def wait(self, prefix: str, after: int, wait_s: float) -> FleetReply:
        self.when_waited()
        return super().wait(prefix, after, 0.0 if self.is_cut else wait_s)

    def put(self, key: str, text: str) -> None:
        assert self.transact(Transaction((), ((key, text),))).answer is Answer.APPLIED


class Watched:
    def __init__(self) -> None:
        self.store, self.clock, self.posted = Store(), FakeClock(), queue.SimpleQueue[object]()
        self.watch = OrderWatch(self.store, self.clock, self.posted.put, wait_s=SAFETY_S, again_s=0.0)

    def cut_once(self, passed_ns: int) -> None:
        """The wait was in vain and as long as that; the read behind it fails, and the next one does not."""
        self.clock.advance(passed_ns)
        self.store.is_cut = True
        self.store.on_cut = lambda: setattr(self.store, "is_cut", False)

    def next(self) -> object:
        return self.posted.get(timeout=SAFETY_S)

    def orders(self) -> list[str]:
        event = self.next()
        assert isinstance(event, OrdersRead)
        return [order.order_id for order in event.orders]

    def until(self, wanted: list[str]) -> None:
        """A change is told as it comes, and once more when all is read. Nothing else is told in between."""
        before = self.orders()
        while before != wanted:
            told = self.orders()
            assert told in (before, wanted)
            before = told


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.watch.close()
    made.store.put(order_key("halt-ffffff"), order_text(ORDER))  # It wakes the wait, and the thread ends.


def test_what_stands_is_read_at_the_start_and_a_change_when_it_comes(watched: Watched) -> None:
    watched.watch.begin()
    assert watched.orders() == []
    watched.store.put(order_key(ORDER.order_id), order_text(ORDER))
    watched.until(["halt-00000a"])
    watched.store.transact(Transaction((), (), (order_key(ORDER.order_id),)))
    watched.until([])
    assert watched.watch.has_read


def test_a_row_that_is_no_order_is_named_and_the_others_count(watched: Watched) -> None:
    watched.store.put(ORDER_ROWS + "halt-00000b", "no order")
    watched.store.put(order_key(ORDER.order_id), order_text(ORDER))
    watched.watch.begin()
    event = watched.next()
    assert isinstance(event, OrdersRead)
    assert [order.order_id for order in event.orders] == ["halt-00000a"]
    assert event.unreadable == (ORDER_ROWS + "halt-00000b",)


def test_an_etcd_that_does_not_say_is_told_once_and_its_return_too(watched: Watched) -> None:
    watched.store.is_cut = True
    asked = iter(range(10))

    def later() -> None:
        if next(asked, None) is None:
            watched.store.is_cut = False
        watched.clock.advance(SILENT_NS)

    watched.store.on_cut = later
    watched.watch.begin()
    told = [watched.next() for _ in range(3)]
    assert [one.alarm for one in told if isinstance(one, SourceTrouble)] == ["fleet_silent", "fleet_again"]


def test_one_read_that_fails_behind_a_calm_wait_is_no_silence(watched: Watched) -> None:
    """A wait is as long as what counts as silence."""
    watched.store.when_waited = lambda: watched.cut_once(SILENT_NS)
    watched.watch.begin()
    told = [watched.next() for _ in range(3)]
    assert all(isinstance(one, OrdersRead) for one in told)


def test_orders_beyond_those_that_are_read_are_named_as_unread(watched: Watched) -> None:
    for number in range(ORDERS_MAX + 1):
        watched.store.put(order_key(f"halt-{number:06x}"), order_text(ORDER))
    watched.watch.begin()
    event = watched.next()
    assert isinstance(event, OrdersRead)
    assert (len(event.orders), len(event.unreadable)) == (ORDERS_MAX, 1)


def test_behind_a_fault_of_ours_orders_are_read_on(watched: Watched) -> None:
    watched.store.faults = 1
    watched.watch.begin()
    assert watched.orders() == []
    assert watched.watch.is_alive
    assert watched.watch.await_first(0) is not None
