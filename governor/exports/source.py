"""A run's recording and its journal, joined on the wall clock: one stream in bounded memory, the same every time.

The spend at a moment is what the ledger charged the run until then. Within a charge (an hour at most, as a rule) the
money is taken to have grown evenly.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from governor.adapters.journal.run_history import Noted, PricedWindow
from governor.core.base.units import UsdMicros
from governor.core.money.charges import Charge
from governor.exports.series import SPEND, USD_PER_MTOK, Gpu, Happened, Item, Point

MICROS = 10**6
History = Noted | PricedWindow


class Spend:
    """What a run was charged. Whoever asks what that was until a moment takes a walk of their own: see `Walk`."""

    def __init__(self, charges: Iterable[Charge]) -> None:
        # A year of one node is some 9,000 of them a line.
        self._charges = sorted(((one.from_wall, one.to_wall, one.usd_micros) for one in charges), reverse=True)
        self.total = UsdMicros(sum(micros for _, _, micros in self._charges))
        self.is_known = bool(self._charges)

    def walk(self) -> Walk:
        return Walk(self._charges)


class Walk:
    """Micro-dollars that were charged until a moment. Moments that go back are taken for the latest one asked for.

    So it is of one asker: another one's later moments would be this one's.
    """

    def __init__(self, charges: Sequence[tuple[int, int, int]]) -> None:
        """`charges`: begin, end and micro-dollars, the latest begin first."""
        self._is_known = bool(charges)
        self._ahead = [*charges]
        self._growing: list[tuple[int, int, int]] = []
        self._closed = 0
        self._wall = 0

    def at(self, wall: int) -> UsdMicros | None:
        """None where nothing was ever charged: the price is unknown, or another run pays."""
        if not self._is_known:
            return None
        self._wall = max(self._wall, wall)
        while self._ahead and self._ahead[-1][0] <= self._wall:
            self._growing.append(self._ahead.pop())
        over = [one for one in self._growing if one[1] <= self._wall]
        if over:
            self._closed += sum(micros for _, _, micros in over)
            self._growing = [one for one in self._growing if one[1] > self._wall]
        parts = (micros * (self._wall - begin) // (end - begin) for begin, end, micros in self._growing)
        return UsdMicros(self._closed + sum(parts))


@dataclass(slots=True)
class Counted:
    """What has passed."""

    points: int = 0
    gpu_samples: int = 0
    events: int = 0
    last_step: int | None = None


def joined(
    items: Iterable[Item], history: Sequence[Iterable[History]], spend: Spend, counted: Counted
) -> Iterator[Item]:
    """Yield all items in their order, points with their money, and what the journals tell of the run in between."""
    told = heapq.merge(*history, key=lambda one: one.wall)
    ahead = next(told, None)
    micros_per_mtok: UsdMicros | None = None
    paid = spend.walk()
    step = 0
    for item in items:
        while ahead is not None and ahead.wall <= item.wall:
            if isinstance(ahead, PricedWindow):
                micros_per_mtok = ahead.usd_micros_per_mtok
            else:
                counted.events += 1
                yield _event(ahead, step)
            ahead = next(told, None)
        if isinstance(item, Point):
            step = counted.last_step = item.step or 0
            counted.points += 1
            yield _priced(item, paid.at(item.wall), micros_per_mtok)
            continue
        counted.gpu_samples += isinstance(item, Gpu)
        counted.events += isinstance(item, Happened)
        yield item
    while ahead is not None:
        if isinstance(ahead, Noted):
            counted.events += 1
            yield _event(ahead, step)
        elif counted.last_step is None and ahead.usd_micros_per_mtok is not None:
            # Nothing was recorded: the price is all that there is by time.
            counted.points += 1
            yield _priced(Point(ahead.wall, None, {}), paid.at(ahead.wall), ahead.usd_micros_per_mtok)
        ahead = next(told, None)


def _event(noted: Noted, step: int) -> Happened:
    return Happened(noted.wall, step, noted.name, noted.text)


def _priced(point: Point, spend: UsdMicros | None, per_mtok: UsdMicros | None) -> Point:
    money = {SPEND: spend, USD_PER_MTOK: per_mtok}
    return replace(
        point,
        values={**point.values, **{name: micros / MICROS for name, micros in money.items() if micros is not None}},
    )
