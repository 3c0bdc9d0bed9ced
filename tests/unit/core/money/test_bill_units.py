"""Hours that are none of the machine: of one of its GPUs, or of nobody knows what; and rows that only begin."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, NS_PER_MINUTE, parse_utc, utc_text
from governor.core.money.charges import Charge
from governor.core.money.reports.bill import Bill, BillKind, BillLine, Cause
from governor.core.money.reports.bill_reading import read_as_ours
from governor.core.money.reports.reconcile import reconcile
from tests.unit.core.money.test_bill_causes import START, ours, theirs, told
from tests.unit.core.money.test_reconcile import PRICE, SINCE, UNTIL, billed
from tests.unit.cost.ledger_file import charge


def found(
    charges: list[Charge], lines: list[BillLine], gpus: int | None = None
) -> tuple[tuple[tuple[str, int], ...], list[tuple[Cause, str, Fraction]]]:
    bill = Bill("test", tuple(lines), SINCE, UNTIL)
    parts = read_as_ours(bill, charges, gpus).parts
    return parts, told(reconcile(charges, bill, SINCE, UNTIL, gpus=gpus))


def assumed(lines: list[BillLine], hours: int = 8) -> list[BillLine]:
    """Rows of so many "hours" that only begin: each lasts for them."""
    return [
        replace(line, hours=Fraction(hours), to_wall=line.from_wall + hours * NS_PER_HOUR,
                is_end_assumed=True, is_unit_assumed=True)
        for line in lines
    ]  # fmt: skip


@pytest.mark.parametrize("known", [None, 8])
def test_eight_hours_an_hour_at_an_equal_price_are_gpu_hours(known: int | None) -> None:
    assert found(ours(72), assumed(theirs(72)), known) == ((("i-0aaa", 8),), [])
    stated = theirs(72, hours=Fraction(8))
    assert found(ours(72), stated, known) == ((("i-0aaa", 8),), [])


def test_gpu_hours_leave_an_outage_and_a_double_hour_as_they_are() -> None:
    charges = [*ours(30), *ours(36, begin=START + 36 * NS_PER_HOUR)]
    lines = assumed(theirs(72))
    _, told_of = found(charges, [*lines, lines[10]])
    assert told_of == [(Cause.OURS_MISSING, "i-0aaa", 6 * PRICE), (Cause.TOO_MANY_HOURS, "i-0aaa", PRICE)]


def test_gpu_hours_at_another_price_are_another_price() -> None:
    lines = assumed(theirs(72, price=PRICE * 101 / 100))
    assert found(ours(72), lines) == ((("i-0aaa", 8),), [(Cause.PRICE, "i-0aaa", 72 * PRICE / 100)])


def test_a_pause_does_not_make_the_row_before_it_longer() -> None:
    charges = [*ours(10), *ours(10, begin=START + 20 * NS_PER_HOUR)]
    lines = assumed([*theirs(10), *theirs(10, begin=START + 20 * NS_PER_HOUR)])
    assert found(charges, lines) == ((("i-0aaa", 8),), [])
    short = assumed([*theirs(10), *theirs(10, begin=START + 12 * NS_PER_HOUR)])
    read = read_as_ours(Bill("test", tuple(short), SINCE, UNTIL), charges).lines
    assert {line.to_wall - line.from_wall for line in read} == {NS_PER_HOUR}


def test_every_hour_that_is_billed_twice_is_no_other_unit() -> None:
    parts, told_of = found(ours(72), theirs(72, hours=Fraction(2), usd=2 * PRICE))
    assert (parts, told_of) == ((), [(Cause.TOO_MANY_HOURS, "i-0aaa", 72 * PRICE)])


def test_hours_that_nothing_explains_are_amounts_alone() -> None:
    lines = assumed(theirs(72, usd=Fraction(100)))
    assert found(ours(72), lines) == ((("i-0aaa", 0),), [(Cause.AMOUNT, "i-0aaa", 72 * (100 - PRICE))])
    two_of_eight = assumed(theirs(72), 2)
    assert found(ours(72), two_of_eight, 8) == ((("i-0aaa", 0),), []), "the machine has eight"


def test_half_the_price_for_all_hours_is_another_price() -> None:
    for more in ({}, {"is_unit_assumed": True}):
        lines = theirs(72, price=PRICE / 2, **more)
        assert found(ours(72), lines, 2) == ((), [(Cause.PRICE, "i-0aaa", -36 * PRICE)])


def test_a_months_quantity_that_nothing_names_is_not_explained() -> None:
    """576 for $3,962.88, and 72 hours of ours: eight GPUs, or 504 hours unmetered at an eighth of the price."""
    row = billed("2026-11-02", 576, length=28 * NS_PER_DAY, usd=72 * PRICE, is_unit_assumed=True)
    assert found(ours(72), [row]) == ((("i-0aaa", 0),), [])
    dear = replace(row, usd=73 * PRICE)
    assert found(ours(72), [dear]) == ((("i-0aaa", 0),), [(Cause.AMOUNT, "i-0aaa", PRICE)])
    assert found(ours(72), [row], 8) == ((("i-0aaa", 8),), [])
    assert found(ours(36), [row], 8) == ((("i-0aaa", 8),), [(Cause.OURS_MISSING, "i-0aaa", 36 * PRICE)])


def test_a_row_that_only_begins_ends_with_the_next_one() -> None:
    """A quarter past ten for two and a half hours, rounded up a little; then twenty hours."""
    begin = parse_utc("2026-11-10T10:15:00Z")
    times = ((begin, Fraction("2.51")), (begin + 5 * NS_PER_HOUR // 2, Fraction(20)))
    lines = [
        replace(billed("2026-11-10", hours), from_wall=at, to_wall=at + round(hours * NS_PER_HOUR), is_end_assumed=True)
        for at, hours in times
    ]
    read = read_as_ours(Bill("test", tuple(lines), SINCE, UNTIL), ours(1)).lines
    assert [(line.from_wall, line.to_wall) for line in read] == [
        (begin, times[1][0]), (times[1][0], times[1][0] + 20 * NS_PER_HOUR),
    ]  # fmt: skip


# --- hours that are rounded before or after they are multiplied by the GPUs ---


def sessions(minutes: tuple[int, ...], count: int = 12) -> list[tuple[int, int]]:
    """One every three hours: when it begins, and how many minutes it lasts."""
    begin = parse_utc("2026-11-02T10:00:00Z")
    return [(begin + n * 3 * NS_PER_HOUR, minutes[n % len(minutes)]) for n in range(count)]


def printed(used: list[tuple[int, int]], digits: tuple[int | None, int], *, named: bool) -> list[BillLine]:
    """With the hours of each GPU rounded to so many digits, and then those of all eight. Amounts are in cents."""
    lines = []
    for at, minutes in used:
        first, last = digits
        hours = Fraction(minutes, 60) if first is None else round(Fraction(minutes, 60), first)
        quantity = round(8 * hours, last)
        line = BillLine(
            "i-0aaa", BillKind.COMPUTE, at, at + minutes * NS_PER_MINUTE, SINCE, UNTIL,
            round(PRICE * minutes / 60, 2), rounding=Fraction(1, 2 * 10**last),
        )  # fmt: skip
        lines.append(
            replace(line, **({"gpu_hours": quantity} if named else {"hours": quantity, "is_unit_assumed": True}))
        )
    return lines


@pytest.mark.parametrize("minutes", [(40, 25, 95, 10), (7, 5, 11), (20, 40)])
@pytest.mark.parametrize("digits", [(2, 2), (2, 1), (None, 2), (None, 1)])
@pytest.mark.parametrize("named", [True, False], ids=["GPU-hours", "quantity"])
@pytest.mark.parametrize("known", [None, 8])
def test_gpus_are_counted_through_coarse_rounding(
    minutes: tuple[int, ...], digits: tuple[int | None, int], named: bool, known: int | None
) -> None:
    """40 minutes of eight GPUs are 5.33, or 5.3, or eight times 0.67: 5.36 or 5.4."""
    used = sessions(minutes)
    own = [charge(utc_text(at), lasts / 60) for at, lasts in used]
    bill = Bill("test", tuple(printed(used, digits, named=named)), SINCE, UNTIL)
    read = read_as_ours(bill, own, known)
    assert all(line.hours is not None and abs(line.hours - Fraction(lasts, 60)) < Fraction(1, 50)
               for line, (_, lasts) in zip(read.lines, used, strict=True))  # fmt: skip
    assert told(reconcile(own, bill, SINCE, UNTIL, gpus=known)) == []
    twice = replace(bill, lines=(*bill.lines, bill.lines[0]))
    found_causes = {cause for cause, _, _ in told(reconcile(own, twice, SINCE, UNTIL, gpus=known))}
    assert found_causes == {Cause.TOO_MANY_HOURS}


def test_a_few_coarse_rows_that_two_numbers_of_gpus_fit_are_amounts_alone() -> None:
    """0.1 for a minute: four GPUs for 90 seconds each, or five, or eight."""
    used = sessions((1,), 3)
    own = [charge(utc_text(at), lasts / 60) for at, lasts in used]
    lines = [replace(line, gpu_hours=Fraction("0.1")) for line in printed(used, (None, 1), named=True)]
    read = read_as_ours(Bill("test", tuple(lines), SINCE, UNTIL), own)
    assert {line.hours for line in read.lines} == {None}
