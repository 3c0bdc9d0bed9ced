"""Bounded windows over recent values: medians and percentiles without growing."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from itertools import islice


class Reservoir:
    """The last `size` finite values, kept sorted beside their order: O(log n) insert, O(1) quantile."""

    __slots__ = ("_order", "_sorted", "size", "total")

    def __init__(self, size: int) -> None:
        assert size > 0
        self.size = size
        self.total = 0  # Values ever added.
        self._order: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        assert value == value, "NaN has no rank"
        if len(self._order) == self.size:
            oldest = self._order.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._order.append(value)
        insort(self._sorted, value)
        self.total += 1

    def clear(self) -> None:
        self._order.clear()
        self._sorted.clear()
        self.total = 0

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[float]:
        """Oldest first."""
        return iter(self._order)

    def newest(self, count: int) -> list[float]:
        """The last `count` values or what there is of them, oldest first, without copying the rest."""
        newest = list(islice(reversed(self._order), count))
        newest.reverse()
        return newest

    def quantile(self, frac: float) -> float | None:
        """Nearest-rank quantile, None when empty."""
        if not self._sorted:
            return None
        return self._sorted[min(len(self._sorted) - 1, int(frac * len(self._sorted)))]

    def median(self) -> float | None:
        return self.quantile(0.5)
