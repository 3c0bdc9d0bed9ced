"""A bill with planted differences: each has its cause, amount and resource; nothing is explained that is not so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, NS_PER_MINUTE, NS_PER_S, parse_utc
from governor.core.money.charges import Charge, Line, LineKind, Unit
from governor.core.money.reports.bill import Bill, BillKind, BillLine, Cause, Difference, joined
from governor.core.money.reports.bill_book import BillBook
from governor.core.money.reports.bill_zone import Shift, zone_of
from governor.core.money.reports.reconcile import Reconciliation, reconcile
from tests.unit.core.money.test_reconcile import PRICE, SINCE, UNTIL, billed, causes, compare
from tests.unit.cost.ledger_file import ANNA, NODE, charge

START = parse_utc("2026-11-02T10:00:00Z")
CHEAP = Line(LineKind.COMPUTE, "small", Unit.HOUR, 500_000, "table", "2026-06-01")
HALF_DOLLAR = Fraction(1, 2)


def ours(hours: int, *, length_s: int = 3600, line: Line | None = None, begin: int = START) -> list[Charge]:
    """Full hours one after another, of which each lasts so many seconds on our side."""
    line = line or charge("2026-11-02").line
    ns = length_s * 10**9
    return [
        Charge(f"c{n}", NODE, ANNA, line, at, at + ns, ns, line.price_usd_micros * length_s // 3600)  # type: ignore[arg-type]
        for n, at in enumerate(range(begin, begin + hours * NS_PER_HOUR, NS_PER_HOUR))
    ]


def theirs(count: int, *, price: Fraction = PRICE, begin: int = START, **more: object) -> list[BillLine]:
    begins = range(begin, begin + count * NS_PER_HOUR, NS_PER_HOUR)
    row = replace(billed("2026-11-02", price=price), **more)  # type: ignore[arg-type]
    return [replace(row, from_wall=at, to_wall=at + NS_PER_HOUR) for at in begins]


def told(result: Reconciliation) -> list[tuple[Cause, str, Fraction]]:
    return [(one.cause, one.resource, one.usd) for one in result.differences if one.cause is not Cause.BELOW_A_CENT]


# --- what nobody meters ---


@pytest.mark.parametrize("kind", [BillKind.STORAGE, BillKind.OTHER, BillKind.EGRESS])
def test_a_forgotten_resource_is_named_by_its_id_and_never_agrees(kind: BillKind) -> None:
    extra = [
        billed("2026-11-02", kind=kind, resource=name, usd=Fraction(usd), hours=None, length=NS_PER_DAY)
        for name, usd in (("vol-0other", "0.80"), ("vol-0forgotten", "412.33"))
    ]
    result = compare(ours(72), [*theirs(72), *extra])
    want = [("vol-0forgotten", Fraction("412.33")), ("vol-0other", Fraction("0.80"))]
    assert told(result) == [(Cause.RESOURCE_NOT_METERED, *one) for one in want]
    assert not result.agrees


def test_taxes_and_credits_are_no_resource() -> None:
    extra = [
        billed("2026-11-02", kind=kind, resource="vol-1", usd=Fraction(usd), hours=None)
        for kind, usd in ((BillKind.TAX, 9), (BillKind.CREDIT, -5))
    ]
    result = compare(ours(72), [*theirs(72), *extra])
    assert told(result) == [(Cause.NOT_METERED, "", Fraction(9)), (Cause.NOT_METERED, "", Fraction(-5))]
    assert result.agrees


@pytest.mark.parametrize("kind", [BillKind.CREDIT, BillKind.REFUND, BillKind.DISCOUNT])
def test_a_credit_that_costs_money_is_no_credit(kind: BillKind) -> None:
    line = billed("2026-11-02", kind=kind, resource="", usd=Fraction(40), hours=None)
    result = compare(ours(72), [*theirs(72), line])
    assert (told(result), result.agrees) == ([(Cause.NOT_METERED, "", Fraction(40))], False)


def test_of_very_many_resources_the_largest_are_named_and_the_rest_is_a_sum() -> None:
    parts = [Difference(Cause.RESOURCE_NOT_METERED, f"vol-{n}", "storage", 0, 1, Fraction(n)) for n in range(1, 6)]
    named = joined(parts, named_max=2)
    assert [(one.resource, one.usd, one.resources) for one in named] == [("vol-5", 5, 0), ("vol-4", 4, 0), ("", 6, 3)]


# --- more and less ---


def test_prices_that_are_off_both_ways_do_not_cancel() -> None:
    """$1/h more for 36 hours, $1/h less for the next 36: the totals are equal."""
    lines = [*theirs(36, price=PRICE + 1), *theirs(36, price=PRICE - 1, begin=START + 36 * NS_PER_HOUR)]
    result = compare(ours(72), lines)
    assert (told(result), result.agrees) == ([(Cause.PRICE, "i-0aaa", 36), (Cause.PRICE, "i-0aaa", -36)], False)
    assert [one.their_prices for one in result.differences] == [(PRICE + 1,) * 2, (PRICE - 1,) * 2]


def test_half_a_minute_more_and_less_do_not_cancel() -> None:
    own = [*ours(3), *ours(3, begin=START + 10 * NS_PER_HOUR)]
    lines = [*theirs(3), *theirs(3, begin=START + 10 * NS_PER_HOUR)]
    half_minute = Fraction(1, 120)
    lines[0] = replace(lines[0], hours=1 - half_minute, usd=(1 - half_minute) * PRICE)
    more = billed("2026-11-02T13:00:00Z", half_minute, length=NS_PER_MINUTE // 2)
    want = [(Cause.GRANULARITY, "i-0aaa", -PRICE / 120), (Cause.GRANULARITY, "i-0aaa", PRICE / 120)]
    assert told(compare(own, [*lines, more])) == want


def test_rows_that_end_a_second_early_bill_no_more_than_the_clock_has() -> None:
    """An hour each, from :00:00 to :59:59."""
    lines = [replace(line, to_wall=line.to_wall - NS_PER_S) for line in theirs(72)]
    assert told(compare(ours(72), lines)) == []


def test_a_bill_in_cents_is_no_other_price_where_its_roundings_cancel() -> None:
    """$55.036 and $55.044 an hour, as $55.04 each: 0.4 cents more and less."""
    dear, cheap = (
        Line(LineKind.COMPUTE, "p5", Unit.HOUR, micros, "t", "2026-06-01") for micros in (55_044_000, 55_036_000)
    )
    own = [*ours(36, line=cheap), *ours(36, line=dear, begin=START + 36 * NS_PER_HOUR)]
    result = compare(own, theirs(72))
    assert (told(result), result.agrees) == ([], True)
    dearer = replace(theirs(1)[0], usd=PRICE + 2)
    assert told(compare(own, [dearer, *theirs(72)[1:]])) == [(Cause.PRICE, "i-0aaa", Fraction("2.004"))]


# --- reserved hours beside others ---


def test_a_reserved_hour_excuses_no_hour_beside_it() -> None:
    """Three days of 23 h on demand at the double price, and an hour that a reservation pays for: 69 h x $55.04."""
    begin = parse_utc("2026-11-02")
    days = [begin + day * NS_PER_DAY for day in range(3)]
    dear = [replace(billed("2026-11-02", 23, price=2 * PRICE), from_wall=at, to_wall=at + NS_PER_DAY) for at in days]
    plan = [replace(billed("2026-11-02", committed=True), from_wall=at, to_wall=at + NS_PER_DAY) for at in days]
    result = compare(ours(72, begin=begin), [*dear, *plan])
    assert (told(result), result.agrees) == ([(Cause.PRICE, "i-0aaa", Fraction("3797.76"))], False)
    assert result.differences[0].their_prices == (2 * PRICE, 2 * PRICE)
    free = [replace(line, usd=Fraction(0)) for line in plan]
    result = compare(ours(72, begin=begin), [*dear, *free])
    assert told(result) == [
        (Cause.PRICE, "i-0aaa", Fraction("3797.76")), (Cause.NOT_METERED, "i-0aaa", Fraction("-165.12"))
    ]  # fmt: skip
    straight = [replace(line, usd=23 * PRICE) for line in dear]
    result = compare(ours(72, begin=begin), [*straight, *free])
    assert (told(result), result.agrees) == ([(Cause.NOT_METERED, "i-0aaa", Fraction("-165.12"))], True)


def test_reserved_hours_dearer_than_our_price_are_another_price() -> None:
    result = compare(ours(72), theirs(72, price=3 * PRICE, committed=True))
    assert (told(result), result.agrees) == ([(Cause.PRICE, "i-0aaa", Fraction("7925.76"))], False)
    assert result.differences[0].their_prices == (3 * PRICE, 3 * PRICE)


# --- more than the clock has ---


def test_an_hour_that_is_billed_twice_is_not_our_outage() -> None:
    lines = theirs(72)
    result = compare(ours(72), [*lines, lines[30]])
    assert told(result) == [(Cause.TOO_MANY_HOURS, "i-0aaa", PRICE)]
    [one] = result.differences
    assert (one.hours, one.from_wall, one.to_wall) == (1, lines[30].from_wall, lines[30].to_wall)


def test_26_hours_a_day_are_two_more_than_the_clock_has() -> None:
    day = billed("2026-11-02", 26, length=NS_PER_DAY)
    charges = ours(24, begin=parse_utc("2026-11-02"))
    assert told(compare(charges, [day, billed("2026-11-30", 0, length=NS_PER_DAY)])) == [
        (Cause.TOO_MANY_HOURS, "i-0aaa", 2 * PRICE)
    ]


def test_half_an_hour_that_is_billed_twice_is_more_than_its_own_row_has() -> None:
    half = billed("2026-11-02T12:00:00Z", "0.5", length=NS_PER_HOUR // 2)
    charges = [*ours(2), charge("2026-11-02T12:00:00Z", 0.5)]
    result = compare(charges, [*theirs(2), half, half, billed("2026-11-30T23:00:00Z", 0)])
    assert told(result) == [(Cause.TOO_MANY_HOURS, "i-0aaa", PRICE / 2)]


def test_rows_of_sixty_and_a_half_minutes_are_more_than_an_hour_has() -> None:
    result = compare(ours(72), theirs(72, hours=Fraction(121, 120), usd=PRICE * 121 / 120))
    assert {cause for cause, _ in causes(result)} == {Cause.TOO_MANY_HOURS}
    assert sum(one.usd for one in result.differences) == 72 * PRICE / 120


def test_a_double_hour_that_nobody_metered_is_both() -> None:
    line = billed("2026-11-03T10:00:00Z")
    result = compare(ours(2), [*theirs(2), line, line, billed("2026-11-30T23:00:00Z", 0)])
    assert sorted(causes(result), key=str) == [(Cause.OURS_MISSING, "i-0aaa"), (Cause.TOO_MANY_HOURS, "i-0aaa")]


# --- granularity ---


def test_a_minute_in_every_hour_is_granularity_only_where_our_time_begins_and_ends() -> None:
    result = compare(ours(72, length_s=3540), theirs(72))
    by_cause = {one.cause: one for one in result.differences}
    assert by_cause.keys() <= {Cause.OURS_MISSING, Cause.GRANULARITY, Cause.BELOW_A_CENT}
    minute = PRICE / 60
    assert by_cause[Cause.GRANULARITY].usd == pytest.approx(float(2 * minute), abs=1e-4)
    missing = sum(one.usd for one in result.differences if one.cause is Cause.OURS_MISSING)
    assert missing == pytest.approx(float(70 * minute), abs=1e-3)


def test_a_stop_within_the_day_is_an_edge() -> None:
    day = parse_utc("2026-11-03")
    stopped = [charge("2026-11-03T00:00:00Z", 10.0), charge("2026-11-03T12:00:00Z", 12.0)]
    charges = [*ours(24, begin=day - NS_PER_DAY), *stopped, *ours(24, begin=day + NS_PER_DAY)]
    lines = [billed("2026-11-02", 24, length=NS_PER_DAY), billed("2026-11-04", 24, length=NS_PER_DAY)]
    middle = billed("2026-11-03", Fraction(22) + Fraction(1, 90), length=NS_PER_DAY)
    assert causes(compare(charges, [*lines, middle])) == [(Cause.GRANULARITY, "i-0aaa")]


def test_many_small_gaps_are_one_difference_that_is_told() -> None:
    """240 gaps of 65 seconds at half a dollar an hour: each is below a cent, and $2.17 together."""
    charges = [
        one for pair in zip(ours(480, line=CHEAP, length_s=3535)[::2], ours(480, line=CHEAP)[1::2], strict=True)
        for one in pair
    ]  # fmt: skip
    result = compare(charges, theirs(480, price=HALF_DOLLAR))
    [(cause, resource, usd), *_] = told(result)
    assert (cause, resource) == (Cause.OURS_MISSING, "i-0aaa")
    assert float(usd) == pytest.approx(240 * 65 / 3600 * 0.5, abs=0.02)
    assert result.differences[0].times >= 238
    assert not result.agrees


def test_a_sum_of_hidden_differences_of_a_cent_is_no_agreement() -> None:
    parts = [Difference(Cause.RESOURCE_NOT_METERED, f"vol-{n}", "storage", 0, 1, Fraction(9, 1000)) for n in range(100)]
    [one] = joined(parts)
    assert (one.cause, one.usd, one.is_explained) == (Cause.BELOW_A_CENT, Fraction(9, 10), False)


# --- units, categories, zones ---


def test_our_machine_in_another_category_is_our_machine() -> None:
    assert told(compare(ours(72), theirs(72, kind=BillKind.OTHER))) == []


def test_what_else_is_billed_by_time_beside_its_compute_is_not_its_compute() -> None:
    licence = theirs(72, kind=BillKind.OTHER, usd=Fraction(1))
    assert told(compare(ours(72), [*theirs(72), *licence])) == [(Cause.RESOURCE_NOT_METERED, "i-0aaa", Fraction(72))]


def test_what_names_no_kind_is_the_machine_where_nothing_else_is() -> None:
    amounts = theirs(72, kind=BillKind.OTHER, hours=None, names_no_kind=True)
    assert told(compare(ours(72), amounts)) == []
    assert told(compare(ours(72), [*theirs(72), *amounts])) == [(Cause.RESOURCE_NOT_METERED, "i-0aaa", 72 * PRICE)]
    named = theirs(72, kind=BillKind.OTHER, hours=None)
    assert (Cause.RESOURCE_NOT_METERED, "i-0aaa", 72 * PRICE) in told(compare(ours(72), named))


@pytest.mark.parametrize("known", [None, 8])
def test_gpu_hours_are_hours_of_the_machine(known: int | None) -> None:
    lines = theirs(72, hours=None, gpu_hours=Fraction(8))
    double = [*lines, lines[30]]
    result = reconcile(ours(72), Bill("test", tuple(double), SINCE, UNTIL), SINCE, UNTIL, gpus=known)
    assert told(result) == [(Cause.TOO_MANY_HOURS, "i-0aaa", PRICE)]


def test_gpu_hours_of_time_that_nobody_metered_make_no_other_number_of_gpus() -> None:
    """One line of 72 hours; the governor was there for 36 of them, or for 65."""
    whole = billed("2026-11-02", length=15 * NS_PER_DAY, hours=None, gpu_hours=Fraction(576), usd=72 * PRICE)
    for hours in (36, 65):
        result = compare(ours(hours), [whole])
        assert told(result) == [(Cause.OURS_MISSING, "i-0aaa", (72 - hours) * PRICE)]
    dearer = compare(ours(36), [replace(whole, usd=72 * (PRICE + 7))])
    assert causes(dearer) == [(Cause.AMOUNT, "i-0aaa")], "neither price nor hours tell: amounts alone"
    assert dearer.differences[0].our_prices is None


def test_gpu_hours_that_no_number_of_gpus_explains_are_compared_by_their_amounts() -> None:
    lines = theirs(72, hours=None, gpu_hours=Fraction(37, 10), usd=PRICE + 1)
    result = compare(ours(72), lines)
    assert told(result) == [(Cause.AMOUNT, "i-0aaa", Fraction(72))]
    assert result.differences[0].our_prices is None


@pytest.mark.parametrize("shift", [7, -5, 1])
def test_a_bill_in_local_time_is_known_by_its_shift(shift: int) -> None:
    moved = Bill("test", tuple(line.moved(shift * NS_PER_HOUR) for line in theirs(72)), SINCE, UNTIL)
    assert zone_of(moved, ours(72)).shift == Shift(shift)
    back = moved.moved(-shift * NS_PER_HOUR)
    assert told(reconcile(ours(72), back, SINCE, UNTIL)) == []


def test_a_shift_is_found_beside_a_double_hour_and_an_outage() -> None:
    charges = [*ours(40), *ours(26, begin=START + 46 * NS_PER_HOUR)]
    lines = theirs(72)
    moved = tuple(line.moved(7 * NS_PER_HOUR) for line in (*lines, lines[30]))
    assert zone_of(Bill("test", moved, SINCE, UNTIL), charges).shift == Shift(7)


def _no_shifts() -> Iterator[tuple[str, list[Charge], list[BillLine]]]:
    yield "equal", ours(72), theirs(72)
    yield "six hours before the governor", ours(66, begin=START + 6 * NS_PER_HOUR), theirs(72)
    yield "six hours after it", ours(66), theirs(72)
    yield "an outage within", [*ours(30), *ours(36, begin=START + 36 * NS_PER_HOUR)], theirs(72)
    other = replace(NODE, instance_id="i-0bbb", node="node-2")
    two = [*ours(72), *(replace(one, place=other, charge_id=f"b{one.charge_id}") for one in ours(72))]
    straight = [replace(line, resource="i-0bbb") for line in theirs(72)]
    yield "2 h 30 min, as in no zone", ours(72), [line.moved(5 * NS_PER_HOUR // 2) for line in theirs(72)]
    yield "half an hour before the governor", ours(71), [theirs(1)[0].moved(-NS_PER_HOUR // 2), *theirs(71)]
    yield "one machine of two", two, [*theirs(72, begin=START + 7 * NS_PER_HOUR), *straight]


@pytest.mark.parametrize(("charges", "lines"), [pytest.param(c, b, id=name) for name, c, b in _no_shifts()])
def test_what_is_no_shift(charges: list[Charge], lines: list[BillLine]) -> None:
    assert zone_of(Bill("test", tuple(lines), SINCE, UNTIL), charges).shift is None


# Where clocks change: the hour in UTC, the shift before and from then on, and the bill's own hour then.
CHANGES = [
    pytest.param("2026-10-25T01:00:00Z", 2, 1, "2026-10-25T03:00", id="Berlin, autumn"),
    pytest.param("2026-03-29T01:00:00Z", 1, 2, "2026-03-29T02:00", id="Berlin, spring"),
    pytest.param("2026-11-01T06:00:00Z", -4, -5, "2026-11-01T02:00", id="New York, autumn"),
    pytest.param("2026-03-08T10:00:00Z", -8, -7, "2026-03-08T02:00", id="Los Angeles, spring"),
    pytest.param("2026-10-25T01:00:00Z", 1, 0, "2026-10-25T02:00", id="London, autumn"),
    pytest.param("2026-04-04T16:00:00Z", 11, 10, "2026-04-05T03:00", id="Sydney, autumn"),
]


@pytest.mark.parametrize(("at", "before", "then", "own"), CHANGES)
@pytest.mark.parametrize("machines", [1, 2])
def test_a_bill_in_local_time_over_a_change_of_clocks_agrees(
    at: str, before: int, then: int, own: str, machines: int
) -> None:
    """48 hours without a pause, billed by the hour as a clock on the wall showed them: one twice, or one not at all."""
    change, begin = parse_utc(at), parse_utc(at) - 19 * NS_PER_HOUR
    month = (parse_utc("2026-03-01"), parse_utc("2026-12-01"))
    rows = [replace(line, billed_from=month[0], billed_to=month[1]) for line in theirs(48, begin=begin)]
    lines = [line.moved((before if line.from_wall < change else then) * NS_PER_HOUR) for line in rows]
    lines = [replace(line, billed_from=month[0], billed_to=month[1]) for line in lines]
    charges = ours(48, begin=begin)
    if machines == 2:
        other = replace(NODE, instance_id="i-0bbb", node="node-2")
        charges += [replace(one, place=other, charge_id=f"b{one.charge_id}") for one in ours(48, begin=begin)]
        lines += [replace(line, resource="i-0bbb") for line in lines]
    bill = Bill("test", tuple(lines), *month)
    shift = zone_of(bill, charges).shift
    assert shift == Shift(before, parse_utc(own) // NS_PER_HOUR, then)
    back = shift.taken_off(bill)
    assert told(reconcile(charges, back, back.since, back.until)) == []


def _no_changes() -> Iterator[tuple[str, list[Charge], list[BillLine]]]:
    begin = parse_utc("2026-10-24T06:00:00Z")
    straight = theirs(48, begin=begin)
    yield "billed twice", ours(48, begin=begin), [*straight, straight[20]]
    yield "billed twice, and not to the end", ours(48, begin=begin), [*straight[:-1], straight[20]]
    yield "an outage of the provider", ours(48, begin=begin), [*straight[:20], *straight[21:]]
    spring = parse_utc("2026-03-28T06:00:00Z")
    late = theirs(49, begin=spring)
    yield "one hour not billed, and one after the end", ours(48, begin=spring), [*late[:20], *late[21:]]


@pytest.mark.parametrize(("charges", "lines"), [pytest.param(c, b, id=name) for name, c, b in _no_changes()])
def test_one_hour_twice_or_missing_on_a_day_on_which_clocks_change_is_no_shift(
    charges: list[Charge], lines: list[BillLine]
) -> None:
    assert zone_of(Bill("test", tuple(lines), SINCE, UNTIL), charges).shift is None


# --- lines of others are sums ---


def test_the_rows_of_others_are_one_sum_each_and_compare_alike() -> None:
    extra = [
        replace(line, resource=f"vol-{n}", kind=BillKind.STORAGE, hours=None)
        for n in range(3)
        for line in theirs(24, usd=Fraction(n + 1, 7))
    ]
    lines = [*theirs(72), *extra, billed("2026-10-31T22:00:00Z", resource="i-9"), *theirs(3, resource="i-9")]
    book = BillBook({"i-0aaa"}, SINCE, UNTIL)
    for line in lines:
        book.enter(line)
    folded = book.bill("test")
    assert (len(folded.lines), len(folded.apart), folded.rows) == (72, 5, len(lines))
    assert reconcile(ours(72), folded, SINCE, UNTIL) == compare(ours(72), lines)


def test_too_many_sums_become_one_of_the_smallest() -> None:
    book = BillBook((), sums_max=2)
    for n in range(10):
        book.enter(billed("2026-11-02", kind=BillKind.STORAGE, resource=f"vol-{n}", usd=Fraction(n), hours=None))
    bill = book.bill("test")
    assert sum(one.usd for one in bill.apart) == 45
    assert len(bill.apart) <= 4
    assert {"vol-9", "vol-8"} <= {one.resource for one in bill.apart}


def test_a_minute_before_our_first_moment_is_how_they_bill() -> None:
    row = billed("2026-11-02T09:59:20Z", Fraction(40, 3600), length=40 * NS_PER_MINUTE // 60)
    assert causes(compare(ours(72), [row, *theirs(72)])) == [(Cause.GRANULARITY, "i-0aaa")]
