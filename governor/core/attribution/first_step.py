"""An attempt's first step, until others tell what of it was the start, and of how many steps a log's first line was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from governor.core.attribution import parts as part
from governor.core.attribution.causes import Cause
from governor.core.attribution.log_pace import lasted_ns, of_steps, paused_ns
from governor.core.attribution.parts import PARTS, parts_of, whole_ns
from governor.core.events import step_parts
from governor.core.events.inputs import Step

# What an ordinary step spends in these says nothing about the first one.
NOT_OF_STEP: Final = tuple(index for index, name in enumerate(step_parts.PARTS) if name in step_parts.NOW_AND_THEN)


class Beyond(NamedTuple):
    """What the first step took longer than an ordinary one."""

    cause: Cause
    ns: int
    is_weak: bool


@dataclass(slots=True)
class First:
    """`parts`: what is left of the step, in nanoseconds."""

    parts: list[int]
    step: Step
    steps: int = 1
    before_ns: int = 0  # Of a log's: since the beginning. It is of the start, unless the line was of more steps.
    is_alone: bool = False  # A log's: no line yet tells how many steps it was of.
    is_repeated: bool = False  # An earlier attempt had trained it.
    until: int = 0  # A log's: the number of the last line that was written with it.

    @property
    def ns(self) -> int:
        return sum(self.parts) + self.before_ns

    def retell(self, second: Step, steps: int, *, is_of_one: bool) -> int:
        """The first line is of as many steps as the `second` one, and never of more than its own number.

        Returns what is before it: the start's, unless the next lines were written with it.
        """
        self.steps, self.is_alone = max(1, min(steps, max(self.until, self.step.step))), False
        self.step, all_ns = of_steps(self.step, self.steps if is_of_one else 1), self.ns
        has_pause = paused_ns(second) > 0
        usual_ns = 0 if has_pause else whole_ns(of_steps(second, self.steps if is_of_one else 1).step_s)
        told_ns = min(all_ns, lasted_ns(self.step, usual_ns) or all_ns)
        self.parts, self.before_ns = parts_of(self.step, told_ns), 0
        return all_ns - told_ns

    def take_beyond(self, recent: Sequence[Sequence[int]], start: Cause) -> Iterator[Beyond]:
        """Take out of `parts` what is beyond an ordinary step: before the forward pass it is `start`, else warm-up.

        `recent`: parts of ordinary steps, one row each. None are known of an attempt of one step.
        """
        yield Beyond(start, self.before_ns, is_weak=True)  # No line came that could tell more.
        self.before_ns = 0
        if recent:
            usual = [sorted(one[index] for one in recent)[len(recent) // 2] * self.steps for index in range(PARTS)]
        else:
            usual = [0 if index in (part.DATA, part.LOOP) else ns for index, ns in enumerate(self.parts)]
        for index in range(PARTS):
            beyond = 0 if index in NOT_OF_STEP else max(0, self.parts[index] - usual[index])
            self.parts[index] -= beyond
            # A log's first line that does not tell its step's time has all of the start in it.
            has_start = self.step.step_s is None and index in (part.WHOLE, part.OTHER)
            is_start = has_start or index in (part.DATA, part.LOOP)
            yield Beyond(start if is_start else Cause.COMPILE, beyond, is_weak=has_start or index == part.WHOLE)
