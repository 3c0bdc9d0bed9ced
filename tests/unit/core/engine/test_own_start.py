"""`costgov run` counts from its own first moment: what its start costs is the command's."""

from __future__ import annotations

import pytest

from governor.core.base.identity import ProcessId
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.node import new_node
from governor.core.engine.node_journal import begins_at, own_start
from governor.core.events.inputs import CommandLaunched, LauncherExited, TrainerExited
from governor.core.money.charges import UNALLOCATED
from governor.core.views.status import run_status
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import at, make_node


def begun(started: float, now: float, world: World | None = None) -> float:
    kept = world or World()
    at_boot = BootNs(round(now * NS_PER_S)), BootNs(round(started * NS_PER_S))
    return begins_at(*at_boot, "boot-1", kept.runs.values(), kept.metered) / NS_PER_S


def test_the_node_is_a_governors_since_its_process_began() -> None:
    assert begun(96, 100) == 96
    assert begun(0, 100) == 40, "an odd clock costs a minute at most"
    assert begun(101, 100) == 100, "nor is any of the future charged"


@pytest.mark.parametrize(
    ("process", "cpu", "began"),
    [
        (99.9, 0.03, 99.92),
        (99.95, 0.03, 99.95),  # A start beside busy neighbours.
        (40, 0.03, 99.92),  # `bash -c "costgov run a; costgov run b"` has replaced itself by b.
        (40, 20, 98.95),  # So has a script that had worked before.
        (99.97, 0.03, 99.92),  # Pid 1 of a container leaves its place to a fork.
    ],
)
def test_what_the_process_did_before_it_became_costgov_is_not_the_commands(
    process: float, cpu: float, began: float
) -> None:
    """Of `sleep 9; exec costgov run` each try was refused, by a ceiling that the wait before it had used up."""
    entered = BootNs(round(99.95 * NS_PER_S))
    assert own_start(BootNs(round(process * NS_PER_S)), entered, round(cpu * NS_PER_S)) == round(began * NS_PER_S)


def test_what_the_governor_before_has_metered_is_not_charged_twice() -> None:
    """A second `costgov run` begins, and imports Python, while the first one of its name ends."""
    world = World()
    world.tick()
    world.hear()
    world.at(98)
    assert begun(96, 100, world) == 98
    assert begun(99, 100, world) == 99
    world.metered = None  # By the last commit then.
    assert 90 <= begun(50, 100, world) <= 98


@pytest.mark.parametrize("after_s", [0.25, 4])
def test_the_command_pays_for_the_start_too(after_s: float) -> None:
    """At $36,000/h four seconds of Python's start were lost: $40."""
    price = UsdMicros(36_000_000_000)
    node = make_node(cloud="none", exclusive=True, price_usd_micros_per_hour=price)
    world = World(new_node(node.facts, node.policies, BootNs(96 * NS_PER_S), WallNs(0)))
    world.boot = world.mono = 100 * NS_PER_S
    world.play(CommandLaunched(MonoNs(world.mono), "llama", 1000, (ProcessId(4321, 1, "boot-1"),)))
    world.at(100 + after_s)
    world.hear()
    assert world.node.ledger.spend("llama") == round((4 + after_s) * 10_000_000)


def test_a_command_that_is_over_at_the_first_tick_pays_for_the_start_and_for_no_launch_before() -> None:
    """Its time was nobody's where the journal had an earlier launch."""
    node = make_node(cloud="none", exclusive=True, price_usd_micros_per_hour=UsdMicros(36_000_000_000))
    world = World(node)
    world.tick()
    world.hear(run="before")
    world.at(10)
    world.play(TrainerExited(at(10), "before", 0))
    world.tick()
    world.boot = world.mono = 96 * NS_PER_S
    world.restart()
    world.boot = world.mono = 100 * NS_PER_S
    world.play(CommandLaunched(MonoNs(world.mono), "llama", 1000, (ProcessId(4321, 1, "boot-1"),)))
    over = TrainerExited(MonoNs(world.mono), "llama", None)
    world.play(LauncherExited(MonoNs(world.mono)))
    world.play(over)
    world.tick()
    world.play(over)
    spent = {run: world.node.ledger.spend(run) for run in ("before", "llama", UNALLOCATED)}
    assert spent == {"before": 100_000_000, "llama": 40_000_000, UNALLOCATED: 0}
    assert run_status(world.node.runs["llama"], MonoNs(world.mono))["spend_usd"] == 40
