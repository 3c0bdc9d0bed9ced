"""What the lines of a log tell of a run's time: their pace, pauses, and the time before the first one."""

from __future__ import annotations

from governor.core.attribution.account import TimeAccount
from governor.core.attribution.causes import Cause
from governor.core.base.units import NS_PER_S, BootNs, MonoNs
from governor.core.events.inputs import Step


class Log:
    """An account that lines at these seconds feed, as a replay feeds it."""

    def __init__(self) -> None:
        self.account, self.number = TimeAccount(), 0
        self.account.rank_begins(0, MonoNs(0))
        self.tick(0)

    def tick(self, at: float) -> MonoNs:
        now = MonoNs(round(at * NS_PER_S))
        self.account.tick(now, BootNs(now), BootNs(0), 0, holds=True, is_unbroken=True)
        return now

    def line(self, at: float, step_s: float | None = None) -> None:
        now, self.number = self.tick(at), self.number + 1
        self.account.step(0, Step(now, None, "log", 0, self.number, step_s=step_s), now)

    def phase(self, at: float, name: str) -> None:
        self.account.phase(0, self.tick(at), name)

    def end(self, at: float) -> dict[Cause, float]:
        self.account.over(self.tick(at))
        found = {cause: round(one.ns / NS_PER_S, 3) for cause, one in self.account.by_cause.items() if one.ns}
        assert sum(found.values()) == at
        return found


def test_a_pause_between_two_lines_has_no_cause() -> None:
    log = Log()
    for at in (1, 2, 3, 4, 5, 6, 66, 67):
        log.line(at)
    assert log.end(67) == {Cause.PRODUCTIVE: 8.0, Cause.UNKNOWN: 59.0}


def test_a_pause_in_which_the_log_names_an_evaluation_is_one() -> None:
    log = Log()
    for at in (1, 2, 3, 4, 5, 6):
        log.line(at)
    log.phase(6.5, "eval")
    log.phase(60, "train")
    log.line(66)
    assert log.end(66) == {Cause.PRODUCTIVE: 7.0, Cause.EVALUATION: 59.0}


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
