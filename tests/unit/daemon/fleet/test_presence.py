"""A governor's own rows: when they are written, how long they stay, and what a lost lease does."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Disconnected, TrainerExited
from governor.core.fleet.presence import LIVE_ROWS, NODE_ROWS, RUN_ROWS, node_row, run_row
from governor.daemon.fleet.presence import LEASE_S, FleetPresence
from tests.contract.fleet.fake_store import FakeFleetStore
from tests.unit.core.engine.test_shared_budgets import World
from tests.unit.core.engine.test_step import at


class Member:
    """A node of the engine's tests with the rows that it writes."""

    def __init__(self) -> None:
        self.world, self.store = World(1_000), FakeFleetStore()
        assert self.world.node.shared is not None
        holder = self.world.node.shared.holder
        self.presence = FleetPresence(lambda: holder, lambda: ())

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
