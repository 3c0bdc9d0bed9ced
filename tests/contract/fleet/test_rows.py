"""What `costgov fleet` shows and changes, in the fake and in a real etcd: nothing is ever granted twice by it."""

from __future__ import annotations

import pytest

from governor.adapters.etcd.opening import OfFleet
from governor.app.fleet_rows import Failure, budgets, correct_settled, set_ceiling, settle_by_id
from governor.core.events.fleet_store import Kept, Transaction
from governor.core.fleet.presence import live_key
from governor.core.fleet.scopes import (
    GRANT_ROWS,
    GrantRow,
    Holder,
    ScopeRow,
    compares,
    grant_key,
    grant_row,
    scope_key,
    short_id,
    text_of,
)
from governor.remote_ports import FleetStore

TEAM = "label:team=nlp"
HOLDER = Holder("gpu-1", "boot-1", "ledger-1")
KEY = grant_key(HOLDER, TEAM, "llama")
ID = KEY.removeprefix(GRANT_ROWS)


@pytest.fixture
def ours(store: FleetStore, request: pytest.FixtureRequest) -> FleetStore:
    """A fleet of the test's own."""
    return OfFleet(store, str(request.node.name).partition("[")[0])


def with_a_grant(store: FleetStore, *, has_scope: bool = True, spent_usd_micros: int = 2_000_000) -> None:
    """$6 of $10 are held, of which $2 are spent."""
    scope, grant = Kept(scope_key(TEAM)), Kept(KEY)
    puts = [(KEY, text_of(GrantRow(6_000_000, spent_usd_micros=spent_usd_micros)))]
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
    assert isinstance(set_ceiling(ours, "x" * 5_000, 5_000_000), Failure)


def test_a_scope_that_nobody_has_is_made_only_where_somebody_says_that_it_is_new(ours: FleetStore) -> None:
    """A row that no costgov.toml names is enforced by nobody."""
    with_a_grant(ours)
    refused = set_ceiling(ours, "stage:sft", 5_000_000)
    assert isinstance(refused, Failure)
    assert refused.is_absent
    assert TEAM in refused.text, "whoever mistyped it sees what there is"
    assert len(budgets(ours)["scopes"]) == 1  # type: ignore[index,arg-type]
    made = set_ceiling(ours, "stage:sft", 5_000_000, is_new=True)
    assert not isinstance(made, Failure)
    assert made["made"]
    again = set_ceiling(ours, "stage:sft", 6_000_000)
    assert not isinstance(again, Failure)
    assert (again["ceiling_usd"], again.get("made", False)) == (6.0, False)


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


@pytest.mark.parametrize("wrong", ["no such", "", "a/b/c", "a~b~c//r", "a~b~c/label:team=nlp/llama", "//", "a/b/c/d"])
def test_an_id_that_no_grant_has_is_absent(ours: FleetStore, wrong: str) -> None:
    with_a_grant(ours)
    found = settle_by_id(ours, wrong, None)
    assert isinstance(found, Failure)
    assert found.is_absent


def test_less_than_its_governor_had_counted_is_never_what_was_spent(ours: FleetStore) -> None:
    with_a_grant(ours)
    for is_forced in (False, True):
        assert isinstance(settle_by_id(ours, ID, 1_999_999, is_forced=is_forced), Failure)
    assert amounts(ours) == (10.0, 6.0, 0.0, 4.0)
    assert not isinstance(settle_by_id(ours, ID, 2_000_000), Failure)


def test_an_amount_far_above_the_grant_has_to_be_forced(ours: FleetStore) -> None:
    with_a_grant(ours)
    assert isinstance(settle_by_id(ours, ID, 18_000_001), Failure)
    assert amounts(ours) == (10.0, 6.0, 0.0, 4.0)
    assert not isinstance(settle_by_id(ours, ID, 18_000_001, is_forced=True), Failure)
    assert amounts(ours)[2] == 18.000001


