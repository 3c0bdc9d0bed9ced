"""What a governor had metered and not committed when it was killed is charged to those who held the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from governor.core.base.units import NS_PER_HOUR, NS_PER_S, MonoNs, accrue
from governor.core.events.inputs import TrainerExited
from governor.core.money.charges import UNALLOCATED
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import PRICE


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
