"""What every store of a fleet does: the fake, and real etcd plain, with users and with certificates."""

from __future__ import annotations

import threading

import pytest

from governor.core.events.fleet_store import Answer, Kept, Transaction
from governor.core.fleet.scopes import ROOT
from governor.remote_ports import FleetReply, FleetStore

SAFETY_S = 60.0


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A prefix of keys that is this test's own."""
    return f"{ROOT}test/{request.node.originalname}/"


def put(store: FleetStore, key: str, value: str, over: int = 0) -> int:
    reply = store.transact(Transaction(((key, over),), ((key, value),)))
    assert reply.answer is Answer.APPLIED, reply
    return reply.revision


def test_a_row_is_created_once(store: FleetStore, name: str) -> None:
    key = f"{name}row"
    revision = put(store, key, "one")
    again = store.transact(Transaction(((key, 0),), ((key, "two"),)))
    assert (again.answer, again.rows) == (Answer.CONFLICT, (Kept(key, "one", revision),))


def test_a_change_counts_only_over_the_revision_that_was_read(store: FleetStore, name: str) -> None:
    key = f"{name}row"
    first = put(store, key, "one")
    second = put(store, key, "two", over=first)
    assert second > first
    assert store.transact(Transaction(((key, first),), ((key, "late"),))).answer is Answer.CONFLICT
    assert store.read([key]).rows == (Kept(key, "two", second),)


def test_two_rows_change_together_or_not_at_all(store: FleetStore, name: str) -> None:
    one, two = f"{name}one", f"{name}two"
    first = put(store, one, "1")
    torn = store.transact(Transaction(((one, first), (two, 99)), ((one, "x"), (two, "x"))))
    assert (torn.answer, torn.rows) == (Answer.CONFLICT, (Kept(one, "1", first), Kept(two)))
    both = store.transact(Transaction(((one, first), (two, 0)), ((one, "2"), (two, "2"))))
    assert both.answer is Answer.APPLIED
    assert store.read([two, one]).rows == (Kept(two, "2", both.revision), Kept(one, "2", both.revision))


def test_a_row_is_deleted_with_the_change_of_another_and_can_be_made_anew(store: FleetStore, name: str) -> None:
    one, two = f"{name}one", f"{name}two"
    first, second = put(store, one, "1"), put(store, two, "1")
    gone = Transaction(((one, first), (two, second)), ((one, "2"),), (two,))
    assert store.transact(gone).answer is Answer.APPLIED
    # The same again, as a copy that comes late.
    late = store.transact(gone)
    assert (late.answer, late.rows[1]) == (Answer.CONFLICT, Kept(two))
    assert put(store, two, "new") > second


def test_a_missing_row_is_read_as_none(store: FleetStore, name: str) -> None:
    assert store.read([f"{name}nothing"]).rows == (Kept(f"{name}nothing"),)


def test_values_and_keys_of_any_text_come_back(store: FleetStore, name: str) -> None:
    key, value = f"{name}läuf/%2F ~\U0001f600", 'ü "\\ \U0001f600' * 50
    put(store, key, value)
    assert store.read([key]).rows[0].value == value
    assert [kept.key for kept in store.range(name, 10).rows] == [key]


def test_an_empty_value_is_a_row(store: FleetStore, name: str) -> None:
    put(store, f"{name}row", "")
    assert store.read([f"{name}row"]).rows[0].revision > 0


def test_a_range_has_the_rows_of_its_prefix_and_says_when_it_is_cut(store: FleetStore, name: str) -> None:
    for number in range(4):
        put(store, f"{name}in/{number}", str(number))
    put(store, f"{name}inside", "no")
    whole, part = store.range(f"{name}in/", 4), store.range(f"{name}in/", 3)
    assert ([kept.value for kept in whole.rows], whole.is_cut) == (["0", "1", "2", "3"], False)
    assert ([kept.value for kept in part.rows], part.is_cut) == (["0", "1", "2"], True)
    assert store.range(f"{name}none/", 4).rows == ()


