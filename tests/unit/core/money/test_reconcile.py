"""Every difference between ledger and bill has the cause that was planted, and all of them add up."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.units import MICROS_PER_USD, NS_PER_DAY, NS_PER_HOUR, month_of, parse_utc
from governor.core.money.charges import LOST, Charge, Line, LineKind, Unit
from governor.core.money.reports.bill import Bill, BillKind, BillLine, Cause, Difference
from governor.core.money.reports.cost import clip
from governor.core.money.reports.reconcile import Reconciliation, reconcile
from tests.unit.cost.ledger_file import ANNA, BEN, DISK, NODE, ON_DEMAND, charge

SINCE, UNTIL = month_of(parse_utc("2026-11-02"))
PRICE = Fraction(ON_DEMAND.price_usd_micros, MICROS_PER_USD)


def billed(
    begin: str,
    used: str | float | Fraction = 1,
    *,
    price: Fraction = PRICE,
    kind: BillKind = BillKind.COMPUTE,
    resource: str = "i-0aaa",
    length: int | None = None,
    **more: object,
) -> BillLine:
    start, quantity = parse_utc(begin), Fraction(used)
    end = start + (NS_PER_HOUR if length is None else length)
    fields = {"billed_from": SINCE, "billed_to": UNTIL, "usd": quantity * price, "hours": quantity} | more
    return BillLine(resource, kind, start, end, **fields)  # type: ignore[arg-type]


def compare(charges: list[Charge], lines: list[BillLine], since: int = SINCE, until: int = UNTIL) -> Reconciliation:
    result = reconcile(charges, Bill("test", tuple(lines), since, until), since, until)
    assert sum((one.usd for one in result.differences), Fraction(0)) == result.theirs_usd - result.ours_usd
    return result


def causes(result: Reconciliation) -> list[tuple[Cause, str]]:
    return [(one.cause, one.resource) for one in result.differences if one.cause is not Cause.BELOW_A_CENT]


LAST_HOUR = billed("2026-11-30T23:00:00Z")  # A bill that has it is final.
OUR_LAST_HOUR = charge("2026-11-30T23:00:00Z")


def only(charges: list[Charge], lines: list[BillLine]) -> Difference:
    """The one difference, in a month that both sides have to its end."""
    [one] = compare([*charges, OUR_LAST_HOUR], [*lines, LAST_HOUR]).differences
    return one


def test_equal_hours_at_an_equal_price_are_no_difference() -> None:
    result = compare([OUR_LAST_HOUR], [LAST_HOUR])
    assert (result.differences, result.agrees, result.per) == ((), True, "hour")


def test_another_price_is_told_with_both() -> None:
    one = only([charge("2026-11-02T10:00:00Z")], [billed("2026-11-02T10:00:00Z", price=Fraction(50))])
    assert (one.cause, one.usd, one.is_explained) == (Cause.PRICE, 50 - PRICE, False)
    assert (one.our_prices, one.their_prices) == ((PRICE, PRICE), (Fraction(50), Fraction(50)))


def test_a_price_that_moves_is_told_as_a_range() -> None:
    ours = [charge("2026-11-02T10:00:00Z"), charge("2026-11-05T10:00:00Z")]
    theirs = [billed("2026-11-02T10:00:00Z", price=Fraction(50)), billed("2026-11-05T10:00:00Z", price=Fraction(51))]
    one = only(ours, theirs)
    assert (one.cause, one.their_prices, one.usd) == (Cause.PRICE, (Fraction(50), Fraction(51)), 101 - 2 * PRICE)


def test_hours_that_nobody_metered() -> None:
    one = only(
        [charge("2026-11-02T10:00:00Z")], [billed("2026-11-02T10:00:00Z"), billed("2026-11-02T11:00:00Z", "0.5")]
    )
    assert (one.cause, one.usd, one.hours) == (Cause.OURS_MISSING, PRICE / 2, Fraction(1, 2))


def test_what_a_damaged_journal_lost_is_no_price_and_stands_beside_the_hours_that_are_missing() -> None:
    line = Line(LineKind.COMPUTE, LOST, Unit.PIECE, ON_DEMAND.price_usd_micros, "the run's own account", "2026-11-02")
    at = charge("2026-11-02T11:30:00Z").from_wall
    lost = charge("2026-11-02T10:00:00Z", line=line, usd_micros=ON_DEMAND.price_usd_micros)
    lost = replace(lost, from_wall=at, to_wall=at, quantity=1)
    lines = [billed("2026-11-02T10:00:00Z"), billed("2026-11-02T11:00:00Z"), LAST_HOUR]
    result = compare([charge("2026-11-02T11:00:00Z"), lost, OUR_LAST_HOUR], lines)
    assert {(one.cause, one.usd) for one in result.differences} == {(Cause.OURS_MISSING, PRICE), (Cause.LOST, -PRICE)}


def test_two_outages_are_two_differences_and_adjoining_hours_one() -> None:
    begins = ("2026-11-02T10:00:00Z", "2026-11-02T11:00:00Z", "2026-11-09T10:00:00Z")
    result = compare([OUR_LAST_HOUR], [*map(billed, begins), LAST_HOUR])
    assert sorted((one.cause.name, one.hours) for one in result.differences) == [
        ("OURS_MISSING", 1),
        ("OURS_MISSING", 2),
    ]


def test_hours_that_were_not_billed() -> None:
    one = only([charge("2026-11-02T10:00:00Z"), charge("2026-11-02T11:00:00Z")], [billed("2026-11-02T10:00:00Z")])
    assert (one.cause, one.usd, one.hours) == (Cause.THEIRS_MISSING, -PRICE, -1)


def test_a_bill_that_ends_early_is_not_final_in_its_last_hour_and_after_it() -> None:
    ours = [charge(f"2026-11-02T{hour}:00:00Z") for hour in (10, 11, 12)]
    theirs = [billed("2026-11-02T10:00:00Z"), billed("2026-11-02T11:00:00Z", "0.5")]
    [one] = compare(ours, theirs).differences
    assert (one.cause, one.hours, one.usd) == (Cause.NOT_FINAL, Fraction(-3, 2), -PRICE * 3 / 2)


def test_a_bill_that_reaches_its_end_is_final() -> None:
    [one] = compare([OUR_LAST_HOUR], [billed("2026-11-30T23:00:00Z", "0.5")]).differences
    assert (one.cause, one.hours) == (Cause.THEIRS_MISSING, Fraction(-1, 2))


@pytest.mark.parametrize(
    ("billed_hours", "cause"),
    [
        ("0.51", Cause.GRANULARITY),
        (Fraction("0.516666667"), Cause.GRANULARITY),
        ("0.6", Cause.OURS_MISSING),
    ],
)
def test_less_than_a_minute_is_how_they_bill(billed_hours: str, cause: Cause) -> None:
    ours = [charge("2026-11-02T10:00:00Z", 0.5), charge("2026-11-03T10:00:00Z", 0.25)]
    theirs = [billed("2026-11-02T10:00:00Z", billed_hours), billed("2026-11-03T10:00:00Z", "0.25")]
    one = only(ours, theirs)
    assert (one.cause, one.usd) == (cause, (Fraction(billed_hours) - Fraction(1, 2)) * PRICE)


def test_full_hours_are_how_they_bill_where_our_time_begins_or_ends() -> None:
    ours = [charge("2026-11-02T10:30:00Z", 0.5), charge("2026-11-02T11:00:00Z")]
    one = only(ours, [billed("2026-11-02T10:00:00Z"), billed("2026-11-02T11:00:00Z")])
    assert (one.cause, one.hours) == (Cause.GRANULARITY, Fraction(1, 2))


def test_half_an_hour_between_two_metered_hours_is_an_outage() -> None:
    ours = [charge("2026-11-02T10:00:00Z"), charge("2026-11-02T11:00:00Z", 0.5), charge("2026-11-02T12:00:00Z")]
    one = only(ours, [billed(f"2026-11-02T{hour}:00:00Z") for hour in (10, 11, 12)])
    assert (one.cause, one.hours) == (Cause.OURS_MISSING, Fraction(1, 2))


@pytest.mark.parametrize(
    "kind", [BillKind.TAX, BillKind.CREDIT, BillKind.REFUND, BillKind.DISCOUNT, BillKind.COMMITMENT]
)
def test_what_we_do_not_meter_is_explained(kind: BillKind) -> None:
    line = billed("2026-11-02T10:00:00Z", kind=kind, resource="", usd=Fraction(-7), hours=None)
    one = only([], [line])
    assert (one.cause, one.what, one.usd, one.is_explained) == (Cause.NOT_METERED, kind.value, -7, True)


def test_hours_that_a_plan_pays_for_differ_by_the_plan() -> None:
    line = billed("2026-11-02T10:00:00Z", usd=Fraction(0), committed=True)
    one = only([charge("2026-11-02T10:00:00Z")], [line])
    assert (one.cause, one.what, one.usd) == (Cause.NOT_METERED, "reserved or savings plan", -PRICE)


def test_a_machine_that_only_one_side_knows() -> None:
    theirs = only([], [billed("2026-11-02T10:00:00Z", resource="i-0ccc")])
    assert (theirs.cause, theirs.resource, theirs.is_explained) == (Cause.UNKNOWN_TO_US, "i-0ccc", False)
    disk = only([charge("2026-11-02T10:00:00Z", 24.0, ANNA, DISK)], [])
    assert (disk.cause, disk.resource, disk.what) == (Cause.UNKNOWN_TO_THEM, "vol-0bbb", "storage")


def test_what_has_no_hours_is_told_without_any() -> None:
    one = only([charge("2026-11-02T10:00:00Z", 1.0, ANNA, LINES[2], usd_micros=5_000_000)], [])
    assert (one.cause, one.what, one.usd, one.hours) == (Cause.UNKNOWN_TO_THEM, "fixed", -5, None)


def test_a_disk_that_both_know_is_compared_by_its_amount() -> None:
    month = charge("2026-11-01", 720.0, ANNA, DISK)
    line = billed(
        "2026-11-01", kind=BillKind.STORAGE, resource="vol-0bbb", length=UNTIL - SINCE, usd=Fraction(45), hours=None
    )
    one = only([month], [line])
    assert (one.cause, one.resource, one.usd) == (Cause.AMOUNT, "vol-0bbb", 45 - Fraction(month.usd_micros, 10**6))
    assert one.our_prices is None


def test_runs_that_share_a_node_are_compared_as_the_node() -> None:
    ours = [charge("2026-11-02T10:00:00Z", 0.25, length=NS_PER_HOUR), charge("2026-11-02T10:00:00Z", 0.75, BEN)]
    assert compare([*ours, OUR_LAST_HOUR], [billed("2026-11-02T10:00:00Z"), LAST_HOUR]).differences == ()


def test_a_bill_by_the_day_is_compared_by_the_day() -> None:
    ours = [charge(f"2026-11-30T{hour:02}:00:00Z") for hour in range(24)]
    result = compare(ours, [billed("2026-11-30", 24, length=NS_PER_DAY)])
    assert (result.per, result.differences) == ("day", ())


def test_what_is_billed_for_another_month_is_no_hour_of_this_one() -> None:
    one = only([], [billed("2026-10-31T22:00:00Z")])
    assert (one.cause, one.usd) == (Cause.OTHER_TIME, PRICE)
    half = only([charge("2026-11-01", 0.5)], [billed("2026-10-31T23:30:00Z")])
    assert (half.cause, half.usd) == (Cause.OTHER_TIME, PRICE / 2)


def test_a_years_plan_is_billed_in_its_month_as_a_whole() -> None:
    line = billed("2026-11-02", kind=BillKind.COMMITMENT, resource="", length=365 * NS_PER_DAY, usd=Fraction(9000))
    assert only([], [line]).usd == 9000


def test_a_part_of_a_month_leaves_out_what_lies_outside() -> None:
    lines = [
        billed("2026-11-02T10:00:00Z"),
        billed("2026-11-05T10:00:00Z"),
        billed("2026-11-01", kind=BillKind.TAX, resource="", length=UNTIL - SINCE, usd=Fraction(9)),
    ]
    result = compare([charge("2026-11-02T10:00:00Z")], lines, parse_utc("2026-11-02"), parse_utc("2026-11-03"))
    assert (result.theirs_usd, result.differences) == (PRICE, ())


def test_many_small_differences_of_one_cause_are_not_small() -> None:
    """A price that is off by four tenths of a cent, 100 hours long."""
    ours = [charge(f"2026-11-0{day}T{hour:02}:00:00Z") for day in range(1, 6) for hour in range(20)]
    theirs = [
        billed(f"2026-11-0{day}T{hour:02}:00:00Z", price=PRICE + Fraction(4, 1000))
        for day in range(1, 6)
        for hour in range(20)
    ]
    one = only(ours, theirs)
    assert (one.cause, one.usd) == (Cause.PRICE, Fraction(4, 10))


def test_what_integers_lose_is_below_a_cent() -> None:
    third = Fraction(1, 3)
    result = compare([charge("2026-11-30T23:00:00Z", 1 / 3)], [billed("2026-11-30T23:00:00Z", third)])
    assert [one.cause for one in result.differences] == [Cause.BELOW_A_CENT]
    assert result.agrees


# --- all of it adds up --------------------------------------------------------------------------------------

RESOURCES = ("i-0aaa", "vol-0bbb", "i-0ccc", "")
LINES = (ON_DEMAND, DISK, Line(LineKind.FIXED, "licence", Unit.PIECE, 5_000_000, "contract", "2026-01-01"))
starts = st.integers(SINCE - 3 * NS_PER_HOUR, UNTIL + 3 * NS_PER_HOUR).map(lambda at: at - at % (NS_PER_HOUR // 4))
any_charge = st.builds(
    lambda start, hours, line, micros: Charge(
        "c", NODE, ANNA, line, start, start + hours * NS_PER_HOUR // 4, hours * NS_PER_HOUR // 4, micros
    ),
    starts,
    st.integers(0, 300),
    st.sampled_from(LINES),
    st.integers(0, 10**9),
)


def fractions(low: int, high: int, denominator_max: int) -> st.SearchStrategy[Fraction]:
    """Of whole numbers: Hypothesis' own make a strategy for each denominator that is drawn."""
    parts = st.tuples(st.integers(low, high - 1), st.integers(0, denominator_max), st.integers(1, denominator_max))
    return parts.map(lambda drawn: drawn[0] + Fraction(min(drawn[1], drawn[2]), drawn[2]))


