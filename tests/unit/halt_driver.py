"""Drives the halt table from a list of facts."""

from __future__ import annotations

from dataclasses import replace

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.effects import HaltEffect
from governor.core.halt.table import Fact, HaltPlan, HaltState, StopTarget, open_halt, step

START = MonoNs(1_000 * NS_PER_S)


def seconds(count: float) -> DurationNs:
    return DurationNs(round(count * NS_PER_S))


PLAN = HaltPlan(
    checkpoint="suspect",
    grace_ns=seconds(60),
    save_grace_ns=seconds(40),
    term_grace_ns=seconds(10),
    kill_grace_ns=seconds(5),
    stop=StopTarget.INSTANCE,
    stop_reply_ns=seconds(20),
    verify_ns=seconds(240),
    rung_max=1,
)
PROCESSES = replace(PLAN, stop=StopTarget.PROCESSES)


class Driver:
    """One halt under a clock that only moves when told; remembers what was asked of the world."""

    def __init__(self, plan: HaltPlan = PLAN) -> None:
        self.plan = plan
        self.at = START
        self.halt = open_halt("incident-1", "run-1", "loss_nan", START)
        self.effects: tuple[HaltEffect, ...] = ()

    def feed(self, *facts: Fact, after_s: float = 0.0) -> tuple[HaltEffect, ...]:
        self.at = MonoNs(self.at + seconds(after_s))
        for fact in facts:
            self.halt, self.effects = step(self.halt, fact, self.at, self.plan)
        return self.effects

    def expire(self) -> tuple[HaltEffect, ...]:
        assert self.halt.deadline is not None
        self.at = max(self.at, self.halt.deadline)
        return self.feed(Fact.DEADLINE)

    @property
    def stage(self) -> HaltState:
        return self.halt.stage


def at_stopping(plan: HaltPlan = PLAN) -> Driver:
    driver = Driver(plan)
    driver.feed(Fact.VERDICT, Fact.SAVED, Fact.EXITED)
    assert driver.stage is HaltState.STOPPING
    return driver


def kinds(effects: tuple[HaltEffect, ...]) -> list[type[object]]:
    return [type(effect) for effect in effects]
