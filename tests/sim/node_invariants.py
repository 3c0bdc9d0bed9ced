"""What must hold of a node's own stop, whatever people, provider, sampler and governor do. A breach names itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from governor.core.engine.idle_state import NODE
from governor.core.events.effects import Alarm, Ask, Effect, Kill, PersistIncident, StopCompute, Term
from governor.core.events.inputs import Event
from tests.sim.node_world import FOR_EVER, World, draw, snapshot_of

UNSEEN_GPU = 8  # Two looks and two seconds: somebody who has just begun on a GPU and said nothing may be missed.
STALE = 6
FINISH = 60


class BrokenError(AssertionError):
    """The first word is the invariant's name."""


@dataclass
class Judge:
    """Sees every effect at the moment at which the world is asked for it."""

    warned_at: int = -FOR_EVER
    opened: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    stops: int = 0
    repeated: int = 0
    late: int = 0

    def __call__(self, world: World, effect: Effect) -> None:
        if isinstance(effect, Alarm):
            self.warned_at = world.now if effect.name == "node_idle" else self.warned_at
        elif isinstance(effect, PersistIncident) and effect.snapshot["run"] == NODE:
            self.kept.add(effect.incident_id)
        elif isinstance(effect, Ask | Term | Kill) and effect.run == NODE:
            raise BrokenError(f"NobodyIsEnded: {effect}")
        elif isinstance(effect, StopCompute):
            self._stop(world, effect)

    def _stop(self, world: World, effect: StopCompute) -> None:
        now = world.now
        if effect.incident_id not in self.kept:
            raise BrokenError(f"JournalBeforeAct: {effect} at {now}")
        limit = self._limit(world, effect)
        self.stops += 1
        if now - world.came_up_at < limit:
            raise BrokenError(f"RestartBeginsAnew: up since {world.came_up_at}, stopped at {now}, idle time {limit}")
        if now - world.told_gpus_at > STALE:
            raise BrokenError(f"NotKnowingIsNotIdle: the GPUs were last known {now - world.told_gpus_at} s ago")
        for visit in world.schedule.visits:
            if visit.kind == "hold" and world.held.get(visit) != world.boot:
                continue  # Typed while no governor ran, or in an earlier life of the machine.
            missed = UNSEEN_GPU if visit.kind == "gpu" else 0
            if visit.began <= now - missed and visit.ended > now - limit and visit.ended > world.booted_at:
                raise BrokenError(f"NeverWhileUsed: {visit} and a stop at {now}, idle time {limit}")
        if effect.incident_id in self.opened:
            self.repeated += 1
            return
        self.opened.add(effect.incident_id)
        lead = limit if limit == FINISH and world.schedule.limit in (0, 90) else limit // 2
        if not lead <= now - self.warned_at <= limit + 2:  # Of this stretch, and long enough ago.
            raise BrokenError(f"WarnedBefore: warned at {self.warned_at}, stopped at {now}, lead {lead}")

    def _limit(self, world: World, effect: StopCompute) -> int:
        """The idle time that this stop claims; it may be no other than one of the two that are set."""
        claimed = int(snapshot_of(world, effect.incident_id)["evidence"]["limit_ns"]) // 10**9
        allowed = {world.schedule.limit} - {0} | ({FINISH} if world.schedule.on_finish else set())
        if claimed not in allowed:
            raise BrokenError(f"LimitsAreThoseSet: {claimed} of {allowed}")
        return claimed

    def at_end(self, world: World) -> None:
        still_open = [incident_id for incident_id, (_, closed) in world.incidents.items() if not closed]
        if still_open:
            raise BrokenError(f"EveryStopIsClosed: {still_open} after {world.now} s")
        if len(world.incidents) != len(set(self.opened) | self.kept):
            raise BrokenError("NoIdIsGivenTwice")
        has_limit = world.schedule.limit > 0
        if has_limit and not world.schedule.stays and world.is_billed:
            raise BrokenError("EventuallyStopped: nobody came any more, and it is billed")


def play(
    seed: int,
    twist: Callable[[World, Event], Event | None] | None = None,
    twist_effects: Callable[[World, list[Effect]], list[Effect]] | None = None,
) -> tuple[World, Judge]:
    """Raise BrokenError, with its seed, when an invariant or an assertion of the engine does not hold."""
    rng = Random(seed)
    judge = Judge()
    world = World(draw(rng), rng, on_effect=judge)
    if twist is not None:
        world.twist = twist
    if twist_effects is not None:
        world.twist_effects = twist_effects
    try:
        world.run()
        judge.at_end(world)
    except AssertionError as error:
        raise BrokenError(f"{error}\nseed {seed}: {world.schedule}") from error
    return world, judge
