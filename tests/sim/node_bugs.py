"""Who tests the simulator of the node's stop? Known bugs, planted one at a time: each must be caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from governor.core.engine.idle_state import NODE
from governor.core.events.effects import Alarm, Effect, PersistIncident, StopCompute
from governor.core.events.inputs import Event, Hello, Tick
from governor.core.events.machine import GpuProcessesSeen
from governor.core.events.operators import OperatorHold
from governor.core.halt.state import GivenUp
from tests.sim.node_invariants import BrokenError, play
from tests.sim.node_world import World

SEEDS_MAX = 150  # What a check plays, twice over.


@dataclass(frozen=True)
class Bug:
    name: str
    caught_by: str  # The invariant that must speak, so that no bug is caught for another's reason.
    twist: Callable[[World, Event], Event | None] = lambda _world, event: event
    twist_effects: Callable[[World, list[Effect]], list[Effect]] = lambda _world, effects: effects


def hunt(bug: Bug) -> str | None:
    """What was said of the first schedule that caught it; None when it survived them all."""
    for seed in range(SEEDS_MAX):
        try:
            play(seed, bug.twist, bug.twist_effects)
        except BrokenError as caught:
            return str(caught)
    return None


def _silence_is_idle(_world: World, event: Event) -> Event | None:
    if isinstance(event, GpuProcessesSeen) and event.problem is not None:
        return replace(event, problem=None)
    return event


def _never_stale(world: World, event: Event) -> Event | None:
    if isinstance(event, Tick) and world.node is not None and world.node.idle.gpus_problem is None:
        world.node.idle.gpus_at = event.at
    return event


def _gpus_are_nobody(_world: World, event: Event) -> Event | None:
    return replace(event, pids=frozenset()) if isinstance(event, GpuProcessesSeen) else event


def _runs_are_nobody(_world: World, event: Event) -> Event | None:
    return None if isinstance(event, Hello) else event


def _holds_are_nothing(_world: World, event: Event) -> Event | None:
    return None if isinstance(event, OperatorHold) else event


def _restart_goes_on(world: World, event: Event) -> Event | None:
    """Idle time taken up from before, as if it had been watched."""
    if not isinstance(event, Tick) or world.node is None:
        return event
    idle = world.node.idle
    if idle.looked_at is None and world.since_before is not None:
        idle.since, idle.looked_at, idle.gpus_at = world.since_before, event.at, event.at
        idle.looked_boot = event.boot
        idle.gpus_problem = idle.governors_problem = None
    world.since_before = idle.since
    return event


def _sleep_is_watching(world: World, event: Event) -> Event | None:
    if isinstance(event, Tick) and world.node is not None and world.node.idle.looked_at is not None:
        world.node.idle.looked_at, world.node.idle.looked_boot = event.at, event.boot
    return event


def _no_warning(_world: World, effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if not (isinstance(effect, Alarm) and effect.name == "node_idle")]


def _acts_first(_world: World, effects: list[Effect]) -> list[Effect]:
    return sorted(effects, key=lambda effect: not isinstance(effect, StopCompute))


def _never_closed(_world: World, effects: list[Effect]) -> list[Effect]:
    """A stop that was given up stays open in the journal."""
    return [
        replace(effect, closed=False)
        if isinstance(effect, PersistIncident) and effect.snapshot["halt_stage"] == GivenUp.ABANDONED
        else effect
        for effect in effects
    ]


def _repeats_at_once(world: World, effects: list[Effect]) -> list[Effect]:
    """A resumed stop asks the provider again before anybody has looked."""
    resumed = [
        e for e in effects if isinstance(e, PersistIncident) and e.snapshot["timeline"][-1]["what"] == "restored"
    ]
    again: list[Effect] = [StopCompute(effect.incident_id, NODE, 2, 0) for effect in resumed]
    return [*effects, *again]


def _gives_up(world: World, effects: list[Effect]) -> list[Effect]:
    """One stop of an incident is all that it ever sends."""
    asked = {effect.incident_id for _, effect in world.log if isinstance(effect, StopCompute)}
    return [effect for effect in effects if not (isinstance(effect, StopCompute) and effect.incident_id in asked)]


BUGS: tuple[Bug, ...] = (
    Bug("a silent sampler is an idle GPU", "NotKnowingIsNotIdle", _silence_is_idle),
    Bug("what was seen once stands for ever", "NotKnowingIsNotIdle", _never_stale),
    Bug("GPU processes are nobody", "NeverWhileUsed", _gpus_are_nobody),
    Bug("runs are nobody", "NeverWhileUsed", _runs_are_nobody),
    Bug("holds are nothing", "NeverWhileUsed", _holds_are_nothing),
    Bug("a restart goes on with the time of before", "RestartBeginsAnew", _restart_goes_on),
    Bug("sleeping is watching", "NeverWhileUsed", _sleep_is_watching),
    Bug("nobody is warned", "WarnedBefore", twist_effects=_no_warning),
    Bug("the provider is asked before it is kept", "JournalBeforeAct", twist_effects=_acts_first),
    Bug("what is given up is not closed", "EveryStopIsClosed", twist_effects=_never_closed),
    Bug("a resumed stop is repeated at once", "RestartBeginsAnew", twist_effects=_repeats_at_once),
    Bug("a stop is sent once, whatever comes of it", "EveryStopIsClosed", twist_effects=_gives_up),
)
