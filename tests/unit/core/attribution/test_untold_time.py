"""Time and money of a command for which no rank and no log has spoken: they are its run's, with what is known of it."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.rows import SILENT, time_row, whole_of
from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Bye, CommandLaunched, Disconnected
from governor.core.events.operators import OperatorHalt
from governor.core.views.status import run_status
from tests.unit.core.attribution.test_account import account_of, end, seconds, steps, sums_hold
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, peer
from tests.unit.core.money.test_waste import A_SECOND, a_world, until


def launch(world: World, pid: int = 4321) -> None:
    world.play(CommandLaunched(MonoNs(world.mono), "llama", 1000, (ProcessId(pid, 1, "boot-1"),)))


def restored(world: World) -> dict[str, Any]:
    """As a report reads it from the journal."""
    return time_row(whole_of(TimeAccount.restored(account_of(world).snapshot(), same_boot=False)))


def test_a_command_that_never_spoke_has_all_that_it_cost() -> None:
    world = a_world(exclusive=True)
    launch(world)
    until(world, 15)
    end(world)
    told = restored(world)
    assert (told["wall_s"], round(told["usd"] * 1e6)) == (15.0, 15 * A_SECOND)
    assert [(one["cause"], one["s"]) for one in told["causes"]] == [("unknown", 15.0)]
    assert told["causes"][0]["evidence"].endswith(SILENT)
    sums_hold(world)


def test_a_loop_of_launches_that_die_at_their_imports_adds_up() -> None:
    """Ten seconds each, and ten in between in which nobody runs."""
    world = a_world(exclusive=True)
    for place in range(3):
        launch(world, 4321 + place)
        until(world, 20 * place + 10)
        end(world)
        world.tick()
        world.pass_time("run", 10 * NS_PER_S)
        world.restart()
        world.tick()
    assert seconds(world) == {"unknown": 30.0}
    assert world.node.ledger.spend("llama") == 30 * A_SECOND
    sums_hold(world)
    launch(world, 5000)
    until(world, 65)
    world.hear()
    steps(world, range(1, 11), began=66)
    end(world)
    told = seconds(world)
    assert sum(told.values()) == 45.0
    assert told["start_up"] == 35.0
    sums_hold(world)


def test_without_a_price_its_time_counts() -> None:
    world = a_world(exclusive=True, price_usd_micros_per_hour=None)
    launch(world)
    until(world, 9)
    end(world)
    assert seconds(world) == {"unknown": 9.0}


def test_while_it_is_silent_a_view_shows_what_it_has_cost_so_far() -> None:
    world = a_world(exclusive=True)
    launch(world)
    until(world, 9)
    shown = run_status(world.node.runs["llama"], MonoNs(world.mono))["time"]
    assert (shown["wall_s"], round(shown["usd"] * 1e6)) == (9.0, 9 * A_SECOND)
    world.hear()
    until(world, 10)
    shown = run_status(world.node.runs["llama"], MonoNs(world.mono))["time"]
    assert (shown["wall_s"], round(shown["usd"] * 1e6)) == (10.0, 10 * A_SECOND)


def test_a_halt_of_what_never_spoke_is_in_its_account() -> None:
    world = a_world(exclusive=True)
    launch(world)
    until(world, 9)
    world.play(OperatorHalt(MonoNs(world.mono), "llama", "by hand", 1000))
    until(world, 12)
    end(world)
    assert sum(one.ns for one in account_of(world).now(MonoNs(world.mono)).values()) >= 12 * NS_PER_S
    sums_hold(world)


def alike(before: dict[str, float], after: dict[str, float]) -> bool:
    """But for the tick in which the command's end is seen. The time in steps is no cause of lost time."""
    return before == pytest.approx({cause: s for cause, s in after.items() if cause != "productive"}, abs=0.3)


def shown(world: World) -> dict[str, float]:
    row = run_status(world.node.runs["llama"], MonoNs(world.mono))["time"]
    return {one["cause"]: round(one["s"], 2) for one in row["causes"] if one["s"] >= 0.01}


def goes_on(*, trained: bool = True, completed: bool | None = None) -> World:
    """Ten steps, an end of the ranks, and two minutes in which the command goes on. None: they say no bye."""
    world = a_world(exclusive=True)
    launch(world)
    until(world, 2)
    world.hear()
    if trained:
        steps(world, range(1, 11), began=3)
    until(world, 13)
    connection = a_step(1).connection
    assert connection is not None
    if completed is not None:
        world.play(Bye(MonoNs(world.mono), connection, "llama", 0, 9, completed=completed))
    world.play(Disconnected(MonoNs(world.mono), connection))
    end(world)
    until(world, world.mono / NS_PER_S + 120)
    return world


@pytest.mark.parametrize(
    ("trained", "completed", "cause"),
    [
        (True, None, "unknown"),  # Killed, or relaunched ranks that never say hello.
        (True, False, "shut_down"),
        (True, True, "shut_down"),
        (False, None, "start_up"),
    ],
)
def test_what_a_command_does_behind_its_ranks_is_told_alike_before_and_after_its_end(
    trained: bool, completed: bool | None, cause: str
) -> None:
    world = goes_on(trained=trained, completed=completed)
    before = shown(world)
    assert before[cause] >= 119
    end(world)
    assert alike(before, seconds(world))
    kept = {one["cause"]: one for one in restored(world)["causes"] if one["s"] >= 0.01}
    assert alike(before, {name: one["s"] for name, one in kept.items()})
    if cause == "unknown":
        assert (kept[cause]["confidence"], kept[cause]["next_step"] is not None) == ("low", True)
    sums_hold(world)


def test_a_halt_of_that_command_changes_nothing_of_it() -> None:
    world = goes_on()
    before = shown(world)
    world.play(OperatorHalt(MonoNs(world.mono), "llama", "by hand", 1000))
    assert alike(before, seconds(world))
    sums_hold(world)


def test_ranks_that_come_back_make_it_a_restart() -> None:
    world = goes_on()
    world.hear(attempt="a2", peer=peer(200))
    until(world, world.mono / NS_PER_S + 1)
    told = seconds(world)
    assert told["restart"] >= 119
    assert told.get("unknown", 0) < 1
    sums_hold(world)
