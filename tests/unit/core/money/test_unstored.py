"""What a governor had metered and not committed when it was killed is charged to those who held the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs, accrue
from governor.core.events.inputs import CommandLaunched, TrainerExited
from governor.core.events.machine import PriceRead
from governor.core.money.charges import UNALLOCATED
from governor.core.views.status import run_status
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import PRICE, make_node


def killed(metered: Mapping[str, Any] | None) -> World:
    """A service's governor that has heard of a run, was killed nine seconds later, and came back in an hour."""
    world = World()
    world.tick()
    world.hear()
    for second in range(1, 10):
        world.at(second)
    world.boot = world.mono = NS_PER_HOUR
    world.metered = world.metered if metered is None else {**(world.metered or {}), **metered}
    world.restart()
    world.play(TrainerExited(MonoNs(world.mono), "llama", None))  # It was gone when the governor came back.
    world.tick()
    return world


def test_who_was_gone_on_return_has_paid_for_what_was_metered() -> None:
    world = killed(None)
    assert world.node.ledger.spend("llama") == accrue(PRICE, 9 * NS_PER_S, 0)[0]
    assert world.node.ledger.spend(UNALLOCATED) == pytest.approx(accrue(PRICE, NS_PER_HOUR - 9 * NS_PER_S, 0)[0], abs=1)
    assert world.node.away_ns == NS_PER_HOUR - 9 * NS_PER_S


def test_only_what_came_after_the_last_tick_is_marked_as_reconstructed() -> None:
    marked = [charge for charge in killed(None).charges.values() if charge.reconstructed]
    assert sum(charge.quantity for charge in marked) == NS_PER_HOUR - 9 * NS_PER_S
    assert {charge.payer.run for charge in marked} == {UNALLOCATED}


@pytest.mark.parametrize(
    "changes",
    [{"since_boot_ns": 5 * NS_PER_S}, {"boot_id": "another"}, {"boot_ns": "9"}, {"boot_ns": None}, {"boot_ns": -1}],
)
def test_what_does_not_go_on_from_this_journal_is_charged_to_nobody_who_was_gone(changes: Mapping[str, Any]) -> None:
    world = killed(changes)
    assert world.node.ledger.spend("llama") == accrue(PRICE, NS_PER_S, 0)[0], "as of the last commit"
    assert world.node.ledger.total() == accrue(PRICE, NS_PER_HOUR, 0)[0]


def test_a_moment_that_has_not_come_yet_is_charged_up_to_now() -> None:
    world = killed({"boot_ns": 2 * NS_PER_HOUR})
    assert world.node.ledger.total() == world.node.ledger.spend("llama") == accrue(PRICE, NS_PER_HOUR, 0)[0]


# --- without a price ----------------------------------------------------------------------------------------------


def learn_price(world: World, since: float) -> None:
    """A price, in force since then."""
    then = WallNs(round(since * NS_PER_S) + world.wall_offset)
    boot, wall = BootNs(world.boot), WallNs(world.boot + world.wall_offset)
    world.play(PriceRead(MonoNs(world.mono), boot, wall, UsdMicros(3_600_000), "x", "2026-11-01", then))


def unpriced_s(world: World, run: str = "llama") -> float:
    return world.node.runs[run].history.unpriced_ns / NS_PER_S


def test_what_was_metered_without_a_price_is_unknown_to_the_next_governor() -> None:
    """The journal has 1 s of 9; nobody governs for one more. At 20 s a price is read that is in force since 10 s."""
    world = World(make_node(cloud="none", price_usd_micros_per_hour=None))
    world.tick()
    world.hear()
    for second in range(1, 10):
        world.at(second)
    world.pass_time("run", NS_PER_S)
    world.restart()
    world.hear()
    world.tick()
    world.at(20)
    assert unpriced_s(world) == 20
    learn_price(world, since=10)
    world.at(21)
    assert unpriced_s(world) == world.node.ledger.unpriced_ns / NS_PER_S == 10
    assert world.node.ledger.spend("llama") == 11_000
    assert run_status(world.node.runs["llama"], MonoNs(world.mono))["usd_per_mtok_all_in"] is None


@pytest.mark.parametrize("goes_on", [True, False], ids=["command goes on", "launched anew"])
def test_a_command_that_waited_without_a_price_has_waited_so_for_the_next_governor(goes_on: bool) -> None:
    """8 s of its time were committed and 4 s metered. Whoever takes it over takes what has no price along."""
    world = World(make_node(cloud="none", exclusive=True, price_usd_micros_per_hour=None))
    world.play(CommandLaunched(MonoNs(0), "job", 1000, (ProcessId(4321, 1, "boot-1"),)))
    for second in range(13):
        world.at(second)
    world.restart()
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (ProcessId(4321, 1 if goes_on else 2, "boot-1"),)))
    world.tick()
    name = "job"
    if goes_on:
        name = "named-by-the-script"
        world.hear(run=name)
    assert unpriced_s(world, name) == 12
