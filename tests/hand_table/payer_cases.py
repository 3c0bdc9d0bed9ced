"""Runs of a launched command worked out by hand, whose time another name has waited for or paid: see cases."""

from __future__ import annotations

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, MonoNs, WallNs
from governor.core.events.inputs import Disconnected, LaunchersSeen, TrainerExited
from governor.core.events.streams import StreamOpened
from tests.hand_table.cases import STEADY, STEP, Case, windows
from tests.unit.core.engine.test_launched_command import COMMAND
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, hello, peer
from tests.unit.core.engine.test_strangers_bill import of_sandbox
from tests.unit.core.money.test_waste import end, steps, until


def _open_log(world: World, run: str = "llama") -> None:
    """A log without a pidfile, as `[[jsonl]]` of a file that is not there yet. It has another name than its command."""
    world.play(StreamOpened(MonoNs(world.mono), run, 1000, of_command=True))


def _write(world: World, number: int, ends: float, run: str = "llama", *, read: float = 0.125) -> None:
    """A line of a step, with its time. It is read an eighth of a second later, between two ticks."""
    until(world, ends)
    mono = world.mono
    world.mono = round((ends + read) * NS_PER_S)
    written = WallNs(round(ends * NS_PER_S) + world.wall_offset)
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
]
