"""The ceiling under simulated faults: a run that spends its budget, and what it had spent when its stop was confirmed.

The same world and the same halt as everywhere here, begun by the budget: the ceiling is put where spend and reserve
meet it at the moment of the verdict, at a random point between two ticks. Whoever looks at the spend afterwards is the
provider's own book, not the governor.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from governor.core.base.findings import Response
from governor.core.base.policy import AT_ONCE, Budget, Mode, Policy, Rule
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros, WallNs, accrue
from governor.core.engine.halt_plan import HaltTimes, halt_times, lasts_ns
from governor.core.engine.node import NodeFacts
from governor.core.events.effects import StopCompute
from governor.core.events.inputs import Event
from governor.core.events.machine import PriceRead
from governor.core.halt.table import HaltPlan, StopTarget
from governor.core.money.ledger import reserve
from governor.core.money.lines import Lines
from governor.core.runs.state import Run
from tests.sim.cloud import Cloud
from tests.sim.engine_driver import WALL_NS, EngineDriver, Kept, engine_schedule
from tests.sim.faults import HEALED, Schedule
from tests.sim.governor import GRID_NS, Step
from tests.sim.money import Change, Money, draw_money
from tests.sim.schedule import run_schedule
from tests.sim.world import START, World

# Faults that the reserve cannot answer for, left out of every second schedule so that the others are seen bare.
OF_OTHERS = ("busy", "timeout", "refused_rungs", "idle_rungs", "refuses_when_stopped", "restarts", "crash", "torn")


@dataclass(frozen=True, slots=True)
class Closing:
    """What a governor could know when it closed the incident."""

    spent_usd_micros: int
    told: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run met its ceiling."""

    seed: int
    excused: bool  # Something happened that the reserve does not answer for.
    ceiling_usd_micros: int
    reserve_usd_micros: int  # At the verdict.
    spent_usd_micros: int  # When the provider's book says that it ended.
    known_usd_micros: int  # What the governor could know of it when it closed the incident.
    rise_alone: bool  # All that the reserve does not answer for was a price that rose after the verdict.
    rise_known: bool  # It had been read by then.
    told: tuple[str, ...]  # What the incident gives as causes of having passed the ceiling.
    rate_usd_micros_per_hour: int  # At the verdict.
    # Of what was unused: the part of the provider's declared bound that its stop did not take.
    bound_unused_usd_micros: int

    @property
    def over(self) -> bool:
        return self.spent_usd_micros > self.ceiling_usd_micros

    @property
    def known_over(self) -> bool:
        return self.known_usd_micros > self.ceiling_usd_micros

    @property
    def hides_a_rise(self) -> bool:
        """A rise alone took it above its ceiling, the governor knew, and the incident does not say so."""
        by_rise = self.rise_alone and self.rise_known and self.known_over
        return by_rise and not any("the price rose" in cause for cause in self.told)

    @property
    def unused_usd_micros(self) -> int:
        return self.ceiling_usd_micros - self.spent_usd_micros

    @property
    def unused_frac(self) -> float:
        return self.unused_usd_micros / self.ceiling_usd_micros

    @property
    def own_unused_frac(self) -> float:
        """Without the provider's part: what was left of the times to save and to end the processes."""
        return (self.unused_usd_micros - self.bound_unused_usd_micros) / self.ceiling_usd_micros

    @property
    def lasts_s(self) -> float:
        """How long the ceiling lasts at the rate of the verdict."""
        return self.ceiling_usd_micros * 3600 / self.rate_usd_micros_per_hour


