"""A governor's rows of costs: what is written when, beside a store that fails and a ledger that changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import structlog

from governor.core.base.units import NS_PER_DAY, NS_PER_S, MonoNs, WallNs, parse_utc
from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.fleet.cost_rows import COST_ROWS, FleetTally, LedgerDay, cost_key, found_in
from governor.core.fleet.scopes import Holder
from governor.core.money.charges import UNALLOCATED, Charge, Payer
from governor.core.money.reports.cost import Sum, clip, tally_again
from governor.daemon.fleet.costs import DAYS_KEPT, EVERY_NS, FIRST_NS, FleetCosts
from governor.remote_ports import FleetReply
from tests.contract.fleet.fake_store import FakeFleetStore
from tests.unit.cost.ledger_file import charge

NOON = WallNs(parse_utc("2026-11-20T12:00:00Z"))
TODAY = NOON // NS_PER_DAY
HOLDER = Holder("gpu-17", "boot", "ledger")
OTHER = Holder("gpu-18", "boot", "other")


class CountingStore(FakeFleetStore):
    """It keeps what was sent, and answers UNKNOWN where it is told to: with or without having applied it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Transaction] = []
        self.loses: str | None = None
        self.is_away = False
        self.asked = 0

    def range(self, prefix: str, limit: int, after: str = "") -> FleetReply:
        self.asked += 1
        return FleetReply(Answer.UNREACHABLE, reason="timeout") if self.is_away else super().range(prefix, limit, after)

    def transact(self, transaction: Transaction) -> FleetReply:
        self.sent.append(transaction)
        if self.loses == "the question" or self.is_away:
            return FleetReply(Answer.UNKNOWN, reason="timeout")
        reply = super().transact(transaction)
        return reply if self.loses is None else FleetReply(Answer.UNKNOWN, reason="timeout")

    def puts(self) -> list[str]:
        found = [key for transaction in self.sent for key, _ in transaction.puts]
        self.sent.clear()
        return found


@dataclass
class Node:
    """A governor's thread as the test moves it. The ledger is a list, and the journal knows its holder."""

    store: CountingStore = field(default_factory=CountingStore)
    charges: list[Charge] = field(default_factory=list)
    wall: WallNs = NOON
    holder: Holder = HOLDER
    stored: Holder | None = HOLDER
    problem: str | None = None
    unread: int = 0
    unpriced: dict[str, int] = field(default_factory=dict)
    at: MonoNs = MonoNs(0)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.costs = FleetCosts(lambda: self.holder, self.read, lambda: self.wall)

    def read(self, day: int, with_unpriced: bool) -> LedgerDay | str:
        if self.problem is not None:
            return self.problem
        since, until = day * NS_PER_DAY, (day + 1) * NS_PER_DAY
        sums = tuple(
            Sum(clip(one, since, until), 1) for one in self.charges if one.from_wall < until and one.to_wall > since
        )
        return LedgerDay(sums, self.unpriced if with_unpriced else {}, {}, self.unread, self.stored)

    def goes(self, seconds: float) -> None:
        """A turn at every second, as the thread makes them."""
        for _ in range(round(seconds)):
            self.costs.turn(self.store, self.at)
            self.at, self.wall = MonoNs(self.at + NS_PER_S), WallNs(self.wall + NS_PER_S)

    def minute(self) -> None:
        self.goes(EVERY_NS / NS_PER_S)

    def begins(self) -> None:
        self.goes(FIRST_NS / NS_PER_S + 1)

    def usd_micros(self) -> dict[str, int]:
        return by(self.store, "run")


def by(store: FakeFleetStore, grouping: str) -> dict[str, int]:
    found = [found_in(kept) for kept in store.range(COST_ROWS, 10_000).rows]
    assert None not in found
    rows = [one for one in found if one is not None]
    return {group.key: group.usd_micros for group in tally_again(FleetTally(TODAY).tallied(rows), grouping)}


def dollar(begin: str, run: str = "anna", count: int = 1) -> Charge:
    return charge(begin, 0.5, Payer(run), usd_micros=count * 1_000_000)


