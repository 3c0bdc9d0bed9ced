"""Bounded windows over recent values: medians and percentiles without growing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice


class Reservoir:
    """The last `size` finite values in their order. Sorted when a quantile is asked for: few are, of many values."""

    __slots__ = ("_is_sorted", "_order", "_sorted", "size", "total")

    def __init__(self, size: int) -> None:
        assert size > 0
        self.size = size
        self.total = 0  # Values ever added.
        self._order: deque[float] = deque(maxlen=size)
        self._sorted: list[float] = []
        self._is_sorted = True

    def add(self, value: float) -> None:
        assert value == value, "NaN has no rank"
        self._order.append(value)
        self._is_sorted = False
        self.total += 1

    def clear(self) -> None:
        self._order.clear()
        self._is_sorted = False
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
        if not self._is_sorted:
            self._sorted = sorted(self._order)
            self._is_sorted = True
        if not self._sorted:
            return None
        return self._sorted[min(len(self._sorted) - 1, int(frac * len(self._sorted)))]

    def median(self) -> float | None:
        return self.quantile(0.5)
