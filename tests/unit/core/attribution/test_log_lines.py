"""What the lines of a log tell of a run's time: their pace, pauses, and the time before the first one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Cause
from governor.core.attribution.rows import time_row, whole_of
from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S, BootNs, MonoNs
from governor.core.events.inputs import Step


class Log:
    """An account that lines at these seconds feed, as a replay feeds it."""

    def __init__(self, connection: ConnectionId | None = None) -> None:
        self.account, self.number, self.connection = TimeAccount(), 0, connection
        self.begin(MonoNs(0))
        self.tick(0)

    def begin(self, at: MonoNs) -> None:
        if self.connection is None:
            self.account.log_begins(0, at, goes_on=False)
        else:
            self.account.rank_begins(0, at)

    def tick(self, at: float) -> MonoNs:
        now = MonoNs(round(at * NS_PER_S))
        self.account.tick(now, BootNs(now), BootNs(0), 0, holds=True, is_unbroken=True)
        return now

    def line(self, at: float, step_s: float | None = None, *, steps: int = 1, **parts: Any) -> None:
        now, self.number = self.tick(at), self.number + steps
        self.account.step(0, Step(now, self.connection, "log", 0, self.number, step_s=step_s, **parts), now)

    def phase(self, at: float, name: str, step: int | None = None) -> None:
        self.account.phase(0, self.tick(at), name, step)

    def end(self, at: float) -> dict[Cause, float]:
        self.account.over(self.tick(at))
        found = {cause: round(one.ns / NS_PER_S, 3) for cause, one in self.account.by_cause.items() if one.ns > 1000}
        assert sum(found.values()) == at
        return found


def test_a_pause_between_two_lines_has_no_cause() -> None:
    log = Log()
    for at in (1, 2, 3, 4, 5, 6, 66, 67):
        log.line(at)
    assert log.end(67) == {Cause.PRODUCTIVE: 8.0, Cause.UNKNOWN: 59.0}


def test_a_pause_in_which_the_log_names_an_evaluation_is_one_from_its_beginning_to_its_end() -> None:
    log = Log()
    for at in (1, 2, 3, 4, 5, 6):
        log.line(at)
    log.phase(6.5, "eval")
    log.phase(60, "train")
    log.line(66)
    assert log.end(66) == {Cause.PRODUCTIVE: 7.0, Cause.EVALUATION: 53.5, Cause.UNKNOWN: 5.5}


def test_a_pause_in_which_the_log_names_an_evaluation_and_a_save_is_both() -> None:
    log = Log()
    for at in (1, 2, 3, 4, 5, 6):
        log.line(at)
    log.phase(6.5, "eval")
    log.phase(26.5, "checkpoint")
    log.phase(36.5, "train")
    log.line(38)
    found = log.end(38)
    assert found == {Cause.PRODUCTIVE: 8.0, Cause.EVALUATION: 20.0, Cause.CHECKPOINT: 10.0}


def test_a_line_that_tells_a_long_step_is_no_pause() -> None:
    log = Log()
    for at in (1, 2, 3, 4, 5, 6):
        log.line(at, step_s=1.0)
    log.line(36, step_s=30.0)
    assert log.end(36) == {Cause.PRODUCTIVE: 36.0}


def test_a_run_that_has_become_slower_is_not_called_a_pause_for_ever() -> None:
    log = Log()
    for at in range(1, 21):
        log.line(at)
    for at in range(30, 330, 10):
        log.line(at)
    found = log.end(320)
    assert found[Cause.UNKNOWN] <= 80  # The lines until the new pace is the usual one.
    assert found[Cause.PRODUCTIVE] >= 240


def test_time_before_the_first_line_is_start_up() -> None:
    log = Log()
    for at in (61, 62, 63, 64, 65):
        log.line(at)
    assert log.end(65) == {Cause.START_UP: 60.0, Cause.PRODUCTIVE: 5.0}


def test_a_first_line_that_tells_its_step_tells_how_long_that_warmed_up() -> None:
    log = Log()
    log.line(61, step_s=5.0)
    for at in (62, 63, 64, 65):
        log.line(at, step_s=1.0)
    assert log.end(65) == {Cause.START_UP: 56.0, Cause.COMPILE: 4.0, Cause.PRODUCTIVE: 5.0}


@pytest.mark.parametrize("told", [{"data_s": 0.3}, {"data_s": 0.3, "forward_s": 0.2}, {"data_s": 0.3, "comm_s": 0.0}])
@pytest.mark.parametrize("steps", [1, 10, 100])
def test_what_a_line_does_not_tell_of_its_passes_trains(told: dict[str, float], steps: int) -> None:
    """As torchtitan's lines: the time of a step, and that of its data."""
    log = Log()
    for at in range(20):
        log.line(at * steps, 1.0, steps=steps, **told)
    assert log.end(19 * steps) == {
        Cause.PRODUCTIVE: pytest.approx(13.3 * steps),
        Cause.DATA: pytest.approx(5.7 * steps),
    }