class CeilingDriver(EngineDriver):
    """A run whose budget is reached instead of its loss lost, on a machine whose price may move."""

    forgotten_ns = 0  # What a reserve would leave out that was too small by so much.
    forgets_disks = False  # As if the reserve were of the machine alone.

    def __init__(self, world: World, money: Money, closings: list[Closing]) -> None:
        self.money, self.trained_ns = money, money.trained_ns
        self.closings = closings  # At each closing: the book of somebody who knows of the prices told until then.
        self.told: tuple[Change, ...] = ()
        super().__init__(world)

    def _fault(self, at: MonoNs) -> Event:
        for change in self.money.changes:
            if change.at <= self.began_at:
                continue  # Known from the start.
            if change.read_at < at:
                self._hear(self._tick(change.read_at))
                self._learn(change, change.read_at)
            else:
                self.world.after(change.read_at - at, partial(self._deliver, change))
        return self._tick(at)

    def _deliver(self, change: Change) -> None:
        """Whoever governs then is told, if somebody does."""
        governor = self.world.governor
        if not governor.down:
            governor.receive(lambda stamp: _read(change, stamp), self.world.now)

    def event(self, event: Event) -> Sequence[Step]:
        if not isinstance(event, PriceRead):
            return super().event(event)
        [change] = [change for change in self.money.changes if change.read_at == event.at]
        if change not in self.told:
            self._charge(event.at)
            self._learn(change, event.at)
        return ()

    def _learn(self, change: Change, at: MonoNs) -> None:
        self.told = (*self.told, change)
        self._hear(_read(change, at))

    def _billed(self, at: MonoNs) -> int:
        exact = self.money.spent(self.began_at, at, self.told)
        return exact + (self.node.ledger.compute.credit // NS_PER_HOUR)

    def _check_ledger(self, spent: int, at: MonoNs) -> None:
        self.closings.append(Closing(self.money.spent(self.began_at, at, self.told), self.told))
        assert self._billed(MonoNs(at - GRID_NS)) - 1 <= spent <= self._billed(at) + 1, f"ledger {spent}"

    def _priced(self, facts: NodeFacts, boot: BootNs) -> NodeFacts:
        self.told = tuple(change for change in self.money.changes if change.at <= boot)
        since = WallNs(WALL_NS + self.told[-1].at) if self.told else None
        disks = (self.money.disk,) if self.money.disk is not None else ()
        return replace(
            facts,
            price_usd_micros_per_hour=self.money.price_at(boot),
            price_since_wall=since,
            lines=Lines(disks),
        )

    def _check_plan(self, plan: HaltPlan) -> None:
        """A small ceiling gives its halt less time than the policy does, and the world goes by that."""
        shorter = ("grace_ns", "save_grace_ns", "term_grace_ns", "kill_grace_ns")
        assert all(getattr(plan, name) <= getattr(self.plan, name) for name in shorter)
        self.plan = self.world.plan = replace(self.plan, **{name: getattr(plan, name) for name in shorter})

    def _policy(self, policy: Policy, facts: NodeFacts, checkpoint: str) -> Policy:
        at = MonoNs(self.began_at + self.trained_ns)
        forgotten = reserve(self.money.rate_at(at), self.forgotten_ns)
        if self.forgets_disks and self.money.disk is not None:
            forgotten = reserve(
                self.money.disk.usd_micros_per_hour, bounds(facts, policy, None, self.trained_ns).whole_ns
            )
        met = ceiling_of(self.world.schedule, policy, facts, self.money, at)
        ceiling = UsdMicros(met - forgotten)
        budget = Budget(ceiling_usd_micros=ceiling)
        rule = Rule("budget", "budget", {"budget": budget}, AT_ONCE, Response.HALT, Mode.ENFORCE, checkpoint)
        return replace(policy, rules=(rule,), budget=budget)


def _read(change: Change, at: MonoNs) -> PriceRead:
    since = WallNs(WALL_NS + change.at)
    return PriceRead(at, BootNs(at), WallNs(WALL_NS + at), change.price, "simulated", "", since)


def ceiling_of(schedule: Schedule, policy: Policy, facts: NodeFacts, money: Money, at: MonoNs) -> UsdMicros:
    """Where spend and reserve meet it within the tick before the verdict, so that the tick before did not fire yet."""
    known = tuple(change for change in money.changes if change.read_at < at)
    at_verdict = money.spent(at - money.trained_ns, at, known)
    rate = replace(money, changes=known).rate_at(at)
    tick, _ = accrue(rate, GRID_NS, 0)
    met = at_verdict - tick * (schedule.healed_after_ns % 1000) // 1000
    ceiling = met
    for _ in range(64):  # What a halt may take is a part of the ceiling that it is for.
        ceiling = met + reserve(rate, bounds(facts, policy, lasts_ns(ceiling, rate), money.trained_ns).whole_ns)
    return UsdMicros(ceiling)


def bounds(facts: NodeFacts, policy: Policy, lasts: int | None, unsaved_ns: int) -> HaltTimes:
    """Of a halt after so much unsaved work."""
    return halt_times(facts, policy, lasts, Run("long", 0, MonoNs(0), working_since=MonoNs(0)), MonoNs(unsaved_ns))


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
    asked_at = [done.at for done in world.performer.performed if isinstance(done.effect, StopCompute)]
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
    closings: list[Closing] = []

    def make(world: World) -> CeilingDriver:
        if slowest:
            world.cloud = SlowestCloud(world)
        driver = make_driver(world, draw_money(seed, world.plan.verify_ns, settled=slowest), closings)
        worlds.append((world, driver))
        return driver

    result = run_schedule(seed, make, draw=slowest_schedule if slowest else ceiling_schedule)
    world, driver = worlds[-1]
    money, policy = driver.money, driver.node.policies.policies[0]
    ceiling = policy.budget.ceiling_usd_micros
    assert ceiling is not None
    ended_at = world.cloud.ended_at[-1] if world.cloud.ended_at else MonoNs(START + result.took_ns)
    kept = driver.kept()
    assert isinstance(kept, Kept)
    timeline = json.loads(kept.incident)["timeline"]
    told = next((entry["detail"]["because"] for entry in timeline if entry["what"] == "ceiling_exceeded"), ())
    rises, rate = money.rises(START, ended_at), money.rate_at(START - 1)
    closing = closings[-1] if closings else Closing(0, ())
    return Outcome(
        seed,
        excused(world) or rises,
        ceiling,
        reserve(rate, bounds(driver.node.facts, policy, None, money.trained_ns).whole_ns),
        money.spent(money.began, ended_at),
        closing.spent_usd_micros,
        rises and not excused(world),
        replace(money, changes=closing.told).rises(START, ended_at),
        tuple(told),
        rate,
        _of_bound(world, rate),
    )


def _of_bound(world: World, rate: int) -> int:
    """What the part of the provider's bound would have cost that its stop did not take."""
    asked_at = [done.at for done in world.performer.performed if isinstance(done.effect, StopCompute)]
    if not asked_at or not world.cloud.ended_at:
        return 0
    return accrue(rate, max(0, world.plan.verify_ns - (world.cloud.ended_at[-1] - asked_at[0])), 0)[0]


@dataclass(frozen=True, slots=True)
class Summary:
    """Many runs at their ceilings. Money in micro-dollars."""

    runs: int
    answered_for: int  # Runs in which nothing happened that the reserve does not answer for.
    over: tuple[int, ...]  # Of these, the seeds of those that passed their ceiling.
    over_excused: int
    silent: tuple[int, ...]  # Seeds of runs that passed it, as far as could be known, without saying why.
    over_by_price: tuple[int, ...]  # Those that passed it because a price rose after the verdict,
    unnamed: tuple[int, ...]  # and of these, where that had been read, those that do not say so.
    unused_by_reserve: float  # Median over the runs answered for: 1.0 = the whole reserve was left.


def summary(outcomes: Iterable[Outcome]) -> Summary:
    seen = list(outcomes)
    bare = [one for one in seen if not one.excused]
    return Summary(
        runs=len(seen),
        answered_for=len(bare),
        over=tuple(one.seed for one in bare if one.over),
        over_excused=sum(one.over for one in seen if one.excused),
        silent=tuple(one.seed for one in seen if one.known_over and not one.told),
        over_by_price=tuple(one.seed for one in seen if one.rise_alone and one.over),
        unnamed=tuple(one.seed for one in seen if one.hides_a_rise),
        unused_by_reserve=statistics.median(one.unused_usd_micros / one.reserve_usd_micros for one in bare),
    )
