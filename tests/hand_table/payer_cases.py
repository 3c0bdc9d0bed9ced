"""Runs of a launched command worked out by hand, whose time another name has waited for or paid: see cases."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, MonoNs, WallNs
from governor.core.engine.node_journal import persist
from governor.core.events.inputs import CommandLaunched, Disconnected, LaunchersSeen, TrainerExited
from governor.core.events.streams import StreamOpened
from tests.hand_table.cases import MILLION, STEADY, STEP, Case, Play, learn_price, windows
from tests.unit.core.engine.test_launched_command import COMMAND
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, hello, peer
from tests.unit.core.engine.test_strangers_bill import of_sandbox
from tests.unit.core.money.test_waste import end, steps, until


def _open_log(world: World, run: str = "llama") -> None:
    """A log without a pidfile, as `[[jsonl]]` of a file that is not there yet. It has another name than its command."""
    world.play(StreamOpened(MonoNs(world.mono), run, 1000, of_command=True))


def _write(
    world: World, number: int, ends: float, run: str = "llama", *, read: float = 0.125, slept: int = 0
) -> None:  # fmt: skip
    """A line of a step, with its time. It is read an eighth of a second later, between two ticks.

    `slept`: so many seconds had the machine been suspended when it was written.
    """
    until(world, ends)
    mono = world.mono
    world.mono = round((ends + read) * NS_PER_S)
    written = WallNs(round((ends + slept) * NS_PER_S) + world.wall_offset)
    line = a_step(number, when=ends + read, run=run, connection=None, written=written, attempt_step=None)
    line.tokens, line.tokens_total = STEP, number * STEP
    world.play(line)
    world.mono = mono  # Ticks go on as before.


def _dated_log(world: World) -> None:
    """2 s to the first step's end, 8 more steps of a second, 2 s to the end."""
    _open_log(world)
    for number in range(1, 10):
        _write(world, number, number + 1)
    until(world, 12)
    end(world)


def _suspended(run: str) -> Play:
    """The machine is suspended for 100 s at 4 s. The lines of the first seven steps are read at 8.1 s."""

    def play(world: World) -> None:
        _open_log(world, run)
        until(world, 4)
        world.pass_time("suspend", 100 * NS_PER_S)
        world.tick()
        until(world, 8)
        for number in range(1, 8):
            ends = number + 1
            _write(world, number, ends, run, read=8.1 - ends, slept=100 if ends > 4 else 0)
        until(world, 12)
        end(world, run)

    return play


def _price_before_its_first_lines(hourly: int, at: float) -> Play:
    """The same steps. A price is read at some moment, and the lines of the first seven steps only at 8.3 s."""

    def play(world: World) -> None:
        _open_log(world)
        until(world, at)
        learn_price(world, None, hourly)
        until(world, 8.25)
        for number in range(1, 8):
            _write(world, number, number + 1, read=8.3 - (number + 1))
        for number in range(8, 10):
            _write(world, number, number + 1)
        until(world, 12)
        end(world)

    return play


def _behind_another_log(world: World) -> None:
    """Two logs of one command. The other one pays until it ends at 8 s; this one has trained six steps by then."""
    _open_log(world, "first")
    _open_log(world)
    _write(world, 1, 1, "first")
    for number in range(1, 7):
        _write(world, number, number + 1)
    until(world, 8)
    end(world, "first")
    for number in range(7, 16):
        _write(world, number, number + 2)
    until(world, 19)
    end(world)


def _read_with_its_buffer(known: int) -> Play:
    """As above. This one keeps its lines in its buffer, but for so many: they are read behind the other one's end."""

    def play(world: World) -> None:
        _open_log(world, "first")
        _open_log(world)
        _write(world, 1, 1, "first")
        for number in range(1, known + 1):
            _write(world, number, number + 1)
        until(world, 8)
        end(world, "first")
        until(world, 8.25)
        for number in range(known + 1, 7):
            _write(world, number, number + 1, read=8.3 - (number + 1))
        for number in range(7, 16):
            _write(world, number, number + 2)
        until(world, 19)
        end(world)

    return play


