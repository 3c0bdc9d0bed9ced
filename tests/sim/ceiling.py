"""The ceiling under simulated faults: a run that spends its budget, and what it had spent when its stop was confirmed.

The same world and the same halt as everywhere here, begun by the budget: the ceiling is put where spend and reserve
meet it at the moment of the verdict, at a random point between two ticks. Whoever looks at the spend afterwards is the
provider's own book, not the governor.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from governor.core.effects import StopCompute
from governor.core.events import Event
from governor.core.findings import Response
from governor.core.halt import StopTarget
from governor.core.ledger import reserve
from governor.core.node import NodeFacts
from governor.core.planning import bounds_ns
from governor.core.policy import AT_ONCE, Budget, Mode, Policy, Rule
from governor.core.units import NS_PER_S, DurationNs, MonoNs, UsdMicros, accrue
from tests.sim.cloud import Cloud
from tests.sim.engine_driver import PRICE, TRAINED_NS, EngineDriver, Kept, engine_schedule
from tests.sim.faults import HEALED, Schedule
from tests.sim.governor import GRID_NS
from tests.sim.schedule import run_schedule
from tests.sim.world import START, World

# Faults that the reserve cannot answer for, left out of every second schedule so that the others are seen bare.
OF_OTHERS = ("busy", "timeout", "refused_rungs", "idle_rungs", "refuses_when_stopped", "restarts", "crash", "torn")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run met its ceiling."""

    seed: int
    excused: bool  # Something happened that the reserve does not answer for.
    ceiling_usd_micros: int
    reserve_usd_micros: int  # At the verdict.
    spent_usd_micros: int  # When the provider's book says that it ended.
    told: tuple[str, ...]  # What the incident gives as causes of having passed the ceiling.

    @property
    def over(self) -> bool:
        return self.spent_usd_micros > self.ceiling_usd_micros

    @property
    def unused_usd_micros(self) -> int:
        return self.ceiling_usd_micros - self.spent_usd_micros


class CeilingDriver(EngineDriver):
    """A run whose budget is reached instead of its loss lost."""

    forgotten_ns = 0  # What a reserve would leave out that was too small by so much.

    def _fault(self, at: MonoNs) -> Event:
        return self._tick(at)

    def _policy(self, policy: Policy, facts: NodeFacts, checkpoint: str) -> Policy:
        forgotten = reserve(PRICE, self.forgotten_ns)
        ceiling = UsdMicros(ceiling_of(self.world.schedule, policy, facts) - forgotten)
        budget = Budget(ceiling_usd_micros=ceiling)
        rule = Rule("budget", "budget", {"budget": budget}, AT_ONCE, Response.HALT, Mode.ENFORCE, checkpoint)
        return replace(policy, rules=(rule,), budget=budget)


def ceiling_of(schedule: Schedule, policy: Policy, facts: NodeFacts) -> UsdMicros:
    """Where spend and reserve meet it within the tick before the verdict, so that the tick before did not fire yet."""
    at_verdict, _ = accrue(PRICE, TRAINED_NS, 0)
    tick, _ = accrue(PRICE, GRID_NS, 0)
    held = reserve(PRICE, policy.halt.grace_ns + bounds_ns(facts, policy))
    return UsdMicros(at_verdict + held - tick * (schedule.healed_after_ns % 1000) // 1000)


def ceiling_schedule(rng: Random) -> Schedule:
    """As everywhere, but of the machine, watched from outside; every second has only what the reserve answers for."""
    drawn = engine_schedule(rng)
    plan = replace(drawn.plan, stop=StopTarget.INSTANCE)
    faults = drawn.faults
    if rng.random() < 0.5:
        faults = replace(faults, **{name: getattr(HEALED, name) for name in OF_OTHERS})
    return replace(drawn, plan=plan, faults=faults, governor_inside=False)


def excused(world: World) -> bool:
    """The governor was down for a while, or the provider took longer than it declares, counted from the first request.

    It refused, did nothing, or the machine was started again: it is the same to the bill.
    """
    if any("governor killed" in line for line in world.log):
        return True
    if not world.cloud.ended_at or world.cloud.restarted_at:
        return True
    asked_at = [done.at for done in world.hands.performed if isinstance(done.effect, StopCompute)]
    return bool(asked_at) and world.cloud.ended_at[-1] - asked_at[0] > world.plan.verify_ns


class SlowestCloud(Cloud):
    """Uses its declared bound up, to the nanosecond."""

    def takes_ns(self) -> int:
        return self.world.plan.verify_ns


def slowest_schedule(rng: Random) -> Schedule:
    """Nobody does anything before they have to: not a checkpoint, not SIGTERM, and one process cannot be killed."""
    slow = replace(HEALED, deaf=True, ignores_term=1.0, unkillable=True, stale_stamps=rng.random() < 0.5)
    return replace(ceiling_schedule(rng), faults=slow, asked=True, healed_after_ns=DurationNs(3_600 * NS_PER_S))


def play(seed: int, *, slowest: bool = False, make_driver: type[CeilingDriver] = CeilingDriver) -> Outcome:
    """Raise FailedError where the halt itself breaks an invariant."""
    worlds: list[tuple[World, CeilingDriver]] = []

    def make(world: World) -> CeilingDriver:
        if slowest:
            world.cloud = SlowestCloud(world)
        driver = make_driver(world)
        worlds.append((world, driver))
        return driver

    result = run_schedule(seed, make, draw=slowest_schedule if slowest else ceiling_schedule)
    world, driver = worlds[-1]
    budget = driver.node.policies.policies[0].budget
    assert budget.ceiling_usd_micros is not None
    ended_at = world.cloud.ended_at[-1] if world.cloud.ended_at else MonoNs(START + result.took_ns)
    spent, _ = accrue(PRICE, ended_at - (START - TRAINED_NS), 0)
    held = reserve(PRICE, world.plan.grace_ns + bounds_ns(driver.node.facts, driver.node.policies.policies[0]))
    kept = driver.kept()
    assert isinstance(kept, Kept)
    timeline = json.loads(kept.incident)["timeline"]
    told = next((entry["detail"]["because"] for entry in timeline if entry["what"] == "ceiling_exceeded"), ())
    return Outcome(seed, excused(world), budget.ceiling_usd_micros, held, spent, tuple(told))


@dataclass(frozen=True, slots=True)
class Summary:
    """Many runs at their ceilings. Money in micro-dollars."""

    runs: int
    answered_for: int  # Runs in which nothing happened that the reserve does not answer for.
    over: tuple[int, ...]  # Of these, the seeds of those that passed their ceiling.
    over_excused: int
    silent: tuple[int, ...]  # Seeds of runs that passed it without saying why.
    unused_by_reserve: float  # Median over the runs answered for: 1.0 = the whole reserve was left.


def summary(outcomes: Iterable[Outcome]) -> Summary:
    seen = list(outcomes)
    bare = [one for one in seen if not one.excused]
    return Summary(
        runs=len(seen),
        answered_for=len(bare),
        over=tuple(one.seed for one in bare if one.over),
        over_excused=sum(one.over for one in seen if one.excused),
        silent=tuple(one.seed for one in seen if one.over and not one.told),
        unused_by_reserve=statistics.median(one.unused_usd_micros / one.reserve_usd_micros for one in bare),
    )
