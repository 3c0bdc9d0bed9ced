"""A group's ceiling holds: several runs share a node, their halts use up every bound, and then it is added up.

What is compared with the ceiling are the members' charges, and not what the governor says of its groups.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from random import Random

from governor.core.base.identity import ConnectionId
from governor.core.base.policy import HaltSettings, Policy, PolicySet
from governor.core.base.units import NS_PER_S, TICK_NS, BootNs, DurationNs, MonoNs, UsdMicros, WallNs
from governor.core.engine import step as engine
from governor.core.engine.node import Node, new_node
from governor.core.engine.node_journal import persist
from governor.core.events.effects import Effect, Kill, PersistRuns, Term
from governor.core.events.inputs import Event, PhaseChange, ProcessesSeen, Tick
from governor.core.money.budgets import ScopedBudget, parse_scope
from governor.core.money.charges import Charge
from tests.sweeps import share_of
from tests.unit.core.engine.test_step import hello, make_node, peer

WALL = 1_800_000_000 * NS_PER_S  # 08:00 UTC: no midnight within a schedule.
COARSE_NS = 10 * NS_PER_S
SCHEDULES = share_of(30)
SCOPES = ("stage:s1", "label:team=t1", "node", "day")


@dataclass
class Schedule:
    """Runs that come one after the other to a node, each with its own patience; the ceiling is met in between."""

    seed: int
    scope: str = ""
    node: Node = field(init=False)
    charges: dict[str, Charge] = field(default_factory=dict)
    ending: dict[str, int] = field(default_factory=dict)  # Run -> when its last process is seen to be gone.
    reserve_usd_micros: int = 0  # Of the tick that halted the first.

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        draw = self.random
        self.scope = draw.choice(SCOPES)
        policies = []
        for stage in ("s0", "s1", "s2"):
            graces = [DurationNs(draw.randint(1, 60) * NS_PER_S) for _ in range(3)]
            halt = HaltSettings("none", *graces, stop="processes")
            policies.append(Policy(stage, match={"stage": (stage,)}, halt=halt))
        facts = replace(make_node(cloud="none").facts, granularity_ns=DurationNs(0))
        ceiling = UsdMicros(draw.randint(15, 60) * 1_000_000)
        budget = ScopedBudget(parse_scope(self.scope), ceiling, "test")
        self.ceiling = ceiling
        self.node = new_node(facts, PolicySet(tuple(policies), "d"), BootNs(0), WallNs(WALL), [budget])
        runs = draw.randint(1, 4)
        self.arrivals = {f"run{number}": draw.randint(0, 600) * NS_PER_S for number in range(runs)}
        self.stages = {name: draw.choice(["s0", "s1", "s1", "s2"]) for name in self.arrivals}
        self.teams = {name: draw.choice(["t0", "t1", "t1"]) for name in self.arrivals}
        self.ranks = {name: draw.randint(1, 8) for name in self.arrivals}

    def members(self) -> list[str]:
        scope = parse_scope(self.scope)
        return [one for one in self.arrivals if scope.covers(one, self.stages[one], {"team": self.teams[one]})]

    def play(self, event: Event) -> None:
        effects = engine.step(self.node, event)
        self.remember(effects)
        for effect in effects:
            if isinstance(effect, Kill):  # Nobody goes before they have to: SIGKILL, and its whole grace.
                managed = self.node.runs[effect.run]
                assert managed.incident is not None
                self.ending[effect.run] = event.at + managed.incident.plan.kill_grace_ns
            elif isinstance(effect, Term) and not self.reserve_usd_micros:
                self.reserve_usd_micros = next(cap.reserve_usd_micros for cap in self.node.budgets.caps)

    def remember(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, PersistRuns):
                self.charges |= {charge.charge_id: charge for charge in effect.charges}

    def join(self, name: str, at: int) -> None:
        number = int(name[3:])
        for rank in range(self.ranks[name]):
            connection, who = ConnectionId(100 * number + rank + 1), peer(1000 + 100 * number + rank)
            told = {"stage": self.stages[name], "labels": {"team": self.teams[name]}, "world_size": self.ranks[name]}
            self.play(hello(rank, 0, at=MonoNs(at), connection=connection, peer=who, run=name, **told))
            self.play(PhaseChange(MonoNs(at), connection, name, rank, "train"))

    def until_over(self) -> None:
        at = self.random.randint(0, TICK_NS)  # The grid of the ticks.
        while at < 3 * 3600 * NS_PER_S:
            self.play(Tick(MonoNs(at), BootNs(at), WallNs(WALL + at)))
            for name, due in list(self.ending.items()):
                if due <= at + TICK_NS:
                    del self.ending[name]
                    incident = self.node.runs[name].incident
                    assert incident is not None
                    # Seen at the last moment of the grace, and charged to that moment: a tick ends there.
                    self.play(Tick(MonoNs(due), BootNs(due), WallNs(WALL + due)))
                    self.play(ProcessesSeen(MonoNs(due), incident.incident_id, ()))
            for name, when in self.arrivals.items():
                # Who comes with longer graces than there is room for is halted at once, and may end above it.
                if name not in self.node.runs and when <= at and self.spent_so_far() < self.ceiling / 2:
                    self.join(name, at)
            if self.halted() and all(self.is_over(name) for name in self.halted()):
                break
            at += TICK_NS if self.is_near(at) else COARSE_NS
        self.remember([persist(self.node, MonoNs(at))])

    def spent_so_far(self) -> int:
        return next((cap.spend_usd_micros for cap in self.node.budgets.caps), 0)

    def is_near(self, at: int) -> bool:
        """The ceiling, or the end of a grace. Before that, nothing depends on the grid."""
        if not self.halted():
            return any(
                (met := cap.met()) is not None and met.after_ns < 20 * NS_PER_S for cap in self.node.budgets.caps
            )
        incidents = [self.node.runs[name].incident for name in self.halted()]
        ends = [one.halt.deadline for one in incidents if one is not None and one.halt.deadline is not None]
        return min([*ends, *self.ending.values()], default=at) <= at + COARSE_NS

    def halted(self) -> list[str]:
        return [name for name, managed in self.node.runs.items() if managed.incident is not None]

    def is_over(self, name: str) -> bool:
        incident = self.node.runs[name].incident
        return incident is not None and incident.is_closed

    def spent(self) -> int:
        """By the members' charges, or by all of them where the scope is the whole node."""
        members = self.members()
        everybody = self.scope in ("node", "day")
        mine = (one.usd_micros for one in self.charges.values() if everybody or one.payer.run in members)
        return sum(mine)


def play(seed: int) -> Schedule:
    schedule = Schedule(seed)
    if schedule.members():
        schedule.until_over()
    return schedule


def test_what_a_group_has_spent_when_its_halts_are_over_is_below_its_ceiling_and_not_far() -> None:
    unused = []
    for seed in range(SCHEDULES):
        schedule = play(seed)
        halted = schedule.halted()
        if not halted:
            continue
        assert set(halted) <= set(schedule.members()), seed
        assert all(schedule.is_over(name) for name in halted), seed
        # The last tick of each halt is the reserve's; the node goes on afterwards, and nobody is charged in a group.
        assert schedule.spent() <= schedule.ceiling, f"seed {seed}: {schedule.scope}"
        unused.append((schedule.ceiling - schedule.spent()) / schedule.reserve_usd_micros)
    assert len(unused) > SCHEDULES / 2
    assert statistics.median(unused) < 1
