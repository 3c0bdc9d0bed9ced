"""A provider's bill as it is compared: lines of a resource, a kind and a time. Amounts are exact, in dollars."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

from governor.core.money.charges import LineKind


class BillKind(Enum):
    """The value is what people call it."""

    COMPUTE = "compute"
    STORAGE = "storage"
    EGRESS = "egress"
    TAX = "tax"
    CREDIT = "credit"
    REFUND = "refund or correction"
    DISCOUNT = "discount"
    COMMITMENT = "reserved or savings plan"  # Its fees, its unused part, and what it takes off.
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
    """One row of a bill. `hours`: its quantity, where it is in hours. Times are wall nanoseconds, the end excluded."""

    resource: str  # The last part of the provider's id; "" where the row names none.
    kind: BillKind
    from_wall: int
    to_wall: int
    billed_from: int  # The billing period, which need not be when it was used.
    billed_to: int
    usd: Fraction
    hours: Fraction | None = None
    committed: bool = False  # A reservation or a plan pays for these hours, in part or whole.

    @property
    def billed_at(self) -> int:
        """The instant that places it as a whole: its beginning, within its billing period."""
        return min(max(self.from_wall, self.billed_from), self.billed_to - 1)

    def clip(self, since: int, until: int) -> BillLine | None:
        """The part of it between two instants, None outside. Without length it is there or not."""
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
    """`since` and `until` bound the billing periods that it is about."""

    form: str  # "FOCUS", "AWS CUR".
    lines: tuple[BillLine, ...]
    since: int
    until: int


def short_resource(resource: str) -> str:
    """i-0abc of arn:aws:ec2:eu-west-1:123456789012:instance/i-0abc: what the machine calls itself."""
    return resource.strip().rsplit("/", 1)[-1]
