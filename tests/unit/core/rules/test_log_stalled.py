"""What no series can say of a stalled log: an unreadable file, a writer's buffer, and whose silence is no evidence."""

from __future__ import annotations

import json
from typing import Final

import pytest

from governor.core.base.findings import Finding, Reading
from governor.core.base.units import NS_PER_S, BootNs, MonoNs, WallNs
from governor.core.events.inputs import Event, PhaseChange, Step, Tick
from governor.core.rules.trigger import FOREVER, defaults
from governor.core.rules.triggers.log_stalled import LogStalled
from governor.core.runs import intake
from governor.core.runs.state import Run

ARMED_AFTER: Final = 10
MIN_S: Final = 600


class Log:
    """A run that is known by its log, and the rule that judges it. Times are in seconds."""

    def __init__(self) -> None:
        self.run = Run("r", 0, MonoNs(0), jsonl_only=True)
        intake.begin_attempt(self.run, "a", MonoNs(0))
        self.trigger = LogStalled(defaults(LogStalled.KEYS))
        self.tick(0)

    def step(self, at_s: float, step: int = 1) -> None:
        event = Step(ns(at_s), None, "r", 0, step)
        intake.apply_step(self.run, None, event)
        self.see(event)

    def mark(self, at_s: float, phase: str) -> None:
        event = PhaseChange(ns(at_s), None, "r", 0, phase)
        intake.apply_phase(self.run, None, event)
        self.see(event)

    def tick(self, at_s: float, *, unbroken: bool = True) -> None:
        at = ns(at_s)
        self.see(Tick(at, BootNs(at), WallNs(at), unbroken=unbroken))

    def see(self, event: Event) -> None:
        self.trigger.observe(event, self.run)

    def judge(self, at_s: float) -> Finding:
        return self.trigger.judge(ns(at_s), self.run)


def ns(at_s: float) -> MonoNs:
    return MonoNs(int(at_s * NS_PER_S))


@pytest.fixture
def known() -> Log:
    """Ten records, the last of them at 10 s."""
    log = Log()
    for second in range(1, 1 + ARMED_AFTER):
        log.step(second)
    return log


def test_what_it_says_is_what_it_has_seen(known: Log) -> None:
    finding = known.judge(10 + MIN_S)
    assert (finding.reading, finding.reason) == (Reading.FIRING, "log_stalled")
    assert finding.evidence == {"silent_s": 600.0, "limit_s": 600.0, "longest_pause_s": 1.0, "phase": "train"}


def test_records_that_arrive_together_are_one() -> None:
    log = Log()
    for step in range(500):
        log.step(1.0, step)
    assert log.judge(10_000).reason == "warming_up"
    for second in range(2, 1 + ARMED_AFTER):
        assert log.judge(10_000).reading is Reading.UNKNOWN
        log.step(second)
    assert log.judge(10_000).reading is Reading.FIRING


def test_a_log_that_cannot_be_read_is_unknown_and_begins_anew_when_it_can(known: Log) -> None:
    intake.apply_log_state(known.run, "gone", ns(20))
    assert known.judge(5_000).reason == "log_unreadable"
    intake.apply_log_state(known.run, None, ns(5_000))
    assert known.judge(5_000 + MIN_S - 1).reading is Reading.QUIET
    assert known.judge(5_000 + MIN_S).reading is Reading.FIRING


def test_the_time_in_which_it_could_not_be_read_is_no_pause_of_it(known: Log) -> None:
    intake.apply_log_state(known.run, "gone", ns(20))
    intake.apply_log_state(known.run, None, ns(5_000))
    known.step(5_001)
    assert known.judge(5_001 + MIN_S).reading is Reading.FIRING


def test_time_in_which_the_governor_did_not_run_is_neither_silence_nor_a_pause(known: Log) -> None:
    known.tick(5_000, unbroken=False)
    assert known.judge(5_000 + MIN_S - 1).reading is Reading.QUIET
    known.step(5_001)
    assert known.judge(5_001 + MIN_S).reading is Reading.FIRING


@pytest.mark.parametrize(("phase", "limit_s"), [("eval", 4_500), ("checkpoint", 2_100), ("agree", 2_100)])
def test_a_mark_lengthens_the_limit_and_a_step_ends_it(known: Log, phase: str, limit_s: int) -> None:
    known.mark(20, phase)
    assert known.judge(20 + limit_s - 1).reading is Reading.QUIET
    assert known.judge(20 + limit_s).reading is Reading.FIRING
    known.step(21)
    assert known.judge(21 + MIN_S).reading is Reading.FIRING


def test_a_mark_never_shortens_what_the_logs_own_pauses_allow(known: Log) -> None:
    known.step(1_010)
    known.mark(1_020, "eval")
    assert known.judge(1_020 + 9_999).reading is Reading.QUIET


def test_a_restarted_governor_knows_the_log_and_its_longest_pause(known: Log) -> None:
    known.step(110)
    saved = json.loads(json.dumps(known.trigger.snapshot()))
    assert saved == {"log_pause_ns": 100 * NS_PER_S, "records": ARMED_AFTER}
    known.trigger = LogStalled(defaults(LogStalled.KEYS))
    known.trigger.restore(saved)
    known.tick(200, unbroken=False)
    assert known.judge(200 + 999).reading is Reading.QUIET, "what it did not see is no silence"
    assert known.judge(200 + 1_000).reading is Reading.FIRING


def test_another_attempt_is_another_log(known: Log) -> None:
    known.trigger.new_attempt(known.run)
    assert known.judge(10_000).reason == "warming_up"


def test_until_when_it_is_steady(known: Log) -> None:
    assert known.trigger.steady_until(ns(11), known.run) == ns(10 + MIN_S)
    assert known.trigger.steady_until(ns(10 + MIN_S), known.run) == FOREVER
