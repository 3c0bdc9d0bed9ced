"""A disk on both sides of a cell, in GB-months: why their quantity is another one, where it can be known.

    theirs - ours = (their quantity - our quantity) x price + the rest, which is due to the price

A quantity is a size times a time. Only where the sizes are equal is another quantity one of hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from governor.core.money.charges import HOURS_PER_MONTH
from governor.core.money.reports.bill import Cause

# Sizes that differ by less are equal: what rounding to micro-dollars and to a few digits makes of them.
_SIZE_SLACK: Final = Fraction(1, 10_000)
_SIZE_SLACK_MAX: Final = Fraction(1, 1_000)
# What rounding to micro-dollars loses in a cell. A smaller difference is no difference of price.
NO_PRICE_USD: Final = Fraction(1, 100_000)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """One side of a cell. `hours`: those of its rows together; `covered_hours`: those of at least one of them.

    `rounding_usd`: what the rounding of its amounts may come to.
    """

    usd: Fraction
    gb_months: Fraction
    hours: Fraction
    covered_hours: Fraction
    rounding_usd: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True)
class DiskPart:
    cause: Cause
    usd: Fraction
    hours: Fraction | None = None
    has_quantities: bool = False
    has_prices: bool = False


def half_last_digit(amount: Fraction) -> Fraction:
    """What rounding may have taken from a decimal number, by its digits. 0 of a number that is no decimal."""
    left, digits = amount.denominator, 0
    counts = {2: 0, 5: 0}
    for prime in counts:
        while left % prime == 0:
            left //= prime
            counts[prime] += 1
    digits = max(counts.values())
    return Fraction(1, 2 * 10**digits) if left == 1 else Fraction(0)


def disk_parts(
    ours: DiskUse, theirs: DiskUse, price: Fraction, rounding: Fraction, month_hours: int, less: Cause
) -> Iterator[DiskPart]:
    """`price`: ours, of a GB-month. `rounding`: of their quantity. `less`: the cause of hours that they do not have."""
    whole = theirs.usd - ours.usd
    of_rounding = max(NO_PRICE_USD, rounding * price)
    month = _month_of_theirs(ours, theirs, rounding, month_hours)
    if month is not None:
        an_hour = ours.gb_months / ours.covered_hours * price
        excess = theirs.hours - theirs.covered_hours
        hours = theirs.covered_hours - ours.covered_hours
        of_month = theirs.gb_months * (1 - Fraction(month, HOURS_PER_MONTH)) * price
        known = [
            DiskPart(Cause.MONTH, of_month),
            DiskPart(Cause.TOO_MANY_HOURS, excess * an_hour, excess),
            DiskPart(Cause.OURS_MISSING if hours > 0 else less, hours * an_hour, hours),
        ]
    elif abs(theirs.gb_months - ours.gb_months) > rounding:
        known = [DiskPart(Cause.QUANTITY, (theirs.gb_months - ours.gb_months) * price, has_quantities=True)]
    elif abs(whole) <= of_rounding:
        yield DiskPart(Cause.BELOW_A_CENT if abs(whole) < NO_PRICE_USD else Cause.AMOUNT, whole)
        return
    else:
        known = []
    yield from (part for part in known if part.usd)
    rest = whole - sum((part.usd for part in known), Fraction(0))
    is_beyond = abs(rest) > of_rounding or (of_rounding == NO_PRICE_USD and abs(rest) >= NO_PRICE_USD)
    # Within the rounding of the amounts nobody can tell another price.
    is_price = is_beyond and abs(rest) > theirs.rounding_usd
    cause = Cause.PRICE if is_price else Cause.AMOUNT if is_beyond else Cause.BELOW_A_CENT
    yield DiskPart(cause, rest, has_prices=is_price)


def _month_of_theirs(ours: DiskUse, theirs: DiskUse, rounding: Fraction, month_hours: int) -> int | None:
    """How many hours their month has, if with it their disk is as large as ours. None: they differ in size, too."""
    if not (ours.gb_months and ours.covered_hours and theirs.gb_months and theirs.hours):
        return None
    size = ours.gb_months / ours.covered_hours
    slack = min(max(_SIZE_SLACK, rounding / theirs.gb_months), _SIZE_SLACK_MAX)
    for month in (HOURS_PER_MONTH, month_hours):
        told = theirs.gb_months * month / (theirs.hours * HOURS_PER_MONTH)
        if abs(told - size) <= size * slack:
            return month
    return None
