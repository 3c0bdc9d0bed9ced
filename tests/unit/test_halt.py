"""The halt table: boundaries, every stage on its own, and all short sequences of facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.effects import Ask, CloseIncident, HaltEffect, Kill, Page, ReadBilling, StopCompute, Term
from governor.core.events import BillingAnswer, StopAnswer
from governor.core.halt import (
    LIVE_STAGES,
    RENEWALS_MAX,
    STOP_ATTEMPTS_PER_RUNG_MAX,
    TRANSITIONS,
    Fact,
    Halt,
    Plan,
    Stage,
    StopTarget,
    billing_fact,
    entry_effects,
    open_halt,
    resume,
    step,
    stop_fact,
    verdict_fact,
)
from governor.core.units import NS_PER_S, DurationNs, MonoNs

START = MonoNs(1_000 * NS_PER_S)


def seconds(count: float) -> DurationNs:
    return DurationNs(round(count * NS_PER_S))


PLAN = Plan(
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

    def __init__(self, plan: Plan = PLAN) -> None:
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
    def stage(self) -> Stage:
        return self.halt.stage


def at_stopping(plan: Plan = PLAN) -> Driver:
    driver = Driver(plan)
    driver.feed(Fact.VERDICT, Fact.SAVED, Fact.EXITED)
    assert driver.stage is Stage.STOPPING
    return driver


def kinds(effects: tuple[HaltEffect, ...]) -> list[type[object]]:
    return [type(effect) for effect in effects]


def test_the_polite_trainer() -> None:
    driver = Driver()
    assert driver.feed(Fact.VERDICT) == (
        Ask("incident-1", "run-1", "suspect", MonoNs(START + seconds(60)), exit_after=True, reason="loss_nan"),
    )
    driver.feed(Fact.RECEIVED, after_s=1)
    assert driver.stage is Stage.ASKED
    assert driver.feed(Fact.SAVING, after_s=1) == ()
    assert driver.feed(Fact.SAVED, after_s=8) == (Term("incident-1", "run-1"),)
    assert driver.halt.saved
    assert driver.feed(Fact.EXITED, after_s=1) == (StopCompute("incident-1", "run-1", attempt=1, rung=0),)
    assert driver.feed(Fact.STOP_ACCEPTED, after_s=1) == (ReadBilling("incident-1", "run-1", 2.0),)
    assert driver.stage is Stage.VERIFYING
    assert driver.feed(Fact.BILLING_RUNNING, after_s=2) == (ReadBilling("incident-1", "run-1", 4.0),)
    assert driver.feed(Fact.BILLING_ENDED, after_s=4) == (CloseIncident("incident-1", "run-1"),)
    assert driver.stage is Stage.HALTED
    assert driver.halt.deadline is None


def test_the_deaf_trainer_is_termed_killed_and_its_machine_stopped() -> None:
    driver = Driver()
    driver.feed(Fact.VERDICT)
    assert driver.expire() == (Term("incident-1", "run-1"),)
    assert driver.at == START + PLAN.grace_ns
    assert driver.expire() == (Kill("incident-1", "run-1"),)
    assert driver.at == START + PLAN.grace_ns + PLAN.term_grace_ns
    assert driver.expire() == (StopCompute("incident-1", "run-1", attempt=1, rung=0),)


def test_without_an_ask_sigterm_comes_first() -> None:
    driver = Driver()
    assert driver.feed(Fact.VERDICT_NO_ASK) == (Term("incident-1", "run-1"),)
    assert driver.halt.grace_until is None


@pytest.mark.parametrize(("began_s", "until_s"), [(0, 40), (19, 59), (20, 60), (21, 60), (60, 60)])
def test_saving_lasts_within_the_grace_of_the_ask(began_s: float, until_s: float) -> None:
    driver = Driver()
    driver.feed(Fact.VERDICT)
    driver.feed(Fact.SAVING, after_s=began_s)
    assert driver.halt.deadline == START + seconds(until_s)


def test_no_ack_extends_the_grace() -> None:
    driver = Driver()
    driver.feed(Fact.VERDICT, Fact.SAVING)
    deadline = driver.halt.deadline
    driver.feed(Fact.SAVING, Fact.RECEIVED, Fact.VERDICT, Fact.VERDICT_NO_ASK, after_s=39)
    assert driver.halt.deadline == deadline
    driver.expire()
    assert driver.stage is Stage.TERMED


def test_a_deadline_fed_early_is_our_own_error() -> None:
    driver = Driver()
    driver.feed(Fact.VERDICT)
    assert driver.halt.deadline is not None
    driver.at = MonoNs(driver.halt.deadline - 1)
    with pytest.raises(AssertionError, match="early"):
        driver.feed(Fact.DEADLINE)
    driver.at = driver.halt.deadline
    driver.feed(Fact.DEADLINE)
    assert driver.stage is Stage.TERMED


def test_what_remains_of_an_exited_run_is_swept_before_the_stop() -> None:
    driver = Driver()
    assert driver.feed(Fact.VERDICT, Fact.EXITED) == (Term("incident-1", "run-1"),)
    assert kinds(driver.feed(Fact.EXITED)) == [StopCompute]


def test_a_late_checkpoint_is_remembered_and_moves_nothing() -> None:
    for facts in ((), (Fact.DEADLINE,), (Fact.EXITED,), (Fact.EXITED, Fact.STOP_ACCEPTED)):
        driver = Driver()
        driver.feed(Fact.VERDICT_NO_ASK)
        for fact in facts:
            driver.expire() if fact is Fact.DEADLINE else driver.feed(fact)
        before = driver.halt
        assert driver.feed(Fact.SAVED) == ()
        assert driver.halt == replace(before, saved=True)


def test_respawned_waits_for_the_grace_of_sigterm_then_is_killed_each_time() -> None:
    driver = Driver()
    driver.feed(Fact.VERDICT_NO_ASK)
    assert kinds(driver.feed(Fact.RESPAWNED, after_s=9)) == [Term]
    deadline = driver.halt.deadline
    driver.expire()
    assert driver.at == deadline == START + PLAN.term_grace_ns
    for facts, stage in (
        ((), Stage.KILLED),
        ((Fact.EXITED,), Stage.STOPPING),
        ((Fact.STOP_ACCEPTED,), Stage.VERIFYING),
    ):
        driver.feed(*facts)
        deadline = driver.halt.deadline
        assert kinds(driver.feed(Fact.RESPAWNED)) == [Kill]
        assert (driver.stage, driver.halt.deadline) == (stage, deadline)


def test_processes_only_halts_at_the_observed_exit_and_never_stops_a_machine() -> None:
    driver = Driver(PROCESSES)
    driver.feed(Fact.VERDICT, Fact.SAVED)
    assert kinds(driver.feed(Fact.EXITED)) == [CloseIncident]
    assert driver.halt.stop_attempts == 0


def test_processes_only_and_unkillable_pages_once_and_goes_on_killing() -> None:
    driver = Driver(PROCESSES)
    driver.feed(Fact.VERDICT_NO_ASK)
    driver.expire()
    assert kinds(driver.expire()) == [Page, Kill]
    assert driver.stage is Stage.NEEDS_HUMAN
    gaps = []
    for _ in range(8):
        before = driver.at
        assert kinds(driver.expire()) == [Kill]
        gaps.append((driver.at - before) // NS_PER_S)
    assert gaps == [15, 30, 60, 120, 240, 300, 300, 300]
    driver.feed(Fact.EXITED)
    assert driver.stage is Stage.HALTED


def test_accepted_but_billed_climbs_every_rung_then_calls_a_person() -> None:
    driver = at_stopping(replace(PLAN, rung_max=2))
    rungs = []
    while driver.stage is not Stage.NEEDS_HUMAN:
        rungs.append(driver.halt.rung)
        driver.feed(Fact.STOP_ACCEPTED)
        driver.feed(Fact.BILLING_RUNNING, after_s=2)
        driver.expire()
    assert rungs == [0, 1, 2]
    assert kinds(driver.effects) == [Page, ReadBilling]


def test_a_busy_provider_is_asked_again_on_the_same_rung_then_a_person_is_called() -> None:
    driver = at_stopping()
    sent = 1
    while driver.stage is Stage.STOPPING:
        assert kinds(driver.feed(Fact.STOP_BUSY)) == [ReadBilling]
        sent += StopCompute in kinds(driver.expire())
    assert sent == STOP_ATTEMPTS_PER_RUNG_MAX
    assert driver.stage is Stage.NEEDS_HUMAN
    assert driver.halt.rung == 0


def test_a_refusal_is_read_back_before_the_ladder_is_climbed() -> None:
    driver = at_stopping()
    assert kinds(driver.feed(Fact.STOP_REFUSED)) == [ReadBilling]
    assert driver.halt.rung == 0
    driver.feed(Fact.BILLING_ENDED)  # Somebody had stopped it by hand: nothing harsher may follow.
    assert driver.stage is Stage.HALTED

    driver = at_stopping()
    driver.feed(Fact.STOP_REFUSED)
    driver.feed(Fact.BILLING_RUNNING)
    assert driver.expire() == (StopCompute("incident-1", "run-1", 2, 1), ReadBilling("incident-1", "run-1", 0.0))
    driver.feed(Fact.STOP_REFUSED)
    assert kinds(driver.expire()) == [Page, ReadBilling]


def test_a_second_answer_to_one_stop_does_not_lengthen_the_pause() -> None:
    driver = at_stopping()
    driver.feed(Fact.STOP_UNKNOWN)
    deadline = driver.halt.deadline
    for fact in (Fact.STOP_UNKNOWN, Fact.STOP_BUSY):
        assert driver.feed(fact, after_s=1) == ()
    assert driver.halt.deadline == deadline


def test_doubled_and_late_reads_do_not_multiply_the_polls() -> None:
    driver = at_stopping()
    driver.feed(Fact.STOP_ACCEPTED)
    assert kinds(driver.feed(Fact.BILLING_RUNNING, after_s=2)) == [ReadBilling]
    assert driver.feed(Fact.BILLING_RUNNING) == ()
    assert driver.feed(Fact.BILLING_UNKNOWN, after_s=3.9) == ()
    assert kinds(driver.feed(Fact.BILLING_UNKNOWN, after_s=0.1)) == [ReadBilling]


def test_polls_slow_down_to_their_bound() -> None:
    driver = at_stopping()
    (read,) = driver.feed(Fact.STOP_ACCEPTED)
    waits = []
    for _ in range(6):
        assert isinstance(read, ReadBilling)
        waits.append(read.after_s)
        (read,) = driver.feed(Fact.BILLING_RUNNING, after_s=read.after_s)
    assert waits == [2.0, 4.0, 8.0, 15.0, 15.0, 15.0]


def needs_human(plan: Plan = PLAN) -> Driver:
    driver = at_stopping(plan)
    while driver.stage is not Stage.NEEDS_HUMAN:
        driver.feed(Fact.STOP_REFUSED)
        driver.expire()
    return driver


def test_with_a_person_called_the_ladder_goes_round_and_accepted_gets_its_time() -> None:
    driver = needs_human()
    rungs = []
    for _ in range(4):
        (stop, read) = driver.expire()
        assert isinstance(stop, StopCompute)
        assert isinstance(read, ReadBilling)
        rungs.append(stop.rung)
        driver.feed(Fact.STOP_REFUSED)
    assert rungs == [1, 0, 1, 0] or rungs == [0, 1, 0, 1]
    driver.expire()
    accepted_at = driver.at
    assert kinds(driver.feed(Fact.STOP_ACCEPTED)) == [ReadBilling]
    assert driver.feed(Fact.STOP_ACCEPTED, after_s=1) == ()
    assert driver.halt.deadline == accepted_at + PLAN.verify_ns
    driver.feed(Fact.BILLING_ENDED)
    assert driver.stage is Stage.HALTED


def test_with_a_person_called_billing_is_read_until_it_ends() -> None:
    driver = needs_human()
    (page, read) = driver.effects
    assert page == Page("incident-1", "run-1", "the provider refuses the stop")
    for _ in range(5):
        assert isinstance(read, ReadBilling)
        (read,) = driver.feed(Fact.BILLING_RUNNING, after_s=read.after_s)
    driver.feed(Fact.BILLING_ENDED, after_s=1)
    assert driver.stage is Stage.HALTED


@pytest.mark.parametrize(
    ("checkpoint", "grace_s", "expected_s", "fact"),
    [
        ("good", 60, None, Fact.VERDICT),
        ("good", 60, 40, Fact.VERDICT),  # Exactly the save grace.
        ("good", 60, 41, Fact.VERDICT_NO_ASK),
        ("good", 30, 31, Fact.VERDICT_NO_ASK),
        ("good", 0, None, Fact.VERDICT_NO_ASK),
        ("none", 60, None, Fact.VERDICT_NO_ASK),
    ],
)
def test_the_ask_is_skipped_where_no_save_fits(
    checkpoint: str, grace_s: float, expected_s: float | None, fact: Fact
) -> None:
    plan = replace(PLAN, checkpoint=checkpoint, grace_ns=seconds(grace_s))
    assert verdict_fact(plan, None if expected_s is None else seconds(expected_s)) is fact


def test_every_answer_of_hands_is_a_fact() -> None:
    assert stop_fact(StopAnswer.ACCEPTED, retryable=False) is Fact.STOP_ACCEPTED
    assert stop_fact(StopAnswer.REFUSED, retryable=True) is Fact.STOP_BUSY
    assert stop_fact(StopAnswer.REFUSED, retryable=False) is Fact.STOP_REFUSED
    assert stop_fact(StopAnswer.UNKNOWN, retryable=True) is Fact.STOP_UNKNOWN
    assert [billing_fact(answer) for answer in BillingAnswer] == [
        Fact.BILLING_ENDED,
        Fact.BILLING_RUNNING,
        Fact.BILLING_UNKNOWN,
    ]


# --- a governor that comes back ------------------------------------------------------------------------------


def resumed(driver: Driver, after_s: float) -> tuple[HaltEffect, ...]:
    driver.at = MonoNs(driver.at + seconds(after_s))
    driver.halt, effects = resume(driver.halt, driver.at, driver.plan)
    return effects


def test_a_restart_does_not_extend_the_grace_of_the_ask() -> None:
    driver = Driver()
    driver.feed(Fact.VERDICT)
    assert kinds(resumed(driver, 59)) == [Ask]
    assert driver.halt.deadline == START + PLAN.grace_ns


def test_a_repeated_sigterm_has_its_whole_grace_before_sigkill() -> None:
    driver = Driver()
    driver.feed(Fact.VERDICT_NO_ASK)
    assert kinds(resumed(driver, 60)) == [Term]
    assert driver.halt.deadline == driver.at + PLAN.term_grace_ns


def test_a_restart_in_time_changes_no_deadline() -> None:
    driver = at_stopping()
    driver.feed(Fact.STOP_ACCEPTED)
    deadline = driver.halt.deadline
    assert resumed(driver, 5) == (ReadBilling("incident-1", "run-1", 0.0),)
    assert driver.halt.deadline == deadline
    # Its answer counts, although the read that had been planned before was due later.
    assert kinds(driver.feed(Fact.BILLING_RUNNING, after_s=0.1)) == [ReadBilling]


def test_after_a_long_absence_billing_is_read_before_the_ladder_is_climbed() -> None:
    driver = at_stopping()
    driver.feed(Fact.STOP_ACCEPTED)
    assert resumed(driver, 3_600) == (ReadBilling("incident-1", "run-1", 0.0),)
    assert driver.halt.deadline == driver.at + PLAN.stop_reply_ns
    driver.feed(Fact.BILLING_ENDED, after_s=1)
    assert driver.stage is Stage.HALTED


def test_a_refusal_from_before_the_restart_is_asked_for_again() -> None:
    driver = at_stopping()
    driver.feed(Fact.STOP_REFUSED)
    assert kinds(resumed(driver, 60)) == [StopCompute, ReadBilling]
    assert kinds(driver.expire()) == [StopCompute, ReadBilling]
    assert driver.halt.rung == 0


def test_a_governor_that_dies_every_few_seconds_does_not_hold_up_the_halt() -> None:
    driver = Driver()
    driver.feed(Fact.VERDICT_NO_ASK)
    for _ in range(10):
        resumed(driver, 9)
    assert driver.halt.deadline == START + RENEWALS_MAX * seconds(9) + PLAN.term_grace_ns


# --- all short sequences -------------------------------------------------------------------------------------

RANK = {stage: n for n, stage in enumerate(Stage)}
RESUMED = {
    Stage.ARMED: [],
    Stage.ASKED: [Ask],
    Stage.SAVING: [Ask],
    Stage.TERMED: [Term],
    Stage.KILLED: [Kill],
    Stage.STOPPING: [StopCompute, ReadBilling],
    Stage.VERIFYING: [ReadBilling],
    Stage.HALTED: [CloseIncident],
}


def check_step(before: Halt, fact: Fact, after: Halt, effects: tuple[HaltEffect, ...], plan: Plan) -> None:
    """What must hold of every single step, whatever led there."""
    climbed = (before.stage, after.stage) == (Stage.VERIFYING, Stage.STOPPING)
    assert RANK[after.stage] >= RANK[before.stage] or (climbed and after.rung == before.rung + 1)
    assert after.rung <= plan.rung_max
    assert (after.deadline is None) == (after.stage in (Stage.ARMED, Stage.HALTED))
    assert after.grace_until == before.grace_until or before.stage is Stage.ARMED
    assert after.saved or not before.saved
    if after.stage is Stage.HALTED and before.stage is not Stage.HALTED:
        assert fact is (
            Fact.EXITED if plan.stop is StopTarget.PROCESSES and fact is Fact.EXITED else Fact.BILLING_ENDED
        )
    if plan.stop is StopTarget.PROCESSES:
        assert not {StopCompute, ReadBilling} & set(kinds(effects))
    for effect in effects:
        if isinstance(effect, Kill):
            assert RANK[after.stage] >= RANK[Stage.KILLED], "SIGKILL before SIGTERM's grace"
        if isinstance(effect, StopCompute):
            assert RANK[after.stage] >= RANK[Stage.STOPPING]
        if isinstance(effect, CloseIncident):
            assert after.stage is Stage.HALTED
    resumed = kinds(entry_effects(after, plan))
    if after.stage is Stage.NEEDS_HUMAN:
        assert resumed == [Page, Kill if plan.stop is StopTarget.PROCESSES else ReadBilling]
    else:
        assert resumed == RESUMED[after.stage]


@pytest.mark.parametrize(
    "plan", [replace(PLAN, rung_max=0), PLAN, PROCESSES], ids=["stop", "stop and force", "processes"]
)
def test_all_sequences_of_six_facts_keep_the_rules(plan: Plan) -> None:
    """Breadth first over distinct halts: 16 facts to depth 6 are 16.7 million sequences, and far fewer halts."""
    frontier = {open_halt("incident-1", "run-1", "loss_nan", START)}
    seen = set(frontier)
    visited: set[Stage] = set()
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
    expected = set(Stage) - ({Stage.STOPPING, Stage.VERIFYING} if plan.stop is StopTarget.PROCESSES else set())
    assert visited == expected


def test_from_every_live_stage_deadlines_alone_never_wedge() -> None:
    """Nobody answers anything: the halt keeps sending stops for as long as one looks, ever more slowly."""
    driver = Driver()
    driver.feed(Fact.VERDICT)
    stages = {driver.stage}
    for _ in range(60):
        driver.expire()
        stages.add(driver.stage)
    assert driver.stage is Stage.NEEDS_HUMAN
    assert kinds(driver.effects) == [StopCompute, ReadBilling]
    assert Stage.HALTED not in stages


def test_halted_is_final() -> None:
    driver = at_stopping()
    driver.feed(Fact.BILLING_ENDED)
    halted = driver.halt
    for fact in Fact:
        assert driver.feed(fact) == ()
        assert driver.halt is halted


def test_the_table_is_complete_and_every_cell_says_why() -> None:
    assert len(TRANSITIONS) == len(LIVE_STAGES) * len(Fact)
    for (stage, _fact), cell in TRANSITIONS.items():
        assert cell.to
        assert cell.why.endswith(".")
        assert all(RANK[to] >= RANK[stage] or stage is Stage.VERIFYING for to in cell.to)
