"""Differences between the ledger and a bill: their causes, and how those of one cause become one entry."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

CENT_USD: Final = Fraction(1, 100)


class Cause(Enum):
    """The value is what people read."""

    PRICE = "price differs"
    OURS_MISSING = "hours missing on our side"
    THEIRS_MISSING = "hours missing on theirs"
    NOT_FINAL = "bill not final yet"
    GRANULARITY = "billing granularity"
    NOT_METERED = "not metered"
    UNKNOWN_TO_US = "resource unknown to us"
    UNKNOWN_TO_THEM = "not in the bill"
    LOST = "hours lost in a damaged journal"
    OTHER_TIME = "used in another period"
    BELOW_A_CENT = "below a cent each"


EXPLAINED: Final = frozenset({Cause.NOT_METERED, Cause.BELOW_A_CENT})
# In these one stretch of time is one event; of the others all times belong to one cause.
_BY_STRETCH: Final = frozenset({Cause.OURS_MISSING, Cause.THEIRS_MISSING, Cause.NOT_FINAL})


Prices = tuple[Fraction, Fraction]  # The lowest and the highest, in dollars per hour.


@dataclass(slots=True)
class Difference:
    """`usd` is theirs minus ours. `what`: the kind of line. Prices are known where both sides have hours."""

    cause: Cause
    resource: str
    what: str
    from_wall: int
    to_wall: int
    usd: Fraction
    hours: Fraction | None = None  # Theirs minus ours, where hours are what differs.
    our_prices: Prices | None = None
    their_prices: Prices | None = None

    @property
    def is_explained(self) -> bool:
        return self.cause in EXPLAINED


def joined(parts: Iterable[Difference]) -> list[Difference]:
    """One entry for each cause, resource and, of hours, stretch of time; what is below a cent in one."""
    entries: list[Difference] = []
    last: dict[tuple[Cause, str, str], Difference] = {}
    for part in sorted(parts, key=lambda one: (one.resource, one.what, one.from_wall)):
        key = (part.cause, part.resource, part.what)
        known = last.get(key)
        if known is None or (part.cause in _BY_STRETCH and known.to_wall != part.from_wall):
            last[key] = part
            entries.append(part)
        else:
            _join(known, part)
    large = [one for one in entries if abs(one.usd) >= CENT_USD and one.cause is not Cause.BELOW_A_CENT]
    small = [one for one in entries if abs(one.usd) < CENT_USD or one.cause is Cause.BELOW_A_CENT]
    large.sort(key=lambda one: (one.is_explained, -abs(one.usd), one.resource, one.from_wall))
    rest = sum((one.usd for one in small), Fraction(0))
    if rest:
        start, end = min(one.from_wall for one in small), max(one.to_wall for one in small)
        large.append(Difference(Cause.BELOW_A_CENT, "", "", start, end, rest))
    return large


def _join(known: Difference, part: Difference) -> None:
    known.our_prices = _spanned(known.our_prices, part.our_prices)
    known.their_prices = _spanned(known.their_prices, part.their_prices)
    if part.hours is not None:
        known.hours = part.hours if known.hours is None else known.hours + part.hours
    known.usd += part.usd
    known.from_wall = min(known.from_wall, part.from_wall)
    known.to_wall = max(known.to_wall, part.to_wall)


def _spanned(known: Prices | None, more: Prices | None) -> Prices | None:
    if known is None or more is None:
        return known or more
    return min(known[0], more[0]), max(known[1], more[1])
