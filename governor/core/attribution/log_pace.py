"""What a log's lines are of: how many steps, which of their figures are of all of these, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from governor.core.attribution.causes import Cause
from governor.core.attribution.open_end import OF_PHASE
from governor.core.attribution.parts import whole_ns
from governor.core.events import step_parts
from governor.core.events.inputs import Step, steps_of_line

# What a line of many steps may tell of one of them. A save or an evaluation that it tells came once.
_OF_EACH: Final = ("step_s", *step_parts.EACH_STEP_FIELDS, *step_parts.OF_WHICH_FIELDS)
_PAUSES: Final = tuple(one for name in step_parts.NOW_AND_THEN for one in step_parts.PARTS[name])
_TIMES: Final = (*_OF_EACH, *_PAUSES)
_CAUSES: Final = {OF_PHASE[phase]: step_parts.PARTS[name] for phase, name in step_parts.PAUSES.items()}
VOTES_MAX: Final = 15
# A stamp lies a little off: parts fit into what has passed if they are no longer than so.
PARTS_FIT: Final = 1.25


@dataclass(slots=True)
class Burst:
    """Lines that were written together: the first one came late, the others at once. Together they took their time."""

    told_ns: int = 0  # As if each line's figures were of one step.
    told_line_ns: int = 0  # As if they were of the line.
    passed_ns: int = 0
    paused_ns: int = 0  # Saves and evaluations that they tell. Their step's time may be with these or without.

    def add(self, told_ns: int, steps: int, passed_ns: int, paused_ns: int) -> None:
        self.told_ns += told_ns * steps
        self.told_line_ns += told_ns
        self.passed_ns += passed_ns
        self.paused_ns += paused_ns

    def is_of_one(self, *, is_step: bool) -> bool:
        """A step's time is of one or of all, whichever is nearer to what has passed. Parts are of one if that fits."""
        trained_ns = max(1, self.passed_ns - self.paused_ns)
        if not is_step:
            return self.told_ns <= PARTS_FIT * trained_ns
        lasted = (max(1, self.passed_ns), trained_ns)
        return min(_apart(self.told_ns, ns) for ns in lasted) < min(_apart(self.told_line_ns, ns) for ns in lasted)


def _apart(one: int, other: int) -> float:
    return max(one, other) / max(1, min(one, other))


@dataclass(slots=True)
class LogPace:
    """What the lines so far say of the next one."""

    stride: int = 1  # Steps of the last line.
    votes: int = 0  # Below zero: the lines' figures are of all their steps, not of one.
    burst: Burst = field(default_factory=Burst)
    votes_before: int = 0  # Without the vote of the last burst, to which another line may be added.

    def steps(self, step: int, before: int | None) -> int:
        """`before`: the step of the line before. One that goes back is of as many as that line."""
        if before is not None and step > before:
            self.stride = steps_of_line(step, before)
        return 1 if before is None else self.stride

    def are_of_one(self, line: Step, steps: int, passed_ns: int) -> bool:
        """Whether the line's figures are of one of its steps. `passed_ns`: since the line before.

        One pause does not change that.
        """
        step_ns = whole_ns(line.step_s)
        told_ns = step_ns or _parts_ns(line)
        is_short = 2 * passed_ns < told_ns  # It was written together with the line before.
        if steps > 1 and told_ns and (self.burst.told_ns or not is_short):  # The first ones say nothing of the start.
            if not is_short:
                self.burst, self.votes_before = Burst(), self.votes
            self.burst.add(told_ns, steps, passed_ns, paused_ns(line))
            vote = 1 if self.burst.is_of_one(is_step=bool(step_ns)) else -1
            self.votes = max(-VOTES_MAX, min(VOTES_MAX, self.votes_before + vote))
        return self.votes >= 0


def of_steps(line: Step, steps: int) -> Step:
    """The line, with what it tells of one step as that of so many."""
    if steps == 1:
        return line
    told = {name: seconds * steps for name in _OF_EACH if (seconds := getattr(line, name)) is not None}
    return replace(line, **told)


def merged(line: Step, more: Step) -> Step:
    """A line, and another record of the same step: each tells what the other one does not."""
    told = {
        name: value for name in _TIMES if getattr(line, name) is None and (value := getattr(more, name)) is not None
    }
    return replace(line, **told) if told else line


def pauses_of(line: Step) -> dict[Cause, int]:
    """The saves and evaluations that the line tells, in nanoseconds."""
    told = {cause: sum(whole_ns(getattr(line, name)) for name in names) for cause, names in _CAUSES.items()}
    return {cause: ns for cause, ns in told.items() if ns}


def paused_ns(line: Step) -> int:
    """What the line tells of its saves and its evaluations."""
    return sum(whole_ns(getattr(line, name)) for name in _PAUSES)


def lasted_ns(line: Step, usual_ns: int) -> int:
    """How long a line of all its steps took, as it tells itself. 0: it does not tell its step's time.

    A trainer's clock may have a save in the step's time or beside it: in it, where that is nearer to the passes that
    the line tells, else to `usual_ns`: of as many ordinary steps.
    """
    step_ns, paused, parts_ns = whole_ns(line.step_s), paused_ns(line), _parts_ns(line)
    if not step_ns:
        return 0
    without_ns = parts_ns if None not in (line.forward_s, line.backward_s) else max(usual_ns, parts_ns)
    has_pause = step_ns >= paused and 2 * step_ns > 2 * without_ns + paused
    return max(step_ns if has_pause else step_ns + paused, parts_ns + paused)


def _parts_ns(line: Step) -> int:
    return sum(whole_ns(getattr(line, name)) for name in step_parts.EACH_STEP_FIELDS)
