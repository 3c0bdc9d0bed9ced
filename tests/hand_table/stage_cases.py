"""Runs worked out by hand that go on in another stage: see cases."""

from __future__ import annotations

from tests.hand_table.cases import STEADY, STEP, Case, Stage, Window, windows
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import peer
from tests.unit.core.money.test_waste import end, steps, until


def _again_alone(world: World) -> None:
    """Stage p1 as a plain run. 5 s later stage p2: 3 s to its first step's end, from 6 to 8, and 2 s to the end.

    5 s later stage p3: 3 s to its first step's end, from 6 to 13, and 2 s to the end.
    """
    _first_stage(world)
    _launch(world, "p2", 17, range(6, 9))
    _launch(world, "p3", 29, range(6, 14))


def _never_stepped(world: World) -> None:
    """Stage p1 as a plain run. 5 s later stage p2: it ends 7 s later, before its first step. Stage p3 as above."""
    _first_stage(world)
    _launch(world, "p2", 17, range(0))
    until(world, 24)
    end(world)
    _launch(world, "p3", 29, range(6, 14))


def _first_stage(world: World) -> None:
    world.hear(stage="p1")
    steps(world, range(1, 10), began=2)
    until(world, 12)
    end(world)


def _launch(world: World, stage: str, at: int, numbers: range) -> None:
    until(world, at)
    world.hear(attempt=stage, peer=peer(100 + at), stage=stage)
    until(world, at + 0.25)
    if numbers:
        steps(world, numbers, began=at + 3)
        until(world, at + 4 + len(numbers))
        end(world)


# The last step of a stage ends a window, so the first stage has a half one.
_FIRST = (*windows(3_000, 2_000, 2_000, 2_000), Window(STEP, 1_000, 1_000))
_P1 = Stage("p1", 9 * STEP, 0, 12_000, 2_000 + 2_000)
_P3 = Stage("p3", 4 * STEP, 4 * STEP, 12_000, 3_000 + 3_000 + 2_000)
CASES = [
    Case(
        "a stage that has only trained again",
        _again_alone,
        12_000 + 7_000 + 12_000,
        (9 + 3 + 8) * STEP,
        # p2's has 2 s of p1, and 5 s of its own. p3's first has 2 s of p2, and 8 s of its own to its sixth step.
        (*_FIRST, Window(0, 7_000, 12_000), *windows(10_000, 2_000, ms=(15_000, 2_000))),
        100_000,
        STEADY,
        (3 + 4) * STEP,
        {"start_up": 2_000 + 3_000 + 3_000, "after_last_step": 3 * 2_000, "trained_twice": 2_000 + 3_000},
        ms=31_000,
        stages=(_P1, Stage("p2", 0, 3 * STEP, 7_000, 7_000), _P3),
    ),
    Case(
        "a stage that has never stepped",
        _never_stepped,
        12_000 + 7_000 + 12_000,
        (9 + 8) * STEP,
        # p2 has no tokens, so it has no window: p3's first has 2 s of p1, 7 s of p2, and 8 s of its own.
        (*_FIRST, *windows(17_000, 2_000, ms=(27_000, 2_000))),
        100_000,
        STEADY,
        4 * STEP,
        {"start_up": 2_000 + 7_000 + 3_000, "after_last_step": 2 * 2_000, "trained_twice": 3_000},
        ms=31_000,
        stages=(_P1, Stage("p2", 0, 0, 7_000, 7_000), _P3),
    ),
]
