"""What the simulated machine costs: a price that may move, read late or not at all, and a disk beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from governor.core.base.units import NS_PER_S, MonoNs, UsdMicros, accrue
from governor.core.money.charges import Line, LineKind, Unit
from governor.core.money.lines import Metered
from tests.sim.engine_driver import PRICE, TRAINED_NS
from tests.sim.world import START

# Of the runs whose ceilings are told by size: from seconds to a day.
TRAINED_NS_MIN, TRAINED_NS_MAX = 20 * NS_PER_S, 24 * 3600 * NS_PER_S
# The first change of the price comes in the first minutes, and the second one not before it.
CHANGES_FROM_NS = 170 * NS_PER_S
READ_LATE_NS_MAX = 300 * NS_PER_S  # A spot price is asked for every five minutes.


@dataclass(frozen=True, slots=True)
class Change:
    at: MonoNs  # The provider charges the new price from here on,
    read_at: MonoNs  # and the governor learns of it, if it runs.
    price: UsdMicros


@dataclass(frozen=True, slots=True)
class Money:
    changes: tuple[Change, ...] = ()
    disk: Metered | None = None
    trained_ns: int = TRAINED_NS  # Before the verdict.

    @property
    def began(self) -> MonoNs:
        return MonoNs(START - self.trained_ns)

    def price_at(self, at: int) -> UsdMicros:
        return next((change.price for change in reversed(self.changes) if change.at <= at), PRICE)

    def rate_at(self, at: int) -> UsdMicros:
        return UsdMicros(self.price_at(at) + (self.disk.usd_micros_per_hour if self.disk is not None else 0))

    def spent(self, since: int, until: int, told: tuple[Change, ...] | None = None) -> int:
        """The provider's book, in micro-dollars; with `told`, that of somebody who knows of these changes alone."""
        changes = self.changes if told is None else told
        edges = [since, *(min(max(change.at, since), until) for change in changes), until]
        prices = [PRICE, *(change.price for change in changes)]
        compute = sum(price * (end - begin) for price, (begin, end) in zip(prices, pairwise(edges), strict=True))
        disk = 0
        if self.disk is not None:
            line = self.disk.line
            disk, _ = accrue(line.price_usd_micros, self.disk.amount * (until - since), 0, line.unit.base_units)
        return accrue(1, compute, 0)[0] + disk

    def rises(self, read_after: int, before: int) -> bool:
        """A price went up before that moment, and the verdict could not know."""
        pairs = zip([PRICE, *(change.price for change in self.changes)], self.changes, strict=False)
        return any(old < new.price and new.read_at >= read_after and new.at < before for old, new in pairs)


def draw_money(seed: int, verify_ns: int, *, settled: bool) -> Money:
    """`settled`: nothing about it moves once the verdict has come."""
    rng = Random(f"money {seed}")
    trained_ns = TRAINED_NS if settled else draw_trained_ns(Random(f"trained {seed}"))
    changes: list[Change] = []
    price = int(PRICE)
    if rng.random() < 0.5:
        changed = price * rng.randint(90, 200) // 100
        at = START - trained_ns + rng.randint(10, 100) * NS_PER_S + rng.randrange(NS_PER_S)
        read_at = MonoNs(at + rng.randrange(60 * NS_PER_S))
        if trained_ns >= CHANGES_FROM_NS:
            price = changed
            changes.append(Change(MonoNs(at), read_at, UsdMicros(price)))
    if not settled and rng.random() < 0.5:
        price = price * rng.randint(70, 150) // 100
        at = max(START + rng.randrange(-60 * NS_PER_S, 2 * verify_ns), START - trained_ns + 1)
        late = rng.randrange(5 * NS_PER_S if rng.random() < 0.5 else READ_LATE_NS_MAX)
        changes.append(Change(MonoNs(at), MonoNs(max(at + late, START + 1)), UsdMicros(price)))
    disk = None
    if rng.random() < 0.5:
        line = Line(LineKind.STORAGE, "vol-1", Unit.GB_MONTH, UsdMicros(80_000 + rng.randrange(10**5)), "list", "2026")
        disk = Metered(line, rng.randint(1, 100_000))
    return Money(tuple(changes), disk, trained_ns)


def draw_trained_ns(rng: Random) -> int:
    """As many runs from one minute to two as from one hour to two."""
    return round(math.exp(rng.uniform(math.log(TRAINED_NS_MIN), math.log(TRAINED_NS_MAX))))