any_line = st.builds(
    lambda resource, kind, start, length, usd, hours, committed: BillLine(
        resource, kind, start, start + length * NS_PER_HOUR // 4, SINCE, UNTIL, usd, hours, committed
    ),
    st.sampled_from(RESOURCES),
    st.sampled_from(BillKind),
    starts,
    st.sampled_from([0, 1, 4, 4, 4, 96, 2880]),
    fractions(-100, 1000, 10**6),
    st.none() | fractions(0, 30, 3600),
    st.booleans(),
)


@given(st.lists(any_charge, max_size=12), st.lists(any_line, min_size=1, max_size=12))
def test_differences_add_up_to_what_the_totals_differ_by(charges: list[Charge], lines: list[BillLine]) -> None:
    own = [clip(one, SINCE, UNTIL) for one in charges if one.from_wall < UNTIL and one.to_wall > SINCE]
    result = compare(own, lines)
    assert result.ours_usd == Fraction(sum(one.usd_micros for one in own), MICROS_PER_USD)
    assert result.theirs_usd == sum((line.usd for line in lines), Fraction(0)), "a bill's own period has all of it"
    small = [one for one in result.differences if one.cause is Cause.BELOW_A_CENT]
    others = {one.cause for one in result.differences if one not in small}
    money_back = {kind.value for kind in (BillKind.CREDIT, BillKind.REFUND, BillKind.DISCOUNT)}
    costly = [one for one in result.differences if one.what in money_back and one.usd >= Fraction(1, 100)]
    tiny = all(abs(one.usd) < Fraction(1, 100) for one in small)
    assert result.agrees == (others <= {Cause.NOT_METERED} and not costly and tiny)


@given(st.lists(any_charge, max_size=8), st.lists(any_line, min_size=1, max_size=8), starts)
def test_so_they_do_in_each_part_of_the_month(charges: list[Charge], lines: list[BillLine], cut: int) -> None:
    whole = sum((line.usd for line in lines), Fraction(0))
    cut = min(max(cut, SINCE + 1), UNTIL - 1)
    parts = []
    for since, until in ((SINCE, cut), (cut, UNTIL)):
        own = [clip(one, since, until) for one in charges if one.from_wall < until and one.to_wall > since]
        parts.append(compare(own, lines, since, until))
    assert sum((part.theirs_usd for part in parts), Fraction(0)) == whole
