"""The time of a followed log whose training is launched again, by hand: no hello says that it begins anew."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ProcessId
from governor.core.base.units import MonoNs
from governor.core.events.inputs import TrainerExited
from governor.core.events.streams import StreamOpened
from tests.unit.core.attribution.test_account import account_of, seconds, sums_hold
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step
from tests.unit.core.money.test_waste import a_world, until

WRITERS = ProcessId(901, 1, "boot-1"), ProcessId(902, 2, "boot-1")


def opens(world: World, *processes: ProcessId) -> None:
    world.play(StreamOpened(MonoNs(world.mono), "log", 1000, None, {}, processes))


def lines(world: World, numbers: range, began: int) -> None:
    """The first one at `began`, each other one a second later."""
    for place, number in enumerate(numbers):
        until(world, began + place)
        world.play(a_step(number, run="log", at=MonoNs(world.mono), connection=None, loss=2.0, step_s=1.0))


@pytest.mark.parametrize(
    ("is_named", "restart", "lost"), [(True, 2.0, 9.0), (False, None, 8.0)], ids=["by its writer", "by its lines"]
)
def test_a_launch_that_begins_anew_has_lost_the_steps_that_it_does_again(
    is_named: bool, restart: float | None, lost: float
) -> None:
    """Steps 1 to 9, a pause of five seconds, steps 1 to 20 anew.

    Behind an end that was seen the node is nobody's, until a writer is named or a line comes: so of the first of these
    no time was held.
    """
    world = a_world()
    opens(world, *WRITERS[:is_named])
    lines(world, range(1, 10), began=5)
    world.play(TrainerExited(MonoNs(world.mono), "log", exit_code=None))
    until(world, 15)
    if is_named:
        opens(world, WRITERS[1])
    lines(world, range(1, 21), began=18)
    world.play(TrainerExited(MonoNs(world.mono), "log", exit_code=None))
    found = seconds(world, "log")
    assert found["lost_steps"] == lost
    assert found.get("restart") == restart
    assert found["productive"] == 9.0 + 11.0
    assert "shut_down" not in found
    sums_hold(world, "log")


def test_a_governor_that_comes_back_begins_no_launch() -> None:
    world = a_world()
    opens(world, WRITERS[0])
    lines(world, range(1, 10), began=5)
    world.restart()
    opens(world, WRITERS[0])
    lines(world, range(10, 20), began=14)
    assert {"lost_steps", "restart"}.isdisjoint(seconds(world, "log"))
    sums_hold(world, "log")


def test_a_log_that_is_followed_is_told_as_one_that_is_read_back() -> None:
    """Three seconds of start, four lines of 120 steps, six seconds each, and twelve seconds behind the last one."""
    world = a_world()
    opens(world, WRITERS[0])
    for place in range(1, 5):
        until(world, 3 + 6 * place)
        at = MonoNs(world.mono)
        world.play(a_step(120 * place, run="log", at=at, connection=None, loss=2.0, step_s=0.05))
    until(world, 39)
    world.play(TrainerExited(MonoNs(world.mono), "log", exit_code=None))
    assert seconds(world, "log") == {"start_up": 3.0, "productive": 24.0, "unknown": 12.0}
    sums_hold(world, "log")


def test_a_governor_that_comes_back_before_a_logs_first_line_has_the_start() -> None:
    world = a_world()
    opens(world, WRITERS[0])
    until(world, 5)
    world.restart()
    opens(world, WRITERS[0])
    for place in range(1, 5):
        until(world, 3 + 6 * place)
        world.play(a_step(120 * place, run="log", at=MonoNs(world.mono), connection=None, loss=2.0, step_s=0.05))
    world.play(TrainerExited(MonoNs(world.mono), "log", exit_code=None))
    assert seconds(world, "log") == {"start_up": 3.0, "productive": 24.0}
    sums_hold(world, "log")


def test_between_a_logs_first_two_lines_a_view_tells_nothing_of_them() -> None:
    world = a_world()
    opens(world, WRITERS[0])
    until(world, 9)
    world.play(a_step(120, run="log", at=MonoNs(world.mono), connection=None, loss=2.0, step_s=0.05))
    until(world, 10)
    shown = account_of(world, "log").now(MonoNs(world.mono))
    assert {cause.value: round(one.ns / 1e9, 1) for cause, one in shown.items()} == {"not_told_yet": 10.0}