def test_a_range_goes_on_behind_the_last_row_of_its_page(store: FleetStore, name: str) -> None:
    keys = [f"{name}{text}" for text in ("a", "a/b", "a~", "b", "ä")]
    for key in keys:
        put(store, key, key)
    found, after = [], ""
    for _ in keys:
        page = store.range(name, 2, after)
        found += [kept.key for kept in page.rows]
        after = found[-1]
        if not page.is_cut:
            break
    assert found == keys
    assert store.range(name, 9, keys[-1]).rows == ()
    # What lies before the prefix, or is no row, is a place all the same.
    assert [kept.key for kept in store.range(name, 1, ROOT).rows] == keys[:1]
    assert [kept.key for kept in store.range(name, 1, f"{name}a0").rows] == keys[2:3]


def test_many_rows_are_read_at_once(store: FleetStore, name: str) -> None:
    keys = [f"{name}{number}" for number in range(120)]
    put(store, keys[7], "seven")
    rows = store.read(keys).rows
    assert [kept.key for kept in rows] == keys
    assert [kept.key for kept in rows if kept.revision] == [keys[7]]


def test_a_row_with_a_lease_goes_when_the_lease_is_revoked(store: FleetStore, name: str) -> None:
    lease = store.grant_lease(60).lease
    assert lease
    key = f"{name}alive"
    assert store.transact(Transaction(((key, 0),), ((key, "x"),), lease=lease)).answer is Answer.APPLIED
    alive = store.keep_alive(lease)
    assert (alive.answer, alive.lease) == (Answer.APPLIED, lease)
    assert store.revoke_lease(lease).answer is Answer.APPLIED
    assert store.read([key]).rows == (Kept(key),)


def test_a_lease_that_has_ended_never_comes_again(store: FleetStore, name: str) -> None:
    lease = store.grant_lease(60).lease
    store.revoke_lease(lease)
    assert store.keep_alive(lease).lease == 0
    assert store.revoke_lease(lease).answer is Answer.APPLIED
    late = store.transact(Transaction(((f"{name}x", 0),), ((f"{name}x", "x"),), lease=lease))
    assert late.answer is Answer.REFUSED
    assert store.read([f"{name}x"]).rows == (Kept(f"{name}x"),)


def test_rows_that_are_one_s_own_are_put_and_deleted_whatever_they_were(store: FleetStore, name: str) -> None:
    keys = [f"{name}{number}" for number in range(3)]
    for text in ("one", "two"):
        assert store.transact(Transaction((), tuple((key, text) for key in keys))).answer is Answer.APPLIED
    gone = Transaction((), ((keys[0], "three"),), (keys[1], f"{name}never"))
    assert store.transact(gone).answer is Answer.APPLIED
    assert [(kept.key, kept.value) for kept in store.range(name, 10).rows] == [(keys[0], "three"), (keys[2], "two")]


# --- waiting for a change -----------------------------------------------------------------------------------


def test_a_wait_ends_at_once_where_something_has_changed_since(store: FleetStore, name: str) -> None:
    before = store.range(name, 10).revision
    changed_at = put(store, f"{name}row", "one")
    told = store.wait(name, before, SAFETY_S)
    assert (told.answer, told.revision) == (Answer.READ, changed_at)
    assert told.rows == (Kept(f"{name}row", "one", changed_at),)


def test_a_wait_ends_when_another_changes_a_row(store: FleetStore, name: str) -> None:
    first = put(store, f"{name}row", "one")
    waits = threading.Thread(target=lambda: told.append(store.wait(name, first, SAFETY_S)))
    told: list[FleetReply] = []
    waits.start()
    gone = store.transact(Transaction(((f"{name}row", first),), deletes=(f"{name}row",)))
    waits.join()
    assert (told[0].answer, told[0].revision >= gone.revision) == (Answer.READ, True)
    assert told[0].rows == (Kept(f"{name}row"),)


def test_a_wait_in_vain_says_so_and_a_row_elsewhere_is_no_change(store: FleetStore, name: str) -> None:
    before = store.range(name, 10).revision
    put(store, f"{name.rstrip('/')}-other/row", "one")
    told = store.wait(name, before, 0.3)
    assert (told.answer, told.revision) == (Answer.READ, before)
