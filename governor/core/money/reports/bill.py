"""A provider's bill in comparable form: lines of a resource, a kind and a time. Amounts are exact, in dollars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    gpu_hours: Fraction | None = None  # Its quantity, if that is in hours of one GPU.
    names_no_kind: bool = False  # OTHER for want of a word: of a machine of ours it is compute, by its amount alone.
    gb_months: Fraction | None = None  # Its quantity, if that is of a disk.
    is_end_assumed: bool = False  # The row says only when it begins.
    is_unit_assumed: bool = False  # Nothing says that its hours are hours.
    rounding: Fraction = Fraction(0)  # Of its hours or GPU-hours: half a unit of the last digit that is printed.

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
        if (first, last) == (self.from_wall, self.to_wall):
            return self  # The usual case.
        share = Fraction(last - first, self.to_wall - self.from_wall)
        hours = None if self.hours is None else self.hours * share
        gpu_hours = None if self.gpu_hours is None else self.gpu_hours * share
        gb_months = None if self.gb_months is None else self.gb_months * share
        part = replace(self, from_wall=first, to_wall=last, usd=self.usd * share)
        return replace(part, hours=hours, gpu_hours=gpu_hours, gb_months=gb_months)

    def moved(self, by_ns: int) -> BillLine:
        """The line at another time, with its billing period."""
        return replace(
            self,
            from_wall=self.from_wall + by_ns,
            to_wall=self.to_wall + by_ns,
            billed_from=self.billed_from + by_ns,
            billed_to=self.billed_to + by_ns,
        )


def short_resource(resource: str) -> str:
    """The machine's own name: i-0abc for arn:aws:ec2:eu-west-1:123456789012:instance/i-0abc."""
    return resource.strip().rsplit("/", 1)[-1]


# Differences between the ledger and a bill: their causes, and how differences of one cause become one entry.


CENT_USD: Final = Fraction(1, 100)
# The resources that one kind of difference names, the largest first. The rest is one sum.
NAMED_MAX: Final = 1_000


class Cause(Enum):
    """The value is the text for people."""

    PRICE = "price differs"
    AMOUNT = "amounts differ"  # No quantity on one side, or one that says nothing: nobody knows why.
    QUANTITY = "another quantity"  # Of a disk: its size or its time.
    MONTH = "months of another length"  # Theirs are those of the calendar.
    TOO_MANY_HOURS = "billed more than the clock has"
    OURS_MISSING = "hours missing on our side"
    THEIRS_MISSING = "hours missing on theirs"
    NOT_FINAL = "bill not final yet"
    GRANULARITY = "billing granularity"
    NOT_METERED = "not metered"
    RESOURCE_NOT_METERED = "resource not metered"
    UNKNOWN_TO_US = "resource unknown to us"
    UNKNOWN_TO_THEM = "not in the bill"
    LOST = "hours lost in a damaged journal"
    OTHER_TIME = "used in another period"
    BELOW_A_CENT = "below a cent each"


# For these causes one stretch of time is one entry. For the others all times are one entry.
_BY_STRETCH: Final = frozenset({Cause.OURS_MISSING, Cause.THEIRS_MISSING, Cause.NOT_FINAL, Cause.TOO_MANY_HOURS})
# Of these, what costs more and what costs less are two entries: in one they would cancel.
_BOTH_WAYS: Final = frozenset({Cause.PRICE, Cause.GRANULARITY, Cause.AMOUNT, Cause.QUANTITY, Cause.MONTH})
MANY_RESOURCES: Final = frozenset({Cause.UNKNOWN_TO_US, Cause.RESOURCE_NOT_METERED})

_MONEY_BACK: Final = frozenset(kind.value for kind in (BillKind.CREDIT, BillKind.REFUND, BillKind.DISCOUNT))
Prices = tuple[Fraction, Fraction]  # The lowest and the highest, in dollars per unit.
Key = tuple[Cause, str, str, str]  # What differences have in common that can be one.
_Way = int  # 1: theirs is more by a cent or above. -1: less. 0: below a cent, as rounding is, or of no matter.


@dataclass(slots=True)
class Difference:
    """`usd` is theirs minus ours. `what`: the kind of line. Prices are known if both sides have quantities."""

    cause: Cause
    resource: str
    what: str
    from_wall: int
    to_wall: int
    usd: Fraction
    hours: Fraction | None = None  # Theirs minus ours, if the hours differ.
    our_prices: Prices | None = None
    their_prices: Prices | None = None
    times: int = 1  # More: that many stretches, each below a cent.
    resources: int = 0  # More than 0: the sum of so many that are not named.
    per: str = "hour"  # What prices are for.
    gb_months: tuple[Fraction, Fraction] | None = None  # Ours and theirs, if they differ.
    # Where each part is within the rounding of their amounts: the sum of its squares. None: it is more than that.
    rounding_squares: Fraction | None = None

    @property
    def is_explained(self) -> bool:
        """Whether nobody needs to look at it: no use of a resource, or less than a cent in all."""
        if self.cause is Cause.BELOW_A_CENT:
            return abs(self.usd) < CENT_USD or self.is_rounding
        # A credit that costs money is none.
        return self.cause is Cause.NOT_METERED and not (self.usd > 0 and self.what in _MONEY_BACK)

    @property
    def is_rounding(self) -> bool:
        """Whether amounts that are rounded each may differ by so much in all: thrice their standard deviation.

        What is off in one way, as another price is, is soon more than that.
        """
        return self.rounding_squares is not None and self.usd**2 <= 3 * self.rounding_squares

    @property
    def key(self) -> Key:
        return self.cause, self.resource, self.what, self.per

    def join(self, part: Difference) -> None:
        """Take in another difference of the same key."""
        self.our_prices = _spanned(self.our_prices, part.our_prices)
        self.their_prices = _spanned(self.their_prices, part.their_prices)
        self.hours = None if self.hours is None or part.hours is None else self.hours + part.hours
        if part.gb_months is not None:
            ours, theirs = self.gb_months or (Fraction(0), Fraction(0))
            self.gb_months = (ours + part.gb_months[0], theirs + part.gb_months[1])
        if self.rounding_squares is not None:
            more = part.rounding_squares
            self.rounding_squares = None if more is None else self.rounding_squares + more
        self.usd += part.usd
        self.from_wall = min(self.from_wall, part.from_wall)
        self.to_wall = max(self.to_wall, part.to_wall)


