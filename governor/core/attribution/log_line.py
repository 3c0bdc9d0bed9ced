"""A log's time, told piece by piece: by its lines, by what stands between two of them, and by their distance."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from governor.core.attribution import parts as part
from governor.core.attribution.balance import Balance, Spare
from governor.core.attribution.causes import Cause, apportion
from governor.core.attribution.first_step import NOT_OF_STEP, First
from governor.core.attribution.log_pace import LogPace, lasted_ns, merged, of_steps, paused_ns, pauses_of
from governor.core.attribution.open_end import OF_PHASE
from governor.core.attribution.parts import RankSums, parts_of
from governor.core.attribution.rank_line import ORDINARY_STEPS, RECENT_STEPS, Mark, RankLine
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events import step_parts
from governor.core.events.inputs import Step

OF_LOG: Final = 0  # A log has no ranks. Its lines are those of one.
# A log's next line may be a little late. So much later than usual, something else was done.
LATE_TIMES: Final = 1.25
PAUSE_TIMES: Final = 2
PAUSE_MIN_NS: Final = NS_PER_S
# Less than so much is not looked for, where the log names what was done.
NAMED_MIN_NS: Final = NS_PER_S // 4
# Lines nearer to each other were written together: those that tell no time of their own are of the next interval.
TOGETHER_NS: Final = NS_PER_S // 1000
# What is named may leave to the line's own steps so little of what they usually take. Else its moments are not its own.
LEAVES_MIN: Final = 0.5
PHASES_OF: Final = {OF_PHASE[phase]: phase for phase in step_parts.PAUSES}
# Behind its last line MLPerf's logs name some fifty. More are noise.
MARKS_MAX: Final = 256


class Line(NamedTuple):
    step: Step
    ended: MonoNs
    is_repeated: bool


class Between(NamedTuple):
    """What a log names between two lines."""

    exact: dict[Cause, int]  # By the moments of its beginning and its end.
    told: frozenset[Cause]  # Of these, by its seconds.
    open: Cause | None  # It began, and nobody knows when it ended.


@dataclass(slots=True)
class LogLine(RankLine):
    phases: deque[Mark] = field(default_factory=lambda: deque(maxlen=MARKS_MAX))
    # Of a step. Uncut: a new pace is no pause.
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    pace: LogPace = field(default_factory=LogPace)
    balance: Balance = field(default_factory=Balance)
    has_loss: bool = False
    held: Line | None = None  # The newest one. Another record of the same step may tell more of it.

    @property
    def pending_ns(self) -> int:
        """Of the first line, of the newest one, and between lines that are not balanced yet."""
        first_ns = self.first.ns if self.first is not None else 0
        return first_ns + self.balance.spare_ns + self.stepped_to - self.told_to

    @property
    def ordinary_ns(self) -> int | None:
        """The length of a line."""
        if self.recent:
            return sorted(sum(one) for one in self.recent)[len(self.recent) // 2] * self.pace.stride
        if self.usual_ns is not None:
            return self.usual_ns
        first_ns = sum(self.first.parts) if self.first is not None else 0
        return first_ns or (min(self.lengths) * self.pace.stride if self.lengths else None)

    @property
    def stepped_to(self) -> MonoNs:
        return self.told_to if self.held is None else max(self.told_to, self.held.ended)

    @property
    def trains(self) -> bool:
        return self.has_stepped or self.held is not None

    @property
    def newest(self) -> int | None:
        return self.last_step if self.held is None else self.held.step.step

    def goes_back(self, step: Step, ended: MonoNs) -> bool:
        return self.newest is not None and step.step <= self.newest and not self.is_more(step, ended)

    def is_more(self, step: Step, ended: MonoNs) -> bool:
        """Whether it is another record of the newest line's step. Much later, that step is done again.

        Where lines tell a loss, one that does not and goes back sums up what was before, by a number of its own.
        """
        if self.newest is not None and step.step < self.newest:
            return self.has_loss and step.loss is None
        if not self.trains or step.step != self.newest:
            return False
        soon_ns = max(PAUSE_MIN_NS, (self.ordinary_ns or 0) // 2)
        return paused_ns(step) > 0 or ended - self.stepped_to <= soon_ns

    def step(self, step: Step, ended: MonoNs, *, is_repeated: bool) -> None:
        """Take one line that was written then. It is told when the next one comes, or a phase, or the window ends."""
        if self.is_more(step, ended):
            self._more(step, ended)
            return
        self.has_loss = self.has_loss or step.loss is not None
        self.flush()
        self.lost_at = None
        if not self._is_of_next(step, ended):
            self.held = Line(step, ended, is_repeated)
        elif self.last_step is None:  # The log begins with it: the next one tells its steps by it.
            self.last_step = step.step
        elif self.first is not None and self.first.is_alone:  # They were written together.
            self.first.until = max(self.first.until, step.step)

    def _is_of_next(self, step: Step, ended: MonoNs) -> bool:
        """Whether no time has passed for it. Of a log's lines at one moment the next interval's tells for all."""
        tells = step.step_s is not None or paused_ns(step) > 0
        if tells and self.has_stepped:
            return ended < self.told_to
        return ended <= self.told_to or (self.has_stepped and ended - self.told_to < TOGETHER_NS)

    def _more(self, step: Step, ended: MonoNs) -> None:
        """Another record of the newest line's step: its save or evaluation came behind the line, if there was time."""
        told_ns = paused_ns(step)
        if step.step != self.newest and not told_ns:
            return
        if self.held is not None and (not told_ns or 2 * (ended - self.held.ended) < told_ns):
            self.held = self.held._replace(step=merged(self.held.step, step))
            return
        if not told_ns:
            return
        self.flush()
        began = max(self.told_to, MonoNs(ended - told_ns))
        for cause, ns in apportion(ended - began, pauses_of(step)).items():
            self.phases.append(Mark(began, PHASES_OF[cause], step.step, is_told=True))
            began = MonoNs(began + ns)
        self.phases.append(Mark(ended, "train"))

    def flush(self) -> None:
        """Tell the newest line as it is."""
        if self.held is None:
            return
        step, is_repeated, ended = self.held.step, self.held.is_repeated, self.stepped_to
        self.held, passed_ns = None, ended - self.told_to
        steps, step = self._of_all_its_steps(step, passed_ns)
        if self.has_stepped:
            self._line(step, steps, passed_ns, is_repeated=is_repeated)
        else:
            self._settle_spare(self.balance.settle())
            self._first_line(step, steps, ended, is_repeated=is_repeated)
        self._stepped(step, ended)

    def phase(self, at: MonoNs, name: str, step: int | None = None) -> None:
        self.flush()
        RankLine.phase(self, at, name, step)

    def end(self, at: MonoNs, *, is_good: bool = False) -> None:
        self.flush()
        RankLine.end(self, at, is_good=is_good)
        self._settle_spare(self.balance.settle())

    def halts(self, at: MonoNs, since: MonoNs | None) -> None:
        self.flush()
        RankLine.halts(self, at, since)

    def give_up(self, cause: Cause, at: MonoNs) -> None:
        self.flush()
        RankLine.give_up(self, cause, at)

    def take(self) -> tuple[RankSums, dict[Cause, int], dict[Cause, int]]:
        self.flush()
        return RankLine.take(self)

    def _open(self, ns: int, *, is_cut: bool) -> Iterator[tuple[Cause, int]]:
        """Time behind the last line. When a log is cut, one line is under way; once that is overdue, nobody knows."""
        ordinary = self.ordinary_ns
        is_under_way = not is_cut or (ordinary is not None and ns <= LATE_TIMES * ordinary)
        yield Cause.NOT_TOLD if is_under_way else Cause.UNKNOWN, ns

    def _of_all_its_steps(self, line: Step, passed_ns: int) -> tuple[int, Step]:
        """How many steps a line is of, and the line with the parts of them all."""
        steps = self.pace.steps(line.step, self.last_step)
        is_of_one = self.pace.are_of_one(line, steps, passed_ns)
        if self.first is not None and self.first.is_alone:
            before_ns = self.first.retell(line, steps, is_of_one=is_of_one)
            self.balance.keep(before_ns, self.start, part.OTHER)
        return steps, of_steps(line, steps if is_of_one else 1)

    def _first_line(self, step: Step, steps: int, ended: MonoNs, *, is_repeated: bool) -> None:
        """It tells what of the time until then was its steps', or nobody knows."""
        is_alone, between, began = self.last_step is None, self._between(ended, None, None), self.told_to
        if not is_alone:  # A line has come before: what is beyond an ordinary one is a pause.
            self.start = between.open or Cause.UNKNOWN
        for cause, ns in between.exact.items():  # Behind it comes the line, of which no more is told than is left.
            ns = min(ns, max(0, ended - began - lasted_ns(step, 0)))
            self._tell(cause, ns, is_weak=cause not in between.told)
            began = MonoNs(began + ns)
        starts = max(began, MonoNs(ended - (lasted_ns(step, 0) or ended - began)))
        before_ns = starts - began
        told = parts_of(step, ended - starts)
        if is_alone or not is_repeated:
            self.first = First(told, step, steps, before_ns, is_alone, is_repeated, step.step)
            return
        self._tell(self.start, before_ns, is_weak=True)
        self._tell(Cause.LOST_STEPS, ended - starts)
        self.recent.append([ns // steps for ns in told])

    def _line(self, step: Step, steps: int, passed_ns: int, *, is_repeated: bool) -> None:
        """A line behind the first: all since the line before, as it tells itself, and as the lines about it do."""
        told_ns, usual_ns = lasted_ns(step, self._trained_ns(steps)), self._usual_ns(steps, ORDINARY_STEPS)
        between = self._between(MonoNs(self.told_to + passed_ns), step.step, usual_ns and usual_ns // steps)
        between = self._believed(between, step, passed_ns, told_ns, self._usual_ns(steps, 1))
        for cause, ns in between.exact.items():
            self._tell(cause, ns, is_weak=cause not in between.told)
        passed_ns -= sum(between.exact.values())
        pause_ns, cause = self._pause_ns(step, steps, passed_ns, told_ns, between), between.open or Cause.UNKNOWN
        trained_ns = passed_ns - paused_ns(step) - (pause_ns if between.open else 0)
        if is_repeated:
            self._settle_spare(self.balance.settle())
            self._tell(cause, pause_ns, is_weak=True)
            lost_ns = min(passed_ns - pause_ns, told_ns or passed_ns)
            self._tell(Cause.LOST_STEPS, lost_ns)
            self._tell(Cause.UNKNOWN, passed_ns - pause_ns - lost_ns, is_weak=True)
            told = parts_of(step, lost_ns)
        elif told_ns:
            self._settle_spare(self.balance.begin_line(is_short=2 * passed_ns < told_ns))
            told = self._balanced(step, told_ns, passed_ns, (cause, pause_ns))
        else:
            self._settle_spare(self.balance.begin_line(is_short=False))
            self._tell(cause, pause_ns, is_weak=True)
            told = parts_of(step, passed_ns - pause_ns)
            self.sums.add(told, step)
        self.recent.append([ns // steps for ns in told])
        if between.open is None or pause_ns or told_ns:  # Else nobody knows what of it was training.
            self.lengths.append(max(1, trained_ns) // steps)

    def _between(self, ended: MonoNs, number: int | None, usual_ns: int | None) -> Between:
        """What is named since the last line. `number`: of the next one. `usual_ns`: of a step, where that is known.

        A phase that begins and ends at one moment was told when it was over: it has all since what was told before it,
        but for the steps until the one that is named beside it. The steps behind that one tell how long these took.
        """
        exact, opened, since, marks = dict[Cause, int](), None, self.told_to, list(self.phases)
        unsure = {OF_PHASE.get(mark.name) for mark in marks if not mark.is_told}
        for place, mark in enumerate(marks):
            at = max(since, min(mark.at, ended))  # What was told before is not told again.
            upto = max(at, min(marks[place + 1].at, ended)) if place + 1 < len(marks) else None
            cause, ns = OF_PHASE.get(mark.name), 0
            if upto is not None and upto > at:
                ns = upto - at
            elif upto is not None and self.last_step is not None and number is not None and mark.step is not None:
                steps = max(0, mark.step - self.last_step)
                step_ns = usual_ns or (ended - at) // (number - mark.step) if number > mark.step else usual_ns
                ns = max(0, at - since - steps * (step_ns or 0)) if not steps or step_ns else 0
            if cause is not None and ns:
                exact[cause] = exact.get(cause, 0) + ns
            elif cause is not None and not (cause in exact and since == at):  # Else its end is told twice.
                opened = cause
            since = upto if cause is not None and upto is not None else at
        return Between(exact, frozenset(exact.keys() - unsure), opened)

    def _believed(self, between: Between, step: Step, passed_ns: int, told_ns: int, usual_ns: int | None) -> Between:
        """Lines that were written late, and together, have no moments of their own: then only names are known."""
        told = pauses_of(step)
        same = [
            one for one, ns in between.exact.items() if one in told and told[one] <= LATE_TIMES * ns <= 2 * told[one]
        ]
        if same:  # The line itself knows better.
            between = between._replace(exact={one: ns for one, ns in between.exact.items() if one not in same})
        if between.open in told:
            between = between._replace(open=None)
        if not between.exact:
            return between
        rest_ns, paused = passed_ns - sum(between.exact.values()), paused_ns(step)
        trained_ns = (told_ns - paused if told_ns else usual_ns) or 2 * TOGETHER_NS
        if rest_ns - paused >= LEAVES_MIN * trained_ns:
            return between
        return Between({}, frozenset(), max(between.exact, key=lambda cause: between.exact[cause]))

    def _pause_ns(self, step: Step, steps: int, passed_ns: int, told_ns: int, between: Between) -> int:
        """Of an interval, what is beyond its line's own time, and far from usual for so many steps.

        Where the log names what was done, less is far. A line that tells its step's time knows better than what is
        usual.
        """
        paused = paused_ns(step)
        left_ns, own_ns = passed_ns - paused, max(0, told_ns - paused)
        usual_ns = own_ns if told_ns else self._usual_ns(steps, ORDINARY_STEPS if between.open is None else 1)
        if usual_ns is None:
            return 0
        if between.open is not None:
            is_far = left_ns > LATE_TIMES * usual_ns + NAMED_MIN_NS
        else:
            is_far = left_ns > max(PAUSE_TIMES * usual_ns, usual_ns + PAUSE_MIN_NS)
        return left_ns - usual_ns if is_far else 0

    def _balanced(self, step: Step, told_ns: int, passed_ns: int, pause: tuple[Cause, int]) -> list[int]:
        """The parts of a line that tells how long it took. `pause`: of its interval, what is no line's by itself."""
        told, more_ns = parts_of(step, told_ns), passed_ns - told_ns
        if more_ns < 0:
            cut = parts_of(step, passed_ns + self.balance.take(-more_ns))
            self.balance.lack(told, cut)
            self.sums.add(cut, step)
            return told
        for parts in self.balance.repay(more_ns):
            self.sums.parts = [mine + more for mine, more in zip(self.sums.parts, parts, strict=True)]
            more_ns -= sum(parts)
        rest_ns = min(more_ns, passed_ns - told_ns - pause[1])
        self.balance.keep(rest_ns, None, part.WHOLE if None in (step.forward_s, step.backward_s) else part.OTHER)
        self.balance.keep(more_ns - rest_ns, pause[0], part.OTHER)
        self.sums.add(told, step)
        return told

    def _settle_spare(self, spare: Iterable[Spare]) -> None:
        for one in spare:
            if one.cause is None:
                self.sums.parts[one.part] += one.ns
            else:
                self._tell(one.cause, one.ns, is_weak=one.cause not in (Cause.START_UP, Cause.RESTART))

    def _usual_ns(self, steps: int, least: int) -> int | None:
        """So many steps without a pause, as the log's lines have come. `least`: so many lines know it."""
        lengths = sorted(self.lengths)
        return lengths[len(lengths) // 2] * steps if len(lengths) >= least else None

    def _trained_ns(self, steps: int) -> int:
        """So many steps without a save, as a log's lines have told: those of a burst have come at once."""
        trained = sorted(sum(one) - sum(one[index] for index in NOT_OF_STEP) for one in self.recent)
        return trained[len(trained) // 2] * steps if trained else self._usual_ns(steps, 1) or 0
