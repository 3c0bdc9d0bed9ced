"""Bounded windows over recent values: medians and percentiles without growing."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from itertools import islice

# Values added since they were sorted last. Up to so many are put into their places one by one; of more, sorting anew
# costs less, and values of which nobody asks the rank cost next to nothing.
_INSERTED_MAX = 16


class Reservoir:
    """The last `size` finite values in their order; sorted when somebody asks for a quantile."""

    __slots__ = ("_added", "_gone", "_order", "_sorted", "size", "total")

    def __init__(self, size: int) -> None:
        assert size > 0
        self.size = size
        self.total = 0  # Values ever added.
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._added: list[float] = []  # Since the last quantile: not in `_sorted` yet,
        self._gone: list[float] = []  # and still in it.

    def add(self, value: float) -> None:
        assert value == value, "NaN has no rank"
        order = self._order
        if len(self._added) <= _INSERTED_MAX:
            self._added.append(value)
            if len(order) == self.size:
                self._gone.append(order.popleft())
        elif len(order) == self.size:
            order.popleft()
        order.append(value)
        self.total += 1

    def clear(self) -> None:
        self._order.clear()
        self._sorted.clear()
        self._added.clear()
        self._gone.clear()
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
        if self._added:
            self._sort()
        if not self._sorted:
            return None
        return self._sorted[min(len(self._sorted) - 1, int(frac * len(self._sorted)))]

    def median(self) -> float | None:
        return self.quantile(0.5)

    def _sort(self) -> None:
        if len(self._added) > _INSERTED_MAX or len(self._sorted) <= _INSERTED_MAX:
            self._sorted = sorted(self._order)
        else:
            for value in self._added:
                insort(self._sorted, value)
            for value in self._gone:
                del self._sorted[bisect_left(self._sorted, value)]
        self._added.clear()
        self._gone.clear()
