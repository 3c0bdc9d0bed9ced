"""How exact a bill prints: its hours and amounts are right to half a unit of their last digit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from governor.core.money.charges import LineKind
from governor.core.money.reports.bill import CENT_USD, BillLine
from governor.core.money.reports.disk_use import NO_PRICE_USD, half_last_digit

# Amounts in full dollars are exact to the cent: "$5" is no rounded $5.40.
_HALF_CENT: Final = CENT_USD / 2


@dataclass(frozen=True, slots=True)
class Digits:
    """What rounding may have changed in a row, at most. 0: nothing is known of it."""

    hours: Fraction = Fraction(0)
    usd: Fraction = Fraction(0)


EXACT: Final = Digits()


def paid_hours(usd: Fraction, hours: Fraction, price: Fraction, digits: Digits) -> Fraction:
    """The hours that an amount is for at our price, where they are printed as the bill prints its own. Else its own.

    An hour that is twice is 0.67 twice where it lasts for 40 minutes, and costs twice 0.666…
    """
    if abs(usd - hours * price) <= max(NO_PRICE_USD, digits.usd):
        return hours
    paid = usd / price
    return paid if abs(paid - hours) <= digits.hours + digits.usd / price else hours


def printed_digits(lines: Iterable[BillLine]) -> Mapping[tuple[str, LineKind], Digits]:
    """By the row of each resource that has most digits, as some bills leave zeros out. `lines`: as they were read."""
    hours: dict[tuple[str, LineKind], Fraction] = {}
    usd: dict[tuple[str, LineKind], Fraction] = {}
    for line in lines:
        if (kind := line.kind.metered_as) is None:
            continue
        key = line.resource, kind
        if line.hours is not None and line.rounding:
            hours[key] = min(hours.get(key, line.rounding), line.rounding)
        if line.usd and (half := half_last_digit(line.usd)):
            usd[key] = min(usd.get(key, _HALF_CENT), half)
    return {key: Digits(hours.get(key, Fraction(0)), usd.get(key, Fraction(0))) for key in {**hours, **usd}}
