"""How fast a run trains: the times of its last steps, and its tokens a second. And how often its log shows a loss.

A rank tells how long its step took. Lines of a log often do not, and several have one moment: they were read with one
look at the file, or their clock tells whole seconds. Such lines share the time since the moment before.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from governor.core.base.reservoir import Reservoir
from governor.core.base.units import COUNT_MAX, NS_PER_S, DurationNs, MonoNs, WallNs
from governor.core.events.inputs import Step
from governor.core.events.step_parts import SECONDS_MAX

TIMES_MAX: Final = 512
# Tokens/s is over so many last steps: calm enough to read, quick enough to show a collapse.
RATE_STEPS: Final = 20
# A line's clock that stands still for so long, while lines come, is none that step times can be told by.
STANDS_STILL_NS: Final = DurationNs(NS_PER_S)
UNCOUNTED_MAX: Final = 64  # Steps whose tokens may still be told: more than ranks are ever apart.
# The step times of a moment are divided anew at each further line, of more lines than so many at each doubling.
DIVIDED_AT_ONCE: Final = 32


@dataclass(slots=True)
class _Moment:
    """Lines of a log that have one time."""

    took_s: float  # Since the moment before.
    expected: int  # At least so many lines.
    steps: int = 1  # Of each line.
    lines: int = 0
    divided: int = 0  # The lines among which it was divided last.
    counted: int = 0  # Of its lines those that have told tokens.

    def share_s(self, lines: int) -> float:
        return self.took_s / lines


@dataclass(slots=True)
class Pace:
    """Of one attempt. Steps after init, resume and eval are left out."""

    times: Reservoir = field(default_factory=lambda: Reservoir(TIMES_MAX))
    # Of the last steps of which both are known, each in its place.
    _tokens: deque[int] = field(default_factory=lambda: deque(maxlen=RATE_STEPS))
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RATE_STEPS))
    _uncounted: dict[int, float] = field(default_factory=dict)  # Seconds of steps whose tokens are not counted yet.
    _total: tuple[int, int] | None = None  # The last step, and the run's tokens behind it.
    _seen: int | None = None  # The last step whose time was entered.
    _moment: _Moment | None = None  # None: the lines of the present one have no time.
    _expected: int = 1  # As many lines as the last moment of the log's own clock had.
    _written: WallNs | None = None
    _is_clock_bad: bool = False

    def see(self, step: Step, before_at: MonoNs | None, *, trains: bool) -> None:
        """Enter a step's time. `before_at`: the arrival of the step before. `trains`: its time shows its speed."""
        steps = 1 if self._seen is None else max(1, step.step - self._seen)
        self._seen = step.step
        if step.step_s is None:
            self._see_line(step, before_at, steps, trains=trains)
            return
        self._end_moment()
        self._written = step.written
        if not trains or not 0 < step.step_s < SECONDS_MAX:
            return
        own_s = step.training_s
        if own_s is not None and own_s > 0:
            self._add(step.step, own_s)

    def count(self, step: Step, tokens: int | None, total: int | None) -> float | None:
        """Enter the step's tokens, or where only the run's `total` is known, what it rose by.

        Return tokens a second over the last steps; None while they are not known.
        """
        took_s = self._uncounted.pop(step.step, None)
        if self._uncounted:
            for sooner in [one for one in self._uncounted if one < step.step]:
                del self._uncounted[sooner]
        last, self._total = self._total, None if total is None else (step.step, total)
        tokens = self._of_told_time(step, tokens, total, last)
        if tokens is None:
            return None
        if took_s is not None:
            self._tokens.append(tokens)
            self._seconds.append(took_s)
            if self._moment is not None:
                self._moment.counted += 1
        seconds = sum(self._seconds, 0.0)
        rate = sum(self._tokens, 0.0) / seconds if seconds > 0 else math.inf
        # Step times may be as small as a float can be.
        return min(rate, COUNT_MAX) if math.isfinite(rate) else None

    @staticmethod
    def _of_told_time(step: Step, tokens: int | None, total: int | None, last: tuple[int, int] | None) -> int | None:
        """The tokens of the time that the step tells: its own, or of a log with a line for many steps, of those.

        Where it tells no tokens, they are what the total rose by.
        """
        if tokens is not None:
            return tokens // max(1, step.line_steps or 1) if step.step_s is not None else tokens
        if total is None or last is None or step.step <= last[0] or total <= last[1]:
            return None
        risen = total - last[1]
        return risen // (step.step - last[0]) if step.step_s is not None else risen

    def _add(self, step: int, seconds: float, steps: int = 1) -> None:
        """Enter the time that a step tells: of so many steps, where a log has one line for them."""
        self.times.add(seconds / steps)
        self._uncounted[step] = seconds
        if len(self._uncounted) > UNCOUNTED_MAX:
            del self._uncounted[min(self._uncounted)]

    # --- lines without a step time ---------------------------------------------------------------------------

    def _see_line(self, step: Step, before_at: MonoNs | None, steps: int, *, trains: bool) -> None:
        took_ns, is_own = self._since_last(step, before_at)
        if took_ns != 0:
            self._end_moment()
            if trains and took_ns is not None and 0 < took_ns < SECONDS_MAX * NS_PER_S:
                self._moment = _Moment(took_ns / NS_PER_S, self._expected if is_own else 1, steps)
        moment = self._moment
        if moment is None:
            return
        if not trains:
            self._forget_moment(moment)  # Part of its time was an evaluation's.
            return
        moment.lines += 1
        lines = max(moment.lines, moment.expected)
        self._add(step.step, moment.share_s(lines), moment.steps)
        if moment.lines == 1:
            moment.divided = lines
        if lines == moment.divided:
            return
        self._divide_counted(moment, moment.share_s(lines))
        if lines <= DIVIDED_AT_ONCE or lines & (lines - 1) == 0:
            self._divide(moment, lines)

    def _since_last(self, step: Step, before_at: MonoNs | None) -> tuple[int | None, bool]:
        """Nanoseconds since the line before, and whether the log's own clock says so. 0: the same moment."""
        written, last = step.written, self._written
        self._written = written
        if before_at is None:
            return None, False
        arrived_ns = step.at - before_at
        if written is None or last is None or self._is_clock_bad:
            return arrived_ns, False
        if written == last and arrived_ns >= STANDS_STILL_NS:
            self._is_clock_bad = True
        if written == last and not self._is_clock_bad:
            return 0, True
        if written > last:
            return written - last, True
        return arrived_ns or None, False

    def _divide(self, moment: _Moment, lines: int) -> None:
        """Give each line of the moment, as many as have come, the share of one in so many."""
        moment.divided, share_s = lines, moment.share_s(lines)
        self.times.restate(moment.lines, share_s / moment.steps)
        self._divide_counted(moment, share_s)

    def _divide_counted(self, moment: _Moment, share_s: float) -> None:
        seconds = self._seconds
        for place in range(max(0, len(seconds) - moment.counted), len(seconds)):
            seconds[place] = share_s

    def _end_moment(self) -> None:
        moment, self._moment = self._moment, None
        if moment is None:
            return
        self._expected = max(1, moment.lines)
        if moment.lines and moment.divided != moment.lines:
            self._divide(moment, moment.lines)

    def _forget_moment(self, moment: _Moment) -> None:
        self._moment = None
        self.times.drop(moment.lines)
        for _ in range(min(moment.counted, len(self._seconds))):
            self._tokens.pop()
            self._seconds.pop()


# --- the rhythm of a log's losses ----------------------------------------------------------------------


# Steps of the log. A log that leaves its loss out for a while (an evaluation, a table of results) has fewer.
GONE_STEPS: Final = 50
GONE_GAPS: Final = 3  # And more than so many times the longest gap that it had.


@dataclass(slots=True)
class LossRhythm:
    """Of one attempt's log, counted in the steps that it has shown."""

    last: int | None = None  # The step that last had one.
    longest: int | None = None  # From one loss to the next, in steps. None: there was no next one.

    def begin(self) -> None:
        """Forget it: a launch may log in another rhythm."""
        self.last = self.longest = None

    def see(self, attempt_step: int) -> None:
        """Note the loss of this step."""
        if self.last is not None and attempt_step > self.last:
            self.longest = max(self.longest or 0, attempt_step - self.last)
        self.last = attempt_step

    def gone_for(self, attempt_step: int) -> int | None:
        """For how many steps a loss has been missing that the log had before. None: it shows one as usual."""
        if self.last is None or self.longest is None:
            return None
        gone = attempt_step - self.last
        return gone if gone >= max(GONE_STEPS, GONE_GAPS * self.longest) else None
