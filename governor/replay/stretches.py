"""Which time a recording covers, on the wall clock: there the ledger's charges lie.

A recording is replayed on one clock of its own (`wire.recorded`). Each of its segments says how far the wall clock was
ahead of that. What happens between two lines is recorded, unless one of them says that nobody listened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.wire.recorded import is_exit, is_frame, is_gap, is_halt

# What lies behind so many stretches counts as not recorded: a list without a bound would be a user's to fill.
STRETCHES_MAX: Final = 100_000
# A clock that is steered moves by less between two segments. One that was set moves by more.
STEERED_NS: Final = 2 * NS_PER_S


class Span(NamedTuple):
    """A stretch of wall time in nanoseconds, its end not included."""

    since: int
    until: int


@dataclass(slots=True)
class RecordedAttempt:
    """From an attempt's first line to its exit, its halt or the next attempt."""

    name: object
    began: MonoNs  # On the recording's own clock.
    ended_wall: int
    is_halted: bool = False
    is_over: bool = False


@dataclass(slots=True)
class Stretches:
    """Give each record to `see` once it has been replayed."""

    attempts: list[RecordedAttempt] = field(default_factory=list)
    gaps: int = 0
    lines_lost: int = 0
    is_cut: bool = False  # Above STRETCHES_MAX.
    clock_set_ns: DurationNs = DurationNs(0)  # The furthest that the wall clock was set within it.
    _spans: list[Span] = field(default_factory=list)
    _open: Span | None = None
    # From which time on the wall clock was how far ahead.
    _since: list[MonoNs] = field(default_factory=list)
    _ahead: list[int] = field(default_factory=list)

    def see(self, record: dict[str, Any], at: MonoNs, wall_ahead_ns: int) -> None:
        """`at`: the replay's clock at this record. `wall_ahead_ns`: the wall clock minus that one."""
        if "at_ns" not in record or self.is_cut:
            return
        self._steer(at, wall_ahead_ns)
        wall = at + wall_ahead_ns
        if is_gap(record):
            self._gap(record, wall)
            return
        if self._open is None and self.attempts and not is_frame(record):
            return  # A halted run's ranks exit behind its halt, whose attempt is over. A frame begins the next one.
        self._open = Span(wall, wall) if self._open is None else self._open._replace(until=max(self._open.until, wall))
        attempt = self._attempt_of(record, at, wall)
        attempt.ended_wall = max(attempt.ended_wall, wall)
        attempt.is_halted = is_halt(record)
        attempt.is_over = attempt.is_halted or is_exit(record)
        if attempt.is_over:
            self._close()

    def spans(self) -> list[Span]:
        """The recorded time in order, without overlaps. A clock that was set back may have shown a time twice."""
        return merged([*self._spans, *([self._open] if self._open is not None else [])])

    def wall(self, at: MonoNs) -> int:
        """The wall time of a moment on the recording's own clock. 0 for a recording without a line."""
        found = max(0, bisect_right(self._since, at) - 1)
        return at + self._ahead[found] if self._ahead else 0

    def attempt_at(self, at: MonoNs) -> int | None:
        """The number of the attempt that is the last to have begun by then. None: none had."""
        found = bisect_right(self.attempts, at, key=lambda attempt: attempt.began) - 1
        return found if found >= 0 else None

    def rest_of(self, number: int, at: MonoNs) -> Span:
        """An attempt's time from this moment on. Empty where it was over."""
        since = self.wall(at)
        return Span(since, max(since, self.attempts[number].ended_wall))

    @property
    def ends_at_halt(self) -> bool:
        return bool(self.attempts) and self.attempts[-1].is_halted

    def _attempt_of(self, record: dict[str, Any], at: MonoNs, wall: int) -> RecordedAttempt:
        named = record.get("attempt") if record.get("kind") == "hello" and record.get("again") is not True else None
        last = self.attempts[-1] if self.attempts else None
        if last is None or last.is_over or (named is not None and last.name not in (None, named)):
            self.attempts.append(RecordedAttempt(named, at, wall))
            self.is_cut |= len(self.attempts) >= STRETCHES_MAX
        elif last.name is None:
            last.name = named
        return self.attempts[-1]

    def _steer(self, at: MonoNs, ahead: int) -> None:
        if self._ahead and self._ahead[-1] == ahead:
            return
        if self._ahead and abs(ahead - self._ahead[-1]) > STEERED_NS:
            self.clock_set_ns = DurationNs(max(self.clock_set_ns, abs(ahead - self._ahead[-1])))
        self._since.append(at)
        self._ahead.append(ahead)

    def _gap(self, record: dict[str, Any], wall: int) -> None:
        if self._open is None:
            return  # Between two attempts nothing is missed.
        lines = record.get("lines")
        self.gaps += 1
        self.lines_lost += lines if type(lines) is int and lines > 0 else 0
        self._open = self._open._replace(until=max(self._open.until, wall))
        self.attempts[-1].ended_wall = max(self.attempts[-1].ended_wall, wall)
        self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._spans.append(self._open)
            self.is_cut |= len(self._spans) >= STRETCHES_MAX
        self._open = None


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same time in order, without overlaps and without empty spans."""
    return [*_merged(sorted(spans))]


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    held: Span | None = None
    for span in spans:
        if span.since >= span.until:
            continue
        if held is not None and span.since <= held.until:
            held = held._replace(until=max(held.until, span.until))
            continue
        if held is not None:
            yield held
        held = span
    if held is not None:
        yield held
