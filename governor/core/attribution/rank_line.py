"""One rank's time, told piece by piece: by its steps, and behind its last step by its phases."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from governor.core.attribution import parts as part
from governor.core.attribution.causes import Cause
from governor.core.attribution.parts import PARTS, RankSums, parts_of, whole_ns
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Step, steps_of_line

# Behind a rank's last step come an evaluation, a save, the end: more changes than these are noise.
PHASES_MAX: Final = 32
# So many ordinary steps tell how much longer the first one took.
ORDINARY_STEPS: Final = 3
RECENT_STEPS: Final = 15

# A log's next line may be a little late. So much later than usual, something else was done.
PAUSE_TIMES: Final = 2
PAUSE_MIN_NS: Final = NS_PER_S

# What is open behind a rank's last word is of its next step, up to so many ordinary ones.
OPEN_TIMES: Final = 2
# Of what is beyond: from so long on, and so many ordinary steps, it stood still. Less may be a slow step, or an end.
STILL_MIN_NS: Final = 5 * NS_PER_S
STILL_TIMES: Final = 3
# A rank that was killed is seen to be gone so soon after its connection. Later, nobody knows what it did.
GONE_WITHIN_NS: Final = 60 * NS_PER_S

_OF_PHASE: Final = {
    "init": Cause.START_UP,
    "compile": Cause.COMPILE,
    "eval": Cause.EVALUATION,
    "agree": Cause.CHECKPOINT,
    "checkpoint": Cause.CHECKPOINT,
    "idle": Cause.IDLE,
    "finish": Cause.SHUT_DOWN,
}
# What an ordinary step spends in these says nothing about the first one.
_NOT_OF_STEP: Final = (part.CHECKPOINT, part.EVALUATION)

# What comes in each step. A save or an evaluation that a line tells came once, whatever the line is of.
_OF_EACH: Final = (
    "step_s", "data_s", "loop_s", "forward_s", "backward_s", "optimizer_s", "comm_s", "recompute_s", "offload_s",
    "bubble_s",
)  # fmt: skip
_PARTS: Final = ("data_s", "loop_s", "forward_s", "backward_s", "optimizer_s", "bubble_s")
VOTES_MAX: Final = 15


@dataclass(slots=True)
class LogPace:
    """What the lines so far say of the next one."""

    stride: int = 1  # Steps of the last line.
    votes: int = 0  # Below zero: the lines' figures are of all their steps, not of one.

    def steps(self, step: int, before: int | None) -> int:
        """`before`: the step of the line before. One that goes back is of as many as that line."""
        if before is not None and step > before:
            self.stride = steps_of_line(step, before)
        return 1 if before is None else self.stride

    def are_of_one(self, line: Step, steps: int, passed_ns: int) -> bool:
        """Whether the line's figures are of one of its steps. `passed_ns`: since the line before.

        A step's time is of one or of all, whichever is nearer to what has passed. One pause does not change that.
        """
        step_ns = whole_ns(line.step_s)
        parts_ns = sum(whole_ns(getattr(line, name)) for name in _PARTS)
        if steps > 1 and (step_ns or parts_ns):
            fits = steps * step_ns**2 < passed_ns**2 if step_ns else steps * parts_ns <= passed_ns
            self.votes = max(-VOTES_MAX, min(VOTES_MAX, self.votes + (1 if fits else -1)))
        return self.votes >= 0


def of_steps(line: Step, steps: int) -> Step:
    """The line, with what it tells of one step as that of so many."""
    if steps == 1:
        return line
    told = {name: seconds * steps for name in _OF_EACH if (seconds := getattr(line, name)) is not None}
    return replace(line, **told)


@dataclass(slots=True)
class First:
    """The first step, until ordinary ones tell what was too long, or a log's next line how many steps it was of."""

    parts: list[int]
    step: Step
    steps: int = 1
    before_ns: int = 0  # Of a log's: since the beginning. It is of the start, unless the line was of more steps.


