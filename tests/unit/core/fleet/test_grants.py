"""Rows of shared budgets, and one grant at its boundaries."""

from __future__ import annotations

import json

import pytest

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, MonoNs, WallNs
from governor.core.events.fleet_store import Answer, AskStore, Kept
from governor.core.fleet.grant import Use, Why
from governor.core.fleet.reservations import Reservations
from governor.core.fleet.scopes import (
    GrantRow,
    Holder,
    ScopeRow,
    ceiling_change,
    grant_key,
    grant_row,
    may_have_spent,
    names_in,
    scope_key,
    scope_row,
    settled,
    text_of,
)
from tests.contract.fleet.fake_store import FakeFleetStore

WALL = WallNs(0)
USE = Use(0, 3_600_000_000, 60_000_000)  # $1 a second, and a halt that takes a minute.
HOLDER = Holder("node-1", "boot", "ledger")


def store_with(ceiling: int) -> FakeFleetStore:
    store = FakeFleetStore()
    change = ceiling_change(Kept(scope_key("team:nlp")), ceiling)
    assert change is not None
    store.transact(change)
    return store


def answer(governor: Reservations, store: FakeFleetStore, ask: AskStore, at: MonoNs) -> None:
    reply = store.read(ask.keys) if ask.transaction is None else store.transact(ask.transaction)
    governor.answered(ask.request, reply.answer, reply.rows, reply.revision, at=at)


def settle_down(governor: Reservations, store: FakeFleetStore, at: int) -> None:
    """AskStore until there is nothing to ask."""
    for turn in range(20):
        asks = governor.next(MonoNs(at + turn * NS_PER_S), WALL)
        if not asks:
            return
        for ask in asks:
            answer(governor, store, ask, MonoNs(at + turn * NS_PER_S))
    pytest.fail("asks for ever")


def held(store: FakeFleetStore) -> ScopeRow:
    row = scope_row(store.read([scope_key("team:nlp")]).rows[0])
    assert row is not None
    return row


@pytest.mark.parametrize("names", [("a/b", "run~1"), ("100 %", "%2F"), ("team:ü", "x")])
def test_a_key_gives_its_names_back(names: tuple[str, str]) -> None:
    assert names_in(grant_key(HOLDER, *names)) == (HOLDER.text, *names)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257])
def test_what_is_no_name_makes_no_key(name: str) -> None:
    with pytest.raises(ValueError):
        grant_key(HOLDER, "fleet", name)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"v":1}', "[" * 3_000, text_of(ScopeRow(1)).replace(":0", ":true", 1)]
    + [json.dumps({**json.loads(text_of(ScopeRow(5))), "holders": bad}) for bad in (-1, 1.5, "1", None, 10**30)],
)
def test_a_row_that_is_damaged_grants_nothing(text: str) -> None:
    assert scope_row(Kept("k", text, 1)) is None


def test_a_row_comes_back_as_it_was_written() -> None:
    row = GrantRow(5, 1, 2, 3, 4, "i", "r")
    assert grant_row(Kept("k", text_of(row), 1)) == row
    assert grant_row(Kept("k", text_of(row), 0)) is None


def test_what_was_spent_beyond_a_grant_is_booked_as_such() -> None:
    after = settled(ScopeRow(100, held_usd_micros=40, holders=2), GrantRow(30), 35)
    assert after == ScopeRow(100, 10, 35, 5, 1)


def test_a_vanished_run_may_have_spent_until_its_billing_ended() -> None:
    row = GrantRow(1_000, spent_usd_micros=100, rate_usd_micros_per_hour=10, seen_wall_ns=0)
    assert may_have_spent(row, NS_PER_HOUR, 20) == 120
    assert may_have_spent(row, NS_PER_HOUR + 1, 20) == 121  # Rounded up.
    assert may_have_spent(row, None, 20) == 1_000