def _before_the_others_first_line(world: World) -> None:
    """As above. The other one pays for all before its first line, read at 6.1 s. This one's first six: at 7.2 s."""
    _open_log(world, "first")
    _open_log(world)
    _write(world, 1, 6, "first")
    until(world, 7)
    for number in range(1, 7):
        _write(world, number, number + 1, read=7.2 - (number + 1))
    until(world, 8)
    end(world, "first")
    for number in range(7, 16):
        _write(world, number, number + 2)
    until(world, 19)
    end(world)


def _over_restarts(world: World) -> None:
    """As above. The governor is killed and comes back at 5.5 s, while the other log pays, and at 13.5 s."""
    _open_log(world, "first")
    _open_log(world)
    _write(world, 1, 1, "first")
    for number in range(1, 16):
        if number in (5, 12):
            until(world, number + (1 if number == 5 else 2) - 0.5)
            _come_back(world, ("first", "llama") if number == 5 else ("llama",))
        if number == 7:
            until(world, 8)
            end(world, "first")
        _write(world, number, number + (1 if number < 7 else 2))
    until(world, 19)
    end(world)


def _come_back(world: World, logs: tuple[str, ...]) -> None:
    world.take([persist(world.node, MonoNs(world.mono), *world.node.runs.values())])
    world.restart()
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (COMMAND,)))
    for log in logs:
        _open_log(world, log)
    world.tick()


def _own_run(world: World, attempt: str, link: int) -> None:
    who = {"run": "own", "attempt": attempt, "connection": ConnectionId(link), "peer": peer(100 + link, 1000)}
    world.play(hello(0, world.mono / NS_PER_S, world_size=1, **who))
    world.play(LaunchersSeen(MonoNs(world.mono), "own", (COMMAND,)))


def _own_ends(world: World, link: int) -> None:
    world.play(Disconnected(MonoNs(world.mono), ConnectionId(link)))
    world.play(TrainerExited(MonoNs(world.mono), "own", None))


def _sandbox_steps(world: World, numbers: range, ends: int) -> None:
    for place, number in enumerate(numbers):
        steps(world, range(number, number + 1), ends + place, number, connection=of_sandbox(1).connection)


def _own_pays_first(world: World) -> None:
    """A sandbox speaks at 1 s. From 8 to 12 s the command's own run does, and pays for all since the beginning."""
    until(world, 1)
    world.play(replace(of_sandbox(1), run="llama"))
    _sandbox_steps(world, range(1, 7), 2)
    until(world, 8)
    _own_run(world, "a1", 60)
    _sandbox_steps(world, range(7, 10), 9)
    until(world, 12)
    _own_ends(world, 60)


def _behind_the_commands_own(world: World) -> None:
    """The sandbox goes on alone, to its step 18."""
    _own_pays_first(world)
    _sandbox_steps(world, range(10, 19), 13)
    until(world, 23)
    end(world)


def _paid_by_its_own_between(world: World) -> None:
    """As above until 17 s; from then to 20 s the command's own run is back, and steps 15 to 17 are trained for it."""
    _own_pays_first(world)
    _sandbox_steps(world, range(10, 15), 13)
    _own_run(world, "a2", 61)
    _sandbox_steps(world, range(15, 18), 18)
    _own_ends(world, 61)
    _sandbox_steps(world, range(18, 23), 21)
    until(world, 26)
    end(world)


def _paid_by_its_own_to_the_end(world: World) -> None:
    """As above until 17 s, with a restart of the governor at 15.5 s; its own run is back from 17 s to the end."""
    _own_pays_first(world)
    _sandbox_steps(world, range(10, 13), 13)
    until(world, 15.5)
    _come_back(world, ())
    world.play(replace(of_sandbox(15.5), run="llama"))
    _sandbox_steps(world, range(13, 15), 16)
    _own_run(world, "a2", 61)
    _sandbox_steps(world, range(15, 18), 18)
    until(world, 21)
    end(world)


# Windows of the sandbox for which the command's own run has paid in the end: no price has them.
_GIVEN_BACK = windows(3_000, 2_000, 2_000, ms=(3_000, 2_000, 2_000))


def _behind_a_log(name: str, play: Play) -> Case:
    """It pays from 8 to 19 s. The first step that it pays for began at 7 s."""
    return Case(
        name,
        play,
        11_000,
        9 * STEP,
        windows(2_000, 2_000, 2_000, 2_000, ms=(3_000, 2_000, 2_000, 2_000)),
        100_000,
        STEADY,
        waste={"after_last_step": 2_000},
        ms=11_000,
        speed=9 * STEP * MILLION // 10,
        began=6 * STEP,
        is_launched=True,
    )