def joined(parts: Iterable[Difference], named_max: int = NAMED_MAX) -> list[Difference]:
    """One entry per cause, resource and (for hours) stretch of time, the largest first. More and less do not cancel.

    Entries below a cent that have a cause and a resource in common are one entry. What is still below a cent is one
    sum of all causes.
    """
    entries: list[Difference] = []
    last: dict[tuple[Key, _Way], Difference] = {}
    for part in sorted(parts, key=lambda one: (one.resource, one.what, one.from_wall)):
        key = part.key, _way(part)
        known = last.get(key)
        if known is None or (part.cause in _BY_STRETCH and known.to_wall != part.from_wall):
            last[key] = part
            entries.append(part)
        else:
            known.join(part)
    entries = _in_one_way(entries, last)
    large = [one for one in entries if not _is_small(one)]
    small = _together(one for one in entries if _is_small(one))
    large = _named(sorted([*large, *(one for one in small if not _is_small(one))], key=_by_size), named_max)
    rest = [one for one in small if _is_small(one)]
    total = sum((one.usd for one in rest), Fraction(0))
    if total:
        start, end = min(one.from_wall for one in rest), max(one.to_wall for one in rest)
        squares = sum((one.rounding_squares or Fraction(0) for one in rest), Fraction(0))
        large.append(Difference(Cause.BELOW_A_CENT, "", "", start, end, total, rounding_squares=squares))
    return large


def _way(part: Difference) -> _Way:
    if part.cause not in _BOTH_WAYS or abs(part.usd) < CENT_USD:
        return 0
    return 1 if part.usd > 0 else -1


def _in_one_way(entries: Iterable[Difference], by_way: Mapping[tuple[Key, _Way], Difference]) -> list[Difference]:
    """What was below a cent each goes to the larger ones that differ in the same way, if there are any."""
    kept: list[Difference] = []
    for one in entries:
        is_of_small = one.cause in _BOTH_WAYS and by_way.get((one.key, 0)) is one
        larger = by_way.get((one.key, 1 if one.usd > 0 else -1)) if is_of_small else None
        if larger is None:
            kept.append(one)
        else:
            larger.join(one)
    return kept


def _is_small(one: Difference) -> bool:
    return abs(one.usd) < CENT_USD or one.cause is Cause.BELOW_A_CENT or one.is_rounding


def _by_size(one: Difference) -> tuple[bool, bool, float, Fraction, str, int]:
    size = abs(one.usd)
    # The float first: a hundred thousand fractions take seconds to compare.
    return one.is_explained, one.resources > 0, -float(size), -size, one.resource, one.from_wall


def _together(small: Iterable[Difference]) -> list[Difference]:
    """The stretches of one cause and resource as one entry."""
    by_key: dict[Key, Difference] = {}
    for one in small:
        known = by_key.setdefault(one.key, one)
        if known is not one:
            known.times += 1
            known.join(one)
    return list(by_key.values())


def _named(ordered: Iterable[Difference], named_max: int) -> list[Difference]:
    """As many resources as a list may name; of each kind of line the rest as one sum."""
    named: list[Difference] = []
    sums: dict[Key, Difference] = {}
    count = 0
    for one in ordered:
        count += one.cause in MANY_RESOURCES
        if one.cause not in MANY_RESOURCES or (count <= named_max and not one.resources):
            named.append(one)
            continue
        one.resource, one.resources = "", max(one.resources, 1)
        known = sums.setdefault(one.key, one)
        if known is not one:
            known.resources += one.resources
            known.join(one)
    return sorted([*named, *sums.values()], key=_by_size) if sums else named


def _spanned(known: Prices | None, more: Prices | None) -> Prices | None:
    if known is None or more is None:
        return known or more
    return min(known[0], more[0]), max(known[1], more[1])


@dataclass(frozen=True, slots=True)
class Bill:
    """`since` and `until` bound the billing periods of the bill."""

    form: str  # "FOCUS", "AWS CUR".
    lines: tuple[BillLine, ...]
    since: int
    until: int
    rows: int = 0  # Of the file, those that `apart` sums included.
    apart: tuple[Difference, ...] = ()  # Sums of the rows of resources that the ledger does not know.
    spans: tuple[Span, ...] = ()  # Of those rows.
    # Our machines whose hours are no hours of the machine, and how many of them are one. 0: nobody knows.
    parts: tuple[tuple[str, int], ...] = ()

    def moved(self, by_ns: int) -> Bill:
        """The bill at another time. What stands apart has no time that matters."""
        lines = tuple(line.moved(by_ns) for line in self.lines)
        return replace(self, lines=lines, since=self.since + by_ns, until=self.until + by_ns)


@dataclass(frozen=True, slots=True)
class Span:
    """Of one kind of line: the length of its longest row, and when its last one ends."""

    kind: LineKind
    longest_ns: int
    until: int
