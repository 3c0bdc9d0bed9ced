"""Runs worked out by hand whose process trains twice, SFT and then DPO, and is relaunched: see cases."""

from __future__ import annotations

from governor.core.events.checkpoints import Origin
from tests.hand_table.cases import STEADY, STEP, Case, windows
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import peer
from tests.unit.core.money.test_waste import end, steps, until


def _crashed_in_the_second(world: World) -> None:
    """SFT: 2 s to the first step's end, 9 more steps. 1 s later DPO: the same to its step 6, and 2 s to the end.

    2 s later both again: SFT from step 8 on, 2 s to step 9's end, and 10. 1 s later DPO, from nothing, to its step 12.
    """
    _crashes(world)
    _training(world, "a2", range(9, 11), 23, 300)
    _training(world, "a2+1", range(1, 13), 27, 300)
    until(world, 42)
    end(world)


def _goes_on_in_the_second(world: World) -> None:
    """As above, but DPO goes on from its step 4. The launch has a governor of its own."""
    _crashes(world)
    until(world, 22)
    world.restart()
    world.tick()
    _training(world, "a2", range(9, 11), 23, 300)
    _training(world, "a2+1", range(5, 13), 27, 300)
    until(world, 38)
    end(world)


def _repeats_the_second(world: World) -> None:
    """As at first, but SFT is done: it attaches again, makes no step, and 1 s later DPO begins at nothing."""
    _crashes(world)
    _training(world, "a2", range(0), 23, 300)
    _training(world, "a2+1", range(1, 13), 25, 300)
    until(world, 40)
    end(world)


def _crashes(world: World) -> None:
    _training(world, "a1", range(1, 11), 0, 200)
    _training(world, "a1+1", range(1, 7), 12, 200)
    until(world, 21)
    end(world)


def _training(world: World, attempt: str, numbers: range, at: int, process: int) -> None:
    until(world, at)
    world.hear(attempt=attempt, peer=peer(process), origin=Origin())
    for own, number in enumerate(numbers, start=1):
        steps(world, range(number, number + 1), began=at + 1 + own, first=own)


# SFT has five windows, and DPO three: its first has the second between the two.
_CRASHED = (3_000, 2_000, 2_000, 2_000, 2_000, 4_000, 2_000, 2_000)
CASES = [
    Case(
        "two trainings of a process, and both again",
        _crashed_in_the_second,
        21_000 + 19_000,
        (10 + 6 + 2 + 12) * STEP,
        # The ninth has 2 s of the first launch, 4 s until DPO begins, 7 s to its step 6, and 2 s for two more.
        windows(*_CRASHED, 15_000, 2_000, 2_000, ms=(*_CRASHED, 17_000, 2_000, 2_000)),
        100_000,
        STEADY,
        (2 + 6) * STEP,
        # Trained twice: SFT's second step, and five of DPO's. The first of each is its start.
        {"start_up": 4 * 2_000, "after_last_step": 2 * (1_000 + 2_000), "trained_twice": 1_000 + 5_000},
        ms=40_000,
        others=10 * STEP,
    ),
    Case(
        "two trainings of a process, again, and on",
        _goes_on_in_the_second,
        21_000 + 15_000,
        (10 + 6 + 2 + 8) * STEP,
        windows(*_CRASHED, 11_000, 2_000, 2_000, ms=(*_CRASHED, 13_000, 2_000, 2_000)),
        100_000,
        STEADY,
        (2 + 2) * STEP,
        {"start_up": 4 * 2_000, "after_last_step": 2 * (1_000 + 2_000), "trained_twice": 1_000 + 1_000},
        ms=36_000,
        others=10 * STEP,
    ),
    Case(
        "two trainings of a process, and the second again behind the first, which is done",
        _repeats_the_second,
        21_000 + 17_000,
        (10 + 6 + 12) * STEP,
        # The ninth has 2 s of the first launch, 3 s until DPO begins, 7 s to its step 6, and 2 s for two more.
        windows(*_CRASHED, 13_000, 2_000, 2_000, ms=(*_CRASHED, 15_000, 2_000, 2_000)),
        100_000,
        STEADY,
        6 * STEP,
        # SFT attaches and makes no step: what it takes is DPO's start. DPO's first step is in that, too.
        {"start_up": 2 * 2_000 + 4_000, "after_last_step": 1_000 + 2 * 2_000, "trained_twice": 5_000},
        ms=38_000,
        others=10 * STEP,
    ),
]
