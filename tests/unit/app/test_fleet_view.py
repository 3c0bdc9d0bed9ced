"""The fleet as its rows show it: runs over nodes, sums, who is silent, and rows that are damaged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from governor.app.fleet_orders import HOLDS_MAX, forget, give, left, new_order, release
from governor.app.fleet_rows import Failure
from governor.app.fleet_view import document, findings, look
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, DurationNs, WallNs
from governor.core.events.fleet_orders import Act
from governor.core.events.fleet_store import Answer, Transaction
from governor.core.fleet.orders import ORDERS_MAX, order_key, order_text
from governor.core.fleet.presence import NodeRow, RunRow, live_key, node_key, row_text, run_key
from governor.core.fleet.scopes import Holder
from governor.daemon.fleet.paging import PAGE_ROWS
from governor.remote_ports import FleetReply
from governor.settings.fleet import Fleet
from tests.contract.fleet.fake_store import FakeFleetStore

NOW = WallNs(10**18)
RATE = 100_000_000
NODE = NodeRow(
    "", NOW - 30 * NS_PER_S, "aws", "i-", "eu-1", "0.1", can_stop=True, rate_usd_micros_per_hour=RATE, idle_s=0
)
RUN = RunRow("llama", 1000, "training", True, "stage4", {"team": "nlp"}, "job-1", 10, None, 8, 16, 40_000_000, RATE,
             2_000_000, 3_600)  # fmt: skip


def holder(name: str) -> Holder:
    return Holder(name, "boot", "ledger")


def put(store: FakeFleetStore, name: str, *runs: RunRow, live: bool = True, **node: object) -> None:
    row = replace(NODE, node=name, instance_id=f"i-{name}", **node)  # type: ignore[arg-type]
    rows = {node_key(holder(name)): row_text(row), **{run_key(holder(name), one.run): row_text(one) for one in runs}}
    if live:
        rows[live_key(holder(name))] = "{}"
    store.transact(Transaction((), tuple(rows.items())))


@pytest.fixture
def store() -> FakeFleetStore:
    """A run over two nodes, one of which is silent for an hour; an idle node; and one of another user."""
    made = FakeFleetStore()
    put(made, "n1", RUN)
    silent_since = NOW - NS_PER_HOUR
    put(made, "n2", replace(RUN, spend_usd_micros=20_000_000, step=9), live=False, said_wall_ns=silent_since)
    put(made, "n3", idle_s=900)
    put(made, "n4", RunRow("llama", 2000, "halting", False, halt_stage="KILLED", incident_id="llama.n4.1"))
    return made


def seen(store: FakeFleetStore) -> dict:  # type: ignore[type-arg]
    found = look(store, NOW)
    assert not isinstance(found, Failure)
    return document(found)


def test_a_run_over_nodes_is_one_with_the_sum_of_their_money_and_the_run_s_own_tokens(store: FakeFleetStore) -> None:
    [whole, other] = seen(store)["runs"]
    assert (whole["run"], whole["uid"], whole["nodes"], whole["nodes_silent"]) == ("llama", 1000, ["n1", "n2"], ["n2"])
    assert (whole["spend_usd"], whole["rate_usd_per_hour"], whole["tokens"]) == (60.0, 200.0, 2_000_000)
    assert whole["usd_per_mtok"] == 30.0
    assert (whole["ranks"], whole["world_size"], whole["step"]) == (16, 16, 10)
    assert whole["unseen_usd"] == pytest.approx(100 + 100 * 30 / 3600)
    assert (other["uid"], other["state"], other["incidents"]) == (2000, "halting", ["llama.n4.1"])


def test_launches_of_one_name_beside_each_other_are_added_up(store: FakeFleetStore) -> None:
    put(store, "n5", replace(RUN, job="job-2", world_size=4, ranks=4, tokens=500_000))
    [whole, _] = seen(store)["runs"]
    assert (whole["ranks"], whole["world_size"], whole["tokens"]) == (20, 20, 2_500_000)
    assert whole["said_s_ago"] == 3600.0


def test_what_silent_machines_cost_is_kept_apart(store: FakeFleetStore) -> None:
    totals = seen(store)["totals"]
    assert (totals["nodes"], totals["nodes_silent"], totals["runs"]) == (4, 1, 1)
    assert (totals["rate_usd_per_hour"], totals["rate_unseen_usd_per_hour"]) == (300.0, 100.0)


def test_two_governors_of_one_machine_are_two_nodes_and_cost_once(store: FakeFleetStore) -> None:
    second = Holder("n1", "boot", "another ledger")
    row = replace(NODE, node="n1", instance_id="i-n1")
    store.transact(Transaction((), ((node_key(second), row_text(row)), (live_key(second), "{}"))))
    assert seen(store)["totals"]["rate_usd_per_hour"] == 300.0


def test_a_damaged_row_is_named_and_the_others_are_shown(store: FakeFleetStore) -> None:
    key = run_key(holder("n3"), "odd")
    store.transact(Transaction((), ((key, json.dumps({"v": 1, "run": "\x1b[2J"})),)))
    data = seen(store)
    assert (data["unreadable"], len(data["runs"])) == ([key], 2)


def test_a_run_s_row_without_its_node_s_counts_and_names_the_node_of_its_key(store: FakeFleetStore) -> None:
    store.transact(Transaction((), (), (node_key(holder("n2")), node_key(holder("n4")))))
    [whole, other] = seen(store)["runs"]
    assert (whole["nodes"], whole["spend_usd"], other["nodes"]) == (["n1", "n2"], 60.0, ["n4"])


@pytest.mark.parametrize("answer", [Answer.UNREACHABLE, Answer.REFUSED])
def test_a_store_that_does_not_answer_is_a_failure(answer: Answer) -> None:
    class Cut(FakeFleetStore):
        def range(self, prefix: str, limit: int, after: str = "") -> FleetReply:
            return FleetReply(answer, reason="timeout")

    assert isinstance(look(Cut(), NOW), Failure)


def test_doctor_says_that_there_is_no_fleet() -> None:
    [(level, name, text, _)] = findings(Fleet())
    assert (level, name) == ("ok", "fleet")
    assert text.startswith("off: ")
    assert "fleet.etcd" in text, "it says what to set"


# --- orders -------------------------------------------------------------------------------------------------


def test_a_halt_covers_what_is_not_over_and_says_who_is_silent(store: FakeFleetStore) -> None:
    order = new_order(Act.HALT, "label:team=nlp", "the data are wrong", None)
    assert not isinstance(give(store, order), Failure)
    found = left(store, order)
    assert not isinstance(found, Failure)
    parts = [(one["run"], one["node"], one["silent"]) for one in found.parts]
    assert (parts, found.is_whole) == ([("llama", "n1", False), ("llama", "n2", True)], True)
    assert [order["stands"] for order in seen(store)["orders"]] == [True]
    assert not isinstance(release(store, order.order_id), Failure)
    again = release(store, order.order_id)
    assert isinstance(again, Failure)
    assert again.is_absent


@pytest.mark.parametrize("how", ["unreadable", "labels"])
def test_what_cannot_be_known_of_a_halt_is_not_told_as_its_end(store: FakeFleetStore, how: str) -> None:
    row = "no row" if how == "unreadable" else row_text(replace(RUN, labels={}, left_out=True))
    store.transact(Transaction((), ((run_key(holder("n3"), "odd"), row),)))
    found = left(store, new_order(Act.HALT, "label:team=vision", "x", None))
    assert not isinstance(found, Failure)
    assert (found.parts, found.is_over) == ([], False)


def test_orders_that_are_over_leave_room_and_holds_leave_room_for_halts(store: FakeFleetStore) -> None:
    old = replace(new_order(Act.HOLD, "fleet", "x", DurationNs(1)), given_wall=WallNs(1), until_wall=WallNs(2))
    rows = [(order_key(f"hold-{number:06x}"), order_text(old)) for number in range(ORDERS_MAX)]
    store.transact(Transaction((), tuple(rows)))
    for _ in range(HOLDS_MAX):
        assert not isinstance(give(store, new_order(Act.HOLD, "fleet", "x", DurationNs(NS_PER_HOUR))), Failure)
    assert isinstance(give(store, new_order(Act.HOLD, "fleet", "x", DurationNs(NS_PER_HOUR))), Failure)
    assert not isinstance(give(store, new_order(Act.HALT, "fleet", "x", None)), Failure)


def test_a_governor_that_is_gone_is_forgotten_and_one_that_speaks_is_not(store: FakeFleetStore) -> None:
    assert isinstance(forget(store, holder("n1").text), Failure)
    assert not isinstance(forget(store, holder("n2").text), Failure)
    again = forget(store, holder("n2").text)
    assert isinstance(again, Failure)
    assert again.is_absent
    assert [run["nodes"] for run in seen(store)["runs"]] == [["n1"], ["n4"]]


def test_a_fleet_of_many_rows_is_seen_whole() -> None:
    made = FakeFleetStore()
    for number in range(PAGE_ROWS + 1):
        put(made, f"n{number}")
    assert seen(made)["totals"]["nodes"] == PAGE_ROWS + 1


def test_more_orders_than_a_governor_reads_are_not_given(store: FakeFleetStore) -> None:
    for number in range(ORDERS_MAX):
        order = replace(new_order(Act.HALT, "fleet", "x", None), order_id=f"halt-{number:06x}")
        assert not isinstance(give(store, order), Failure)
    assert isinstance(give(store, new_order(Act.HALT, "fleet", "x", None)), Failure)


@pytest.mark.parametrize(("scope", "reason"), [("day", "x"), ("fleet", "  "), ("fleet", "x" * 501)])
def test_what_can_be_no_order_is_refused_before_it_is_sent(scope: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"scope|reason"):
        new_order(Act.HALT, scope, reason, None)


def test_a_reason_cannot_steer_the_terminal_of_who_reads_it() -> None:
    assert new_order(Act.HALT, "fleet", "a\x1b[2Jb", None).reason.isprintable()
