"""The part of a GPU's last stretch of time in which something held: it was busy, or its clocks were held down."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar, Final

# A window has 20 buckets: it moves by a twentieth, whatever the rhythm of the samples.
BUCKETS: Final = 20


class Window:
    """In whole nanoseconds, so that sums do not drift."""

    __slots__ = ("_bucket_ns", "_buckets", "_part_ns", "_size_ns", "_span_ns")
    ITEM: ClassVar[Any] = tuple[int, int]

    def __init__(self, size_ns: int) -> None:
        self._size_ns = size_ns
        self._bucket_ns = size_ns // BUCKETS
        self._buckets: deque[tuple[int, int]] = deque()
        self._span_ns = self._part_ns = 0

    def add(self, stretch: tuple[int, int]) -> None:
        """Add a stretch: its length, and the part of it that counts."""
        span_ns, part_ns = stretch
        self._span_ns += span_ns
        self._part_ns += part_ns
        if self._buckets and self._buckets[-1][0] < self._bucket_ns:
            last_span_ns, last_part_ns = self._buckets.pop()
            span_ns, part_ns = span_ns + last_span_ns, part_ns + last_part_ns
        self._buckets.append((span_ns, part_ns))
        while self._span_ns - self._buckets[0][0] >= self._size_ns:
            gone_span_ns, gone_part_ns = self._buckets.popleft()
            self._span_ns -= gone_span_ns
            self._part_ns -= gone_part_ns

    def clear(self) -> None:
        self._buckets.clear()
        self._span_ns = self._part_ns = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Oldest first."""
        return iter(self._buckets)

    @property
    def share(self) -> float | None:
        """None until the window is full."""
        return self._part_ns / self._span_ns if self._span_ns >= self._size_ns else None
