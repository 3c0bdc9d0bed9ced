"""What `costgov fleet` shows and changes, in the fake and in a real etcd: nothing is ever granted twice by it."""

from __future__ import annotations

import pytest

from governor.adapters.etcd.opening import OfFleet
from governor.app.fleet_rows import Failure, budgets, set_ceiling, settle_by_id
from governor.core.events.fleet_store import Kept, Transaction
from governor.core.fleet.scopes import (
    GRANT_ROWS,
    GrantRow,
    Holder,
    ScopeRow,
    compares,
    grant_key,
    scope_key,
    text_of,
)
from governor.remote_ports import FleetStore

TEAM = "label:team=nlp"
KEY = grant_key(Holder("gpu-1", "boot-1", "ledger-1"), TEAM, "llama")
ID = KEY.removeprefix(GRANT_ROWS)


@pytest.fixture
def ours(store: FleetStore, request: pytest.FixtureRequest) -> FleetStore:
    """A fleet of the test's own."""
    return OfFleet(store, str(request.node.name).partition("[")[0])


def with_a_grant(store: FleetStore, *, has_scope: bool = True) -> None:
    """$6 of $10 are held, of which $2 are spent."""
    scope, grant = Kept(scope_key(TEAM)), Kept(KEY)
    puts = [(KEY, text_of(GrantRow(6_000_000, spent_usd_micros=2_000_000)))]
    puts += [(scope.key, text_of(ScopeRow(10_000_000, held_usd_micros=6_000_000, holders=1)))] if has_scope else []
    store.transact(Transaction(compares(scope, grant), tuple(puts)))


def amounts(store: FleetStore) -> tuple[float, ...]:
    """Ceiling, held, settled, room, of the team."""
    found = budgets(store)
    assert not isinstance(found, Failure)
    (row,) = [row for row in found["scopes"] if row["scope"] == TEAM]
    return row["ceiling_usd"], row["held_usd"], row["settled_usd"], row["room_usd"]


def test_it_lists_scopes_and_grants(ours: FleetStore) -> None:
    with_a_grant(ours)
    found = budgets(ours)
    assert not isinstance(found, Failure)
    grants = [(row["node"], row["run"], row["scope"], row["granted_usd"], row["id"]) for row in found["grants"]]
    assert grants == [("gpu-1", "llama", TEAM, 6.0, ID)]
    assert amounts(ours) == (10.0, 6.0, 0.0, 4.0)


def test_a_ceiling_is_set_and_what_is_held_stays(ours: FleetStore) -> None:
    with_a_grant(ours)
    assert not isinstance(set_ceiling(ours, TEAM, 5_000_000), Failure)
    assert amounts(ours) == (5.0, 6.0, 0.0, -1.0)
    assert not isinstance(set_ceiling(ours, "day", 5_000_000), Failure), "one that nobody had"
    assert isinstance(set_ceiling(ours, "x" * 5_000, 5_000_000), Failure)


def test_a_row_that_was_deleted_is_made_anew_with_what_is_held(ours: FleetStore) -> None:
    """Else the same dollars would be granted once more."""
    with_a_grant(ours, has_scope=False)
    assert not isinstance(set_ceiling(ours, TEAM, 10_000_000), Failure)
    assert amounts(ours) == (10.0, 6.0, 0.0, 4.0)


def test_a_grant_is_settled_once(ours: FleetStore) -> None:
    with_a_grant(ours)
    assert not isinstance(settle_by_id(ours, ID, 2_500_000), Failure)
    assert amounts(ours) == (10.0, 0.0, 2.5, 7.5)
    assert isinstance(settle_by_id(ours, ID, 2_500_000), Failure), "it is gone"
    assert amounts(ours) == (10.0, 0.0, 2.5, 7.5)
    assert isinstance(settle_by_id(ours, "no such", None), Failure)


def test_without_a_word_of_what_was_spent_all_of_it_counts(ours: FleetStore) -> None:
    with_a_grant(ours)
    assert not isinstance(settle_by_id(ours, ID, None), Failure)
    assert amounts(ours) == (10.0, 0.0, 6.0, 4.0)
