"""Runs worked out by hand whose price, share or payer changes, and those that are still under way: see cases."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from governor.core.base.identity import ConnectionId
from governor.core.base.units import BootNs, MonoNs, UsdMicros, WallNs
from governor.core.events.checkpoints import CheckpointWeighed, NamedCheckpoint, SavedCheckpoint
from governor.core.events.effects import WeighCheckpoint
from governor.core.events.inputs import Ack, LaunchersSeen, PhaseChange
from governor.core.events.machine import PriceRead
from governor.core.events.operators import OperatorHalt
from governor.core.money.charges import Line, LineKind, Unit
from governor.core.money.lines import Lines, Metered
from tests.hand_table import cases, count_cases, payer_cases, stage_cases, training_cases
from tests.hand_table.cases import MILLION, STEADY, STEP, Case, Play, plain_run, windows
from tests.unit.core.engine.test_launched_command import COMMAND
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import hello, only, peer
from tests.unit.core.engine.test_strangers_bill import of_sandbox
from tests.unit.core.money.test_waste import end, steps, until

# 720 GB at $0.73 a GB-month of 730 hours: 200 micro-dollars a second.
DISK = Metered(Line(LineKind.STORAGE, "vol-1", Unit.GB_MONTH, UsdMicros(730_000), "list", "2026-11"), 720)
UPLOAD = Line(LineKind.EGRESS, "to the archive", Unit.GB, UsdMicros(3_000), "list", "2026-11")


def _read_price(world: World, usd_micros: int, since: float | None = None) -> None:
    now, boot, wall = MonoNs(world.mono), BootNs(world.boot), WallNs(world.boot + world.wall_offset)
    then = WallNs(round(since * 1e9) + world.wall_offset) if since is not None else None
    world.play(PriceRead(now, boot, wall, UsdMicros(usd_micros), "x", "2026-11-01", then))


def _launched_dearer(world: World) -> None:
    """12 s of a plain run; the price doubles at 15 s; at 17 s a launch: 3 s to its first step's end, steps 6 to 12."""
    plain_run(world)
    until(world, 15)
    _read_price(world, 7_200_000)
    until(world, 17)
    world.hear(attempt="a2", peer=peer(200))
    until(world, 17.25)
    steps(world, range(6, 13), began=20)


def _relaunched(last_step: int) -> Play:
    """12 s of a plain run; 5 s later another launch: 3 s to its first step's end, and from 6 to this one."""

    def play(world: World) -> None:
        plain_run(world)
        until(world, 17)
        world.hear(attempt="a2", peer=peer(200))
        until(world, 17.25)
        steps(world, range(6, last_step + 1), began=20)

    return play


def _twice_as_dear(world: World) -> None:
    _launched_dearer(world)
    until(world, 27)
    end(world)


def _dearer_and_halted(world: World) -> None:
    """Half a second after its last step a person halts it, and 3 s later its processes are not gone."""
    _launched_dearer(world)
    until(world, 26.5)
    world.play(OperatorHalt(MonoNs(world.mono), "llama", uid=0, reason="enough"))
    until(world, 29.5)


def _taken_back(world: World) -> None:
    """A sandbox of the command speaks at 1 s and trains two steps. At 4 s its own run does, and pays for all."""
    until(world, 1)
    world.play(of_sandbox(1))
    for second in (2, 3):
        said: dict[str, Any] = {
            "run": "box",
            "connection": of_sandbox(1).connection,
            "tokens": 1_000,
            "tokens_total": 1_000 * second,
        }
        steps(world, range(second, second + 1), began=second, first=second, **said)
    until(world, 4)
    world.hear()
    world.play(LaunchersSeen(MonoNs(world.mono), "llama", (COMMAND,)))
    steps(world, range(1, 10), began=6)
    until(world, 16)
    end(world)


def _crashed_first(world: World) -> None:
    """A launch that ends after 5 s, before its first step. The next begins at 8 s: 2 s to its first step's end."""
    world.hear(attempt="a0", peer=peer(300))
    until(world, 5)
    end(world)
    until(world, 8)
    world.hear()
    until(world, 8.25)
    steps(world, range(1, 10), began=10)
    until(world, 20)
    end(world)


