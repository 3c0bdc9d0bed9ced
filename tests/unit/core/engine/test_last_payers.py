"""Who pays for what a command does after its logs: the one that paid last."""

from __future__ import annotations

from governor.core.base.identity import ProcessId
from governor.core.base.units import MonoNs
from governor.core.events.inputs import CommandLaunched, LauncherExited, TrainerExited
from tests.unit.core.engine.test_command_logs import AGAIN, DOLLAR, line, log
from tests.unit.core.engine.test_launched_command import STREAMED, launched
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import at, play


def both_have_ended() -> World:
    """Two logs of one command, which goes on for ten seconds. `log` paid for 10 seconds, then `other` for 10."""
    world = World(launched())
    for run, process in (("log", STREAMED), ("other", ProcessId(4400, 3, "boot-1"))):
        log(world.node, 0, process, run=run)
        line(world.node, 1, 1, run=run)
    for run, ends in (("log", 10), ("other", 20)):
        world.at(ends)
        world.play(TrainerExited(at(ends), run, None))
    world.at(30)
    return world


def test_what_follows_the_logs_of_a_command_is_the_last_ones() -> None:
    node = both_have_ended().node
    assert [(name, one.run.spend_usd_micros) for name, one in node.runs.items()] == [
        ("log", 10 * DOLLAR), ("other", 20 * DOLLAR),
    ]  # fmt: skip
    play(node, LauncherExited(at(30)), TrainerExited(at(30), "other", 0))
    assert (node.ledger.spend("log"), node.ledger.spend("other")) == (10 * DOLLAR, 20 * DOLLAR)


def test_the_last_log_of_a_command_stands_in_for_its_next_launch() -> None:
    world = both_have_ended()
    world.play(LauncherExited(at(30)))
    world.play(TrainerExited(at(30), "other", 0))
    world.restart()
    world.play(CommandLaunched(MonoNs(world.mono), "job", 1000, (AGAIN,)))
    world.at(40)
    assert [name for name, managed in world.node.runs.items() if managed.is_unattached] == ["other"]
