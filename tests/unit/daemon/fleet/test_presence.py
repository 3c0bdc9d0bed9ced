"""A governor's own rows: when they are written, how long they stay, and what a lost lease does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.fleet_store import Answer, Transaction
from governor.core.events.inputs import Disconnected, Event, TrainerExited
from governor.core.events.machine import SourceTrouble
from governor.core.fleet.presence import (
    LIVE_ROWS,
    NODE_ROWS,
    RUN_ROWS,
    NodeRow,
    RunRow,
    live_key,
    node_key,
    node_row,
    row_text,
    run_key,
    run_row,
)
from governor.core.fleet.scopes import Holder
from governor.daemon.fleet.presence import LEASE_S, FleetPresence
from governor.remote_ports import FleetReply
from tests.contract.fleet.fake_store import FakeFleetStore
from tests.unit.core.engine.test_shared_budgets import World
from tests.unit.core.engine.test_step import at


class Member:
    """A node of the engine's tests with the rows that it writes."""

    def __init__(self) -> None:
        self.world, self.store = World(1_000), FakeFleetStore()
        assert self.world.node.shared is not None
        holder = self.world.node.shared.holder
        self.posted: list[Event] = []
        self.presence = FleetPresence(lambda: holder, ("aws", "i-1"), lambda: (), self.posted.append)

    def at(self, when: float) -> None:
        self.presence.tick(self.world.node, at(when))
        self.presence.turn(self.store, at(when))

    def keys(self, prefix: str) -> list[str]:
        return [key for key in sorted(self.store.rows) if key.startswith(prefix)]


@pytest.fixture
def member() -> Member:
    made = Member()
    made.world.join()
    made.world.until(2)
    made.at(2)
    return made


def test_a_node_and_its_runs_are_shown_with_what_they_cost(member: Member) -> None:
    [node] = [node_row(member.store.rows[key]) for key in member.keys(NODE_ROWS)]
    [run] = [run_row(member.store.rows[key]) for key in member.keys(RUN_ROWS)]
    assert node is not None
    assert run is not None
    assert (node.node, node.rate_usd_micros_per_hour) == (member.world.node.facts.node, 98_320_000)
    assert (run.run, run.is_alive, run.labels) == ("llama", True, {"team": "nlp"})
    # $1,000 at $98.32/h, for one run alone, less what its halt costs.
    assert run.runway_s == pytest.approx(1_000 / 98.32 * 3600, abs=120)
    assert run.spend_usd_micros == member.world.node.ledger.spend("llama") > 0
    assert len(member.keys(LIVE_ROWS)) == 1


def test_rows_are_written_once_a_minute_and_at_once_where_a_state_changes(member: Member) -> None:
    before = member.store.revision
    for second in range(3, 60):
        member.at(second)
    assert member.store.revision == before
    member.at(62)
    assert member.store.revision == before + 1
    member.world.play(Disconnected(at(63), ConnectionId(1)), TrainerExited(at(63), "llama", 0))
    member.at(64)
    [run] = [run_row(member.store.rows[key]) for key in member.keys(RUN_ROWS)]
    assert run is not None
    assert not run.is_alive
    assert run.rate_usd_micros_per_hour == 0, "what costs nothing any more has no rate"


def test_a_run_that_is_forgotten_takes_its_row_along(member: Member) -> None:
    member.world.node.runs.clear()
    member.at(62)
    assert member.keys(RUN_ROWS) == []


def test_a_lease_is_kept_and_its_loss_leaves_what_was_said_last(member: Member) -> None:
    for second in range(3, 3 * LEASE_S):
        member.store.advance(1)
        member.at(second)
    assert len(member.keys(LIVE_ROWS)) == 1
    member.store.advance(LEASE_S + 1)
    assert member.keys(LIVE_ROWS) == []
    assert len(member.keys(NODE_ROWS)) == len(member.keys(RUN_ROWS)) == 1


