"""Step times and tokens a second: of steps of any length, and of lines that come together."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from governor.core.base.units import NS_PER_S, MonoNs, WallNs
from governor.core.events.inputs import PhaseChange, Step
from governor.core.rules.run_speed import tokens_of
from governor.core.runs import intake
from governor.core.runs.pace import RATE_STEPS
from governor.core.runs.state import Run

POLL_S = 0.25
EPOCH_S = 1_790_000_000


class Log:
    """A log that is looked at each quarter second, in real time by `s`."""

    def __init__(self) -> None:
        self.run = Run("log", 1000, MonoNs(0), jsonl_only=True)
        self._step = 0

    def line(
        self, s: float, tokens: int | None = 30_000, written: float | None = None, seen: float | None = None
    ) -> None:
        self._step += 1
        at = seen if seen is not None else -(-s // POLL_S) * POLL_S
        intake.apply_step(
            self.run, None,
            Step(
                MonoNs(round(at * NS_PER_S)), None, "log", 0, self._step, tokens=tokens,
                written=None if written is None else WallNs(round((EPOCH_S + written) * NS_PER_S)),
            ),
        )  # fmt: skip

    def steady(self, seconds: Iterable[float]) -> None:
        for s in seconds:
            self.line(s)

    @property
    def shown(self) -> tuple[float, float]:
        return self.run.tokens_per_s or 0.0, self.run.step_times.median() or 0.0


def every(step_s: float, count: int) -> list[float]:
    return [number * step_s for number in range(1, count + 1)]


@pytest.mark.parametrize("step_s", [0.1, 0.05, 0.01, 0.003])
def test_steps_that_are_shorter_than_a_look_are_told_by_their_own_times(step_s: float) -> None:
    log = Log()
    for s in every(step_s, 400):
        log.line(s, written=s)
    assert log.shown == pytest.approx((30_000 / step_s, step_s), rel=1e-4)
    assert len(log.run.step_times) == 399


@pytest.mark.parametrize("step_s", [0.1, 0.05, 0.01, 0.003])
def test_lines_without_a_time_share_that_between_two_looks(step_s: float) -> None:
    log = Log()
    log.steady(every(step_s, 400))
    tokens_per_s, median_s = log.shown
    assert tokens_per_s == pytest.approx(30_000 / step_s, rel=0.25), "within one look of the window"
    assert median_s == pytest.approx(step_s, rel=0.25)
    assert sum(log.run.step_times) == pytest.approx(400 * step_s, abs=2 * POLL_S)


@pytest.mark.parametrize("step_s", [0.25, 0.1, 0.02])
def test_a_clock_of_whole_seconds_is_none_of_steps_of_a_second(step_s: float) -> None:
    log, last = Log(), 0.0
    for s in every(step_s, 500):
        log.line(s, written=float(int(s)))
        last = s
        if s > 4:
            assert log.shown == pytest.approx((30_000 / step_s, step_s), rel=0.3), s
    assert last > 4


def test_a_clock_that_stands_still_is_none() -> None:
    """The time of the run's start in each line, or one of whole minutes."""
    for clock in (0.0, 60.0):
        log = Log()
        for s in every(2.0, 200):
            log.line(s, written=s // clock * clock if clock else 0.0)
        assert log.shown == pytest.approx((15_000, 2.0), rel=1e-6)
        assert max(log.run.step_times) == 2.0


def test_a_clock_that_goes_back_is_not_followed_there() -> None:
    log = Log()
    for s in every(1.0, 100):
        log.line(s, written=s if s < 50 else s - 1800)
    assert set(log.run.step_times) == {1.0}


def test_what_is_read_at_once_after_a_while_is_no_step_of_that_while() -> None:
    log = Log()
    log.steady(every(1.0, 10))
    for _ in range(1000):
        log.line(510.0)
    assert log.run.tokens_per_s == pytest.approx(60_000)
    assert max(log.run.step_times) <= 1.0
    log.line(510.5)
    assert set(log.run.step_times) == {0.5}


def test_an_evaluation_among_lines_that_come_together_leaves_them_without_a_time() -> None:
    log = Log()
    log.steady(every(1.0, 10))
    log.line(19.0, seen=20.0)
    intake.apply_phase(log.run, None, PhaseChange(MonoNs(20 * NS_PER_S), None, "log", 0, "eval"))
    log.line(20.0)
    assert set(log.run.step_times) == {1.0}
    assert log.run.tokens_per_s == 30_000
    log.line(21.0)
    assert log.run.step_times.newest(2) == [1.0, 1.0]


@pytest.mark.parametrize("is_timed", [True, False])
def test_tokens_a_second_are_those_of_the_last_steps_over_their_time(is_timed: bool) -> None:
    """Of lengths that vary by forty times, the last one's alone are wrong by ten."""
    drawn, run, s, seen = random.Random(1), Run("log", 1000, MonoNs(0), jsonl_only=True), 0.0, []
    for number in range(1, 200):
        tokens = drawn.choice([100, 1000, 4000])
        step_s = 0.1 + tokens / 1000
        s += step_s
        seen.append((tokens, step_s))
        told = step_s if is_timed else None
        at = MonoNs(round(s * NS_PER_S))
        intake.apply_step(run, None, Step(at, None, "log", 0, number, tokens=tokens, step_s=told))
        if number > RATE_STEPS:
            window = seen[-RATE_STEPS:]
            right = sum(tokens for tokens, _ in window) / sum(seconds for _, seconds in window)
            assert run.tokens_per_s == pytest.approx(right, rel=1e-6)


@pytest.mark.parametrize("beside", [{"checkpoint_s": 4.0}, {"hold_s": 4.0}, {"eval_s": 4.0}])
def test_what_is_no_training_is_no_part_of_the_speed(beside: dict[str, float]) -> None:
    run = Run("log", 1000, MonoNs(0), jsonl_only=True)
    for number in range(1, 11):
        told = Step(MonoNs(number * 5 * NS_PER_S), None, "log", 0, number, tokens=1000, step_s=5.0, **beside)  # type: ignore[arg-type]
        intake.apply_step(run, None, told)
    assert (run.step_times.median(), run.tokens_per_s) == (1.0, 1000)


def test_a_pause_takes_neither_its_time_nor_its_tokens_into_the_speed() -> None:
    log = Log()
    log.steady(every(1.0, 10))
    intake.apply_phase(log.run, None, PhaseChange(MonoNs(10 * NS_PER_S), None, "log", 0, "eval"))
    log.line(500.0, tokens=10_000_000)
    assert log.run.tokens_per_s == 30_000


@pytest.mark.parametrize(("stride", "is_timed"), [(1, False), (1, True), (10, False), (10, True)])
def test_a_log_of_totals_alone_has_a_speed(stride: int, is_timed: bool) -> None:
    """MLPerf's logs count samples of the run, and say no step's own."""
    run = Run("log", 1000, MonoNs(0), jsonl_only=True)
    for step in range(stride, 60 * stride, stride):
        at = MonoNs(round(0.5 * step * NS_PER_S))
        told = 0.5 if is_timed else None
        intake.apply_step(run, None, Step(at, None, "log", 0, step, tokens_total=step * 1000, step_s=told))
    assert run.tokens_per_s == pytest.approx(2000)
    again = run.step or 0
    for step in range(again - 5 * stride, again, stride):  # From a checkpoint: nothing rises that was counted.
        at = MonoNs(round(0.5 * (step + 6 * stride) * NS_PER_S))
        intake.apply_step(run, None, Step(at, None, "log", 0, step, tokens_total=step * 1000, step_s=told))
    assert run.tokens_per_s == pytest.approx(2000, rel=0.01)


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_log_with_a_line_for_many_steps_has_the_speed_of_each(is_timed: bool) -> None:
    """Megatron prints each hundredth step: the time of one, or none, beside the tokens of all."""
    run = Run("log", 1000, MonoNs(0), jsonl_only=True)
    for step in range(100, 6_000, 100):
        at = MonoNs(round(0.5 * step * NS_PER_S))
        told = 0.5 if is_timed else None
        intake.apply_step(run, None, Step(at, None, "log", 0, step, tokens=100_000, line_steps=100, step_s=told))
    assert run.tokens_per_s == pytest.approx(2000)
    assert run.step_times.median() == pytest.approx(0.5)


def test_tokens_of_one_step_stay_those_in_a_log_of_each_tenth() -> None:
    """A rate times a step's time, or what stands under tokens_per_step."""
    run = Run("log", 1000, MonoNs(0), jsonl_only=True)
    for step in range(10, 600, 10):
        at = MonoNs(round(0.25 * step * NS_PER_S))
        intake.apply_step(run, None, Step(at, None, "log", 0, step, tokens=8192, step_s=0.25))
    assert run.tokens_per_s == pytest.approx(32_768)


def test_what_a_line_tells_of_tokens_may_be_of_all_its_steps() -> None:
    last, line = (Step(MonoNs(0), None, "log", 0, step, tokens=1000) for step in (10, 20))
    run = Run("log", 1000, MonoNs(0), jsonl_only=True)
    assert tokens_of(line, last, run) == 1000
    assert tokens_of(replace(line, line_steps=10), last, run) == 100
