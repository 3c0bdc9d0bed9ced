"""A provider's bill in comparable form: lines of a resource, a kind and a time. Amounts are exact, in dollars."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from typing import Final

from governor.core.money.charges import LineKind


class BillKind(Enum):
    """The value is the word for people."""

    COMPUTE = "compute"
    STORAGE = "storage"
    EGRESS = "egress"
    TAX = "tax"
    CREDIT = "credit"
    REFUND = "refund or correction"
    DISCOUNT = "discount"
    COMMITMENT = "reserved or savings plan"  # Its fees, its unused part, and its reductions.
    PURCHASE = "purchase or fee"
    OTHER = "other service"

    @property
    def metered_as(self) -> LineKind | None:
        return _METERED.get(self)

    @property
    def may_be_negative(self) -> bool:
        return self not in (BillKind.COMPUTE, BillKind.STORAGE, BillKind.EGRESS, BillKind.OTHER)


_METERED = {
    BillKind.COMPUTE: LineKind.COMPUTE,
    BillKind.STORAGE: LineKind.STORAGE,
    BillKind.EGRESS: LineKind.EGRESS,
}


@dataclass(frozen=True, slots=True)
class BillLine:
    """One row of a bill. `hours`: its quantity, if that is in hours. Times are wall nanoseconds, the end excluded."""

    resource: str  # The last part of the provider's id; "" if the row names none.
    kind: BillKind
    from_wall: int
    to_wall: int
    billed_from: int  # The billing period, which may differ from the time of use.
    billed_to: int
    usd: Fraction
    hours: Fraction | None = None
    # A reservation or a plan pays for these hours, in part or in full.
    committed: bool = False

    @property
    def billed_at(self) -> int:
        """The instant that places the line as a whole: its beginning, within its billing period."""
        return min(max(self.from_wall, self.billed_from), self.billed_to - 1)

    def clip(self, since: int, until: int) -> BillLine | None:
        """The part of the line between two instants; None outside. A line without length is in or out."""
        if self.from_wall == self.to_wall:
            return self if since <= self.from_wall < until else None
        first, last = max(self.from_wall, since), min(self.to_wall, until)
        if first >= last:
            return None
        share = Fraction(last - first, self.to_wall - self.from_wall)
        hours = None if self.hours is None else self.hours * share
        return replace(self, from_wall=first, to_wall=last, usd=self.usd * share, hours=hours)


@dataclass(frozen=True, slots=True)
class Bill:
    """`since` and `until` bound the billing periods of the bill."""

    form: str  # "FOCUS", "AWS CUR".
    lines: tuple[BillLine, ...]
    since: int
    until: int


def short_resource(resource: str) -> str:
    """The machine's own name: i-0abc for arn:aws:ec2:eu-west-1:123456789012:instance/i-0abc."""
    return resource.strip().rsplit("/", 1)[-1]


# Differences between the ledger and a bill: their causes, and how differences of one cause become one entry.


CENT_USD: Final = Fraction(1, 100)


class Cause(Enum):
    """The value is the text for people."""

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
# For these causes one stretch of time is one entry. For the others all times are one entry.
_BY_STRETCH: Final = frozenset({Cause.OURS_MISSING, Cause.THEIRS_MISSING, Cause.NOT_FINAL})


Prices = tuple[Fraction, Fraction]  # The lowest and the highest, in dollars per hour.


@dataclass(slots=True)
class Difference:
    """`usd` is theirs minus ours. `what`: the kind of line. Prices are known if both sides have hours."""

    cause: Cause
    resource: str
    what: str
    from_wall: int
    to_wall: int
    usd: Fraction
    hours: Fraction | None = None  # Theirs minus ours, if the hours differ.
    our_prices: Prices | None = None
    their_prices: Prices | None = None

    @property
    def is_explained(self) -> bool:
        return self.cause in EXPLAINED


def joined(parts: Iterable[Difference]) -> list[Difference]:
    """One entry per cause, resource and (for hours) stretch of time. All entries below a cent become one."""
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