def test_a_grant_of_which_nothing_was_spent_is_settled_at_nothing(ours: FleetStore) -> None:
    with_a_grant(ours, spent_usd_micros=0)
    assert not isinstance(settle_by_id(ours, ID, 0), Failure)
    assert amounts(ours) == (10.0, 0.0, 0.0, 10.0)


def test_a_grant_whose_governor_speaks_is_left_to_it_unless_forced(ours: FleetStore) -> None:
    with_a_grant(ours)
    live = live_key(HOLDER)
    ours.transact(Transaction((), ((live, "{}"),)))
    assert isinstance(settle_by_id(ours, ID, None), Failure)
    assert amounts(ours) == (10.0, 6.0, 0.0, 4.0)
    assert not isinstance(settle_by_id(ours, ID, None, is_forced=True), Failure)
    assert amounts(ours) == (10.0, 0.0, 6.0, 4.0)


def test_a_governor_that_begins_to_speak_while_somebody_settles_keeps_its_grant(ours: FleetStore) -> None:
    with_a_grant(ours)

    class Wakes:
        """Its live row is put between the read and the change."""

        is_awake = False

        def __getattr__(self, name: str) -> object:
            return getattr(ours, name)

        def transact(self, change: Transaction) -> object:
            if not self.is_awake:
                self.is_awake = True
                ours.transact(Transaction((), ((live_key(HOLDER), "{}"),)))
            return ours.transact(change)

    assert isinstance(settle_by_id(Wakes(), ID, None), Failure)  # type: ignore[arg-type]
    assert amounts(ours) == (10.0, 6.0, 0.0, 4.0)


def test_a_grant_is_named_by_node_scope_and_run_where_no_other_is_called_so(ours: FleetStore) -> None:
    with_a_grant(ours)
    other = grant_key(Holder("gpu-1", "boot-2", "ledger-1"), TEAM, "llama")
    ours.transact(Transaction((), ((other, text_of(GrantRow(1_000_000))),)))
    found = settle_by_id(ours, short_id(ID), 2_000_000)
    assert isinstance(found, Failure)
    assert not found.is_absent
    assert amounts(ours)[1] == 6.0
    ours.transact(Transaction((), (), (other,)))
    assert short_id(ID) == "gpu-1/label:team=nlp/llama"
    assert not isinstance(settle_by_id(ours, short_id(ID), 2_000_000), Failure)
    assert amounts(ours) == (10.0, 0.0, 2.0, 8.0)


def test_what_was_settled_is_corrected_and_what_is_held_stays(ours: FleetStore) -> None:
    with_a_grant(ours)
    assert not isinstance(correct_settled(ours, TEAM, 3_000_000), Failure)
    assert amounts(ours) == (10.0, 6.0, 3.0, 1.0)
    assert grant_row(ours.read([KEY]).rows[0]) is not None
    assert not isinstance(correct_settled(ours, TEAM, 0), Failure)
    assert amounts(ours) == (10.0, 6.0, 0.0, 4.0)
    absent = correct_settled(ours, "stage:sft", 3_000_000)
    assert isinstance(absent, Failure)
    assert absent.is_absent


def test_what_was_spent_beyond_grants_is_never_more_than_what_is_settled(ours: FleetStore) -> None:
    with_a_grant(ours)
    assert not isinstance(settle_by_id(ours, ID, 9_000_000), Failure)
    corrected = correct_settled(ours, TEAM, 1_000_000)
    assert not isinstance(corrected, Failure)
    assert (corrected["settled_usd"], corrected["over_usd"]) == (1.0, 1.0)


def test_without_a_word_of_what_was_spent_all_of_it_counts_and_what_was_spent_beyond(ours: FleetStore) -> None:
    with_a_grant(ours, spent_usd_micros=7_000_000)
    assert not isinstance(settle_by_id(ours, ID, None), Failure)
    assert amounts(ours) == (10.0, 0.0, 7.0, 3.0)


def test_without_a_word_of_what_was_spent_all_of_it_counts(ours: FleetStore) -> None:
    with_a_grant(ours)
    assert not isinstance(settle_by_id(ours, ID, None), Failure)
    assert amounts(ours) == (10.0, 0.0, 6.0, 4.0)
