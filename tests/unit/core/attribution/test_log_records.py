"""What a log's records beside its lines tell of the time between them: saves, evaluations, more of a line's step."""

from __future__ import annotations

import pytest

from governor.core.attribution.causes import Cause
from governor.core.base.units import NS_PER_S, MonoNs
from tests.unit.core.attribution.test_log_lines import Log


def test_another_record_of_a_lines_step_tells_more_of_it() -> None:
    """As a trainer writes that logs twice a step: its loss, then its times, a fifth of a second later."""
    log = Log()
    for number in range(1, 11):
        log.line(2.0 * number, steps=20)
        log.line(2.0 * number + 0.2, 0.1, steps=0, data_s=0.02)
    assert log.end(20.2) == {Cause.PRODUCTIVE: 16.16, Cause.DATA: 4.04}
    assert log.account.steps == 10


@pytest.mark.parametrize("step_s", [0.1, None])
def test_a_save_in_a_record_of_its_own_is_behind_the_line_of_its_step(step_s: float | None) -> None:
    log, at = Log(), 0.0
    for number in range(1, 10):
        at += 2.0
        log.line(at, step_s, steps=20)
        if number % 3 == 0:
            at += 3.0
            log.line(at, steps=0, checkpoint_s=3.0)
    assert log.end(27.0) == {Cause.PRODUCTIVE: 18.0, Cause.CHECKPOINT: 9.0}


@pytest.mark.parametrize("step_s", [0.1, None])
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_an_evaluation_behind_a_line_is_told_when_it_is_over(every: int, step_s: float | None, begins: bool) -> None:
    """As a record of validation alone: it names the step of the line before, and its own moment.

    `begins`: the log names its beginning too.
    """
    log, at, evaluated = Log(), 0.0, 0.0
    for number in range(1, 21):
        at += 2.0
        log.line(at, step_s, steps=20)
        if number % every == 0 and number < 20:
            if begins:
                log.phase(at, "eval")
            at, evaluated = at + 8.0, evaluated + 8.0
            log.phase(at, "eval", log.number)
            log.phase(at, "train", log.number)
    assert log.end(at) == {Cause.PRODUCTIVE: 40.0, Cause.EVALUATION: evaluated}


def test_an_evaluation_between_two_lines_leaves_the_steps_before_it() -> None:
    """Lines of ten steps, evaluations behind each fifteenth."""
    log, at = Log(), 0.0
    for step in range(1, 101):
        at += 1.0
        log.number = step - 1 if step % 10 == 0 else log.number
        if step % 10 == 0:
            log.number = step - 10
            log.line(at, steps=10)
        if step % 15 == 0:
            at += 7.0
            log.phase(at, "eval", step)
            log.phase(at, "train", step)
    found = log.end(at)
    assert found == {Cause.PRODUCTIVE: 100.0, Cause.EVALUATION: 42.0}


def test_lines_that_were_written_together_do_not_make_their_evaluation_the_whole_of_it() -> None:
    """A stream with a buffer: each time a validation and five lines come at one moment."""
    log = Log()
    for burst in range(1, 7):
        at = 8.0 * burst
        log.phase(at, "eval", log.number)
        log.phase(at, "train", log.number)
        for _ in range(5):
            log.line(at, 0.1, steps=10)
    found = log.end(48.0)
    assert found[Cause.PRODUCTIVE] == 30.0


@pytest.mark.parametrize("told", [True, False])
def test_of_two_pauses_behind_a_line_the_one_that_it_does_not_tell_is_the_named_one(told: bool) -> None:
    """Each fifth line: an evaluation of thirty seconds, which the line tells, and a save of twenty, which it names."""
    log, at, more = Log(), 0.0, {}
    for number in range(1, 21):
        at += 10.0 + sum(more.values()) + (20.0 if more else 0.0)
        log.line(at, 1.0 if told else None, steps=10, **more)
        more = {"eval_s": 30.0} if number % 5 == 0 and number < 20 else {}
        if more:
            log.phase(at, "checkpoint")
    assert log.end(at) == {Cause.PRODUCTIVE: 200.0, Cause.EVALUATION: 90.0, Cause.CHECKPOINT: 60.0}


def test_the_first_burst_of_lines_is_no_start() -> None:
    """Four seconds of start, then bursts of forty lines, of a second each."""
    log = Log()
    for burst in range(1, 4):
        for _ in range(40):
            log.line(4.0 + 40.0 * burst, 1.0)
    assert log.end(124.0) == {Cause.START_UP: 4.0, Cause.PRODUCTIVE: 120.0}


