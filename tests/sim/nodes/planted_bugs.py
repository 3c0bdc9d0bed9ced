"""Bugs that a run on several nodes may have. Each is planted into every node, and some history must catch it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from governor.core.base.units import DurationNs
from governor.core.engine import step as engine
from governor.core.events.effects import Effect, StopCompute, StopOther, TellPeers
from governor.core.events.inputs import Event
from governor.core.events.peers import NodeTold, PeerTold
from tests.sim.nodes.histories import BrokenError, play
from tests.sim.nodes.world import RUN, Machine, World


class LostCompareAndSet(World):
    """Who has decided keeps to its own name for the halt, whoever was first."""

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        effects = engine.step(machine.node, event)
        if machine.incident is not None and not machine.incident.decided_by:
            machine.incident.call(machine.incident.incident_id)
        return effects


class HostGoesFirst(World):
    """The node of rank 0 waits for nobody."""

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        effects = engine.step(machine.node, event)
        if machine.incident is not None:
            machine.incident.plan = replace(machine.incident.plan, others_ns=DurationNs(0))
        return effects


class TellsOnce(World):
    """A message that is lost is lost for ever."""

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        effects = engine.step(machine.node, event)
        if machine.incident is None or not any(isinstance(effect, TellPeers) for effect in effects):
            return effects
        self.sent[f"{machine.name} halts"] += 1
        is_first = self.sent[f"{machine.name} halts"] == 1
        return [effect for effect in effects if is_first or not isinstance(effect, TellPeers)]


class AnyLaunch(World):
    """A verdict counts for whatever runs under the name."""

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        if isinstance(event, PeerTold) and (managed := machine.node.runs.get(RUN)) is not None:
            runs = tuple(replace(told, job=managed.run.job) for told in event.told.runs)
            event = replace(event, told=replace(event.told, runs=runs))
        return engine.step(machine.node, event)


class AddsUpWhatIsTold(World):
    """What a node has charged is added each time that it is told."""

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        if isinstance(event, PeerTold) and (managed := machine.node.runs.get(RUN)) is not None:
            before = managed.history.members.charged.get(event.told.node, 0)
            runs = tuple(replace(one, spend_usd_micros=before + (one.spend_usd_micros or 0)) for one in event.told.runs)
            event = replace(event, told=replace(event.told, runs=runs))
        return engine.step(machine.node, event)


class DeafToPeers(World):
    """Nobody hears the other governors: only an asked rank tells that there is a halt."""

    def deliver(self, machine: Machine, told: NodeTold) -> None:
        return None


class StopsEverybody(World):
    """Who halts stops every machine of the run, and each does so."""

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        effects = engine.step(machine.node, event)
        for other in self.machines if any(isinstance(effect, StopCompute) for effect in effects) else ():
            if other is not machine:
                other.stops.append(machine.name)
        return effects


class NobodySweeps(World):
    """A dead node's machine is its own governor's matter."""

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        return [effect for effect in engine.step(machine.node, event) if not isinstance(effect, StopOther)]


BUGS: Final[tuple[type[World], ...]] = (
    LostCompareAndSet, HostGoesFirst, TellsOnce, AnyLaunch, AddsUpWhatIsTold, DeafToPeers, StopsEverybody,
    NobodySweeps,
)  # fmt: skip
SEEDS_MAX: Final = 120


def hunt(bug: type[World], seeds: int = SEEDS_MAX) -> BrokenError | None:
    """The first history that catches it."""
    for seed in range(seeds):
        try:
            play(seed, bug)
        except BrokenError as error:
            return error
    return None