@dataclass(slots=True)
class RankLine:
    """`told_to`: up to this moment the rank's time is attributed."""

    told_to: MonoNs
    start: Cause = Cause.START_UP  # What the time before its first step is.
    sums: RankSums = field(default_factory=RankSums)
    direct: dict[Cause, int] = field(default_factory=dict)  # Told without a step's parts, in nanoseconds.
    weak: dict[Cause, int] = field(default_factory=dict)  # Of `direct`, what a log's lines tell by their distance.
    first: First | None = None
    has_stepped: bool = False
    is_finished: bool = False
    last_step: int | None = None
    recent: deque[list[int]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    # Of a step. Uncut: a new pace is no pause.
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    pace: LogPace = field(default_factory=LogPace)
    phases: deque[tuple[MonoNs, str]] = field(default_factory=lambda: deque(maxlen=PHASES_MAX))
    usual_ns: int | None = None  # An ordinary step of the run, until this line has its own.
    lost_at: MonoNs | None = None  # Its connection, without a bye.
    is_log: bool = False
    like_ns: int = 0  # Of a step that was cut: as its like were.
    still_ns: int = 0  # It was cut so long after its last word, and stood still.

    @property
    def pending_ns(self) -> int:
        """Of the first step, which is told and not yet attributed."""
        return sum(self.first.parts) + self.first.before_ns if self.first is not None else 0

    @property
    def ordinary_ns(self) -> int | None:
        """The length of an ordinary step, or of a log's line. None: nobody has seen one."""
        times = self.pace.stride if self.is_log else 1
        if self.recent:
            return sorted(sum(one) for one in self.recent)[len(self.recent) // 2] * times
        if self.usual_ns is not None:
            return self.usual_ns
        return self.pending_ns or (min(self.lengths) * times if self.lengths else None)

    def goes_back(self, step: Step) -> bool:
        return self.last_step is not None and step.step <= self.last_step

    def step(self, step: Step, ended: MonoNs, *, is_repeated: bool) -> None:
        """Take one step that ended then."""
        is_line = step.connection is None
        if ended <= self.told_to:
            if is_line and self.last_step is None:  # The log begins with it: the next one tells its steps by it.
                self.last_step = step.step
            return
        began, steps = self.told_to, 1
        self.lost_at, self.is_log = None, is_line
        if is_line:
            steps, step = self._of_all_its_steps(step, ended - began)
        # A log's line: all since the line before. The first one tells what of it was its step, or nobody knows.
        is_told = step.step_s is not None and (not is_line or not self.has_stepped)
        length = whole_ns(step.step_s) if is_told else ended - began
        starts = max(began, MonoNs(ended - length))
        is_alone = is_line and self.last_step is None and not self.has_stepped and not is_repeated
        if not is_alone:
            self._tell(self.start if not self.has_stepped else Cause.UNKNOWN, starts - began, is_weak=is_line)
        before_ns = starts - began if is_alone else 0
        if is_line and len(self.recent) >= ORDINARY_STEPS:
            starts = self._after_pause(step, steps, starts, ended)
        self.lengths.append((ended - began) // steps)
        told = parts_of(step, ended - starts)
        self.told_to, self.is_finished = ended, False
        self.phases.clear()
        if is_repeated:
            self._tell(Cause.LOST_STEPS, ended - starts)
        elif not self.has_stepped:
            self.first = First(told, step, steps, before_ns)
        else:
            self.sums.add(told, step)
            self.recent.append([ns // steps for ns in told])
            if self.first is not None and len(self.recent) >= ORDINARY_STEPS:
                self._settle_first()
        self.has_stepped, self.last_step = True, step.step

    def _of_all_its_steps(self, line: Step, passed_ns: int) -> tuple[int, Step]:
        """How many steps a log's line is of, and the line with the parts of them all."""
        steps = self.pace.steps(line.step, self.last_step)
        times = steps if self.pace.are_of_one(line, steps, passed_ns) else 1
        if self.first is not None and self.first.before_ns:
            self._settle_before(min(times, self.first.step.step))
        return steps, of_steps(line, times)

    def _settle_before(self, steps: int) -> None:
        """The first line is of as many steps as the second one, and never of more than its own number."""
        first = self.first
        assert first is not None
        if steps > 1:
            told_ns, whole = sum(first.parts), of_steps(first.step, steps)
            more_ns = min(first.before_ns, max(0, whole_ns(whole.step_s) - told_ns))
            first.parts, first.step, first.steps = parts_of(whole, told_ns + more_ns), whole, steps
            first.before_ns -= more_ns
        self._tell(self.start, first.before_ns)
        first.before_ns = 0

    def phase(self, at: MonoNs, name: str) -> None:
        self.phases.append((at, name))

    def finish(self, at: MonoNs) -> None:
        """It says that its training is over. Its process may save and evaluate yet: its phases go on."""
        self.phase(at, "finish")
        self.is_finished = True

    def catch_up(self, at: MonoNs) -> None:
        """Its time behind the training is as its phases say: no step comes that could tell more."""
        last = self.phases[-1][1]
        self.end(at)
        self.phase(self.told_to, last)

    def end(self, at: MonoNs, *, is_good: bool = False) -> None:
        """The rank is gone: what is left of its line is of its last phases, and of its end.

        `is_good`: it had done all it was to do. Else it was cut: it had spoken of no end.
        """
        for cause, ns in self.tail(at, is_cut=True, is_good=is_good):
            if cause is Cause.NOT_TOLD:
                self.like_ns += ns
            else:
                self._tell(cause, ns)
                self.still_ns = max(self.still_ns, at - self.told_to) if cause is Cause.HANG else self.still_ns
        self.told_to = max(self.told_to, at)
        self.phases.clear()
        self._settle_first()

    def tail(self, at: MonoNs, *, is_cut: bool = False, is_good: bool = False) -> Iterator[tuple[Cause, int]]:
        """The time since the last told moment, by phases, as if the rank ended at `at`.

        Behind a bye it is the end's. Where no phase tells, it is the next step's (NOT_TOLD) for as long as that may
        take; beyond that the rank stands still, if it does so for long.
        """
        lost_at = at if self.lost_at is None else min(at, max(self.lost_at, self.told_to))
        here, cause = self.told_to, Cause.NOT_TOLD if self.has_stepped else self.start
        if self.has_stepped and (is_good or self.is_finished):
            cause = Cause.SHUT_DOWN
        for since, name in (*self.phases, (lost_at, "")):
            upto = min(max(since, here), lost_at)
            if upto > here:
                yield from self._open(upto - here, is_cut=is_cut) if cause is Cause.NOT_TOLD else [(cause, upto - here)]
            here = upto
            if name == "train" and self.has_stepped:
                cause = Cause.NOT_TOLD
            elif self.has_stepped or name not in ("init", "train"):
                cause = _OF_PHASE.get(name, Cause.UNKNOWN)
        if at > here:
            is_end = is_good or at - here <= GONE_WITHIN_NS
            ended = (Cause.SHUT_DOWN if is_end else Cause.UNKNOWN) if is_cut else Cause.NOT_TOLD
            yield ended if self.has_stepped else self.start, at - here

    def _open(self, ns: int, *, is_cut: bool) -> Iterator[tuple[Cause, int]]:
        """Time in which it was to step, and has told of no step. Of a log nobody knows whether it only was not read."""
        ordinary = self.ordinary_ns
        like = ns if ordinary is None and not is_cut else min(ns, OPEN_TIMES * (ordinary or 0))
        is_still = ordinary is not None and ns - like >= max(STILL_MIN_NS, STILL_TIMES * ordinary)
        yield Cause.NOT_TOLD, like
        if is_still and not self.is_log:
            yield Cause.HANG, ns - like
        else:
            yield Cause.UNKNOWN if is_cut else Cause.NOT_TOLD, ns - like

    def give_up(self, cause: Cause, at: MonoNs) -> None:
        """What is not told up to `at` is of this cause, whatever it was."""
        self._tell(cause, max(0, at - self.told_to))
        self.told_to = max(self.told_to, at)
        self.phases.clear()

    def take(self) -> tuple[RankSums, dict[Cause, int], dict[Cause, int]]:
        """What was told since the last call: steps, the rest by cause, and what of that is weak."""
        taken = self.sums, self.direct, self.weak
        self.sums, self.direct, self.weak = RankSums(), {}, {}
        return taken

    def _after_pause(self, step: Step, steps: int, began: MonoNs, ended: MonoNs) -> MonoNs:
        """When a log's line began, if the time since the line before is far from usual for so many steps.

        What was then is as the log's phases say. A line that tells its step's time knows better than what is usual.
        """
        lengths = sorted(self.lengths)
        usual = max(lengths[len(lengths) // 2] * steps, min(whole_ns(step.step_s), ended - began))
        if ended - began <= max(PAUSE_TIMES * usual, usual + PAUSE_MIN_NS):
            return began
        named = [cause for _, name in self.phases if (cause := _OF_PHASE.get(name)) is not None]
        self._tell(named[-1] if named else Cause.UNKNOWN, ended - began - usual, is_weak=True)
        return MonoNs(ended - usual)

    def _tell(self, cause: Cause, ns: int, *, is_weak: bool = False) -> None:
        if ns > 0:
            self.direct[cause] = self.direct.get(cause, 0) + ns
            if is_weak:
                self.weak[cause] = self.weak.get(cause, 0) + ns

    def _settle_first(self) -> None:
        """The first step's time beyond an ordinary one: before the forward pass it is start-up, else warm-up."""
        if self.first is None:
            return
        told, step, steps = self.first.parts, self.first.step, self.first.steps
        self._tell(self.start, self.first.before_ns, is_weak=True)  # No line came that could tell more.
        self.first = None
        if self.recent:
            usual = [sorted(one[index] for one in self.recent)[len(self.recent) // 2] * steps for index in range(PARTS)]
        else:  # An attempt of one step: nobody knows what was usual.
            usual = [0 if index in (part.DATA, part.LOOP) else ns for index, ns in enumerate(told)]
        kept = list(told)
        for index in range(PARTS):
            beyond = 0 if index in _NOT_OF_STEP else max(0, told[index] - usual[index])
            kept[index] -= beyond
            # A log's first line that does not tell its step's time has all of the start in it.
            is_start = index in (part.DATA, part.LOOP) or (index == part.WHOLE and step.step_s is None)
            self._tell(self.start if is_start else Cause.COMPILE, beyond, is_weak=index == part.WHOLE)
        self.sums.add(kept, step)