def test_the_first_burst_of_lines_without_times_is_no_start() -> None:
    log = Log()
    for burst in range(1, 6):
        for _ in range(5):
            log.line(4.0 + 5.0 * burst)
    assert log.end(29.0) == {Cause.START_UP: 4.0, Cause.PRODUCTIVE: 25.0}


def test_a_pause_behind_one_of_the_first_lines_is_none_of_a_line_that_tells_its_time() -> None:
    log = Log()
    for at in (2.0, 4.0, 11.0, 13.0, 15.0):
        log.line(at, 0.1, steps=20)
    assert log.end(15.0) == {Cause.PRODUCTIVE: 10.0, Cause.UNKNOWN: 5.0}


def test_a_save_behind_an_evaluation_each_in_a_record_of_its_own_leave_each_other_their_time() -> None:
    log, at = Log(), 0.0
    for number in range(1, 11):
        at += 2.0
        log.line(at, steps=20)
        if number < 10:
            at += 4.0
            log.phase(at, "eval", log.number)
            log.phase(at, "train", log.number)
            at += 3.0
            log.line(at, steps=0, checkpoint_s=3.0)
    assert log.end(at) == {Cause.PRODUCTIVE: 20.0, Cause.EVALUATION: 36.0, Cause.CHECKPOINT: 27.0}


@pytest.mark.parametrize("pause_s", [3.0, 8.0])
def test_a_pause_behind_every_line_is_none_of_lines_that_tell_their_time(pause_s: float) -> None:
    log, at = Log(), 0.0
    for number in range(1, 11):
        at += 2.0 + (pause_s if number > 1 else 0.0)
        log.line(at, 0.1, steps=20)
    assert log.end(at) == {Cause.PRODUCTIVE: 20.0, Cause.UNKNOWN: 9 * pause_s}


def test_a_validation_before_the_first_line_is_no_start() -> None:
    """Three seconds of start, ten of validation, and a line of two that does not tell its time."""
    log = Log()
    log.phase(3.0, "eval")
    log.phase(13.0, "train")
    for number in range(1, 6):
        log.line(13.0 + 2.0 * number, steps=20)
    assert log.end(23.0) == {Cause.START_UP: 3.0, Cause.EVALUATION: 10.0, Cause.PRODUCTIVE: 10.0}


def test_a_step_that_is_told_again_much_later_is_done_again() -> None:
    log = Log()
    for number in range(1, 6):
        log.line(10.0 * number, steps=10)
    log.number -= 10
    log.line(60.0, steps=10)
    assert log.end(60.0) == {Cause.PRODUCTIVE: 50.0, Cause.LOST_STEPS: 10.0}


def test_an_evaluation_whose_end_is_told_twice_has_no_other_pause() -> None:
    """As MLPerf's logs: a result, and the end. The five seconds before the evaluation are nobody's."""
    log = Log()
    for number in range(1, 6):
        log.line(2.0 * number, steps=10)
    log.phase(15.0, "eval")
    for _ in range(2):
        log.phase(18.0, "eval")
        log.phase(18.0, "train")
    log.line(20.0, steps=10)
    assert log.end(20.0) == {Cause.PRODUCTIVE: 12.0, Cause.EVALUATION: 3.0, Cause.UNKNOWN: 5.0}


def test_a_record_that_sums_up_by_a_number_of_its_own_is_no_step_that_is_done_again() -> None:
    log = Log()
    for number in range(1, 11):
        log.line(2.0 * number, steps=10, loss=2.0)
        if number == 5:
            log.line(10.5, 0.2, steps=-50)
            log.number = 50
    assert log.end(20.0) == {Cause.PRODUCTIVE: 20.0}
    assert log.account.steps == 10


def test_an_evaluation_that_is_told_by_its_marks_and_by_its_seconds_is_told_once() -> None:
    log = Log()
    for number in range(1, 6):
        log.line(20.0 * number, steps=10)
    log.phase(100.0, "eval")
    log.phase(108.0, "train")
    log.account.phase(0, MonoNs(100 * NS_PER_S), "eval", log.number)  # Seen at 108, as a record of eight seconds.
    log.phase(108.0, "train")
    log.line(128.0, steps=10)
    assert log.end(128.0) == {Cause.PRODUCTIVE: 120.0, Cause.EVALUATION: 8.0}
