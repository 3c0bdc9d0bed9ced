"""The provider's ladder: stops, reads, rungs, and what goes on once a person has been called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.units import NS_PER_S
from governor.core.events.effects import Kill, Page, ReadBilling, StopCompute
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.core.halt.acts import NO_ANSWER_NS, PUT_OFF
from governor.core.halt.table import (
    STOP_ATTEMPTS_PER_RUNG_MAX,
    Fact,
    HaltPlan,
    HaltState,
    billing_fact,
    stop_fact,
    verdict_fact,
)
from tests.unit.halt_driver import PLAN, Driver, at_stopping, kinds, seconds


def test_accepted_but_billed_climbs_every_rung_then_calls_a_person() -> None:
    driver = at_stopping(replace(PLAN, rung_max=2))
    rungs = []
    while driver.stage is not HaltState.NEEDS_HUMAN:
        rungs.append(driver.halt.rung)
        driver.feed(Fact.STOP_ACCEPTED)
        driver.feed(Fact.BILLING_RUNNING, after_s=2)
        driver.expire()
    assert rungs == [0, 1, 2]
    assert kinds(driver.effects) == [Page, Kill, ReadBilling]


def test_a_busy_provider_is_asked_again_on_the_same_rung_then_a_person_is_called() -> None:
    driver = at_stopping()
    sent = 1
    while driver.stage is HaltState.STOPPING:
        assert kinds(driver.feed(Fact.STOP_BUSY)) == [ReadBilling]
        sent += StopCompute in kinds(driver.expire())
    assert sent == STOP_ATTEMPTS_PER_RUNG_MAX
    assert driver.stage is HaltState.NEEDS_HUMAN
    assert driver.halt.rung == 0
    assert driver.halt.page_reason == PUT_OFF, "it has answered"


@pytest.mark.parametrize("reply_s", [1, 5, 17, 29, 50])
def test_a_person_hears_of_a_silent_provider_when_a_minute_is_over_whatever_its_calls_take(reply_s: int) -> None:
    driver = at_stopping(replace(PLAN, stop_reply_ns=seconds(reply_s)))
    began, ends, told = driver.at, driver.at + seconds(reply_s), 0
    while driver.stage is HaltState.STOPPING and not told:
        assert driver.halt.deadline is not None
        if driver.at < ends <= driver.halt.deadline:  # The call's own time is over first.
            driver.feed(Fact.STOP_UNKNOWN, after_s=(ends - driver.at) / NS_PER_S)
            continue
        effects = driver.expire()
        told = kinds(effects).count(Page)
        if StopCompute in kinds(effects):
            assert driver.at >= ends, "a call that has its own time yet is left alone"
            ends = driver.at + seconds(reply_s)
    assert told == 1
    assert driver.at - began <= NO_ANSWER_NS


def test_a_refusal_is_read_back_before_the_ladder_is_climbed() -> None:
    driver = at_stopping()
    assert kinds(driver.feed(Fact.STOP_REFUSED)) == [ReadBilling]
    assert driver.halt.rung == 0
    driver.feed(Fact.BILLING_ENDED)  # Somebody had stopped it by hand: nothing harsher may follow.
    assert driver.stage is HaltState.HALTED

    driver = at_stopping()
    driver.feed(Fact.STOP_REFUSED)
    driver.feed(Fact.BILLING_RUNNING)
    assert driver.expire() == (StopCompute("incident-1", "run-1", 2, 1), ReadBilling("incident-1", "run-1", 0.0))
    driver.feed(Fact.STOP_REFUSED)
    assert kinds(driver.expire()) == [Page, Kill, ReadBilling]


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


def needs_human(plan: HaltPlan = PLAN) -> Driver:
    driver = at_stopping(plan)
    while driver.stage is not HaltState.NEEDS_HUMAN:
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
    assert driver.stage is HaltState.HALTED


def test_with_a_person_called_a_stop_that_was_accepted_in_vain_is_followed_by_the_next_rung() -> None:
    driver = at_stopping()
    while driver.stage is not HaltState.NEEDS_HUMAN:
        driver.feed(Fact.STOP_ACCEPTED)
        driver.expire()
    rungs = []
    for _ in range(4):
        driver.expire()
        rungs.append(driver.halt.rung)
        driver.feed(Fact.STOP_ACCEPTED)
    assert rungs == [0, 1, 0, 1]


def test_with_a_person_called_billing_is_read_until_it_ends() -> None:
    driver = needs_human()
    (page, _kill, read) = driver.effects
    assert page == Page("incident-1", "run-1", "the provider refuses the stop")
    for _ in range(5):
        assert isinstance(read, ReadBilling)
        (read,) = driver.feed(Fact.BILLING_RUNNING, after_s=read.after_s)
    driver.feed(Fact.BILLING_ENDED, after_s=1)
    assert driver.stage is HaltState.HALTED


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
