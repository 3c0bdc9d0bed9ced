"""One rank's time, told piece by piece: by its steps, and behind its last step by its phases."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from governor.core.attribution.causes import Cause
from governor.core.attribution.first_step import First
from governor.core.attribution.open_end import NAMES, OF_PHASE, OPEN_TIMES, STILL_MIN_NS, STILL_TIMES, Still, Watch
from governor.core.attribution.parts import RankSums, parts_of, whole_ns
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Step

# Behind a rank's last step come an evaluation, a save, the end: more changes than these are noise.
PHASES_MAX: Final = 32
# So many ordinary steps tell how much longer the first one took.
ORDINARY_STEPS: Final = 3
RECENT_STEPS: Final = 15

# A rank that was killed is seen to be gone so soon after its connection. Later, nobody knows what it did.
GONE_WITHIN_NS: Final = 60 * NS_PER_S


class Mark(NamedTuple):
    """A phase begins."""

    at: MonoNs
    name: str
    step: int | None = None  # That a log names beside it.
    is_told: bool = False  # By its seconds.


class Piece(NamedTuple):
    """Of what nobody told as it passed."""

    cause: Cause
    ns: int
    is_weak: bool = False  # Of the phase that a cut has left open: nobody knows how much of it was still that.


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
    phases: deque[Mark] = field(default_factory=lambda: deque(maxlen=PHASES_MAX))
    usual_ns: int | None = None  # An ordinary step of the run, until this line has its own.
    lost_at: MonoNs | None = None  # Its connection, without a bye.
    like_ns: int = 0  # Of a step that was cut: as its like were.
    watch: Watch = field(default_factory=Watch)
    still: Still = Still(0)  # Of its end, if it was cut.
    is_behind_short: bool = False  # The last window with steps of it was too short to tell who waits (see told.py).

    @property
    def pending_ns(self) -> int:
        """What is told and not yet attributed."""
        return self.first.ns if self.first is not None else 0

    @property
    def ordinary_ns(self) -> int | None:
        """The length of an ordinary step. None: nobody has seen one."""
        if self.recent:
            return sorted(sum(one) for one in self.recent)[len(self.recent) // 2]
        if self.usual_ns is not None:
            return self.usual_ns
        return sum(self.first.parts) or None if self.first is not None else None

    @property
    def stepped_to(self) -> MonoNs:
        """The moment of its last step."""
        return self.told_to

    @property
    def trains(self) -> bool:
        """What follows its last word is a step, if no phase says more."""
        return self.has_stepped

    def goes_back(self, step: Step, ended: MonoNs) -> bool:
        return self.last_step is not None and step.step <= self.last_step

    def is_more(self, step: Step, ended: MonoNs) -> bool:
        """Whether it tells more of the last step, and is none of its own."""
        return False

    def step(self, step: Step, ended: MonoNs, *, is_repeated: bool) -> None:
        """Take one step that ended then."""
        if ended <= self.told_to:
            return
        self.lost_at = None
        length = whole_ns(step.step_s) if step.step_s is not None else ended - self.told_to
        starts = max(self.told_to, MonoNs(ended - length))
        self._tell(Cause.UNKNOWN if self.has_stepped else self.start, starts - self.told_to)
        told = parts_of(step, ended - starts)
        if not self.has_stepped:
            self.first = First(told, step, is_repeated=is_repeated)
        else:
            if is_repeated:
                self._tell(Cause.LOST_STEPS, ended - starts)
            else:
                self.sums.add(told, step)
            self.recent.append(told)
        self._stepped(step, ended)

    def _stepped(self, step: Step, ended: MonoNs) -> None:
        self.told_to, self.is_finished = ended, False
        if self.phases or not self.has_stepped:
            self.watch.ends(self.open_cause, ended)
        self.phases.clear()
        if len(self.recent) >= ORDINARY_STEPS:
            self._settle_first()
        self.has_stepped, self.last_step = True, step.step

    @property
    def open_cause(self) -> Cause:
        """What it does behind its last word. NOT_TOLD: a step."""
        cause = Cause.NOT_TOLD if self.has_stepped else self.start
        if self.has_stepped and self.is_finished:
            cause = Cause.SHUT_DOWN
        for mark in self.phases:
            cause = self._behind(mark.name, cause)
        return cause

    def _behind(self, name: str, cause: Cause) -> Cause:
        """What is done once the phase `name` has begun. `cause`: before that."""
        if name == "train" and self.has_stepped:
            return Cause.NOT_TOLD
        if self.has_stepped or name not in ("init", "train"):
            return OF_PHASE.get(name, Cause.UNKNOWN)
        return cause

    def phase(self, at: MonoNs, name: str, step: int | None = None) -> None:
        before = self.open_cause
        self.phases.append(Mark(at, name, step))
        if self.open_cause is not before:
            self.watch.ends(before, at)

    def finish(self, at: MonoNs) -> None:
        """It says that its training is over. Its process may save and evaluate yet: its phases go on."""
        self.phase(at, "finish")
        self.is_finished = True

    def catch_up(self, at: MonoNs) -> None:
        """Its time behind the training is as its phases say: no step comes that could tell more."""
        last = self.phases[-1].name
        self.end(at)
        self.phase(self.told_to, last)

    def end(self, at: MonoNs, *, is_good: bool = False) -> None:
        """The rank is gone: what is left of its line is of its last phases, and of its end.

        `is_good`: it had done all it was to do. Else it was cut: it had spoken of no end.
        """
        stands = None if is_good else self.stands(at, is_cut=True)
        self._tell_tail(at, is_good=is_good)
        self.still = max(self.still, stands or self.still)
        self.told_to = max(self.told_to, at)
        self.phases.clear()
        self._settle_first()

    def gone_at(self, at: MonoNs) -> MonoNs:
        """When a rank was gone of which this is seen at `at`. Who has said bye ends by its exit."""
        is_lost = self.lost_at is not None and not self.is_finished and self.has_stepped
        lost_at = max(self.lost_at or at, self.stepped_to)
        return lost_at if is_lost and 0 <= at - lost_at <= GONE_WITHIN_NS else at

    def _tell_tail(self, at: MonoNs, *, is_good: bool = False) -> None:
        """It is cut at `at`, by its end or by a rule: what it has not told itself is told for it."""
        for piece in self.tail(at, is_cut=True, is_good=is_good):
            self._tell(piece.cause, piece.ns, is_weak=piece.is_weak)

    def tail(self, at: MonoNs, *, is_cut: bool = False, is_good: bool = False) -> Iterator[Piece]:
        """The time since the last told moment, by phases, as if the rank ended at `at`.

        Behind a bye it is the end's. Where no phase tells, it is the next step's (NOT_TOLD) for as long as that may
        take; beyond that the rank stands still, if it does so for long.
        """
        lost_at = at if self.lost_at is None else min(at, max(self.lost_at, self.stepped_to))
        here, cause = self.stepped_to, Cause.NOT_TOLD if self.trains else self.start
        if self.trains and (is_good or self.is_finished):
            cause = Cause.SHUT_DOWN
        for mark in self.phases:
            upto = min(max(mark.at, here), lost_at)
            if upto > here:
                whole = [Piece(cause, upto - here)]
                yield from self._of_step(upto - here, is_cut=is_cut) if cause is Cause.NOT_TOLD else whole
            here, cause = upto, self._behind(mark.name, cause)
        if lost_at > here and cause is Cause.NOT_TOLD:
            yield from self._of_step(lost_at - here, is_cut=is_cut)
        elif lost_at > here:
            whole, is_end = [Piece(cause, lost_at - here)], is_good or self.is_finished
            yield from whole if is_end else self._open_phase(cause, here, lost_at, is_cut=is_cut)
        here = lost_at
        if at > here:
            is_end = is_good or at - here <= GONE_WITHIN_NS
            ended = (Cause.SHUT_DOWN if is_end else Cause.UNKNOWN) if is_cut else Cause.NOT_TOLD
            yield Piece(ended if self.has_stepped else self.start, at - here)

    def _of_step(self, ns: int, *, is_cut: bool) -> Iterator[Piece]:
        return (Piece(cause, part) for cause, part in self._open(ns, is_cut=is_cut))

    def _open(self, ns: int, *, is_cut: bool) -> Iterator[tuple[Cause, int]]:
        """Time in which it was to step, and has told of no step."""
        ordinary = self.ordinary_ns
        like = ns if ordinary is None and not is_cut else min(ns, OPEN_TIMES * (ordinary or 0))
        is_still = ordinary is not None and ns - like >= max(STILL_MIN_NS, STILL_TIMES * ordinary)
        yield Cause.NOT_TOLD, like
        rest = Cause.UNKNOWN if is_cut else Cause.NOT_TOLD
        yield Cause.HANG if is_still else rest, ns - like

    def _open_phase(self, cause: Cause, since: MonoNs, upto: MonoNs, *, is_cut: bool) -> Iterator[Piece]:
        """The time in a phase that has not ended. What nobody knows once it is cut is the phase's while it lasts."""
        is_weak = is_cut and cause in NAMES
        beyond_ns, is_hang = self.watch.beyond(cause, since, upto)
        rest = Cause.HANG if is_hang else Cause.UNKNOWN if is_cut else cause
        yield Piece(cause, upto - since - beyond_ns, is_weak)
        yield Piece(rest, beyond_ns, is_weak)

    def stands(self, at: MonoNs, *, is_cut: bool) -> Still | None:
        """How it has stood still by `at`. `is_cut`: so may be what nobody knows."""
        lost_at = at if self.lost_at is None else min(at, max(self.lost_at, self.told_to))
        cause, since = self.open_cause, max(self.told_to, *(mark.at for mark in self.phases), MonoNs(0))
        if cause is Cause.NOT_TOLD:
            is_still = any(one is Cause.HANG for one, _ in self._open(max(0, lost_at - since), is_cut=is_cut))
            is_suspect = self.watch.sight is not None and self.watch.sight.is_suspect
            return Still(lost_at - self.told_to, is_suspect=is_suspect) if is_still else None
        beyond = self.watch.beyond(cause, since, lost_at)
        if self.is_finished or not beyond.ns or not (is_cut or beyond.is_hang) or self.watch.sight is None:
            return None
        still_ns = lost_at - max(since, self.watch.sight.moved_at)
        return self.watch.told(cause, still_ns, still_ns - beyond.ns)

    def halts(self, at: MonoNs, since: MonoNs | None) -> None:
        """A rule of silence halts it. What is behind `since`, when the last rank of the run moved, is a hang.

        Before that the others moved, and this one may have loaded or waited for them: it is as a cut then would be.
        """
        cause, sight = self.open_cause, self.watch.sight
        in_phase = sight is not None and not self.is_finished and cause in NAMES
        moved_at = max(self.told_to, min(at, since if since is not None else self.told_to))
        own_ns = max(0, at - sight.moved_at) if sight is not None else 0
        if sight is not None:
            self.watch.sight = sight._replace(moved_at=max(moved_at, sight.moved_at))
        self._tell_tail(moved_at)
        self.told_to = moved_at
        still_ns = max(0, at - self.told_to)
        still = self.watch.told(cause, still_ns) if in_phase else Still(still_ns)
        self.still = still._replace(own_ns=own_ns, is_suspect=sight is not None and sight.is_suspect)

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

    def _tell(self, cause: Cause, ns: int, *, is_weak: bool = False) -> None:
        if cause is Cause.NOT_TOLD:  # Of a step that was cut: nothing else will tell.
            self.like_ns += ns
        elif ns > 0:
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
