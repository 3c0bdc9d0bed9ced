"""The look at silent governors: who looks, what is told once, what is settled and stopped, and what is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from governor.core.base.units import NS_PER_HOUR, MonoNs, WallNs
from governor.core.events.fleet_orders import Act, Order, SilentUsedUp
from governor.core.events.fleet_store import Answer, Transaction
from governor.core.events.inputs import Event
from governor.core.events.machine import SourceTrouble
from governor.core.fleet.orders import order_key, order_text
from governor.core.fleet.presence import NodeRow, RunRow, live_key, node_key, row_text, run_key
from governor.core.fleet.scopes import GRANT_ROWS, Holder, ScopeRow
from governor.core.fleet.sweeping import PATIENCE_NS, SILENT_NS
from governor.daemon.fleet.sweep import ASKED_EVERY_NS, EVERY_NS, FleetSweep, Sweeper
from governor.remote_ports import FleetReply
from tests.contract.fakes_cloud import FakeCloud
from tests.contract.fleet.fake_store import FakeFleetStore
from tests.contract.fleet.vanished import GONE, RATE, WALL, scope_of, vanish

USED_UP_NS = 2 * NS_PER_HOUR + PATIENCE_NS


class Store(FakeFleetStore):
    """Something happens as soon as a grant is settled."""

    when_settled: Callable[[], None] = staticmethod(lambda: None)

    is_deaf = False

    def transact(self, transaction: Transaction) -> FleetReply:
        if self.is_deaf:
            return FleetReply(Answer.UNKNOWN, reason="timeout")
        reply = super().transact(transaction)
        if any(key.startswith(GRANT_ROWS) for key in transaction.deletes):
            self.when_settled()
        return reply


class World:
    """Governor gpu-1 looks. gpu-2 had a run with $4 spent of $10, at $6/h, when its lease ended."""

    def __init__(self) -> None:
        self.store, self.machine, self.posted = Store(), FakeCloud("i-2"), list[Event]()
        self.now, self.asked = MonoNs(0), list[str]()
        self.when_asked: Callable[[], None] = lambda: None
        vanish(self.store, "i-2", "eu-1")
        self.sweep = self.governor("gpu-1")

    def governor(self, name: str, *, may_sweep: bool = True, region: str = "eu-1") -> FleetSweep:
        lease = self.store.grant_lease(10**9).lease
        holder = Holder(name, "boot", "ledger")
        self.store.transact(Transaction((), ((live_key(holder), "{}"),), lease=lease))
        self.put({node_key(holder): row_text(NodeRow(name, WALL, "aws", f"i-of-{name}", region))})

        def other(instance_id: str) -> FakeCloud:
            self.asked.append(f"{name} {instance_id}")
            self.when_asked()
            return self.machine

        sweeper = Sweeper("aws", region, other) if may_sweep else None
        return FleetSweep(
            lambda: holder, lambda: lease, lambda: WallNs(WALL + self.now), self.posted.append, sweeper
        )  # fmt: skip

    def put(self, rows: dict[str, str]) -> None:
        self.store.transact(Transaction((), tuple(rows.items())))

    @property
    def scope(self) -> ScopeRow:
        return scope_of(self.store)

    def until(self, at_ns: int, *sweeps: FleetSweep) -> None:
        while self.now < at_ns:
            self.now = MonoNs(self.now + EVERY_NS)
            for one in sweeps or (self.sweep,):
                one.turn(self.store, self.now)

    @property
    def stops(self) -> list[str]:
        """Machines that the loop was asked to stop."""
        return [one.instance_id for one in self.posted if isinstance(one, SilentUsedUp)]

    @property
    def told(self) -> list[str]:
        return [one.alarm for one in self.posted if isinstance(one, SourceTrouble)]


@pytest.fixture
def world() -> World:
    return World()


def test_a_silent_governor_is_told_once_and_its_machine_is_left_while_its_grant_lasts(world: World) -> None:
    world.until(NS_PER_HOUR)
    assert (world.told, world.stops, world.scope.holders) == (["fleet_node_silent"], [], 1)


def test_nobody_is_told_before_a_service_manager_has_started_it_anew(world: World) -> None:
    world.until(SILENT_NS)
    world.store.transact(Transaction((), ((live_key(GONE), "{}"),)))
    world.until(NS_PER_HOUR)
    assert world.told == []


def test_a_machine_that_is_billed_no_more_is_settled_at_what_it_may_have_spent(world: World) -> None:
    world.machine.state = "stopped"
    world.until(SILENT_NS + 2 * EVERY_NS)
    seen_h = (SILENT_NS + EVERY_NS) / NS_PER_HOUR
    assert world.scope.settled_usd_micros == pytest.approx(4_000_000 + RATE * seen_h, abs=1)
    assert (world.scope.holders, world.scope.held_usd_micros) == (0, 0)
    assert world.told == ["fleet_swept"]
    assert [key for key in world.store.rows if "gpu-2" in key] == []


def test_the_loop_is_asked_to_stop_a_machine_whose_grant_is_used_up_and_what_has_ended_is_settled(world: World) -> None:
    world.until(USED_UP_NS - EVERY_NS)
    assert world.stops == []
    world.until(USED_UP_NS + 4 * EVERY_NS)
    assert world.stops == ["i-2"]
    world.until(USED_UP_NS + ASKED_EVERY_NS + 2 * EVERY_NS)
    assert world.stops == ["i-2"] * 2, "it is billed still"
    world.machine.state = "stopped"
    world.until(USED_UP_NS + ASKED_EVERY_NS + 3 * EVERY_NS)
    assert world.scope.holders == 0
    assert world.told == ["fleet_node_silent", "fleet_swept"]


def test_a_governor_that_is_back_while_the_provider_answers_is_left(world: World) -> None:
    world.until(USED_UP_NS)
    assert world.stops == []
    world.when_asked = lambda: world.put({live_key(GONE): "{}"})
    world.until(USED_UP_NS + EVERY_NS)  # Where it would be stopped.
    assert world.stops == []


def test_silence_counts_anew_where_it_has_spoken_between_two_looks(world: World) -> None:
    world.until(USED_UP_NS - EVERY_NS)
    world.put({node_key(GONE): row_text(NodeRow("gpu-2", WALL + 1, "aws", "i-2", "eu-1", can_stop=True))})
    world.until(USED_UP_NS + NS_PER_HOUR)
    assert world.stops == []


def test_a_lost_answer_to_the_role_forgets_nothing(world: World) -> None:
    world.until(NS_PER_HOUR)
    world.store.is_deaf = True
    world.until(NS_PER_HOUR + 2 * EVERY_NS)
    world.store.is_deaf = False
    world.until(USED_UP_NS + 2 * EVERY_NS)
    assert (world.told, world.stops) == (["fleet_node_silent"], ["i-2"])


def test_an_idle_machine_whose_governor_vanished_is_told(world: World) -> None:
    world.store.transact(Transaction((), (), (run_key(GONE, "llama"),)))
    world.until(USED_UP_NS + EVERY_NS)
    assert (world.told, world.stops) == (["fleet_node_silent"], [])


def test_one_governor_of_the_fleet_does_it_and_the_next_one_when_that_is_gone(world: World) -> None:
    second = world.governor("gpu-3")
    world.until(NS_PER_HOUR, world.sweep, second)
    assert {one.split()[0] for one in world.asked} == {"gpu-1"}
    assert world.told == ["fleet_node_silent"]
    world.store.revoke_lease(1)
    world.until(2 * NS_PER_HOUR, second)
    assert world.asked[-1] == "gpu-3 i-2"


@pytest.mark.parametrize("changes", [{"may_sweep": False}, {"region": "us-1"}])
def test_who_may_not_or_cannot_reach_it_only_tells(world: World, changes: dict[str, object]) -> None:
    world.machine.state = "stopped"
    teller = world.governor("gpu-3", **changes)  # type: ignore[arg-type]
    world.until(USED_UP_NS + 10 * EVERY_NS, teller)
    assert (world.told, world.asked, world.scope.holders) == (["fleet_node_silent"], [], 1)


def test_a_machine_on_which_another_governor_lives_is_left(world: World) -> None:
    other = Holder("gpu-2", "boot", "another ledger")
    world.put({live_key(other): "{}", node_key(other): row_text(NodeRow("gpu-2", WALL, "aws", "i-2", "eu-1"))})
    world.until(USED_UP_NS + 10 * EVERY_NS)
    assert (world.stops, world.scope.holders) == ([], 1)


def test_a_governor_that_speaks_and_whose_row_cannot_be_read_may_be_on_that_machine(world: World) -> None:
    world.put(
        {live_key(Holder("gpu-9", "boot", "ledger")): "{}", node_key(Holder("gpu-9", "boot", "ledger")): "no row"}
    )
    world.until(USED_UP_NS + 10 * EVERY_NS)
    assert (world.stops, world.scope.holders) == ([], 1)


def test_a_run_that_cannot_be_read_keeps_its_machine_and_is_told(world: World) -> None:
    world.put({run_key(GONE, "other"): '{"v": 2}'})
    world.until(USED_UP_NS + 10 * EVERY_NS)
    assert (world.stops, world.scope.holders, world.told) == ([], 1, ["fleet_node_silent"])
    world.machine.state = "stopped"
    world.until(USED_UP_NS + 12 * EVERY_NS)
    assert world.scope.holders == 0, "what has ended is settled whatever ran there"


def test_a_hold_that_was_given_since_its_last_word_keeps_its_machine(world: World) -> None:
    until = WallNs(WALL + 24 * NS_PER_HOUR)
    order = Order("hold-00000a", Act.HOLD, "run:llama", "we look", "ann@ops", WallNs(WALL), until)
    world.put({order_key(order.order_id): order_text(order)})
    world.until(USED_UP_NS + 10 * EVERY_NS)
    assert world.stops == []
    world.store.transact(Transaction((), (), (order_key(order.order_id),)))
    world.until(USED_UP_NS + 12 * EVERY_NS)
    assert world.stops == ["i-2"]


def test_what_may_have_been_spent_is_more_than_anybody_believes_is_left_to_a_person(world: World) -> None:
    """Nobody looked for days: another ledger may have charged that time."""
    world.machine.state = "stopped"
    world.now = MonoNs(72 * NS_PER_HOUR)
    world.until(world.now + SILENT_NS + 2 * EVERY_NS)
    assert (world.scope.holders, world.scope.settled_usd_micros) == (1, 0)
    assert world.told == ["fleet_swept"]


def test_a_governor_that_comes_back_while_it_is_settled_keeps_its_rows(world: World) -> None:
    world.machine.state = "stopped"
    world.store.when_settled = lambda: world.put({node_key(GONE): row_text(NodeRow("gpu-2", WALL + 5))})
    world.until(SILENT_NS + 2 * EVERY_NS)
    assert node_key(GONE) in world.store.rows
    assert run_key(GONE, "llama") in world.store.rows


def test_a_node_that_was_stopping_its_machine_is_not_told_as_silent(world: World) -> None:
    world.put({run_key(GONE, "llama"): row_text(RunRow("llama", 1000, "halting", False, stops_machine=True,
                                                        rate_usd_micros_per_hour=RATE))})  # fmt: skip
    world.until(NS_PER_HOUR)
    assert world.told == []


def test_a_row_that_cannot_be_read_stops_nothing(world: World) -> None:
    world.put({node_key(GONE): "no row"})
    world.until(USED_UP_NS + 10 * EVERY_NS)
    assert (world.told, world.asked) == ([], [])


def test_who_has_no_lease_does_nothing(world: World) -> None:
    holder = Holder("gpu-9", "boot", "ledger")
    sweep = FleetSweep(lambda: holder, lambda: 0, lambda: WallNs(WALL), world.posted.append, None)
    world.until(NS_PER_HOUR, sweep)
    assert world.told == []
