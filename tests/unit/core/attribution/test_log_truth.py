"""Logs whose truth is known, drawn at random: each cause is told to within a hundredth of the log's time.

Bursts are drawn where each line tells a step's time: what tells none cannot be balanced, and in a log's first burst
the time of a whole line is taken for a step's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from governor.core.attribution.causes import Cause
from tests.sweeps import share_of
from tests.unit.core.attribution.test_log_lines import Log

PARTS = {"data_s": 0.2, "forward_s": 0.3, "backward_s": 0.4, "optimizer_s": 0.1}  # Of a step of one second.


@dataclass(frozen=True)
class Training:
    """One training and how its log tells of it."""

    stride: int  # Steps a line.
    step_s: float
    lines: int
    tells: Literal["step", "line", "nothing"]  # Whose time `step_s` and the parts are.
    has_parts: bool
    pause: Literal["checkpoint_s", "eval_s"] | None
    pause_s: float
    pause_every: int
    is_pause_in_step: bool  # Whether step_s has the pause in it.
    start_s: float
    burst: int  # So many lines are written together, microseconds apart.
    grid_s: float  # Stamps are of a clock that ticks so: a line is stamped when the next tick has come.

    def play(self) -> tuple[Log, Counter[Cause], float]:
        """The account, the truth, and when the log ended."""
        log, truth, at = Log(), Counter({Cause.START_UP: self.start_s}), self.start_s
        told: list[tuple[float, dict[str, Any]]] = []
        for number in range(1, self.lines + 1):
            at += self.stride * self.step_s
            line = self._line()
            data = PARTS["data_s"] if self.has_parts else 0.0
            truth[Cause.DATA] += data * self.stride * self.step_s
            truth[Cause.PRODUCTIVE] += (1 - data) * self.stride * self.step_s
            if self.pause is not None and number % self.pause_every == 0:
                at += self.pause_s
                line[self.pause] = self.pause_s
                truth[Cause.CHECKPOINT if self.pause == "checkpoint_s" else Cause.EVALUATION] += self.pause_s
                if self.is_pause_in_step and "step_s" in line and self.tells == "line":
                    line["step_s"] += self.pause_s
            told.append((at, line))
        written = 0.0
        for place, (_, line) in enumerate(told):
            moment = told[min(len(told) - 1, place - place % self.burst + self.burst - 1)][0]
            if self.grid_s:
                moment = (moment // self.grid_s + 1) * self.grid_s
            written = max(written + 77e-6, moment)
            log.line(written, line.pop("step_s", None), steps=self.stride, **line)
        return log, truth, written

    def _line(self) -> dict[str, Any]:
        times = self.step_s * (self.stride if self.tells == "line" else 1)
        line: dict[str, Any] = {} if self.tells == "nothing" else {"step_s": times}
        if self.has_parts:
            line |= {name: part * times for name, part in PARTS.items()}
        return line


@st.composite
def trainings(draw: st.DrawFn) -> Training:
    tells = draw(st.sampled_from(["step", "line", "nothing"]))
    is_balanced = tells == "step"
    burst, grid_s = draw(st.sampled_from([(1, 0.0), (1, 0.25), (3, 0.0), (8, 0.0)])) if is_balanced else (1, 0.0)
    return Training(
        stride=draw(st.sampled_from([1, 5, 10, 50])),
        step_s=draw(st.sampled_from([0.3, 1.0, 2.7])),
        lines=draw(st.sampled_from([16, 32, 104])),
        tells=tells,
        has_parts=draw(st.booleans()),
        pause=draw(st.sampled_from([None, "checkpoint_s", "eval_s"])),
        pause_s=draw(st.sampled_from([0.5, 4.0, 40.0])),
        pause_every=draw(st.sampled_from([3, 7, 25])),
        is_pause_in_step=draw(st.booleans()),
        start_s=draw(st.sampled_from([0.0, 0.4, 25.3])),
        burst=burst,
        grid_s=grid_s,
    )


@given(trainings())
@settings(max_examples=share_of(300), deadline=None)
@example(Training(1, 1.0, 104, "step", True, "checkpoint_s", 30.0, 25, False, 0.5, 1, 0.0))
@example(Training(10, 1.0, 104, "step", False, "checkpoint_s", 30.0, 25, False, 0.5, 1, 0.0))
@example(Training(1, 1.0, 104, "nothing", True, "eval_s", 30.0, 25, False, 0.5, 1, 0.0))
@example(Training(500, 1.0, 5, "nothing", False, None, 1.0, 7, False, 0.0, 1, 0.0))
@example(Training(10, 1.0, 30, "line", True, None, 1.0, 7, False, 0.0, 1, 0.0))
@example(Training(10, 1.0, 30, "nothing", True, None, 1.0, 7, False, 25.0, 1, 0.0))
@example(Training(1, 0.6, 300, "step", True, None, 1.0, 7, False, 0.0, 1, 0.25))
@example(Training(1, 0.083, 300, "step", True, None, 1.0, 7, False, 0.0, 3, 0.25))
def test_each_cause_of_a_log_is_told_as_it_was(training: Training) -> None:
    log, truth, ended = training.play()
    log.account.over(log.tick(ended))
    found = Counter({cause: one.ns / 1e9 for cause, one in log.account.by_cause.items()})
    assert sum(found.values()) == pytest.approx(ended, abs=1e-6)
    slack = 0.01 * ended + training.grid_s
    off = {cause: found[cause] - truth[cause] for cause in found | truth if abs(found[cause] - truth[cause]) > slack}
    assert not off, (found, truth)
