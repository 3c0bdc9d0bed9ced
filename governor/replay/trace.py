"""The data for a drawing of a log. It is bounded: a log of ten million steps takes as much as a short one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Step, steps_of_line
from governor.text.binned import Line


@dataclass(slots=True)
class Trace:
    """The lines of one log. Pass each step to `see`, with the log's time or None."""

    loss: Line = field(default_factory=Line)
    grad_norm: Line = field(default_factory=Line)
    step_s: Line = field(default_factory=Line)
    tokens_per_s: Line = field(default_factory=Line)
    steps: Line = field(default_factory=Line)  # Which steps are where, for the labels of a time axis.
    is_timed: bool = True
    _last_at: MonoNs | None = None
    _last_step: int = 0
    _told_at: int | None = None  # The last step that told tokens.
    _piece: int = 0  # Another one begins where the step goes back: with an attempt that resumes.

    def see(self, step: Step, t: float | None) -> None:
        if step.rank != 0:
            return  # Only one rank is drawn. All ranks would make a band of noise.
        self.is_timed = t is not None
        at = float(step.step) if t is None else t
        self._piece += step.step < self._last_step
        self.steps.add(at, step.step, self._piece)
        if step.loss is not None:
            self.loss.add(at, step.loss, self._piece)
        if step.grad_norm is not None:
            self.grad_norm.add(at, step.grad_norm, self._piece)
        seconds = step.step_s
        if seconds is None and t is not None and self._last_at is not None and step.step > self._last_step:
            seconds = (step.at - self._last_at) / NS_PER_S / (step.step - self._last_step)
        self._last_at, self._last_step = step.at, step.step
        if seconds is not None:
            self.step_s.add(at, seconds, self._piece)
            if step.tokens is not None and seconds > 0:
                self.tokens_per_s.add(at, step.tokens / self._steps_of(step) / seconds, self._piece)
        if step.tokens is not None:
            self._told_at = step.step

    def _steps_of(self, step: Step) -> int:
        """How many steps its tokens are of. See core.runs.line_steps."""
        if step.connection is not None or step.line_steps is not None:
            return max(1, step.line_steps or 1)
        return steps_of_line(step.step, step.held.lines[-1][0] if step.held is not None else self._told_at)

    def drawn(self) -> list[tuple[str, Line]]:
        """The lines that have values, with their names."""
        named = (
            ("loss", self.loss),
            ("gradient norm", self.grad_norm),
            ("step time, s", self.step_s),
            ("tokens per second", self.tokens_per_s),
        )
        return [(name, line) for name, line in named if line.columns]

    def span(self, places: Iterable[float | None]) -> tuple[float, float]:
        """The range of the lines and of these places."""
        at = [column.at for _, line in self.drawn() for column in line.columns]
        first, last = min(at, default=0.0), max(at, default=0.0)
        return first, max([last, *(place for place in places if place is not None)])