def test_after_half_a_minute_the_store_has_today_and_then_what_has_changed() -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z"), dollar("2026-11-20T10:00:00Z", "ben")])
    node.goes(FIRST_NS / NS_PER_S)
    assert node.store.sent == []
    node.goes(1)
    assert node.usd_micros() == {"anna": 1_000_000, "ben": 1_000_000}
    node.store.puts()
    node.minute()
    assert node.store.puts() == []
    node.charges.append(dollar("2026-11-20T11:00:00Z", "ben"))
    node.minute()
    assert node.store.puts() == [cost_key(TODAY, HOLDER, "ben")]
    assert node.usd_micros() == {"anna": 1_000_000, "ben": 2_000_000}


def test_of_very_many_rows_a_transaction_has_as_many_as_etcd_takes() -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z", f"run{number}") for number in range(129)])
    node.begins()
    assert [len(transaction.puts) for transaction in node.store.sent] == [64, 64, 1]


def test_yesterday_is_written_once_behind_midnight_and_not_again() -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z")])
    node.begins()
    node.charges.append(dollar("2026-11-20T23:30:00Z"))
    node.wall = WallNs(parse_utc("2026-11-21T00:00:10Z"))
    node.charges.append(dollar("2026-11-21T00:00:00Z"))
    node.store.puts()
    node.minute()
    assert sorted(node.store.puts()) == [cost_key(TODAY, HOLDER, "anna"), cost_key(TODAY + 1, HOLDER, "anna")]
    node.charges.append(dollar("2026-11-21T00:00:30Z"))
    node.minute()
    assert node.store.puts() == [cost_key(TODAY + 1, HOLDER, "anna")]
    assert by(node.store, "day") == {"2026-11-20": 2_000_000, "2026-11-21": 2_000_000}


def test_what_was_charged_while_no_governor_ran_is_written_for_its_own_days() -> None:
    node = Node(charges=[dollar("2026-11-16T10:00:00Z")], wall=WallNs(parse_utc("2026-11-16T12:00:00Z")))
    node.begins()
    node.charges += [dollar(f"2026-11-{day}T10:00:00Z") for day in (17, 18, 19)]
    node.wall = NOON
    node.start()
    node.begins()
    node.goes(DAYS_KEPT)
    assert by(node.store, "day") == {f"2026-11-{day}": 1_000_000 for day in (16, 17, 18, 19)}


def test_a_governor_that_starts_again_writes_only_what_differs() -> None:
    node = Node(charges=[dollar("2026-11-18T10:00:00Z"), dollar("2026-11-20T10:00:00Z")])
    node.begins()
    node.goes(DAYS_KEPT)
    node.store.puts()
    node.start()
    node.begins()
    node.goes(DAYS_KEPT)
    assert node.store.puts() == []


def test_a_machine_that_was_started_anew_writes_no_earlier_day_twice_and_counts_once() -> None:
    node = Node(charges=[dollar("2026-11-18T10:00:00Z"), dollar("2026-11-20T10:00:00Z")])
    node.begins()
    node.goes(DAYS_KEPT)
    node.holder = node.stored = replace(HOLDER, boot_id="another")
    node.charges.append(dollar("2026-11-20T11:00:00Z"))
    node.store.puts()
    node.start()
    node.begins()
    node.goes(DAYS_KEPT)
    assert node.store.puts() == [cost_key(TODAY, node.holder, "anna")]
    assert node.usd_micros() == {"anna": 3_000_000}


@pytest.mark.parametrize("stored", [None, OTHER], ids=["nobody's", "another's"])
def test_nothing_is_written_before_the_journal_knows_whose_it_is(stored: Holder | None) -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z")], stored=stored)
    node.begins()
    node.minute()
    assert node.store.sent == []
    node.stored = HOLDER
    node.minute()
    assert node.usd_micros() == {"anna": 1_000_000}


def test_a_journal_that_cannot_be_read_writes_nothing_and_is_told_once() -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z")], problem="costgov.db: locked")
    with structlog.testing.capture_logs() as logs:
        node.begins()
        node.minute()
    assert [(line["event"], line["why"]) for line in logs] == [("fleet_costs_unread", "costgov.db: locked")]
    assert node.store.sent == []
    node.problem = None
    node.minute()
    assert node.usd_micros() == {"anna": 1_000_000}


