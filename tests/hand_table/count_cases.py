"""Runs worked out by hand whose launches or counts go on from totals that were not trained here: see cases."""

from __future__ import annotations

from governor.core.events.checkpoints import Origin
from tests.hand_table.cases import STEADY, STEP, Case, Window, plain_run, windows
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import peer
from tests.unit.core.money.test_waste import end, steps, until


def _jumped(world: World) -> None:
    """As a plain run, but from its sixth step on its totals are ten trillion higher."""
    world.hear()
    steps(world, range(1, 6), began=2)
    for number in range(6, 10):
        steps(world, range(number, number + 1), began=number + 1, first=number, tokens_total=number * STEP + 10**13)
    until(world, 12)
    end(world)


def _jumped_and_back(world: World) -> None:
    """As above, and its last three are right again."""
    world.hear()
    steps(world, range(1, 4), began=2)
    for number in range(4, 7):
        steps(world, range(number, number + 1), began=number + 1, first=number, tokens_total=number * STEP + 10**13)
    steps(world, range(7, 10), began=8, first=7)
    until(world, 12)
    end(world)


def _jumped_and_again(world: World) -> None:
    """2 s after that launch one from its step 7: 2 s to step 8's end, to step 13, 2 s to the end."""
    _jumped(world)
    until(world, 14)
    world.hear(attempt="a2", peer=peer(200))
    for own, number in enumerate(range(8, 14), start=1):
        steps(world, range(number, number + 1), 15 + own, first=own, tokens_total=number * STEP + 10**13)
    until(world, 23)
    end(world)


def _far_ahead(world: World) -> None:
    """5 steps, 2 s to the end; 2 s later a launch from another run's checkpoint: 2 s to step 5,001's end, to 5,007."""
    world.hear()
    steps(world, range(1, 6), began=2)
    until(world, 8)
    end(world)
    until(world, 10)
    world.hear(attempt="a2", peer=peer(200))
    _trains(world, range(5_001, 5_008), began=12)
    until(world, 20)
    end(world)


def _far_ahead_and_back(world: World) -> None:
    """2 s after that a launch from its own step 5: 2 s to step 6's end, and to step 15."""
    _far_ahead(world)
    until(world, 22)
    world.hear(attempt="a3", peer=peer(300))
    _trains(world, range(6, 16), began=24)
    until(world, 36)
    end(world)


def _far_ahead_back_and_ahead(world: World) -> None:
    """2 s after that one from the other's step 5,005: it trains 5,006 and 5,007 again, and 5,008 and 5,009."""
    _far_ahead_and_back(world)
    until(world, 38)
    world.restart()
    world.tick()
    world.hear(attempt="a4", peer=peer(400))
    _trains(world, range(5_006, 5_010), began=40)
    until(world, 45)
    end(world)


def _governed_anew(world: World, *launches: tuple[range, Origin | None]) -> None:
    """5 steps, 2 s to the end. 2 s later each next launch, as _far_ahead_and_back. Each has a governor of its own."""
    own = None if launches[0][1] is None else Origin()
    world.hear(origin=own)
    steps(world, range(1, 6), began=2)
    for number, (numbers, origin) in enumerate(launches, 2):
        until(world, 8 if number == 2 else 20)
        end(world)
        until(world, 10 if number == 2 else 22)
        world.restart()
        world.tick()
        world.hear(attempt=f"a{number}", peer=peer(100 * number), origin=own)
        world.hear(attempt=f"a{number}", peer=peer(100 * number), origin=origin)
        _trains(world, numbers, began=12 if number == 2 else 24)
    until(world, 20 if len(launches) == 1 else 36)
    end(world)


def _far_ahead_unheard(world: World) -> None:
    """As _far_ahead_and_back, with a governor for each launch: nobody knows whose the checkpoints are."""
    _governed_anew(world, (range(5_001, 5_008), None), (range(6, 16), None))


def _another_runs(world: World) -> None:
    """The same from step 80 of another run: its manifest says so."""
    _governed_anew(world, (range(81, 88), Origin("base", 80, 80 * STEP)), (range(6, 16), Origin()))


def _begun_with_another_runs(world: World) -> None:
    """From another run's step 80 on: 2 s to step 81's end, a step a second to step 89, 2 s to the end."""
    world.hear(origin=Origin())
    world.hear(origin=Origin("base", 80, 80 * STEP))
    _trains(world, range(81, 90), began=2)
    until(world, 12)
    end(world)


def _trained_elsewhere(world: World) -> None:
    """5 steps; the run goes on elsewhere to step 205, and here from there on, to step 212."""
    _governed_anew(world, (range(206, 213), Origin()))


def _ends_behind(world: World) -> None:
    """A plain run; 5 s later another launch: 3 s to its first step's end, steps 6 and 7 again, and 2 s to the end."""
    plain_run(world)
    until(world, 17)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 17.25)
    steps(world, range(6, 8), began=20)
    until(world, 23)
    end(world)


def _trains(world: World, numbers: range, began: int) -> None:
    """A step a second. The launch counts its own from one."""
    for index, number in enumerate(numbers):
        steps(world, range(number, number + 1), began + index, first=index + 1, tokens_total=number * STEP)