def test_one_run_has_minutes_and_not_the_whole_ceiling() -> None:
    governor, store = Reservations(HOLDER, "1"), store_with(10_000_000_000)
    governor.cover("team:nlp", "run", USE)
    settle_down(governor, store, 0)
    (standing,) = governor.standings(MonoNs(0))
    assert standing.granted_usd_micros == held(store).held_usd_micros == 60_000_000 * 5 // 4 + 300_000_000
    assert not standing.must_halt


def test_a_run_halts_when_its_grant_less_its_halt_is_used_up_and_not_before() -> None:
    governor, store = Reservations(HOLDER, "1"), store_with(120_000_000)
    governor.cover("team:nlp", "run", USE)
    settle_down(governor, store, 0)
    granted = governor.standings(MonoNs(0))[0].granted_usd_micros
    for spent, halts in ((granted - 60_000_001, False), (granted - 60_000_000, True)):
        governor.cover("team:nlp", "run", Use(spent, USE.rate_usd_micros_per_hour, USE.reserve_usd_micros))
        assert governor.standings(MonoNs(0))[0].must_halt is halts


def test_without_a_row_nothing_is_granted() -> None:
    governor = Reservations(HOLDER, "1")
    governor.cover("team:nlp", "run", USE)
    settle_down(governor, FakeFleetStore(), 0)
    (standing,) = governor.standings(MonoNs(0))
    assert (standing.must_halt, standing.why, standing.granted_usd_micros) == (True, Why.NO_CEILING, 0)


def test_what_a_run_has_not_used_is_given_back_once_although_the_answer_is_lost() -> None:
    governor, store = Reservations(HOLDER, "1"), store_with(10_000_000_000)
    governor.cover("team:nlp", "run", USE)
    settle_down(governor, store, 0)
    governor.end("team:nlp", "run", 7)
    (ask,) = governor.next(MonoNs(100 * NS_PER_S), WALL)[:1]
    assert ask.transaction is not None
    assert ask.lowers
    store.transact(ask.transaction)
    governor.answered(ask.request, Answer.UNKNOWN, at=MonoNs(100 * NS_PER_S))
    settle_down(governor, store, 200 * NS_PER_S)
    assert held(store) == ScopeRow(10_000_000_000, 0, 7, 0, 0)
    assert governor.forget_over() == [("team:nlp", "run")]


def test_the_grant_is_its_smaller_amount_until_it_is_known_what_became_of_giving_back() -> None:
    governor, store = Reservations(HOLDER, "1"), store_with(10_000_000_000)
    governor.cover("team:nlp", "run", USE)
    settle_down(governor, store, 0)
    before = governor.standings(MonoNs(0))[0].granted_usd_micros
    governor.cover("team:nlp", "run", Use(0, 36_000_000, 600_000))  # A hundredth of its rate.
    asks = [ask for ask in governor.next(MonoNs(NS_PER_S), WALL) if ask.transaction is not None]
    assert asks[0].lowers
    assert governor.standings(MonoNs(0))[0].granted_usd_micros < before
    governor.answered(asks[0].request, Answer.UNKNOWN, at=MonoNs(NS_PER_S))
    assert governor.standings(MonoNs(0))[0].granted_usd_micros < before


def test_a_restart_goes_on_with_its_grant_and_writes_it_anew() -> None:
    first, store = Reservations(HOLDER, "1"), store_with(10_000_000_000)
    first.cover("team:nlp", "run", USE)
    settle_down(first, store, 0)
    granted = first.standings(MonoNs(0))[0].granted_usd_micros
    second = Reservations(HOLDER, "2")
    second.restore(json.loads(json.dumps(first.snapshot())))
    second.cover("team:nlp", "run", USE)
    assert second.standings(MonoNs(0))[0].granted_usd_micros == granted
    assert second.recall(store.range(second.prefix, 10).rows) == []
    settle_down(second, store, 0)
    row = grant_row(store.range(second.prefix, 10).rows[0])
    assert row is not None
    assert (row.instance, row.granted_usd_micros) == ("2", granted)
    settle_down(first, store, 120 * NS_PER_S)
    assert first.standings(MonoNs(0))[0].why is Why.SUPERSEDED
