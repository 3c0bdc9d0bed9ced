"""Hours and amounts as bills print them: within half a unit of the last digit they are equal, and nothing cancels."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from governor.core.base.units import MICROS_PER_USD, NS_PER_DAY, NS_PER_HOUR, parse_utc
from governor.core.money.charges import Charge
from governor.core.money.reports.bill import BillLine, Cause
from tests.unit.core.money.test_bill_causes import told
from tests.unit.core.money.test_reconcile import PRICE, billed, compare
from tests.unit.cost.ledger_file import charge

DAY = "2026-11-30"


def day_of(hours: str, usd: str, day: str = DAY) -> BillLine:
    """A day's row with its hours and dollars as they are printed."""
    places = len(hours.partition(".")[2])
    line = billed(day, hours, length=NS_PER_DAY, usd=Fraction(usd))
    return replace(line, rounding=Fraction(1, 2 * 10**places))


def ours_of(hours: str, day: str = DAY) -> Charge:
    return charge(f"{day}T08:00:00Z", float(hours))


def dollars(hours: str) -> str:
    """In cents."""
    return f"{float(hours) * float(PRICE):.2f}"


@pytest.mark.parametrize("printed", ["7", "7.35", "7.3", "7.346", "7.3456"])
def test_hours_that_are_rounded_as_printed_are_equal_where_the_amounts_are(printed: str) -> None:
    result = compare([ours_of("7.3456")], [day_of(printed, dollars("7.3456"))])
    assert (told(result), result.agrees) == ([], True)


def test_hours_further_apart_than_their_rounding_differ_as_before() -> None:
    result = compare([ours_of("7.3456")], [day_of("7.36", dollars("7.3456"))])
    assert {cause for cause, _, _ in told(result)} == {Cause.GRANULARITY, Cause.PRICE}


def test_another_amount_beside_rounded_hours_is_one_difference_of_its_own_size() -> None:
    """The hours as printed would cost 24 cents more than ours: within that nobody can tell a price from time."""
    for usd, cause in (("404.40", Cause.AMOUNT), ("390.00", Cause.PRICE)):
        result = compare([ours_of("7.3456")], [day_of("7.35", usd)])
        want = Fraction(usd) - Fraction(ours_of("7.3456").usd_micros, MICROS_PER_USD)
        assert told(result) == [(cause, "i-0aaa", want)]


def test_hours_that_are_billed_as_printed_are_the_cause() -> None:
    """404.54 is 7.35 times the price."""
    [(cause, _, _)] = told(compare([ours_of("7.3456")], [day_of("7.35", "404.544")]))
    assert cause is Cause.GRANULARITY


def test_an_hour_of_a_bill_in_full_hours_that_is_cheaper_is_both() -> None:
    lines = [replace(billed("2026-11-30T08:00:00Z", 1, price=Fraction(50)), rounding=Fraction(1, 2))]
    result = compare([charge("2026-11-30T08:00:00Z", 0.6)], [*lines, billed("2026-11-30T23:00:00Z", 0)])
    assert {cause for cause, _, _ in told(result)} == {Cause.GRANULARITY, Cause.PRICE}


def test_a_row_that_is_rounded_up_bills_no_more_than_the_clock_has() -> None:
    """0.0694 hours at 3.6 dollars a second, printed as 0.07."""
    at = parse_utc("2026-11-30T23:00:00Z")
    own = charge("2026-11-30T23:00:00Z", 0.066)
    line = billed("2026-11-30T23:00:00Z", "0.07", length=own.to_wall - at, usd=Fraction(own.usd_micros, 10**6))
    assert told(compare([own], [replace(line, rounding=Fraction(1, 200))])) == []


def test_the_digits_of_a_bill_are_those_of_its_longest_number() -> None:
    """0.5 beside 0.25 is 0.50."""
    own = [charge("2026-11-30T08:00:00Z", 0.46), charge("2026-11-29T08:00:00Z", 0.25)]
    lines = [day_of("0.5", dollars("0.46")), day_of("0.25", dollars("0.25"), "2026-11-29")]
    assert {cause for cause, _, _ in told(compare(own, lines))} == {Cause.OURS_MISSING, Cause.PRICE}


def test_roundings_to_cents_of_many_rows_are_roundings() -> None:
    """30 days of hours that are printed with six digits, and each amount in cents."""
    hours = [f"{(7 + day * day / 37) % 23:.6f}" for day in range(1, 31)]
    own = [charge(f"2026-11-{day:02}", float(used)) for day, used in enumerate(hours, 1)]
    lines = [day_of(used, dollars(used), f"2026-11-{day:02}") for day, used in enumerate(hours, 1)]
    up = [replace(line, usd=line.usd + Fraction(1, 100) * (n % 10 == 0)) for n, line in enumerate(lines)]
    result = compare(own, lines)
    assert (told(result), result.agrees) == ([], True)
    assert not compare(own, up).agrees, "a cent more in three rows is no rounding"


def test_a_price_that_is_off_below_a_cent_in_one_way_is_no_rounding() -> None:
    own = [charge(f"2026-11-{day:02}T{hour:02}:00:00Z") for day in range(1, 31) for hour in range(24)]
    lines = [billed("2026-11-01", usd=PRICE + Fraction(4, 1000)) for _ in own]
    lines = [
        replace(one, from_wall=at.from_wall, to_wall=at.from_wall + NS_PER_HOUR)
        for one, at in zip(lines, own, strict=True)
    ]
    cheap = [replace(one, usd=Fraction("55.05")) for one in lines]
    assert told(compare(own, lines)) == [(Cause.PRICE, "i-0aaa", Fraction(720 * 4, 1000))]
    assert told(compare(own, cheap)) == [(Cause.PRICE, "i-0aaa", Fraction(720, 100))]
