"""An attempt whose end no governor saw: what the next launch costs until its first step is that launch's start."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ConnectionId, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import CommandLaunched, Disconnected, TrainerExited
from governor.core.money.waste import SpentOn
from tests.unit.core.engine.test_command_logs import AGAIN, log
from tests.unit.core.engine.test_launched_command import STREAMED, launched
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, hello, peer
from tests.unit.core.money.test_waste import until

NEXT = ProcessId(4400, 9, "boot-1")  # The second launch's trainer.


def _speak(world: World, process: ProcessId, *, has_ranks: bool) -> None:
    if has_ranks:
        world.hear(run="job", attempt=f"a{process.pid}", peer=peer(process.pid))
    else:
        log(world.node, world.mono // NS_PER_S, process, run="job", of_command=False)


def _steps(world: World, numbers: range, ends: int, *, has_ranks: bool) -> None:
    for place, number in enumerate(numbers):
        until(world, ends + place)
        link = ConnectionId(1) if has_ranks else None
        step = number if not has_ranks else place + 1
        world.play(a_step(number, when=ends + place, run="job", connection=link, attempt_step=step))


def _relaunched(*, has_ranks: bool, after_s: int, same: bool = False) -> World:
    """$1 a second. It trains from 6 to 11 s. At 12 s governor and trainer are killed; the next command comes later."""
    world = World(launched(ceiling=None))
    _speak(world, STREAMED, has_ranks=has_ranks)
    _steps(world, range(1, 7), 6, has_ranks=has_ranks)
    until(world, 12)
    world.node.request_persist()
    world.tick()  # The journal has all of it.
    world.pass_time("run", after_s * NS_PER_S)
    world.restart()
    process = world.node.previous_command.processes[0] if same and world.node.previous_command else AGAIN
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (process,)))
    world.tick()
    return world


def _next_trains(world: World, has_ranks: bool) -> dict[str, int]:
    """The next launch speaks now, and ends its steps from 25 s on. Returns what both have spent, in dollars."""
    _speak(world, NEXT, has_ranks=has_ranks)
    _steps(world, range(7, 10), 25, has_ranks=has_ranks)
    split = world.node.runs["job"].history.split
    return {cause.value: usd // 1_000_000 for cause, usd in split.by_cause().items()}


@pytest.mark.parametrize("has_ranks", [True, False])
def test_the_next_launch_pays_for_its_own_start(has_ranks: bool) -> None:
    """It is launched at 15 s, speaks at 20 s, and ends its first step at 25 s.

    So the starts are 6 and 10 s, and 5 and 2 s are training.
    """
    world = _relaunched(has_ranks=has_ranks, after_s=3)
    until(world, 20)
    assert _next_trains(world, has_ranks) == {"start_up": 16, "training": 7, "after_last_step": 1, "untold": 3}


@pytest.mark.parametrize("has_ranks", [True, False])
def test_also_where_that_launch_ends_the_same_way_before_it_spoke(has_ranks: bool) -> None:
    world = _relaunched(has_ranks=has_ranks, after_s=3)
    until(world, 20)
    world.node.request_persist()
    world.tick()
    world.restart()
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (NEXT,)))
    world.tick()
    until(world, 22)
    assert _next_trains(world, has_ranks) == {"start_up": 16, "training": 7, "after_last_step": 1, "untold": 3}


def test_a_trainer_that_outlives_its_governor_goes_on_where_it_was() -> None:
    world = _relaunched(has_ranks=False, after_s=3, same=True)
    _speak(world, STREAMED, has_ranks=False)
    _steps(world, range(7, 10), 16, has_ranks=False)
    by_cause = world.node.runs["job"].history.split.by_cause()
    assert by_cause == {SpentOn.START_UP: 6_000_000, SpentOn.TRAINING: 12_000_000}


def test_what_passes_between_two_trainings_of_one_launch_is_the_seconds_start() -> None:
    """The first ends at 12 s. The command goes on, and trains again from 20 s; a process of it began at 18 s."""
    world = World(launched(ceiling=None))
    _speak(world, STREAMED, has_ranks=True)
    _steps(world, range(1, 7), 6, has_ranks=True)
    until(world, 12)
    world.play(Disconnected(MonoNs(world.mono), ConnectionId(1)))
    world.play(TrainerExited(MonoNs(world.mono), "job", 0))
    until(world, 20)
    began = MonoNs(18 * NS_PER_S)
    world.play(hello(0, 20, run="job", attempt="again", peer=peer(NEXT.pid), world_size=1, started_at=began))
    _steps(world, range(7, 10), 25, has_ranks=True)
    split = world.node.runs["job"].history.split
    by_cause = {cause.value: usd // 1_000_000 for cause, usd in split.by_cause().items()}
    assert by_cause == {"start_up": 6 + 13, "training": 5 + 2, "after_last_step": 1}