def _billed_by_lines(world: World) -> None:
    """A disk beside the machine; 2 GB of a checkpoint are uploaded 0.25 s after the fifth step."""
    world.hear()
    steps(world, range(1, 6), began=2)
    until(world, 6.25)
    said = SavedCheckpoint(path="/nowhere", manifest="m", kind="good", bytes=2 * 10**9)
    ack = Ack(MonoNs(world.mono), ConnectionId(1), "llama", 0, 2, "none", "saved", step=5, checkpoint=said)
    asked = only(world.play(ack), WeighCheckpoint)
    world.play(CheckpointWeighed(MonoNs(world.mono), "llama", asked.name, 2 * 10**9, ""))
    steps(world, range(6, 10), began=7, first=6)
    until(world, 12)
    end(world)


def _cheaper(world: World) -> None:
    """At 5.5 s somebody reads that the price has been half of it since 5 s."""
    world.hear()
    steps(world, range(1, 5), began=2)
    until(world, 5.5)
    _read_price(world, 1_800_000, since=5)
    steps(world, range(5, 10), began=6, first=5)
    until(world, 12)
    end(world)


def _beside_a_larger_one(world: World) -> None:
    """From 4 to 8 s another run holds three ranks beside its one."""
    world.hear()
    steps(world, range(1, 4), began=2)
    for rank in range(3):
        said: dict[str, Any] = {"peer": peer(300 + rank), "connection": ConnectionId(7 + rank), "world_size": 3}
        world.play(hello(rank, 4, run="other", **said))
    steps(world, range(4, 8), began=5, first=4)
    end(world, "other")
    steps(world, range(8, 10), began=9, first=8)
    until(world, 12)
    end(world)


def _saved(*at_steps: int) -> Play:
    """Nine steps, the last at 10 s, and these are saved as they end."""

    def play(world: World) -> None:
        world.hear()
        world.play(PhaseChange(MonoNs(0), ConnectionId(1), "llama", 0, "train"))
        for number in range(1, 10):
            steps(world, range(number, number + 1), began=number + 1, first=number)
            if number in at_steps:
                world.node.runs["llama"].run.name_last_good(NamedCheckpoint(number, None), MonoNs(world.mono))

    return play


def _left(seconds: int) -> dict[str, int]:
    """While it trains a step a second, at 1,000 micro-dollars each."""
    hours = round(Fraction(seconds * MILLION, 3_600))
    return {"hours left": hours, "cost left": seconds * 1_000}


# Nine steps in 10 s, of a ceiling that lasts for 1,000 s.
_LEFT = _left(291) | {"tokens/s now": 10_000 * MILLION}
# SIGTERM and SIGKILL have 10 s each, and a halt's four ticks are 1 s. A save may take 60 s, and as long as it is ago.
_ENDING = 21


def _held(name: str, play: Play, ahead: dict[str, int]) -> Case:
    """A plain run that still trains at 10 s, and how its ceiling is met."""
    return Case(
        name,
        play,
        10_000,
        9 * STEP,
        windows(3_000, 2_000, 2_000, 2_000),
        100_000,
        STEADY,
        0,
        {"start_up": 2_000},
        ms=10_000,
        lands=10_000 + 291_000,
        is_held=True,
        ahead=_LEFT | ahead,
    )