@pytest.mark.parametrize("lost", ["the question", "the answer"])
def test_a_lost_answer_is_read_back_and_what_comes_late_changes_nothing(lost: str) -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z")])
    node.store.loses = lost
    node.begins()
    late = node.store.sent[0]
    node.store.loses = None
    node.charges.append(dollar("2026-11-20T11:00:00Z"))
    node.minute()
    assert node.usd_micros() == {"anna": 2_000_000}
    assert node.store.transact(late).answer is Answer.CONFLICT
    assert node.usd_micros() == {"anna": 2_000_000}


def test_a_store_that_does_not_answer_is_asked_once_in_twenty_seconds() -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z"), dollar("2026-11-18T10:00:00Z")])
    node.begins()
    node.store.is_away, node.store.asked = True, 0
    node.goes(100)
    assert node.store.asked == 5
    node.store.is_away = False
    node.goes(DAYS_KEPT + 31 + 60)
    assert by(node.store, "day") == {"2026-11-18": 1_000_000, "2026-11-20": 1_000_000}


def test_charges_that_move_to_a_run_leave_nobodys_row_empty() -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z", UNALLOCATED)])
    node.begins()
    assert node.usd_micros() == {"(unallocated)": 1_000_000}
    node.charges = [dollar("2026-11-20T10:00:00Z")]
    node.minute()
    assert node.usd_micros() == {"anna": 1_000_000}


def test_what_is_gone_because_it_cannot_be_read_stays_in_the_store_and_is_counted() -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z"), dollar("2026-11-20T10:00:00Z", "ben")])
    node.begins()
    node.charges, node.unread = node.charges[:1], 1
    node.minute()
    assert node.usd_micros() == {"anna": 1_000_000, "ben": 1_000_000}
    found = found_in(node.store.read([cost_key(TODAY, HOLDER, "anna")]).rows[0])
    assert found is not None
    assert found.row.unread == 1


def test_a_row_of_ours_that_somebody_has_spoilt_is_written_anew() -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z")])
    key = cost_key(TODAY, HOLDER, "anna")
    node.store.transact(Transaction((), ((key, "spoilt"),)))
    node.begins()
    assert node.usd_micros() == {"anna": 1_000_000}


def test_at_its_end_a_governor_says_that_todays_rows_are_its_last() -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z"), dollar("2026-11-19T10:00:00Z")])
    node.begins()
    node.costs.end(node.store)
    found = [found_in(kept) for kept in node.store.range(COST_ROWS, 10).rows]
    assert [(one.day, one.row.has_ended) for one in found if one is not None] == [(TODAY - 1, False), (TODAY, True)]
    assert by(node.store, "day") == {"2026-11-19": 1_000_000, "2026-11-20": 1_000_000}


def test_own_rows_that_are_too_old_go_and_those_of_others_stay() -> None:
    node = Node(charges=[dollar("2026-11-20T10:00:00Z")])
    days = (TODAY - DAYS_KEPT - 5, TODAY - DAYS_KEPT, TODAY - DAYS_KEPT + 1)
    rows = [(cost_key(day, holder, "anna"), "{}") for day in days for holder in (HOLDER, OTHER)]
    before = replace(HOLDER, boot_id="before")
    beside = replace(HOLDER, ledger="another")  # A `costgov run` on the same machine.
    rows += [(cost_key(days[0], holder, "anna"), "{}") for holder in (before, beside)]
    node.store.transact(Transaction((), tuple(rows)))
    node.begins()
    node.goes(DAYS_KEPT + 31)
    left = keys(node.store.range(COST_ROWS, 100).rows)
    assert {cost_key(day, OTHER, "anna") for day in days} <= left
    assert {cost_key(days[2], HOLDER, "anna"), cost_key(days[0], beside, "anna")} <= left
    assert not left & {cost_key(day, HOLDER, "anna") for day in days[:2]}
    assert cost_key(days[0], before, "anna") not in left
    node.wall = WallNs(node.wall + NS_PER_DAY)
    node.minute()
    node.minute()
    assert cost_key(days[2], HOLDER, "anna") not in keys(node.store.range(COST_ROWS, 100).rows)


def keys(rows: Sequence[Kept]) -> set[str]:
    return {kept.key for kept in rows}


def test_a_run_whose_price_is_unknown_has_a_row_that_grows_today_alone() -> None:
    node = Node(unpriced={"free": 5 * NS_PER_S})
    node.begins()
    node.store.puts()
    node.unpriced = {"free": 65 * NS_PER_S}
    node.minute()
    assert node.store.puts() == [cost_key(TODAY, HOLDER, "free")]
