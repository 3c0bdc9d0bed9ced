"""One rank's time, told piece by piece: by its steps, and behind its last step by its phases."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from governor.core.attribution import parts as part
from governor.core.attribution.balance import Balance, Spare
from governor.core.attribution.causes import Cause, Shares, apportion
from governor.core.attribution.first_step import NOT_OF_STEP, First
from governor.core.attribution.log_pace import LogPace, lasted_ns, of_steps, paused_ns
from governor.core.attribution.open_end import NAMES, OPEN_TIMES, STILL_MIN_NS, STILL_TIMES, Still, Watch
from governor.core.attribution.parts import RankSums, parts_of, whole_ns
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Step

# Behind a rank's last step come an evaluation, a save, the end: more changes than these are noise.
PHASES_MAX: Final = 32
# So many ordinary steps tell how much longer the first one took.
ORDINARY_STEPS: Final = 3
RECENT_STEPS: Final = 15

# A log's next line may be a little late. So much later than usual, something else was done.
LATE_TIMES: Final = 1.25
PAUSE_TIMES: Final = 2
PAUSE_MIN_NS: Final = NS_PER_S
# Lines nearer to each other were written together: those that tell no time of their own are of the next interval.
TOGETHER_NS: Final = NS_PER_S // 1000

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
    balance: Balance = field(default_factory=Balance)
    phases: deque[tuple[MonoNs, str]] = field(default_factory=lambda: deque(maxlen=PHASES_MAX))
    usual_ns: int | None = None  # An ordinary step of the run, until this line has its own.
    lost_at: MonoNs | None = None  # Its connection, without a bye.
    is_log: bool = False
    like_ns: int = 0  # Of a step that was cut: as its like were.
    watch: Watch = field(default_factory=Watch)
    still: Still = Still(0)  # Of its end, if it was cut.

    @property
    def pending_ns(self) -> int:
        """What is told and not yet attributed: of the first step, and between lines that are not balanced yet."""
        return self._first_ns + self.balance.spare_ns

    @property
    def _first_ns(self) -> int:
        return self.first.ns if self.first is not None else 0

    @property
    def ordinary_ns(self) -> int | None:
        """The length of an ordinary step, or of a log's line. None: nobody has seen one."""
        times = self.pace.stride if self.is_log else 1
        if self.recent:
            return sorted(sum(one) for one in self.recent)[len(self.recent) // 2] * times
        if self.usual_ns is not None:
            return self.usual_ns
        first_ns = sum(self.first.parts) if self.first is not None else 0
        return first_ns or (min(self.lengths) * times if self.lengths else None)

    def goes_back(self, step: Step) -> bool:
        return self.last_step is not None and step.step <= self.last_step

    def step(self, step: Step, ended: MonoNs, *, is_repeated: bool) -> None:
        """Take one step that ended then."""
        is_line = step.connection is None
        if self._is_of_next(step, ended):
            if is_line and self.last_step is None:  # The log begins with it: the next one tells its steps by it.
                self.last_step = step.step
            return
        began, steps = self.told_to, 1
        self.lost_at, self.is_log = None, is_line
        if is_line:
            steps, step = self._of_all_its_steps(step, ended - began)
        if is_line and self.has_stepped and not is_repeated:
            self._line(step, steps, ended - began)
        else:
            self._settle_spare(self.balance.settle())
            self._step(step, steps, ended, is_repeated=is_repeated)
        self.lengths.append(max(1, ended - began - (paused_ns(step) if is_line else 0)) // steps)
        self.told_to, self.is_finished = ended, False
        if self.phases or not self.has_stepped:
            self.watch.ends(self.open_cause, ended)
        self.phases.clear()
        if self.first is not None and len(self.recent) >= ORDINARY_STEPS:
            self._settle_first()
        self.has_stepped, self.last_step = True, step.step

    def _is_of_next(self, step: Step, ended: MonoNs) -> bool:
        """Whether no time has passed for it. Of a log's lines at one moment the next interval's tells for all."""
        tells = step.connection is not None or step.step_s is not None or paused_ns(step) > 0
        return ended <= self.told_to or (not tells and self.has_stepped and ended - self.told_to < TOGETHER_NS)

    def _step(self, step: Step, steps: int, ended: MonoNs, *, is_repeated: bool) -> None:
        """A rank's step, or the first one of a log, or one that is done again."""
        began, is_line = self.told_to, step.connection is None
        # A log's line: all since the line before. The first one tells what of it was its step, or nobody knows.
        is_told = step.step_s is not None and (not is_line or not self.has_stepped)
        length = ended - began
        if is_told:
            length = lasted_ns(step, 0) if is_line else whole_ns(step.step_s)
        starts = max(began, MonoNs(ended - length))
        is_alone = is_line and self.last_step is None and not self.has_stepped
        if not is_alone:
            self._tell(self.start if not self.has_stepped else Cause.UNKNOWN, starts - began, is_weak=is_line)
        before_ns = starts - began if is_alone else 0
        if is_line and (pause_ns := self._paused_ns(step, steps, ended - starts)):
            self._tell_pause(self._named(ended) or {Cause.UNKNOWN: 1}, pause_ns)
            starts = MonoNs(starts + pause_ns)
        told = parts_of(step, ended - starts)
        if is_alone or not (self.has_stepped or is_repeated):
            self.first = First(told, step, steps, before_ns, is_alone, is_repeated)
            return
        if is_repeated:
            self._tell(Cause.LOST_STEPS, ended - starts)
        else:
            self.sums.add(told, step)
        self.recent.append([ns // steps for ns in told])

    def _line(self, step: Step, steps: int, passed_ns: int) -> None:
        """A log's line behind the first: all since the line before, as it tells itself, and as the lines about it do.

        What was in a pause is as the log's phases say.
        """
        pause_ns, told_ns = self._paused_ns(step, steps, passed_ns), lasted_ns(step, self._trained_ns(steps))
        self._settle_spare(self.balance.begin_line(is_short=2 * passed_ns < told_ns))
        if pause_ns and (named := self._named(MonoNs(self.told_to + passed_ns))):
            self._tell_pause(named, pause_ns)
            passed_ns, pause_ns = passed_ns - pause_ns, 0
        if told_ns:
            told = self._balanced(step, told_ns, passed_ns, pause_ns)
        else:
            self._tell(Cause.UNKNOWN, pause_ns, is_weak=True)
            told = parts_of(step, passed_ns - pause_ns)
            self.sums.add(told, step)
        self.recent.append([ns // steps for ns in told])

    def _balanced(self, step: Step, told_ns: int, passed_ns: int, pause_ns: int) -> list[int]:
        """The parts of a line that tells how long it took. `pause_ns`: of its interval, what is no line's by itself."""
        told, more_ns = parts_of(step, told_ns), passed_ns - told_ns
        if more_ns < 0:
            cut = parts_of(step, passed_ns + self.balance.take(-more_ns))
            self.balance.lack(told, cut)
            self.sums.add(cut, step)
            return told
        for parts in self.balance.repay(more_ns):
            self.sums.parts = [mine + more for mine, more in zip(self.sums.parts, parts, strict=True)]
            more_ns -= sum(parts)
        rest_ns = min(more_ns, passed_ns - told_ns - pause_ns)
        self.balance.keep(rest_ns, None, part.WHOLE if None in (step.forward_s, step.backward_s) else part.OTHER)
        self.balance.keep(more_ns - rest_ns, Cause.UNKNOWN, part.OTHER)
        self.sums.add(told, step)
        return told

    def _settle_spare(self, spare: Iterable[Spare]) -> None:
        for one in spare:
            if one.cause is None:
                self.sums.parts[one.part] += one.ns
            else:
                self._tell(one.cause, one.ns, is_weak=one.cause is Cause.UNKNOWN)

    def _of_all_its_steps(self, line: Step, passed_ns: int) -> tuple[int, Step]:
        """How many steps a log's line is of, and the line with the parts of them all."""
        steps = self.pace.steps(line.step, self.last_step)
        is_of_one = self.pace.are_of_one(line, steps, passed_ns)
        if self.first is not None and self.first.is_alone:
            before_ns = self.first.retell(line, steps, is_of_one=is_of_one)
            self.balance.keep(before_ns, self.start, part.OTHER)
        return steps, of_steps(line, steps if is_of_one else 1)

    @property
    def open_cause(self) -> Cause:
        """What it does behind its last word. NOT_TOLD: a step."""
        cause = Cause.NOT_TOLD if self.has_stepped else self.start
        if self.has_stepped and self.is_finished:
            cause = Cause.SHUT_DOWN
        for _, name in self.phases:
            cause = self._behind(name, cause)
        return cause

    def _behind(self, name: str, cause: Cause) -> Cause:
        """What is done once the phase `name` has begun. `cause`: before that."""
        if name == "train" and self.has_stepped:
            return Cause.NOT_TOLD
        if self.has_stepped or name not in ("init", "train"):
            return _OF_PHASE.get(name, Cause.UNKNOWN)
        return cause

    def phase(self, at: MonoNs, name: str) -> None:
        before = self.open_cause
        self.phases.append((at, name))
        if self.open_cause is not before:
            self.watch.ends(before, at)

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
        stands, phase = None if is_good else self.stands(at, is_cut=True), self.open_cause
        for cause, ns in self.tail(at, is_cut=True, is_good=is_good):
            if cause is Cause.NOT_TOLD:
                self.like_ns += ns
            else:
                self._tell(cause, ns, is_weak=cause is Cause.HANG and stands is not None and bool(stands.what))
        if stands is not None and stands.like_ns:  # It stood still in that phase, and nobody knows from when on.
            like_ns = min(stands.like_ns, self.direct.get(phase, 0) - self.weak.get(phase, 0))
            self.weak[phase] = self.weak.get(phase, 0) + like_ns
        self.still = max(self.still, stands or self.still)
        self.told_to = max(self.told_to, at)
        self.phases.clear()
        self._settle_first()
        self._settle_spare(self.balance.settle())

    def tail(self, at: MonoNs, *, is_cut: bool = False, is_good: bool = False) -> Iterator[tuple[Cause, int]]:
        """The time since the last told moment, by phases, as if the rank ended at `at`.

        Behind a bye it is the end's. Where no phase tells, it is the next step's (NOT_TOLD) for as long as that may
        take; beyond that the rank stands still, if it does so for long.
        """
        lost_at = at if self.lost_at is None else min(at, max(self.lost_at, self.told_to))
        here, cause = self.told_to, Cause.NOT_TOLD if self.has_stepped else self.start
        if self.has_stepped and (is_good or self.is_finished):
            cause = Cause.SHUT_DOWN
        for since, name in self.phases:
            upto = min(max(since, here), lost_at)
            if upto > here:
                yield from self._open(upto - here, is_cut=is_cut) if cause is Cause.NOT_TOLD else [(cause, upto - here)]
            here, cause = upto, self._behind(name, cause)
        if lost_at > here and cause is Cause.NOT_TOLD:
            yield from self._open(lost_at - here, is_cut=is_cut)
        elif lost_at > here:
            is_end = is_good or self.is_finished
            yield from [(cause, lost_at - here)] if is_end else self._open_phase(cause, here, lost_at, is_cut=is_cut)
        here = lost_at
        if at > here:
            is_end = is_good or at - here <= GONE_WITHIN_NS
            ended = (Cause.SHUT_DOWN if is_end else Cause.UNKNOWN) if is_cut else Cause.NOT_TOLD
            yield ended if self.has_stepped else self.start, at - here

    def _open(self, ns: int, *, is_cut: bool) -> Iterator[tuple[Cause, int]]:
        """Time in which it was to step, and has told of no step. Of a log nobody knows whether it only was not read.

        A log that is cut has one line under way. Once that is overdue, nobody knows what it was.
        """
        ordinary = self.ordinary_ns
        if self.is_log and is_cut:
            is_under_way = ordinary is not None and ns <= LATE_TIMES * ordinary
            yield Cause.NOT_TOLD if is_under_way else Cause.UNKNOWN, ns
            return
        like = ns if ordinary is None and not is_cut else min(ns, OPEN_TIMES * (ordinary or 0))
        is_still = ordinary is not None and ns - like >= max(STILL_MIN_NS, STILL_TIMES * ordinary)
        yield Cause.NOT_TOLD, like
        rest = Cause.UNKNOWN if is_cut else Cause.NOT_TOLD
        yield Cause.HANG if is_still and not self.is_log else rest, ns - like

    def _open_phase(self, cause: Cause, since: MonoNs, upto: MonoNs, *, is_cut: bool) -> Iterator[tuple[Cause, int]]:
        """The time in a phase that has not ended. What nobody knows once it is cut is the phase's while it lasts."""
        beyond_ns, is_hang = self.watch.beyond(cause, since, upto)
        rest = Cause.HANG if is_hang else Cause.UNKNOWN if is_cut else cause
        yield cause, upto - since - beyond_ns
        yield rest, beyond_ns

    def stands(self, at: MonoNs, *, is_cut: bool) -> Still | None:
        """How it has stood still by `at`. `is_cut`: so may be what nobody knows."""
        lost_at = at if self.lost_at is None else min(at, max(self.lost_at, self.told_to))
        cause, since = self.open_cause, max(self.told_to, *(moment for moment, _ in self.phases), MonoNs(0))
        if cause is Cause.NOT_TOLD:
            is_still = any(one is Cause.HANG for one, _ in self._open(max(0, lost_at - since), is_cut=is_cut))
            return Still(lost_at - self.told_to) if is_still else None
        beyond = self.watch.beyond(cause, since, lost_at)
        if self.is_finished or not beyond.ns or not (is_cut or beyond.is_hang) or self.watch.sight is None:
            return None
        still_ns = lost_at - max(since, self.watch.sight.moved_at)
        return self.watch.told(cause, still_ns, still_ns - beyond.ns)

    def halts(self, at: MonoNs) -> None:
        """A rule of silence halts it. A phase is told up to its last hook, and the time behind it is a hang."""
        cause, sight = self.open_cause, self.watch.sight
        in_phase = sight is not None and not self.is_finished and cause in NAMES
        if in_phase and sight is not None and sight.moved_at > self.told_to:
            moved_at = min(at, sight.moved_at)
            for one, ns in self.tail(moved_at):
                self._tell(one, ns)
            self.told_to = moved_at
        still_ns = max(0, at - self.told_to)
        self.still = self.watch.told(cause, still_ns) if in_phase else Still(still_ns)

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

    def _paused_ns(self, step: Step, steps: int, passed_ns: int) -> int:
        """Of a log's interval, what is beyond its line's own time, if it is far from usual for so many steps.

        A line that tells its step's time, a save or an evaluation knows better than what is usual.
        """
        if len(self.recent) < ORDINARY_STEPS:
            return 0
        ordinary_ns = self._usual_ns(steps)
        told_ns = lasted_ns(step, self._trained_ns(steps))
        usual = max(ordinary_ns + paused_ns(step), min(told_ns, passed_ns))
        return passed_ns - usual if passed_ns > max(PAUSE_TIMES * usual, usual + PAUSE_MIN_NS) else 0

    def _usual_ns(self, steps: int) -> int:
        """So many steps without a save, as a log's lines have come."""
        lengths = sorted(self.lengths)
        return lengths[len(lengths) // 2] * steps if lengths else 0

    def _trained_ns(self, steps: int) -> int:
        """So many steps without a save, as a log's lines have told: those of a burst have come at once."""
        trained = sorted(sum(one) - sum(one[index] for index in NOT_OF_STEP) for one in self.recent)
        return trained[len(trained) // 2] * steps if trained else self._usual_ns(steps)

    def _named(self, ended: MonoNs) -> dict[Cause, int]:
        """What the log's phases say of the time since its last line: how long each lasted. Without dates: the last."""
        found, last = dict[Cause, int](), None
        for place, (since, name) in enumerate(self.phases):
            if (cause := _OF_PHASE.get(name)) is None:
                continue
            upto = self.phases[place + 1][0] if place + 1 < len(self.phases) else ended
            last, ns = cause, min(upto, ended) - max(since, self.told_to)
            found[cause] = found.get(cause, 0) + max(0, ns)
        return found if any(found.values()) or last is None else {last: 1}

    def _tell_pause(self, named: Shares, pause_ns: int) -> None:
        for cause, ns in apportion(pause_ns, named).items():
            self._tell(cause, ns, is_weak=True)

    def _tell(self, cause: Cause, ns: int, *, is_weak: bool = False) -> None:
        if ns > 0:
            self.direct[cause] = self.direct.get(cause, 0) + ns
            if is_weak:
                self.weak[cause] = self.weak.get(cause, 0) + ns

    def _settle_first(self) -> None:
        if self.first is None:
            return
        first, self.first = self.first, None
        for one in first.take_beyond(self.recent, self.start):
            self._tell(one.cause, one.ns, is_weak=one.is_weak)
        if first.is_repeated:
            self._tell(Cause.LOST_STEPS, sum(first.parts))
        else:
            self.sums.add(first.parts, first.step)
