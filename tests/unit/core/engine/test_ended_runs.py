"""Runs that have ended: what is still said of their money is kept, once."""

from __future__ import annotations

from governor.core.base.units import MonoNs
from governor.core.events.inputs import Step, TrainerExited
from governor.core.events.streams import StreamOpened
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import PRICE, at, make_node, peer

TRAINER = peer(100).process


def line(world: World, number: int) -> None:
    """A line of the log, of half a window."""
    world.play(Step(MonoNs(world.mono), None, "log", 0, number, tokens=500_000, tokens_total=500_000 * number))


def test_a_window_that_a_logs_last_line_closes_is_counted_once() -> None:
    """The last lines are read behind the end of their process, in the same look at both."""
    world = World(make_node(cloud="none"))
    world.tick()
    world.play(StreamOpened(at(0), "log", 1000, processes=(TRAINER,)))
    world.at(10)
    line(world, 1)
    world.at(20)
    world.play(TrainerExited(at(20), "log", None))
    line(world, 2)
    world.at(40)
    world.restart()
    world.tick()
    world.play(StreamOpened(at(40), "log", 1000, processes=(peer(200).process,)))
    world.at(50)
    line(world, 3)
    line(world, 4)
    world.at(70)
    assert [(row["from_tokens"], row["to_tokens"]) for row in world.windows] == [(0, 1_000_000), (1_000_000, 2_000_000)]
    assert sum(row["usd_micros"] for row in world.windows) == world.charged("log") - PRICE * 20 // 3600