PASSES = {"data_s": 0.3, "forward_s": 0.3, "backward_s": 0.3, "optimizer_s": 0.1}


@pytest.mark.parametrize("step_s", [1.0, None])
def test_the_parts_of_one_step_are_those_of_each_step_of_its_line(step_s: float | None) -> None:
    log = Log()
    for at in range(100):
        log.line(10 * at, step_s, steps=10, **PASSES)
    assert log.end(990) == {Cause.PRODUCTIVE: 693.0, Cause.DATA: 297.0}


@pytest.mark.parametrize("step_s", [10.0, None])
def test_parts_that_are_of_a_whole_line_stay_as_they_are(step_s: float | None) -> None:
    log = Log()
    for at in range(100):
        log.line(10 * at, step_s, steps=10, **{name: 10 * seconds for name, seconds in PASSES.items()})
    assert log.end(990) == {Cause.PRODUCTIVE: 693.0, Cause.DATA: 297.0}


@pytest.mark.parametrize("step_s", [10.0, None])
def test_of_a_whole_line_what_no_part_names_stays_unknown(step_s: float | None) -> None:
    log = Log()
    for at in range(100):
        log.line(10 * at, step_s, steps=10, data_s=1.0, forward_s=3.0, backward_s=3.0)
    assert log.end(990) == {Cause.PRODUCTIVE: 594.0, Cause.DATA: 99.0, Cause.UNKNOWN: 297.0}


def test_a_save_that_a_line_of_many_steps_tells_came_once() -> None:
    log = Log()
    for at in range(10):
        log.line(100 * at, 1.0, steps=100)
    log.line(930, 1.3, steps=100, checkpoint_s=30.0)
    assert log.end(930) == {Cause.PRODUCTIVE: 900.0, Cause.CHECKPOINT: 30.0}


@pytest.mark.parametrize("first_at", [0, 100, 460])
@pytest.mark.parametrize("parts", [{}, PASSES])
def test_a_first_interval_of_many_steps_has_trained(first_at: int, parts: dict[str, float]) -> None:
    """Its clock begins with the first line, with the training, or with the launch."""
    log = Log()
    for line in range(10):
        log.line(first_at + 100 * line, 1.0, steps=100, **parts)
    found = log.end(first_at + 900)
    trained = 900 + min(first_at, 100)
    assert found.pop(Cause.START_UP, 0) == first_at + 900 - trained
    assert sum(found.values()) == trained
    assert set(found) == ({Cause.PRODUCTIVE, Cause.DATA} if parts else {Cause.PRODUCTIVE})


def test_a_first_line_is_of_no_more_steps_than_its_number() -> None:
    log = Log()
    log.line(61, 1.0)
    for at in range(71, 131, 10):
        log.line(at, 1.0, steps=10)
    assert log.end(121) == {Cause.START_UP: 60.0, Cause.PRODUCTIVE: 61.0}


def test_a_single_line_tells_its_start_as_weak() -> None:
    log = Log()
    log.line(61, 1.0)
    assert log.end(61) == {Cause.START_UP: 60.0, Cause.PRODUCTIVE: 1.0}
    assert Cause.START_UP in whole_of(log.account).weak


def test_lines_of_more_steps_than_before_are_no_pause() -> None:
    log = Log()
    for at in range(11):
        log.line(at)
    for at in (20, 30, 40):
        log.line(at, 1.0, steps=10)
    log.line(90, 5.0, steps=10)
    log.line(150, 1.0, steps=10)
    assert log.end(150) == {Cause.PRODUCTIVE: 100.0, Cause.UNKNOWN: 50.0}


