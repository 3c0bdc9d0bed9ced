"""One schedule, drawn from its seed: the plan, and how trainer, cloud, links and disk misbehave.

Swarm testing: each fault is wholly off in about half the schedules, so that none can always hide behind another.
Delays are drawn around the deadline that they race, never only below it: what stays below cannot show a late answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random
from typing import TypeVar

from governor.core.base.units import NS_PER_MS, NS_PER_S, DurationNs
from governor.core.halt.table import HaltPlan, StopTarget

T = TypeVar("T")

RUN = "run-1"
INCIDENT = "run-1.node-1.1"
AROUND = (0.1, 0.5, 1.0, 2.0, 4.0)


def around(rng: Random, deadline_ns: int) -> int:
    """A delay that races this deadline: well below, near on either side, or far beyond."""
    return max(NS_PER_MS, round(deadline_ns * rng.choice(AROUND) * rng.uniform(0.95, 1.05)))


@dataclass(frozen=True, slots=True)
class Faults:
    # Links between trainer or cloud and governor.
    lose: float = 0.0
    double: float = 0.0
    stale_stamps: bool = False  # Stamped on another thread, taken by the loop up to 300 ms later.
    late: float = 0.0  # Share of messages that arrive stages later, and so in another order.
    # Trainer.
    deaf: bool = False  # The letter never reaches anybody who answers.
    save_fails: bool = False
    late_acks: float = 0.0  # Share of acks that the outbox delivers stages later.
    early_exit: bool = False  # The ranks crash by themselves somewhere around the grace.
    ignores_term: float = 0.0  # Share of the processes.
    unkillable: bool = False  # One process in D state.
    respawns: int = 0  # By something outside the kill set.
    # Governor and its disk.
    crash: float = 0.0  # Per step, at any point between journal and act.
    torn: float = 0.0  # Share of the crashes that tear the journal's last row.
    disk_full: bool = False  # Rows go to the fallback file, marked undurable.
    # Cloud.
    busy: float = 0.0
    timeout: float = 0.0  # Of these half did stop.
    slow_replies: bool = False
    refused_rungs: frozenset[int] = frozenset()
    idle_rungs: frozenset[int] = frozenset()  # Accepted, and billing goes on.
    slow_stop: bool = False  # Billing ends around the verify deadline.
    refuses_when_stopped: bool = False  # "Incorrect state" for a machine that is down already.
    restarts: int = 0  # By somebody behind our back, while the halt is open.
    by_hand: bool = False  # The operator stops the machine in the console.
    read_unknown: float = 0.0
    read_stale: bool = False  # "running" for a while after it ended.
    bystander: bool = False  # Somebody else's reads of billing reach the halt, in any stage.
    second_verdicts: int = 0

    @property
    def names(self) -> list[str]:
        return [f"{field.name}={value}" for field in fields(self) if (value := getattr(self, field.name))]


HEALED = Faults()


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that is settled before the first moment."""

    plan: HaltPlan
    faults: Faults
    ranks: int
    asked: bool  # The verdict asks for a checkpoint.
    healed_after_ns: DurationNs
    governor_inside: bool  # On the machine that it stops: then it cannot see the end.


def some_moment(rng: Random, plan: HaltPlan) -> int:
    """A delay from the verdict that falls into any stage, the short ones as often as the long ones."""
    ends_ns = [plan.grace_ns * rng.random()]
    for lasts_ns in (plan.term_grace_ns, plan.kill_grace_ns, plan.stop_reply_ns, plan.verify_ns, plan.retry_max_ns):
        ends_ns.append(max(ends_ns[-1], plan.grace_ns) + lasts_ns * rng.random())
    return max(NS_PER_MS, round(rng.choice(ends_ns)))


def draw_schedule(rng: Random) -> Schedule:
    plan = draw_plan(rng)
    asked = plan.checkpoint != "none" and rng.random() < 0.85
    return Schedule(
        plan=plan,
        faults=draw_faults(rng, plan),
        ranks=rng.randint(1, 4),
        asked=asked,
        healed_after_ns=DurationNs(round(rng.choice((60, 300, 1_200, 3_000)) * NS_PER_S * rng.uniform(0.5, 1.5))),
        governor_inside=plan.stop is StopTarget.INSTANCE and rng.random() < 0.15,
    )


def draw_plan(rng: Random) -> HaltPlan:
    def between(low_s: float, high_s: float) -> DurationNs:
        return DurationNs(round(rng.uniform(low_s, high_s) * NS_PER_S))

    grace = between(5, 180)
    return HaltPlan(
        checkpoint=rng.choice(("good", "suspect", "suspect", "none")),
        grace_ns=grace,
        save_grace_ns=DurationNs(round(grace * rng.choice((0.3, 0.8, 1.0)))),
        term_grace_ns=between(1, 30),
        kill_grace_ns=between(1, 10),
        stop=rng.choice((StopTarget.INSTANCE, StopTarget.INSTANCE, StopTarget.JOB, StopTarget.PROCESSES)),
        stop_reply_ns=between(5, 30),
        verify_ns=between(30, 240),
        rung_max=rng.choice((0, 1, 1, 2, 2)),
        others_ns=between(5, 60) if rng.random() < 0.4 else DurationNs(0),
    )


def draw_faults(rng: Random, plan: HaltPlan) -> Faults:
    def swarm(fault: Callable[[], T], off: T) -> T:
        return fault() if rng.random() < 0.5 else off

    def share(most: float) -> float:
        return swarm(lambda: rng.uniform(0.0, most), 0.0)

    def flag() -> bool:
        return swarm(lambda: rng.random() < 0.6, False)

    rungs = range(plan.rung_max + 1)

    def some_rungs() -> frozenset[int]:
        return swarm(lambda: frozenset(rung for rung in rungs if rng.random() < 0.6), frozenset())

    faults = Faults(
        lose=share(0.3),
        double=share(0.4),
        stale_stamps=flag(),
        late=share(0.4),
        deaf=flag(),
        save_fails=flag(),
        late_acks=share(1.0),
        early_exit=flag(),
        ignores_term=share(1.0),
        unkillable=flag(),
        respawns=swarm(lambda: rng.randint(1, 6), 0),
        crash=share(0.15),
        torn=share(1.0),
        disk_full=flag(),
        busy=share(0.95),
        timeout=share(0.6),
        slow_replies=flag(),
        refused_rungs=some_rungs(),
        idle_rungs=some_rungs(),
        slow_stop=flag(),
        refuses_when_stopped=flag(),
        restarts=swarm(lambda: rng.randint(1, 2), 0),
        by_hand=flag(),
        read_unknown=share(0.6),
        read_stale=flag(),
        bystander=flag(),
        second_verdicts=swarm(lambda: rng.randint(1, 3), 0),
    )
    # One schedule in twelve is as it should be: the plain sequence must stay covered.
    return replace(HEALED, second_verdicts=faults.second_verdicts) if rng.random() < 0.08 else faults
