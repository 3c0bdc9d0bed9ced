"""Bugs that a run on several nodes may have. Each is planted into every node, and some history must catch it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from governor.core.base.units import DurationNs, MonoNs, UsdMicros
from governor.core.engine import step as engine
from governor.core.events.effects import Effect, StopCompute, StopOther, TellPeers
from governor.core.events.inputs import Event
from governor.core.events.peers import NodeTold, PeerTold, ToldRun
from tests.sim.nodes.histories import BrokenError, draw, play
from tests.sim.nodes.machines import RUN, Machine
from tests.sim.nodes.world import World


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


# --- what is told is taken otherwise ---------------------------------------------------------------------------


class ToldOtherwise(World):
    """No bug by itself: each of these changes one thing in what every node is told."""

    shown_by: ClassVar[str] = "ceiling"  # Histories of no other cause are played.

    def change(self, told: ToldRun) -> ToldRun:
        raise NotImplementedError

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        if isinstance(event, PeerTold):
            runs = tuple(self.change(one) for one in event.told.runs)
            event = replace(event, told=replace(event.told, runs=runs))
        return engine.step(machine.node, event)


class ExcusesNobody(ToldOtherwise):
    """That a rank elsewhere evaluates, saves or waits for its data counts for nothing."""

    shown_by = "pause"

    def change(self, told: ToldRun) -> ToldRun:
        return replace(told, is_excused=False)


class ExcusesEverybody(ToldOtherwise):
    """Whoever stands still elsewhere is taken for one who may."""

    shown_by = "hang"

    def change(self, told: ToldRun) -> ToldRun:
        return replace(told, is_excused=True)


class SeesNobodyMove(ToldOtherwise):
    """A rank that moves elsewhere excuses nobody."""

    shown_by = "pause"

    def change(self, told: ToldRun) -> ToldRun:
        return replace(told, still_ns=None)


class ReservesForItself(ToldOtherwise):
    """What the halts of the other nodes cost is left out of the reserve, and what they charge while they are silent."""

    def change(self, told: ToldRun) -> ToldRun:
        return replace(told, rate_usd_micros_per_hour=UsdMicros(0))


class CountsTwice(ToldOtherwise):
    """What another node has charged counts double."""

    def change(self, told: ToldRun) -> ToldRun:
        return replace(told, spend_usd_micros=2 * (told.spend_usd_micros or 0))


class CountsItself(ToldOtherwise):
    """Each node has the whole ceiling for itself."""

    def change(self, told: ToldRun) -> ToldRun:
        return replace(told, spend_usd_micros=0, left=())


class ForgetsWhoLeft(ToldOtherwise):
    """What a node had charged that speaks no more is told to nobody."""

    def change(self, told: ToldRun) -> ToldRun:
        return replace(told, left=())


# --- silence ---------------------------------------------------------------------------------------------------


class SilentAtOnce(World):
    """A node that has just fallen silent counts as if it had been so since the last rank moved."""

    shown_by = "pause"

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        effects = engine.step(machine.node, event)
        for managed in machine.node.runs.values():
            others = (replace(one, spoke_at=MonoNs(0)) for one in managed.run.other_nodes)
            managed.run.set_other_nodes(tuple(others))
        return effects


class CountsSilenceTwice(World):
    """What a silent node may have charged is added to what others know of it."""

    shown_by = "ceiling"

    def decide(self, machine: Machine, event: Event) -> list[Effect]:
        effects = engine.step(machine.node, event)
        for managed in machine.node.runs.values():
            members = managed.history.members
            for name, one in members.by_node.items():
                one.told = replace(one.told, spend_usd_micros=members.charged.get(name, 0))
        return effects


class ForgetsTheSilent(World):
    """A governor that begins again knows of no node but those that speak."""

    shown_by = "ceiling"

    def restart(self, number: int) -> None:
        super().restart(number)
        for managed in self.machines[number].node.runs.values():
            managed.history.members.by_node.clear()


BUGS: Final[tuple[type[World], ...]] = (
    LostCompareAndSet, HostGoesFirst, TellsOnce, AnyLaunch, AddsUpWhatIsTold, DeafToPeers, StopsEverybody,
    NobodySweeps, ExcusesNobody, ExcusesEverybody, SeesNobodyMove, ReservesForItself, CountsTwice, CountsItself,
    ForgetsWhoLeft, SilentAtOnce, CountsSilenceTwice, ForgetsTheSilent,
)  # fmt: skip
SEEDS_MAX: Final = 400


def hunt(bug: type[World], seeds: int = SEEDS_MAX) -> BrokenError | None:
    """The first history that catches it."""
    for seed in range(seeds):
        if draw(seed).cause != getattr(bug, "shown_by", draw(seed).cause):
            continue
        try:
            play(seed, bug)
        except BrokenError as error:
            return error
    return None
