"""How much of the log one user can fill. Everything that users can cause to be logged asks here first.

A uid has a number of lines of each kind, which comes back slowly. All uids together have one number more, so that the
service manager's own limit never drops a line about a halt. What is left out is counted, and a later line says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from governor.core.base.units import NS_PER_S, MonoNs

# Twice a uid's live runs, which may all be reported at once when the governor starts again.
LINES_AT_ONCE: Final = 64
LINE_PERIOD_NS: Final = 10 * NS_PER_S  # How soon one line of a (uid, kind) comes back.
# journald drops what exceeds 10,000 lines in 30 s. This leaves nine tenths of it to everything else.
ALL_AT_ONCE: Final = 500
ALL_PERIOD_NS: Final = NS_PER_S // 20
KEYS_MAX: Final = 1_024  # Below 200 KB. The pair that was heard of longest ago makes room.
SAID_AFTER_NS: Final = 10 * NS_PER_S  # How long a pair is quiet before what was left out is said.


@dataclass(slots=True)
class _Bucket:
    left: int
    at: MonoNs  # When it last got a line back.
    more: int = 0  # Lines that were left out since the last one.
    asked_at: MonoNs = MonoNs(0)

    def take(self, at: MonoNs, most: int, period_ns: int) -> bool:
        back = (at - self.at) // period_ns
        if back > 0:
            self.left, self.at = min(most, self.left + back), MonoNs(self.at + back * period_ns)
        if self.left == 0:
            return False
        self.left -= 1
        return True


@dataclass(slots=True)
class LogQuota:
    """Used on the loop's thread."""

    _all: _Bucket = field(default_factory=lambda: _Bucket(ALL_AT_ONCE, MonoNs(0)))
    _by_key: dict[tuple[int, str], _Bucket] = field(default_factory=dict)  # Heard of longest ago first.

    def take(self, uid: int, kind: str, at: MonoNs) -> int | None:
        """Whether a line may be logged: how many like it were left out before it. None: leave it out."""
        key = uid, kind
        bucket = self._by_key.pop(key, None) or _Bucket(LINES_AT_ONCE, at)
        self._by_key[key] = bucket
        if len(self._by_key) > KEYS_MAX:
            del self._by_key[next(iter(self._by_key))]
        bucket.asked_at = at
        if not bucket.take(at, LINES_AT_ONCE, LINE_PERIOD_NS) or not self._all.take(at, ALL_AT_ONCE, ALL_PERIOD_NS):
            bucket.more += 1
            return None
        more, bucket.more = bucket.more, 0
        return more

    def left_out(self, at: MonoNs) -> Iterator[tuple[int, str, int]]:
        """The uid, kind and number of lines that were left out where it is quiet now. Each is told once."""
        for (uid, kind), bucket in self._by_key.items():
            if bucket.more and at - bucket.asked_at >= SAID_AFTER_NS:
                more, bucket.more = bucket.more, 0
                yield uid, kind, more


def more_like_it(count: int) -> dict[str, int]:
    """The log line's own word for the lines that were left out before it."""
    return {"more_like_this": count} if count else {}
