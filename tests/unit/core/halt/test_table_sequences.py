"""All short sequences of facts, and what must hold of each single step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.units import MonoNs
from governor.core.events.effects import Ask, CloseIncident, HaltEffect, Kill, Page, ReadBilling, StopCompute, Term
from governor.core.halt.table import (
    LIVE_STATES,
    TRANSITIONS,
    Fact,
    Halt,
    HaltPlan,
    HaltState,
    StopTarget,
    entry_effects,
    open_halt,
    step,
)
from tests.unit.halt_driver import PLAN, PROCESSES, START, Driver, at_stopping, kinds, seconds

RANK = {stage: n for n, stage in enumerate(HaltState)}
RESUMED = {
    HaltState.ARMED: [],
    HaltState.ASKED: [Ask],
    HaltState.SAVING: [Ask],
    HaltState.WAITING: [],
    HaltState.TERMED: [Term],
    HaltState.KILLED: [Kill],
    HaltState.STOPPING: [Kill, StopCompute, ReadBilling],
    HaltState.VERIFYING: [Kill, ReadBilling],
    HaltState.HALTED: [CloseIncident],
}


def check_step(before: Halt, fact: Fact, after: Halt, effects: tuple[HaltEffect, ...], plan: HaltPlan) -> None:
    """What must hold of every single step, whatever led there."""
    climbed = (before.stage, after.stage) == (HaltState.VERIFYING, HaltState.STOPPING)
    assert RANK[after.stage] >= RANK[before.stage] or (climbed and after.rung == before.rung + 1)
    assert after.rung <= plan.rung_max
    assert (after.deadline is None) == (after.stage in (HaltState.ARMED, HaltState.HALTED))
    assert after.grace_until == before.grace_until or before.stage is HaltState.ARMED
    assert after.saved or not before.saved
    if after.stage is HaltState.HALTED and before.stage is not HaltState.HALTED:
        assert fact is (
            Fact.EXITED if plan.stop is StopTarget.PROCESSES and fact is Fact.EXITED else Fact.BILLING_ENDED
        )
    if plan.stop is StopTarget.PROCESSES:
        assert not {StopCompute, ReadBilling} & set(kinds(effects))
    for effect in effects:
        if isinstance(effect, Kill):
            assert RANK[after.stage] >= RANK[HaltState.KILLED], "SIGKILL before SIGTERM's grace"
        if isinstance(effect, StopCompute):
            assert RANK[after.stage] >= RANK[HaltState.STOPPING]
        if isinstance(effect, CloseIncident):
            assert after.stage is HaltState.HALTED
    resumed = kinds(entry_effects(after, plan))
    if after.stage is HaltState.NEEDS_HUMAN:
        assert resumed == [Page, Kill, *([] if plan.stop is StopTarget.PROCESSES else [ReadBilling])]
    else:
        is_paged = after.stage is HaltState.STOPPING and after.page_reason
        assert resumed == [*RESUMED[after.stage], *([Page] if is_paged else [])]


@pytest.mark.parametrize(
    "plan",
    [replace(PLAN, rung_max=0), PLAN, PROCESSES, replace(PROCESSES, others_ns=seconds(20))],
    ids=["stop", "stop and force", "processes", "last of several nodes"],
)
def test_all_sequences_of_six_facts_keep_the_rules(plan: HaltPlan) -> None:
    """Breadth first over distinct halts: 17 facts to depth 6 are 24.1 million sequences, and far fewer halts."""
    frontier = {open_halt("incident-1", "run-1", "loss_nan", START)}
    seen = set(frontier)
    visited: set[HaltState] = set()
    for depth in range(1, 7):
        found = set()
        for before in frontier:
            for fact in Fact:
                at = MonoNs(START + seconds(depth * 3))
                if fact is Fact.DEADLINE:
                    if before.deadline is None:
                        continue
                    at = max(at, before.deadline)
                at = max(at, before.since)
                after, effects = step(before, fact, at, plan)
                check_step(before, fact, after, effects, plan)
                found.add(after)
                visited.add(after.stage)
        frontier = found - seen
        seen |= found
    never = {HaltState.STOPPING, HaltState.VERIFYING} if plan.stop is StopTarget.PROCESSES else set()
    assert visited == set(HaltState) - never - (set() if plan.others_ns else {HaltState.WAITING})


def test_from_every_live_stage_deadlines_alone_never_wedge() -> None:
    """Nobody answers anything: the halt keeps sending stops for as long as one looks, ever more slowly."""
    driver = Driver()
    driver.feed(Fact.VERDICT)
    stages = {driver.stage}
    for _ in range(60):
        driver.expire()
        stages.add(driver.stage)
    assert driver.stage is HaltState.NEEDS_HUMAN
    assert kinds(driver.effects) == [StopCompute, ReadBilling]
    assert HaltState.HALTED not in stages


def test_halted_is_final() -> None:
    driver = at_stopping()
    driver.feed(Fact.BILLING_ENDED)
    halted = driver.halt
    for fact in Fact:
        assert driver.feed(fact) == ()
        assert driver.halt is halted


def test_the_table_is_complete_and_every_cell_says_why() -> None:
    assert len(TRANSITIONS) == len(LIVE_STATES) * len(Fact)
    for (stage, _fact), cell in TRANSITIONS.items():
        assert cell.to
        assert cell.why.endswith(".")
        assert all(RANK[to] >= RANK[stage] or stage is HaltState.VERIFYING for to in cell.to)
