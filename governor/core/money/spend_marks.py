"""What a run had spent at a moment that has passed. Steps are read later than they end: up to a tick of a rank's own,
minutes of a log's lines.

A mark has the run's spend and rate from one moment until the next mark. A step is valued by the mark of its own moment,
whenever it is read: read one by one or together, steps of the same moments have the same windows. Who paid is of that
moment, too.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import Final, NamedTuple

from governor.core.base.units import NS_PER_HOUR, BootNs, MonoNs, UsdMicros

# Sixteen seconds of ticks. A rank's batch needs two.
RECENT_MAX: Final = 64
# Of what is older, marks from which the spend went on at another rate. A log may be read minutes later. Of more, those
# that follow soonest become one: whoever joins and leaves all the time pushes out nobody's older marks.
TURNS_MAX: Final = 64


class Worth(NamedTuple):
    """A run's money at one moment."""

    usd_micros: UsdMicros
    boot: BootNs
    is_priced: bool  # Whether a price was known then.
    unpriced_ns: int  # The run's time without a price so far.
    is_lent: bool = False  # Whether another run paid then, in this one's place.


class Mark(NamedTuple):
    """The run's money from a moment on."""

    since: MonoNs
    boot_offset_ns: int  # Boot clock minus monotonic then: they go apart while the machine is suspended.
    charged_to: BootNs
    usd_micros: UsdMicros  # What it had spent by `charged_to`.
    usd_micros_per_hour: int
    is_priced: bool
    unpriced_ns: int
    is_lent: bool = False

    def at(self, moment: MonoNs) -> Worth:
        boot = BootNs(moment + self.boot_offset_ns)
        spent = self.usd_micros + self.usd_micros_per_hour * (boot - self.charged_to) // NS_PER_HOUR
        return Worth(UsdMicros(spent), boot, self.is_priced, self.unpriced_ns, self.is_lent)

    def leads_to(self, later: Mark) -> bool:
        """Whether the later mark tells no more than this one, but for the rounding of a micro-dollar."""
        if self[4:] != later[4:] or self.boot_offset_ns != later.boot_offset_ns:
            return False
        grown = self.usd_micros_per_hour * (later.charged_to - self.charged_to) // NS_PER_HOUR
        return abs(self.usd_micros + grown - later.usd_micros) <= 1

    def merges(self, middle: Mark, end: Mark) -> bool:
        """Whether the three differ in their spend and rate alone."""
        goes_on = self.charged_to < end.charged_to and self.usd_micros <= end.usd_micros
        return goes_on and self._kind() == middle._kind() == end._kind()

    def with_more(self, usd_micros: int, unpriced_ns: int) -> Mark:
        spent = UsdMicros(max(0, self.usd_micros + usd_micros))
        return self._replace(usd_micros=spent, unpriced_ns=self.unpriced_ns + unpriced_ns)

    def lent_since(self, since: BootNs) -> Mark:
        return self if self.since + self.boot_offset_ns < since else self._replace(is_lent=True)

    def towards(self, end: Mark) -> Mark:
        """This one at the mean rate until another."""
        took_ns = end.charged_to - self.charged_to
        return self._replace(usd_micros_per_hour=(end.usd_micros - self.usd_micros) * NS_PER_HOUR // took_ns)

    def _kind(self) -> tuple[int, bool, int, bool]:
        return self.boot_offset_ns, self.is_priced, self.unpriced_ns, self.is_lent


class Last(NamedTuple):
    """The step that was valued last."""

    boot: BootNs
    usd_micros: int


class Marks:
    """The last marks of one run, in the order of their moments."""

    __slots__ = ("_marks", "_turns")

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()
        self._turns: list[Mark] = []  # All before the marks.

    def note(self, mark: Mark) -> None:
        """Note the run's money as it is from this moment on."""
        marks = self._marks
        while marks and marks[-1].since >= mark.since:
            marks.pop()
        marks.append(mark)
        if len(marks) > RECENT_MAX:
            self._turn(marks.popleft())

    def _turn(self, oldest: Mark) -> None:
        if not self._turns or not self._turns[-1].leads_to(oldest):
            self._turns.append(oldest)
            if len(self._turns) > TURNS_MAX:
                self._merge()

    def _merge(self) -> None:
        """Make one of two marks, at the mean rate of their time. Where none can be, the oldest is dropped."""
        turns = self._turns
        found = [place for place in range(len(turns) - 2) if turns[place].merges(turns[place + 1], turns[place + 2])]
        if not found:
            del turns[0]
            return
        place = min(found, key=lambda one: turns[one + 2].since - turns[one].since)
        turns[place] = turns[place].towards(turns[place + 2])
        del turns[place + 1]

    def take(self, waiting: Marks, usd_micros: int, unpriced_ns: int) -> None:
        """Those of time that has waited for this run are its own now, with so much more than they had themselves.

        What it had spent before that time is in all of them. Its marks of before are still its own.
        """
        first = waiting._first()
        before = [mark for mark in chain(self._turns, self._marks) if first is None or mark.since < first.since]
        self._turns = []
        for mark in chain(before, (mark.with_more(usd_micros, unpriced_ns) for mark in waiting._turns)):
            self._turn(mark)
        self._marks = deque(mark.with_more(usd_micros, unpriced_ns) for mark in waiting._marks)
        waiting.forget()

    def lend(self, since: BootNs) -> None:
        """Another run pays for the time since then in this one's place, as is known now."""
        self._turns = [mark.lent_since(since) for mark in self._turns]
        self._marks = deque(mark.lent_since(since) for mark in self._marks)

    def forget(self) -> None:
        """What it had spent is another's now."""
        self._marks.clear()
        self._turns.clear()

    def is_current(self, charged_to: BootNs, usd_micros: int, usd_micros_per_hour: int) -> bool:
        """Whether the last mark has the run's money as it is now."""
        if not self._marks:
            return False
        mark = self._marks[-1]
        return (
            mark.usd_micros == usd_micros
            and mark.charged_to == charged_to
            and mark.usd_micros_per_hour == usd_micros_per_hour
        )

    def was_lent(self, moment: MonoNs) -> bool:
        """Whether another run paid then, in this one's place."""
        mark = self._of(moment)
        return mark is not None and mark.is_lent

    def boot_of(self, moment: MonoNs, offset_ns: int) -> BootNs:
        """The moment by the boot clock of then. Without a mark, by its present offset."""
        mark = self._of(moment) or self._first()
        return BootNs(moment + (mark.boot_offset_ns if mark is not None else offset_ns))

    def moment_of(self, boot: BootNs, offset_ns: int) -> MonoNs:
        """The moment that had this boot clock. Without a mark, by its present offset."""
        later: Mark | None = None
        for mark in chain(reversed(self._marks), reversed(self._turns)):
            if mark.since + mark.boot_offset_ns <= boot:
                # A mark behind a suspended time begins at the moment at which that began.
                moment = boot - mark.boot_offset_ns
                return MonoNs(moment if later is None else min(moment, later.since - 1))
            later = mark
        return MonoNs(boot - (later.boot_offset_ns if later is not None else offset_ns))

    def spent(self, moment: MonoNs) -> tuple[int, bool]:
        """What the run had spent by the last mark that is not after this moment, and whether that mark is the last.

        Before the last mark, by the moment itself. Before the first one, at that one's rate.
        """
        mark = self._of(moment)
        if mark is None:
            first = self._first()
            return (max(0, first.at(moment).usd_micros), False) if first is not None else (0, True)
        if mark is self._marks[-1]:
            return mark.usd_micros, True
        return mark.at(moment).usd_micros, False

    def worth(self, moment: MonoNs, last: Last | None, attempt_at: MonoNs) -> Worth:
        """The run's money at a moment, which is not before the last step. At least one mark was noted."""
        mark = self._of(moment)
        worth = mark.at(moment) if mark is not None else self._before_all(moment, last, attempt_at)
        if last is not None and worth.boot < last.boot:
            return worth._replace(usd_micros=UsdMicros(last.usd_micros), boot=last.boot)
        return worth

    def _before_all(self, moment: MonoNs, last: Last | None, attempt_at: MonoNs) -> Worth:
        """What was spent between the last step and the first mark is divided by the time.

        Nobody may have paid for the time before the attempt.
        """
        first = self._first()
        assert first is not None, "the caller has noted one"
        now = first.at(first.since)
        boot = BootNs(moment + first.boot_offset_ns)
        if last is None:
            return now
        since, began = last.boot, BootNs(attempt_at + first.boot_offset_ns)
        if since < began <= boot:
            since = began
        if not since <= boot < now.boot:
            return now
        grown, left_ns = max(0, now.usd_micros - last.usd_micros), now.boot - boot
        # At the rate of then. If it has risen meanwhile, at the mean: no step was free.
        left = min(first.usd_micros_per_hour * left_ns // NS_PER_HOUR, grown * left_ns // (now.boot - since))
        return now._replace(usd_micros=UsdMicros(now.usd_micros - left), boot=boot)

    def _first(self) -> Mark | None:
        return next(chain(self._turns, self._marks), None)

    def _of(self, moment: MonoNs) -> Mark | None:
        for mark in reversed(self._marks):  # Nearly always the last or the one before it.
            if mark.since <= moment:
                return mark
        for mark in reversed(self._turns):
            if mark.since <= moment:
                return mark
        return None