CASES = [
    Case(
        "a launch that ends behind what was trained",
        _ends_behind,
        12_000 + 6_000,
        11 * STEP,
        windows(3_000, 2_000, 2_000, 2_000),
        100_000,
        STEADY,
        2 * STEP,
        {"start_up": 2_000 + 3_000, "after_last_step": 2_000 + 2_000, "trained_twice": 1_000},
        ms=18_000,
    ),
    Case(
        "a count that jumps",
        _jumped,
        12_000,
        9 * STEP,
        # The sixth step alone shows nothing: it counts with the next.
        (*windows(3_000, 2_000, ms=(3_000, 2_000)), Window(3 * STEP, 3_000, 3_000), Window(2 * STEP, 2_000, 2_000)),
        100_000,
        STEADY,
        0,
        {"start_up": 2_000, "after_last_step": 2_000},
        lands=12_000 + 291_000,
    ),
    Case(
        "a count that jumps and comes back",
        _jumped_and_back,
        12_000,
        9 * STEP,
        # So do the fourth, and the seventh.
        (Window(2 * STEP, 3_000, 3_000), Window(3 * STEP, 3_000, 3_000), Window(3 * STEP, 3_000, 3_000)),
        100_000,
        STEADY,
        0,
        {"start_up": 2_000, "after_last_step": 2_000},
    ),
    Case(
        "a count that jumps, and a launch from two steps back",
        _jumped_and_again,
        12_000 + 9_000,
        15 * STEP,
        # The fifth has 2 s of the first launch, and 5 s of the second to its fourth step: two of these were had.
        (
            *windows(3_000, 2_000, ms=(3_000, 2_000)),
            *(Window(3 * STEP, 3_000, 3_000), Window(2 * STEP, 2_000, 2_000)),
            *windows(7_000, 2_000, ms=(9_000, 2_000)),
        ),
        100_000,
        STEADY,
        2 * STEP,
        {"start_up": 4_000, "after_last_step": 4_000, "trained_twice": 1_000},
        ms=21_000,
    ),
    Case(
        "a launch far ahead",
        _far_ahead,
        8_000 + 10_000,
        12 * STEP,
        # The third has 3 s of the first launch, and 2 s of the second, which began 2 s later.
        windows(3_000, 2_000, 5_000, 2_000, 2_000, 2_000, ms=(3_000, 2_000, 7_000, 2_000, 2_000, 2_000)),
        100_000,
        STEADY,
        0,
        {"start_up": 4_000, "after_last_step": 4_000},
        ms=18_000,
        lands=18_000 + 288_000,  # A step a second is left. No start comes again.
    ),
    *(
        Case(
            name,
            play,
            18_000 + 14_000,
            22 * STEP,
            windows(
                *(3_000, 2_000, 5_000, 2_000, 2_000, 2_000, 5_000, 2_000, 2_000, 2_000, 2_000),
                ms=(3_000, 2_000, 7_000, 2_000, 2_000, 2_000, 7_000, 2_000, 2_000, 2_000, 2_000),
            ),
            100_000,
            STEADY,
            0,
            {"start_up": 6_000, "after_last_step": 4_000 + 3_000},
            ms=32_000,
            lands=32_000 + 278_000,
        )
        for name, play in [
            ("a launch far ahead, and one that goes back", _far_ahead_and_back),
            ("a launch far ahead, and one that goes back, with a governor each", _far_ahead_unheard),
            ("a launch from another run's checkpoint, and one that goes back, with a governor each", _another_runs),
        ]
    ),
    Case(
        "a run that begins with another run's checkpoint",
        _begun_with_another_runs,
        12_000,
        9 * STEP,
        windows(3_000, 2_000, 2_000, 2_000),
        100_000,
        STEADY,
        0,
        {"start_up": 2_000, "after_last_step": 2_000},
        lands=12_000 + 291_000,
    ),
    Case(
        "a run that was trained elsewhere for a while",
        _trained_elsewhere,
        8_000 + 10_000,
        12 * STEP,
        windows(3_000, 2_000, 5_000, 2_000, 2_000, 2_000, ms=(3_000, 2_000, 7_000, 2_000, 2_000, 2_000)),
        100_000,
        STEADY,
        0,
        {"start_up": 4_000, "after_last_step": 4_000},
        ms=18_000,
        lands=18_000 + 88_000,  # Its goal counts what was trained elsewhere.
        unpaid=200 * STEP,
    ),
    Case(
        "a launch far ahead, one that goes back, and one that goes ahead again",
        _far_ahead_back_and_ahead,
        32_000 + 7_000,
        26 * STEP,
        # The last has 3 s of the third launch. The fourth takes 4 s to its second step, both again, and 2 s for two.
        windows(
            *(3_000, 2_000, 5_000, 2_000, 2_000, 2_000, 5_000, 2_000, 2_000, 2_000, 2_000, 8_000),
            ms=(3_000, 2_000, 7_000, 2_000, 2_000, 2_000, 7_000, 2_000, 2_000, 2_000, 2_000, 10_000),
        ),
        400_000,
        STEADY,
        2 * STEP,
        {"start_up": 8_000, "after_last_step": 7_000 + 2_000, "trained_twice": 1_000},
        ms=39_000,
    ),
]
