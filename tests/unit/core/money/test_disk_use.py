"""Disks by their GB-months: hours, a size, a month of another length and a price are told apart, or nothing is."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR
from governor.core.money.charges import Charge, Line, LineKind, Unit
from governor.core.money.reports.bill import BillKind, BillLine, Cause
from governor.core.money.reports.disk_use import half_last_digit
from tests.unit.core.money.test_bill_causes import told
from tests.unit.core.money.test_reconcile import SINCE, UNTIL, compare
from tests.unit.cost.ledger_file import ANNA, NODE

GP3 = Line(LineKind.STORAGE, "vol-0bbb gp3", Unit.GB_MONTH, 80_000, "config", "2026-11-01")
PRICE = Fraction(8, 100)
MONTH = 720  # The hours of November.
VOLUME = "vol-0bbb"


def metered(gb: int, hours: int = MONTH, *, begin: int = SINCE) -> list[Charge]:
    """By the hour."""
    quantity = gb * NS_PER_HOUR
    micros = GP3.price_usd_micros * quantity // Unit.GB_MONTH.base_units
    begins = range(begin, begin + hours * NS_PER_HOUR, NS_PER_HOUR)
    return [Charge(f"d{at}", NODE, ANNA, GP3, at, at + NS_PER_HOUR, quantity, micros) for at in begins]  # type: ignore[arg-type]


def row(
    gb_months: Fraction,
    price: Fraction = PRICE,
    *,
    at: int = SINCE,
    length: int = UNTIL - SINCE,
    usd: Fraction | None = None,
) -> BillLine:
    usd = gb_months * price if usd is None else usd
    return BillLine(VOLUME, BillKind.STORAGE, at, at + length, SINCE, UNTIL, usd, gb_months=gb_months)


def of(gb: int, hours: int = MONTH, *, month: int = 730) -> Fraction:
    return Fraction(round(Fraction(gb * hours, month) * 10**9), 10**9)


def costly(charges: list[Charge], lines: list[BillLine]) -> dict[Cause, float]:
    return {cause: round(float(usd), 2) for cause, _, usd in told(compare(charges, lines)) if abs(usd) >= 0.005}


def test_an_equal_disk_is_no_difference() -> None:
    assert costly(metered(500), [row(of(500))]) == {}


def test_hours_that_nobody_metered_are_no_other_price() -> None:
    """The governor came for the last three days. The price is the same to the last digit."""
    late = metered(500, 72, begin=UNTIL - 72 * NS_PER_HOUR)
    missing = {Cause.OURS_MISSING: round(float(500 * PRICE) * 648 / 730, 2)}
    assert costly(late, [row(of(500))]) == missing
    [one] = [one for one in compare(late, [row(of(500))]).differences if one.cause is Cause.OURS_MISSING]
    assert one.hours == 648
    daily = [row(of(500, 24), at=SINCE + day * NS_PER_DAY, length=NS_PER_DAY) for day in range(30)]
    assert costly(late, daily) == missing


def test_hours_that_are_not_billed_and_hours_after_an_early_end() -> None:
    at = SINCE + 10 * NS_PER_DAY
    half = [row(of(500, 24), at=at, length=NS_PER_DAY), row(of(500, 24), at=UNTIL - NS_PER_DAY, length=NS_PER_DAY)]
    own = [
        *metered(500, 24, begin=at),
        *metered(500, 24, begin=at + NS_PER_DAY),
        *metered(500, 24, begin=UNTIL - NS_PER_DAY),
    ]
    assert costly(own, half) == {Cause.THEIRS_MISSING: -1.32}


def test_a_larger_disk_is_another_quantity() -> None:
    assert costly(metered(250), [row(of(500))]) == {Cause.QUANTITY: 19.73}
    [one] = [one for one in compare(metered(250), [row(of(500))]).differences if one.cause is Cause.QUANTITY]
    assert one.gb_months == (Fraction(250 * MONTH, 730), of(500))


def test_a_larger_disk_at_another_price_is_both() -> None:
    want = {Cause.QUANTITY: 19.73, Cause.PRICE: round(float(of(500)) * 0.01, 2)}
    assert costly(metered(250), [row(of(500), Fraction(9, 100))]) == want


def test_late_hours_at_another_price_are_both() -> None:
    late = metered(500, 72, begin=UNTIL - 72 * NS_PER_HOUR)
    want = {Cause.OURS_MISSING: 35.51, Cause.PRICE: round(float(of(500)) * 0.01, 2)}
    assert costly(late, [row(of(500), Fraction(9, 100))]) == want


def test_where_size_and_time_are_both_others_it_is_a_quantity_and_no_hours() -> None:
    late = metered(500, 72, begin=UNTIL - 72 * NS_PER_HOUR)
    assert costly(late, [row(of(250))]).keys() == {Cause.QUANTITY}


def test_a_disk_that_lived_for_a_part_of_a_monthly_row_is_equal() -> None:
    assert costly(metered(500, 72), [row(of(500, 72))]) == {}


@pytest.mark.parametrize("price", [PRICE, Fraction(9, 100)])
def test_a_month_of_the_calendar_is_no_other_price(price: Fraction) -> None:
    want = {Cause.MONTH: round(float(of(500, month=MONTH)) * (1 - 720 / 730) * 0.08, 2)}
    if price != PRICE:
        want[Cause.PRICE] = 5.0
    assert costly(metered(500), [row(of(500, month=MONTH), price)]) == want


def test_a_row_that_is_there_twice_is_more_than_the_clock_has() -> None:
    assert costly(metered(500), [row(of(500)), row(of(500))]) == {Cause.TOO_MANY_HOURS: 39.45}


def test_what_a_few_digits_lose_is_no_quantity() -> None:
    """0.685 GB-months an hour, at the right amount."""
    begins = [*range(SINCE, SINCE + 72 * NS_PER_HOUR, NS_PER_HOUR), UNTIL - NS_PER_HOUR]
    lines = [row(Fraction("0.685"), at=at, length=NS_PER_HOUR, usd=of(500, 1) * PRICE) for at in begins]
    assert costly([one for at in begins for one in metered(500, 1, begin=at)], lines) == {}


def test_digits_that_do_not_tell_leave_it_unexplained() -> None:
    """One GB-month in whole ones, where we have 0.6: is it the price or the size?"""
    assert costly(metered(2, 219), [row(Fraction(1))]).keys() == {Cause.AMOUNT}


def in_cents(gb: int, hours: int = MONTH) -> list[BillLine]:
    """By the hour, each amount in full cents."""
    usd = Fraction(round(of(gb, 1) * PRICE * 100), 100)
    begins = range(SINCE, SINCE + hours * NS_PER_HOUR, NS_PER_HOUR)
    return [row(of(gb, 1), at=at, length=NS_PER_HOUR, usd=usd) for at in begins]


def test_amounts_in_cents_that_are_all_rounded_down_are_no_other_price() -> None:
    """5 cents an hour of 5.48: whether it is the price or the rounding nobody can tell."""
    result = compare(metered(500), in_cents(500))
    assert [(cause, round(float(usd), 2)) for cause, _, usd in told(result)] == [(Cause.AMOUNT, -3.45)]
    assert not result.agrees


def test_amounts_in_cents_that_are_rounded_up_and_down_agree() -> None:
    """5 cents of 5.48 and 6 of 5.59, in turn: 2.6 cents less in all."""
    sizes = [500 if n % 2 else 510 for n in range(72)]
    begins = [*range(SINCE, SINCE + 71 * NS_PER_HOUR, NS_PER_HOUR), UNTIL - NS_PER_HOUR]
    own = [one for gb, at in zip(sizes, begins, strict=True) for one in metered(gb, 1, begin=at)]
    lines = [in_cents(gb, 1)[0].moved(at - SINCE) for gb, at in zip(sizes, begins, strict=True)]
    result = compare(own, [replace(line, billed_from=SINCE, billed_to=UNTIL) for line in lines])
    assert (told(result), result.agrees) == ([], True)


def test_a_price_beyond_the_rounding_of_its_amounts_is_one() -> None:
    """Six cents an hour are no rounding of 5.48; nor are 5 with four digits."""
    up = [replace(line, usd=Fraction("0.06")) for line in in_cents(500)]
    digits = [replace(line, usd=Fraction("0.0501")) for line in in_cents(500)]
    for lines, usd in ((up, 3.75), (digits, -3.38)):
        assert costly(metered(500), lines) == {Cause.PRICE: usd}


def test_a_quantity_on_one_side_alone_leaves_it_unexplained() -> None:
    line = replace(row(of(500)), gb_months=None)
    assert costly(metered(250), [line]).keys() == {Cause.AMOUNT}


def test_a_size_that_is_too_small_or_another_does_not_cancel() -> None:
    days = [(SINCE, 250), (SINCE + NS_PER_DAY, 750), (UNTIL - NS_PER_DAY, 500)]
    lines = [row(of(gb, 24), at=at, length=NS_PER_DAY) for at, gb in days]
    own = [one for at, _ in days for one in metered(500, 24, begin=at)]
    assert [cause for cause, _, _ in told(compare(own, lines))] == [Cause.QUANTITY, Cause.QUANTITY]


@pytest.mark.parametrize(("text", "half"), [("0.694", "0.0005"), ("500", "0.5"), ("0.5", "0.05"), ("1e2", "0.5")])
def test_half_of_the_last_digit(text: str, half: str) -> None:
    assert half_last_digit(Fraction(text)) == Fraction(half)
    assert half_last_digit(Fraction(1, 3)) == 0
