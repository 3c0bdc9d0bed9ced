"""Bounded windows of recent values, for medians and percentiles in constant memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice


class Reservoir:
    """The last `size` finite values in their order. Sorted only when a quantile is read, which is rare."""

    __slots__ = ("_order", "_sorted", "size")

    def __init__(self, size: int) -> None:
        assert size > 0
        self.size = size
        self._order: deque[float] = deque(maxlen=size)
        self._sorted: list[float] | None = None  # None: values were added since.

    def add(self, value: float) -> bool:
        """Add one value; True when the oldest was removed for it."""
        assert value == value, "NaN has no rank"
        order = self._order
        was_full = len(order) == self.size
        order.append(value)
        self._sorted = None
        return was_full

    def drop(self, count: int) -> None:
        """Remove the last `count` values, or as many as there are."""
        for _ in range(min(count, len(self._order))):
            self._order.pop()
        self._sorted = None

    def restate(self, count: int, value: float) -> None:
        """Make each of the last `count` values this one."""
        count = min(count, len(self._order))
        self.drop(count)
        self._order.extend([value] * count)

    def clear(self) -> None:
        self._order.clear()
        self._sorted = None

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[float]:
        """Oldest first."""
        return iter(self._order)

    def newest(self, count: int) -> list[float]:
        """The last `count` values (or fewer), oldest first, without copying the rest."""
        newest = list(islice(reversed(self._order), count))
        newest.reverse()
        return newest

    def quantile(self, frac: float) -> float | None:
        """Nearest-rank quantile, None when empty."""
        ordered = self._sorted
        if ordered is None:
            ordered = self._sorted = sorted(self._order)
        if not ordered:
            return None
        return ordered[min(len(ordered) - 1, int(frac * len(ordered)))]

    def median(self) -> float | None:
        return self.quantile(0.5)