PAYERS = [
    Case(
        "a command, its dated log by another name",
        _dated_log,
        12_000,
        9 * STEP,
        windows(3_000, 2_000, 2_000, 2_000),
        100_000,
        STEADY,
        waste={"start_up": 2_000, "after_last_step": 2_000},
        lands=12_000 + 291_000,
        is_launched=True,
    ),
    Case(
        "a dated log, dearer before its first lines are read",
        _price_before_its_first_lines(7_200_000, 6),
        6_000 + 12_000,
        9 * STEP,
        windows(3_000, 2_000, 3_000, 4_000),
        200_000,
        Fraction(150_000),
        waste={"start_up": 2_000, "after_last_step": 4_000},
        lands=18_000 + 291 * 2_000,
        is_launched=True,
    ),
    Case(
        "a dated log, cheaper before its first lines are read",
        _price_before_its_first_lines(1_800_000, 6),
        6_000 + 3_000,
        9 * STEP,
        windows(3_000, 2_000, 1_500, 1_000),
        50_000,
        Fraction(75_000),
        waste={"start_up": 2_000, "after_last_step": 1_000},
        lands=9_000 + 291 * 500,
        is_launched=True,
    ),
    Case(
        "a dated log, a price learned before its first lines are read",
        _price_before_its_first_lines(3_600_000, 6.5),
        5_500,
        9 * STEP,
        windows(None, None, None, 2_000),
        100_000,
        STEADY,
        waste={"after_last_step": 2_000},
        hourly=None,
        ms=5_500,
        unpriced_ms=6_500,
        lands=None,
        is_launched=True,
    ),
    Case(
        "a dated log, a suspend before its first lines are read",
        _suspended("llama"),
        112_000,
        7 * STEP,
        windows(3_000, 102_000, 2_000, ms=(3_000, 102_000, 2_000)),
        100_000,
        Fraction(105_000 * MILLION, 5 * STEP),  # 1 s of the first window.
        waste={"start_up": 2_000, "after_last_step": 4_000},
        ms=112_000,
        speed=6 * STEP * MILLION // 106,
        is_launched=True,
    ),
    _behind_a_log("behind another log of its command", _behind_another_log),
    _behind_a_log("behind another log of its command, read with its buffer", _read_with_its_buffer(1)),
    _behind_a_log("behind another log of its command, its first line with its buffer", _read_with_its_buffer(0)),
    _behind_a_log("behind another log of its command, before that one's first line", _before_the_others_first_line),
    _behind_a_log("behind another log of its command, over restarts", _over_restarts),
    Case(
        "behind the command's own run",
        _behind_the_commands_own,
        11_000,  # From 12 to 23 s.
        9 * STEP,
        (*_GIVEN_BACK, *windows(2_000, 2_000, 2_000, 2_000, ms=(3_000, 2_000, 2_000, 2_000))),
        100_000,
        STEADY,
        waste={"after_last_step": 2_000},
        ms=11_000,
        speed=9 * STEP * MILLION // 10,
        began=9 * STEP,
        is_launched=True,
    ),
    Case(
        "paid by the command's own run for a while between",
        _paid_by_its_own_between,
        5_000 + 6_000,  # From 12 to 17 s, and from 20 to 26 s.
        10 * STEP,
        # The third has a step of before that and one of after it.
        (*_GIVEN_BACK, *windows(2_000, 2_000, 2_000, 2_000, 2_000, ms=(3_000, 2_000, 2_000, 2_000, 2_000))),
        100_000,
        STEADY,
        waste={"after_last_step": 1_000},
        ms=11_000,
        speed=10 * STEP * MILLION // 11,
        began=9 * STEP,
        unpaid=3 * STEP,
        is_launched=True,
    ),
    Case(
        "paid by the command's own run in the end, over a restart",
        _paid_by_its_own_to_the_end,
        5_000,  # From 12 to 17 s.
        5 * STEP,
        # The open one has a step of its own, and three that the other run paid for.
        (*_GIVEN_BACK, *windows(2_000, 2_000, ms=(3_000, 2_000))),
        100_000,
        STEADY,
        ms=5_000,
        speed=5 * STEP * MILLION // 6,
        began=9 * STEP,
        unpaid=3 * STEP,
        is_launched=True,
    ),
]
