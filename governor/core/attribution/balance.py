"""Lines of a log that tell how long they took, and were written sooner or later than their steps ended.

A log that is written in bursts, or stamped by a coarse clock, has long intervals and short ones. What an interval has
more than its line tells may be of the lines about it: a line that was written too soon takes what it lacks of that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from governor.core.attribution.causes import Cause

# So many lines later nothing is balanced any more: a stream's buffer of 8 KiB holds no more of a hundred bytes.
LINES_MAX: Final = 80


@dataclass(slots=True)
class Spare:
    """Time that is of no line yet. `cause`: what it is if no line takes it; None: what its line names in no part."""

    ns: int
    cause: Cause | None
    part: int
    line: int


@dataclass(slots=True)
class Lack:
    """What a line told beyond its interval, and by parts."""

    ns: int
    parts: list[int]
    line: int


@dataclass(slots=True)
class Balance:
    lines: int = 0
    spare: deque[Spare] = field(default_factory=deque)
    lacks: deque[Lack] = field(default_factory=deque)

    @property
    def spare_ns(self) -> int:
        return sum(one.ns for one in self.spare)

    def begin_line(self, *, is_short: bool) -> Iterator[Spare]:
        """What no line takes any more. A pause is one as soon as a line comes that was not written with it."""
        self.lines += 1
        while self.lacks and self.lines - self.lacks[0].line > LINES_MAX:
            self.lacks.popleft()
        gone = [
            one for one in self.spare
            if self.lines - one.line > LINES_MAX or (one.cause is not None and not is_short)
        ]  # fmt: skip
        for one in gone:
            self.spare.remove(one)
        yield from gone

    def keep(self, ns: int, cause: Cause | None, part: int) -> None:
        """For a line that is written too soon. Else it is of `cause`, or of this part of its line's steps."""
        if ns > 0:
            self.spare.append(Spare(ns, cause, part, self.lines))

    def take(self, ns: int) -> int:
        """Up to so much for a line that was written too soon."""
        taken = 0
        while self.spare and taken < ns:
            one = self.spare[0]
            more = min(one.ns, ns - taken)
            one.ns, taken = one.ns - more, taken + more
            if not one.ns:
                self.spare.popleft()
        return taken

    def lack(self, told: list[int], cut: list[int]) -> None:
        """A line was cut: note what it told beyond."""
        parts = [ns - less for ns, less in zip(told, cut, strict=True)]
        if (ns := sum(parts)) > 0:
            self.lacks.append(Lack(ns, parts, self.lines))

    def repay(self, ns: int) -> Iterator[list[int]]:
        """By parts, what lines before lacked, up to `ns`."""
        while self.lacks and ns > 0:
            one = self.lacks[0]
            paid = min(ns, one.ns)
            parts = [part * paid // one.ns for part in one.parts]
            parts[max(range(len(parts)), key=one.parts.__getitem__)] += paid - sum(parts)
            one.parts = [part - less for part, less in zip(one.parts, parts, strict=True)]
            one.ns, ns = one.ns - paid, ns - paid
            if not one.ns:
                self.lacks.popleft()
            yield parts

    def settle(self) -> Iterator[Spare]:
        """No line comes that could take of it."""
        gone = list(self.spare)
        self.spare.clear()
        self.lacks.clear()
        yield from gone