MORE = [
    Case(
        "another launch at twice the price",
        _twice_as_dear,
        12_000 + 20_000,
        16 * STEP,
        # The fifth has 3 s of the first launch, and 7 s of the second.
        windows(3_000, 2_000, 2_000, 2_000, 3_000 + 14_000, 4_000, ms=(3_000, 2_000, 2_000, 2_000, 15_000, 2_000)),
        200_000,
        STEADY,  # Of 100,000 three times and 200,000: the fifth has a start.
        4 * STEP,
        {"start_up": 2_000 + 6_000, "after_last_step": 2_000 + 2_000, "trained_twice": 6_000},
        ms=22_000,
        steady_stage=STEADY,
        lands=32_000 + 288 * 2_000,
    ),
    Case(
        "a halt of another launch at twice the price",
        _dearer_and_halted,
        12_000 + 25_000,
        16 * STEP,
        windows(3_000, 2_000, 2_000, 2_000, 3_000 + 14_000, 4_000, ms=(3_000, 2_000, 2_000, 2_000, 15_000, 2_000)),
        200_000,
        STEADY,
        4 * STEP,
        {"start_up": 2_000 + 6_000, "after_last_step": 2_000, "halt": 6_000, "trained_twice": 6_000},
        ms=24_500,
        lands=37_000 + 288 * 2_000,
    ),
    Case(
        "another launch, while it trains again what was lost",
        _relaunched(8),
        12_000 + 5_000,
        12 * STEP,
        windows(3_000, 2_000, 2_000, 2_000),
        100_000,
        STEADY,
        3 * STEP,
        {"start_up": 2_000 + 3_000, "after_last_step": 2_000, "trained_twice": 2_000},
        ms=17_000,
        lands=17_000 + 292_000,  # From step 8 on.
        ahead=_left(292),
    ),
    Case(
        "another launch, while it trains",
        _relaunched(12),
        12_000 + 9_000,
        16 * STEP,
        windows(3_000, 2_000, 2_000, 2_000, 10_000, 2_000, ms=(3_000, 2_000, 2_000, 2_000, 15_000, 2_000)),
        100_000,
        STEADY,
        4 * STEP,
        {"start_up": 2_000 + 3_000, "after_last_step": 2_000, "trained_twice": 3_000},
        ms=21_000,
        lands=21_000 + 288_000,
        ahead=_left(288),
    ),
    Case(
        "taken back from a sandbox",
        _taken_back,
        16_000,
        9 * STEP,
        windows(7_000, 2_000, 2_000, 2_000, ms=(7_000, 2_000, 2_000, 2_000)),
        100_000,
        STEADY,
        0,
        {"start_up": 6_000, "after_last_step": 2_000},
        ms=16_000,
        lands=16_000 + 291_000,
        is_launched=True,
    ),
    Case(
        "spend before the first token",
        _crashed_first,
        5_000 + 12_000,
        9 * STEP,
        windows(8_000, 2_000, 2_000, 2_000, ms=(11_000, 2_000, 2_000, 2_000)),
        100_000,
        STEADY,
        0,
        {"start_up": 5_000 + 2_000, "after_last_step": 2_000},
        ms=17_000,
        lands=17_000 + 291_000,
    ),
    Case(
        "a disk and an upload",
        _billed_by_lines,
        12 * 1_200 + 6_000,
        9 * STEP,
        windows(3_600, 2_400, 2_400 + 6_000, 2_400),
        120_000,
        Fraction(120_000),
        0,
        {"start_up": 2_400, "after_last_step": 2_400},
        lines=Lines((DISK,), (), (UPLOAD,)),
        lands=20_400 + 291 * 1_200,
    ),
    Case(
        "a credit: a price that has fallen",
        _cheaper,
        5_000 + 7 * 500,
        9 * STEP,
        # Half a second was charged 250 too much. As long as it takes to work that off, time costs nothing.
        windows(3_000, 2_000, 1_000, 1_000),
        50_000,
        Fraction(50_000),
        0,
        {"start_up": 2_000, "after_last_step": 1_000},
        lands=8_500 + 291 * 500,
    ),
    Case(
        "beside a larger run for a while",
        _beside_a_larger_one,
        4_000 + 1_000 + 4_000,
        9 * STEP,
        # Of the second and fourth, one second of two has the whole price.
        windows(3_000, 1_250, 500, 1_250),
        62_500,
        Fraction(62_500),
        0,
        {"start_up": 2_000, "after_last_step": 2_000},
        ms=4_000 + 1_000 + 4_000,
        lands=9_000 + 291 * 625,  # As the last window was charged.
    ),
    _held(
        "its ceiling, before the second save",
        _saved(5),
        # The save at 6 s is 4 s ago. Without another one its reserve has grown to 60 s when the ceiling is met.
        {
            "reserve": 1_000 * (4 + _ENDING),
            "ceiling in": MILLION * (1_000 - 10 - 60 - _ENDING),
            "ceiling early": MILLION * (1_000 - 10 - 60 - _ENDING),
            "ceiling late": MILLION * (1_000 - 10 - 1 - _ENDING),  # A save has come just before.
        },
    ),
    _held(
        "its ceiling, after the second save",
        _saved(3, 7),
        # It saves every 4 s, at 4 and 8 s. When the ceiling is met, a save is 2 to 4 s ago: 80 % lie in 2.2 to 3.8 s.
        {
            "reserve": 1_000 * (2 + _ENDING),
            "ceiling in": MILLION * (1_000 - 10 - 3 - _ENDING),
            "ceiling early": round(MILLION * (1_000 - 10 - 3.8 - _ENDING)),
            "ceiling late": round(MILLION * (1_000 - 10 - 2.2 - _ENDING)),
        },
    ),
]
CASES = [*cases.CASES, *MORE, *count_cases.CASES, *payer_cases.PAYERS, *stage_cases.CASES, *training_cases.CASES]
