"""The halt up to the stop: asks, graces, signals, newcomers, restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.effects import Ask, CloseIncident, HaltEffect, Kill, Page, ReadBilling, StopCompute, Term
from governor.core.halt.table import RENEWALS_MAX, Fact, HaltState, resume, step
from tests.unit.halt_driver import PLAN, PROCESSES, START, Driver, at_stopping, kinds, seconds


def test_the_polite_trainer() -> None:
    driver = Driver()
    assert driver.feed(Fact.VERDICT) == (
        Ask("incident-1", "run-1", "suspect", MonoNs(START + seconds(60)), exit_after=True, reason="loss_nan"),
    )
    driver.feed(Fact.RECEIVED, after_s=1)
    assert driver.stage is HaltState.ASKED
    assert driver.feed(Fact.SAVING, after_s=1) == ()
    assert driver.feed(Fact.SAVED, after_s=8) == (Term("incident-1", "run-1"),)
    assert driver.halt.saved
    assert driver.feed(Fact.EXITED, after_s=1) == (StopCompute("incident-1", "run-1", attempt=1, rung=0),)
    assert driver.feed(Fact.STOP_ACCEPTED, after_s=1) == (ReadBilling("incident-1", "run-1", 2.0),)
    assert driver.stage is HaltState.VERIFYING
    assert driver.feed(Fact.BILLING_RUNNING, after_s=2) == (ReadBilling("incident-1", "run-1", 4.0),)
    assert driver.feed(Fact.BILLING_ENDED, after_s=4) == (CloseIncident("incident-1", "run-1"),)
    assert driver.stage is HaltState.HALTED
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
    assert driver.stage is HaltState.TERMED


def test_a_deadline_fed_early_is_our_own_error() -> None:
    driver = Driver()
    driver.feed(Fact.VERDICT)
    assert driver.halt.deadline is not None
    driver.at = MonoNs(driver.halt.deadline - 1)
    with pytest.raises(AssertionError, match="early"):
        driver.feed(Fact.DEADLINE)
    driver.at = driver.halt.deadline
    driver.feed(Fact.DEADLINE)
    assert driver.stage is HaltState.TERMED


def test_what_was_stamped_before_the_stage_began_counts_as_now() -> None:
    """Threads stamp answers; the loop may have ticked, and the stage moved on, before it takes them."""
    driver = Driver()
    driver.feed(Fact.VERDICT)
    driver.expire()
    driver.halt, effects = step(driver.halt, Fact.EXITED, MonoNs(driver.at - seconds(0.1)), PLAN)
    assert kinds(effects) == [StopCompute]
    assert driver.halt.since == driver.at


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
        ((), HaltState.KILLED),
        ((Fact.EXITED,), HaltState.STOPPING),
        ((Fact.STOP_ACCEPTED,), HaltState.VERIFYING),
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
    assert driver.stage is HaltState.NEEDS_HUMAN
    gaps = []
    for _ in range(8):
        before = driver.at
        assert kinds(driver.expire()) == [Kill]
        gaps.append((driver.at - before) // NS_PER_S)
    assert gaps == [15, 30, 60, 120, 240, 300, 300, 300]
    driver.feed(Fact.EXITED)
    assert driver.stage is HaltState.HALTED


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
    assert resumed(driver, 5) == (Kill("incident-1", "run-1"), ReadBilling("incident-1", "run-1", 0.0))
    assert driver.halt.deadline == deadline
    # Its answer counts, although the read that had been planned before was due later.
    assert kinds(driver.feed(Fact.BILLING_RUNNING, after_s=0.1)) == [ReadBilling]


def test_after_a_long_absence_billing_is_read_before_the_ladder_is_climbed() -> None:
    driver = at_stopping()
    driver.feed(Fact.STOP_ACCEPTED)
    assert kinds(resumed(driver, 3_600)) == [Kill, ReadBilling]
    assert driver.halt.deadline == driver.at + PLAN.stop_reply_ns
    driver.feed(Fact.BILLING_ENDED, after_s=1)
    assert driver.stage is HaltState.HALTED


def test_a_refusal_from_before_the_restart_is_asked_for_again() -> None:
    driver = at_stopping()
    driver.feed(Fact.STOP_REFUSED)
    assert kinds(resumed(driver, 60)) == [Kill, StopCompute, ReadBilling]
    assert kinds(driver.expire()) == [StopCompute, ReadBilling]
    assert driver.halt.rung == 0


def test_a_governor_that_dies_every_few_seconds_does_not_hold_up_the_halt() -> None:
    driver = Driver()
    driver.feed(Fact.VERDICT_NO_ASK)
    for _ in range(10):
        resumed(driver, 9)
    assert driver.halt.deadline == START + RENEWALS_MAX * seconds(9) + PLAN.term_grace_ns