SECONDS = st.one_of(st.none(), st.floats(-1.0, 50.0), st.sampled_from([float("nan"), 1e300]))
TOLD = st.fixed_dictionaries(
    {}, optional=dict.fromkeys((*PASSES, "step_s", "comm_s", "checkpoint_s", "eval_s"), SECONDS)
)
LINES = st.lists(st.tuples(st.floats(0, 300), st.integers(-20, 200), TOLD), max_size=40)
PHASES = st.sampled_from(["init", "train", "eval", "checkpoint", "idle", "finish", "compile", "agree", "none such"])


@pytest.mark.parametrize("connection", [None, ConnectionId(1)])
@given(LINES, st.lists(st.tuples(st.integers(0, 40), PHASES), max_size=20), st.sets(st.integers(0, 40), max_size=3))
def test_the_time_of_any_log_and_of_any_rank_can_be_told_and_adds_up(
    connection: ConnectionId | None, lines: list[tuple[float, int, Any]], phases: list[tuple[int, str]],
    attempts: set[int],
) -> None:  # fmt: skip
    log, at = Log(connection), 0.0
    for place, (later, steps, told) in enumerate(lines):
        at += later
        log.line(at, told.pop("step_s", None), steps=max(steps, -log.number), **told)
        for when, name in phases:
            if when == place:
                log.phase(at + later / 2, name)
                at += later / 2
        if place in attempts:
            at += later / 3
            now = log.tick(at)
            if place % 2:
                log.account.halt_begins(now, is_hang=place % 4 == 1)
            log.account.attempt_begins(now)
            log.begin(now)
        row = time_row(whole_of(log.account, log.tick(at)))
        assert row["wall_s"] == pytest.approx(at, abs=1e-6)
        assert row["productive_s"] + sum(one["s"] for one in row["causes"]) == pytest.approx(at, abs=1e-6)
        assert all(one["s"] >= 0 and "of costgov" not in one["evidence"] for one in row["causes"])


@pytest.mark.parametrize(("behind", "found"), [(12.0, (72.0, 0.0)), (13.0, (60.0, 13.0)), (60.0, (60.0, 60.0))])
def test_behind_the_last_line_of_a_log_that_is_cut_one_more_is_under_way(
    behind: float, found: tuple[float, float]
) -> None:
    """A line each ten seconds, of ten steps. Once the next one is overdue, nobody knows what the trainer did."""
    log = Log()
    for number in range(1, 7):
        log.line(10.0 * number, 1.0, steps=10)
    told = log.end(60.0 + behind)
    assert (told[Cause.PRODUCTIVE], told.get(Cause.UNKNOWN, 0.0)) == found


def test_a_save_on_a_logs_first_line_is_beside_its_steps_where_the_next_line_shows_that() -> None:
    """Lines of ten steps: six seconds each. The first one has a save of two seconds beside them."""
    log = Log()
    log.line(8.0, 6.0, steps=10, checkpoint_s=2.0)
    for number in range(1, 6):
        log.line(8.0 + 6.0 * number, 6.0, steps=10)
    assert log.end(38.0) == {Cause.PRODUCTIVE: 36.0, Cause.CHECKPOINT: 2.0}


def test_a_second_line_that_has_a_save_itself_does_not_tell_what_is_usual() -> None:
    """Lines of ten steps: six seconds each. The first two have a save of two seconds in their time."""
    log = Log()
    log.line(10.0, 8.0, steps=10, checkpoint_s=2.0)
    log.line(18.0, 8.0, steps=10, checkpoint_s=2.0)
    for number in range(1, 6):
        log.line(18.0 + 6.0 * number, 6.0, steps=10)
    assert log.end(48.0) == {Cause.START_UP: 2.0, Cause.PRODUCTIVE: 42.0, Cause.CHECKPOINT: 4.0}


def test_of_a_save_whose_seconds_the_line_tells_the_rest_of_the_interval_is_not() -> None:
    """A record says that a save begins, and the next line says that it took five seconds, of thirteen."""
    log = Log()
    for at in range(1, 7):
        log.line(at, 1.0)
    log.phase(6, "checkpoint")
    log.line(20, 1.0, checkpoint_s=5.0)
    log.line(21, 1.0)
    assert log.end(21) == {Cause.PRODUCTIVE: 8.0, Cause.CHECKPOINT: 5.0, Cause.UNKNOWN: 8.0}