def test_whose_lease_was_lost_writes_all_of_its_rows_anew(member: Member) -> None:
    member.store.advance(LEASE_S + 1)
    for key in member.keys(NODE_ROWS) + member.keys(RUN_ROWS):
        del member.store.rows[key]
    member.at(20)
    assert (len(member.keys(LIVE_ROWS)), len(member.keys(NODE_ROWS)), len(member.keys(RUN_ROWS))) == (1, 1, 1)


@pytest.mark.parametrize("lives", [False, True])
def test_the_rows_of_before_a_reboot_go_and_those_of_a_copy_of_our_disk_that_lives_stay(lives: bool) -> None:
    member = Member()
    assert member.world.node.shared is not None
    own = member.world.node.shared.holder
    elder = replace(own, boot_id="boot-0")
    row = row_text(NodeRow(own.node, 1))
    rows = {node_key(elder): row, run_key(elder, "llama"): row_text(RunRow("llama", 1, "training", True))}
    rows |= {live_key(elder): "{}"} if lives else {}
    member.store.transact(Transaction((), (*rows.items(), (node_key(replace(own, ledger="other")), row))))
    member.world.join()
    member.world.until(2)
    member.at(2)
    assert (node_key(elder) in member.store.rows, run_key(elder, "llama") in member.store.rows) == (lives, lives)
    assert len(member.keys(NODE_ROWS)) == (3 if lives else 2)


def test_the_rows_of_a_ledger_that_this_machine_has_lost_go_so_that_nobody_stops_it_for_them() -> None:
    member = Member()
    lost = Holder("n1", "boot-1", "a ledger that is lost")
    elsewhere = replace(lost, ledger="elsewhere")
    rows = {node_key(lost): row_text(NodeRow("n1", 1, "aws", "i-1"))}
    rows[node_key(elsewhere)] = row_text(NodeRow("n1", 1, "aws", "i-2"))
    member.store.transact(Transaction((), tuple(rows.items())))
    member.world.until(1)
    member.at(1)
    assert (node_key(lost) in member.store.rows, node_key(elsewhere) in member.store.rows) == (False, True)


def test_the_rows_of_before_are_taken_over_as_soon_as_that_can_be_had() -> None:
    class Hinders(FakeFleetStore):
        is_hindered = True

        def range(self, prefix: str, limit: int, after: str = "") -> FleetReply:
            return FleetReply(Answer.UNREACHABLE) if self.is_hindered else super().range(prefix, limit, after)

    member = Member()
    member.store = hinders = Hinders()
    assert member.world.node.shared is not None
    elder = replace(member.world.node.shared.holder, boot_id="boot-0")
    hinders.transact(Transaction((), ((node_key(elder), row_text(NodeRow("n1", 1))),)))
    member.world.until(1)
    member.at(1)
    hinders.is_hindered = False
    member.at(10)
    assert node_key(elder) not in hinders.rows


def test_a_store_that_takes_no_rows_of_ours_is_told_once(member: Member) -> None:
    class Refuses(FakeFleetStore):
        def transact(self, transaction: Transaction) -> FleetReply:
            return FleetReply(Answer.REFUSED, reason="permission_denied")

    member.store = Refuses()
    for second in range(60, 240, 5):
        member.at(second)
    assert [one.alarm for one in member.posted if isinstance(one, SourceTrouble)] == ["fleet_unseen"]


def test_who_ends_while_a_run_is_alive_leaves_its_rows_and_no_lease(member: Member) -> None:
    member.presence.end(member.store)
    assert (len(member.keys(LIVE_ROWS)), len(member.keys(NODE_ROWS))) == (0, 1)


def test_who_ends_without_a_run_takes_its_rows_along(member: Member) -> None:
    member.world.play(Disconnected(at(3), ConnectionId(1)), TrainerExited(at(3), "llama", 0))
    member.at(4)
    member.presence.end(member.store)
    assert member.keys(LIVE_ROWS) + member.keys(NODE_ROWS) + member.keys(RUN_ROWS) == []


def test_before_the_first_tick_nothing_is_asked() -> None:
    member = Member()
    member.presence.turn(member.store, MonoNs(NS_PER_S))
    assert member.store.rows == {}
