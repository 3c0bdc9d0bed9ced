"""Bills by clocks that differ from ours by no whole hours, and bills by days that begin elsewhere."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from random import Random

import pytest

from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, NS_PER_MINUTE, parse_utc, utc_text
from governor.core.money.charges import Charge
from governor.core.money.reports.bill import Bill, BillLine, Cause
from governor.core.money.reports.bill_zone import PART_HOUR_ZONES, Shift, zone_of
from governor.core.money.reports.reconcile import reconcile
from tests.unit.core.money.test_bill_causes import ours, theirs, told
from tests.unit.core.money.test_reconcile import PRICE, billed
from tests.unit.cost.ledger_file import charge

BEGIN = parse_utc("2026-11-10T08:00:00Z")
YEAR = (parse_utc("2026-01-01"), parse_utc("2027-01-01"))


def as_shift(minutes: int) -> Shift:
    hours, rest = divmod(minutes, 60)
    return Shift(hours, minutes=rest)


def compared(charges: list[Charge], lines: list[BillLine]) -> tuple[Shift | None, list[tuple[Cause, str, Fraction]]]:
    """As the command does: what is shifted is compared so moved."""
    bill = Bill("test", tuple(replace(line, billed_from=YEAR[0], billed_to=YEAR[1]) for line in lines), *YEAR)
    shift = zone_of(bill, charges).shift
    moved = bill if shift is None else shift.taken_off(bill)
    return shift, told(reconcile(charges, moved, moved.since, moved.until))


def by_their_clock(charges: list[Charge], minutes: int, length: int) -> list[BillLine]:
    """By the hours or the days of another clock, each with what was used of it."""
    used: dict[int, int] = defaultdict(int)
    for one in charges:
        for at in range(one.from_wall, one.to_wall, 15 * NS_PER_MINUTE):
            own = at + minutes * NS_PER_MINUTE
            used[own - own % length] += 15 * NS_PER_MINUTE
    row = billed("2026-11-02")
    return [
        replace(row, from_wall=at, to_wall=at + length, hours=hours, usd=hours * PRICE)
        for at, ns in used.items()
        if (hours := Fraction(ns, NS_PER_HOUR))
    ]


@pytest.mark.parametrize("minutes", [330, 345, -210, 570, 765])
@pytest.mark.parametrize("aligned", [True, False], ids=["its full hours", "our full hours"])
def test_zones_of_half_and_quarter_hours_are_shifts(minutes: int, aligned: bool) -> None:
    charges = ours(72, begin=BEGIN)
    lines = by_their_clock(charges, minutes, NS_PER_HOUR)
    if not aligned:
        lines = [line.moved(minutes * NS_PER_MINUTE) for line in theirs(72, begin=BEGIN)]
    assert compared(charges, lines) == (as_shift(minutes), [])


def test_a_zone_of_half_hours_is_found_beside_an_outage_and_a_double_hour() -> None:
    charges = [*ours(40, begin=BEGIN), *ours(26, begin=BEGIN + 46 * NS_PER_HOUR)]
    lines = [line.moved(330 * NS_PER_MINUTE) for line in theirs(72, begin=BEGIN)]
    shift, found = compared(charges, [*lines, lines[10]])
    assert shift == as_shift(330)
    assert found == [(Cause.OURS_MISSING, "i-0aaa", 6 * PRICE), (Cause.TOO_MANY_HOURS, "i-0aaa", PRICE)]


def test_a_zone_is_no_reason_for_half_an_hour_that_is_missing() -> None:
    charges = [charge("2026-11-10T08:30:00Z", 0.5), *ours(71, begin=BEGIN + NS_PER_HOUR)]
    moved = [line.moved(5 * NS_PER_HOUR) for line in theirs(72, begin=BEGIN)]
    lines = [replace(moved[0], hours=Fraction(1)), *moved[1:]]
    shift, found = compared(charges, lines)
    assert (shift, sum(usd for _, _, usd in found)) == (Shift(5), PRICE / 2)


def test_where_zones_fit_alike_the_minute_of_the_rows_tells() -> None:
    """The last hour was begun, and is billed in full: +5:30, +5:45 and +6 fit alike."""
    charges = [*ours(71, begin=BEGIN), charge("2026-11-13T07:00:00Z", 0.4)]
    lines = [line.moved(330 * NS_PER_MINUTE) for line in theirs(72, begin=BEGIN)]
    shift, found = compared(charges, lines)
    assert (shift, [cause for cause, _, _ in found]) == (as_shift(330), [Cause.GRANULARITY])


def of_a_day(begin: int, end: int, minutes: int) -> tuple[list[Charge], list[BillLine]]:
    """From one minute to another, by the full hours of UTC. The bill writes these in local time."""
    cuts = [begin, *range(60 - begin % 60 + begin, end, 60), end]
    used = [(charge(utc_text(BEGIN + at * NS_PER_MINUTE), (to - at) / 60), at - at % 60) for at, to in pairwise(cuts)]
    row = theirs(1, begin=BEGIN + minutes * NS_PER_MINUTE)[0]
    lines = [
        replace(row.moved(at * NS_PER_MINUTE), hours=hours, usd=hours * PRICE)
        for one, at in used
        if (hours := Fraction(one.quantity, NS_PER_HOUR))
    ]
    return [one for one, _ in used], lines


@pytest.mark.parametrize("minutes", [330, 345, -210, 570])
@pytest.mark.parametrize("behind", [0, 2], ids=["final", "not final"])
def test_hours_of_utc_in_a_zone_of_half_hours_have_parts_at_both_edges(minutes: int, behind: int) -> None:
    """Rows that all begin at :30 are hours that begin there, in any zone, and none lies across two."""
    for begin, length in product((5, 17, 30, 43, 50), (600, 780, 805, 1205, 1500)):
        charges, lines = of_a_day(begin, begin + length, minutes)
        want = sum((line.usd for line in lines[len(lines) - behind :]), Fraction(0))
        shift, found = compared(charges, lines[: len(lines) - behind])
        not_final = [(Cause.NOT_FINAL, "i-0aaa", -round(float(want), 4))] if behind else []
        assert shift == as_shift(minutes), (begin, length)
        assert [(cause, name, round(float(usd), 4)) for cause, name, usd in found] == not_final, (begin, length)


def test_days_of_another_zone_are_found_beside_an_outage() -> None:
    whole = ours(72, begin=BEGIN)
    lines = by_their_clock(whole, -300, NS_PER_DAY)
    assert compared([*whole[:30], *whole[34:]], lines) == (as_shift(-300), [(Cause.OURS_MISSING, "i-0aaa", 4 * PRICE)])


@pytest.mark.parametrize("hours", [2, 7, -5])
@pytest.mark.parametrize("length", [NS_PER_HOUR, NS_PER_DAY], ids=["hours", "days"])
@pytest.mark.parametrize("is_ours", [True, False], ids=["an outage of ours", "a gap of theirs"])
def test_a_zone_is_found_beside_an_outage_much_longer_than_it(hours: int, length: int, is_ours: bool) -> None:
    """Of 132 hours from eight o'clock on one side has not the 40 from the 46th on: $2,201.60, and nothing else."""
    whole = ours(132, begin=BEGIN)
    parts = [*whole[:46], *whole[86:]]
    own, used = (parts, whole) if is_ours else (whole, parts)
    shift, found = compared(own, by_their_clock(used, 60 * hours, length))
    assert shift == Shift(hours)
    cause = Cause.OURS_MISSING if is_ours else Cause.THEIRS_MISSING
    assert found == [(cause, "i-0aaa", Fraction("2201.60") * (1 if is_ours else -1))]


def test_a_long_outage_of_a_bill_in_our_time_is_no_shift() -> None:
    whole = ours(132, begin=BEGIN)
    for own, lines in (
        ([*whole[:46], *whole[86:]], by_their_clock(whole, 0, NS_PER_HOUR)),
        (whole[7:], by_their_clock(whole, 0, NS_PER_HOUR)),
        (whole, by_their_clock([*whole[:46], *whole[86:]], 0, NS_PER_DAY)),
    ):
        assert compared(own, lines)[0] is None


def test_a_machine_left_on_beside_a_zone_is_what_is_left_of_the_difference() -> None:
    """10, 8 and 12 hours in the time of +7; then 60 hours that nobody metered."""
    starts = ((0, 10), (24, 8), (50, 12))
    own = [one for at, count in starts for one in ours(count, begin=BEGIN + at * NS_PER_HOUR)]
    left_on = ours(60, begin=BEGIN + 62 * NS_PER_HOUR)
    lines = by_their_clock([*own, *left_on], 7 * 60, NS_PER_HOUR)
    assert compared(own, lines) == (Shift(7), [(Cause.OURS_MISSING, "i-0aaa", 60 * PRICE)])


@pytest.mark.parametrize("length", [NS_PER_HOUR, NS_PER_DAY], ids=["hours", "days"])
def test_times_with_an_offset_of_half_hours_are_cut_at_their_own_hours(length: int) -> None:
    """Its rows begin at 18:30 in UTC. Their first and last are used in part, and lie across two of our hours."""
    charges = ours(72, begin=BEGIN)
    lines = [line.moved(-330 * NS_PER_MINUTE) for line in by_their_clock(charges, 330, length)]
    assert compared(charges, lines) == (None, [])


@pytest.mark.parametrize("minutes", [420, -300, 330, 345])
@pytest.mark.parametrize("amounts", [False, True], ids=["hours", "amounts"])
def test_a_bill_by_the_days_of_another_zone_is_a_shift(minutes: int, amounts: bool) -> None:
    charges = ours(70, begin=BEGIN)
    lines = by_their_clock(charges, minutes, NS_PER_DAY)
    lines = [replace(line, hours=None) if amounts else line for line in lines]
    assert compared(charges, lines) == (as_shift(minutes), [])


def test_days_that_lack_hours_at_one_end_alone_are_no_shift() -> None:
    charges = ours(63, begin=BEGIN + 7 * NS_PER_HOUR)
    lines = by_their_clock(ours(70, begin=BEGIN), 0, NS_PER_DAY)
    assert compared(charges, lines) == (None, [(Cause.OURS_MISSING, "i-0aaa", 7 * PRICE)])


@pytest.mark.parametrize("minutes", [420, 330])
def test_amounts_by_the_hour_in_local_time_are_a_shift(minutes: int) -> None:
    lines = [line.moved(minutes * NS_PER_MINUTE) for line in theirs(72, begin=BEGIN, hours=None)]
    assert compared(ours(72, begin=BEGIN), lines) == (as_shift(minutes), [])


@pytest.mark.parametrize(
    ("at", "before", "then"),
    [
        pytest.param("2026-04-04T16:30:00Z", 630, 570, id="Adelaide, autumn"),
        pytest.param("2026-03-08T05:30:00Z", -210, -150, id="St. John's, spring"),
    ],
)
def test_clocks_change_in_zones_of_half_hours_too(at: str, before: int, then: int) -> None:
    change, begin = parse_utc(at), parse_utc(at) - 39 * NS_PER_HOUR // 2
    charges = ours(48, begin=begin)
    row = theirs(1, hours=Fraction(1, 2), usd=PRICE / 2)[0]
    halves = range(begin, begin + 48 * NS_PER_HOUR, NS_PER_HOUR // 2)
    own = [at + (before if at < change else then) * NS_PER_MINUTE for at in halves]
    wall = [replace(row, from_wall=at, to_wall=at + NS_PER_HOUR // 2) for at in own]
    shift, found = compared(charges, wall)
    assert found == []
    assert shift is not None
    assert (60 * shift.hours + shift.minutes, 60 * shift.then + shift.minutes) == (before, then)


# --- bills that are not final yet ---


def zone_of_hours(own: set[int], used: set[int], minutes: int) -> tuple[int, list[int]]:
    """Of hours since the begin: the shift in minutes, and the other ones that are told."""
    charges = [one for at in sorted(own) for one in ours(1, begin=BEGIN + at * NS_PER_HOUR)]
    row = replace(theirs(1, begin=BEGIN)[0], billed_from=YEAR[0], billed_to=YEAR[1])
    lines = tuple(row.moved(at * NS_PER_HOUR + minutes * NS_PER_MINUTE) for at in sorted(used))
    found = zone_of(Bill("test", lines, *YEAR), charges)

    def in_minutes(shift: Shift | None) -> int:
        return 0 if shift is None else 60 * shift.hours + shift.minutes

    return in_minutes(found.shift), sorted(map(in_minutes, found.others))


@pytest.mark.parametrize(("hours", "behind"), [(2, 4), (9, 6), (9, 12), (-7, 12), (9, 9)])
def test_a_bill_in_local_time_that_is_not_final_may_be_one(hours: int, behind: int) -> None:
    """Its begin alone tells. What the bill has not yet is after it, or it is ours and other hours are missing."""
    used = set(range(72 - behind))
    shift, others = zone_of_hours({*range(72)}, used, 60 * hours)
    assert {shift, *others} == {60 * hours, 0}
    lines = [line.moved(hours * NS_PER_HOUR) for line in theirs(72 - behind, begin=BEGIN)]
    if behind != hours:
        found = compared(ours(72, begin=BEGIN), lines)
        assert found == (Shift(hours), [(Cause.NOT_FINAL, "i-0aaa", -behind * PRICE)])


def test_pauses_tell_the_zone_of_a_bill_that_is_not_final() -> None:
    used = {*range(72)} - {*range(20, 25)} - {*range(40, 46)}
    assert zone_of_hours(used, {at for at in used if at < 60}, 540) == (540, [])


def test_a_bill_in_our_time_that_is_not_final_is_no_shift() -> None:
    for behind in range(1, 24):
        assert zone_of_hours({*range(72)}, {*range(72 - behind)}, 0) == (0, [])


def ledger_and_bill(random: Random) -> tuple[set[int], set[int]]:
    """With pauses or none, an outage of one side or none, and behind by up to a day. Each begins with 13 full hours."""
    count = random.randint(40, 120)
    used = {*range(count)}
    for _ in range(random.choice([0, 0, 1, 2, 3])):
        at = random.randint(13, count - 10)
        used -= {*range(at, min(count - 3, at + random.randint(1, 14)))}
    own, theirs_of_it = {*used}, {*used}
    out_of = random.choice([None, own, theirs_of_it])
    if out_of is not None:
        at = random.randint(13, max(used) - 8)
        out_of -= {*range(at, min(max(used), at + random.randint(1, 12)))}
    last = max(used) - random.randint(0, 24)
    return own, {at for at in theirs_of_it if at <= last}


@pytest.mark.parametrize("part", range(8))
def test_the_shift_of_any_bill_is_found_or_told_beside_what_fits_as_well(part: int) -> None:
    """And none is a fact where the bill is in our time."""
    for seed in range(40 * part, 40 * part + 40):
        random = Random(seed)
        own, used = ledger_and_bill(random)
        if len(used) < 13:
            continue
        for minutes in (60 * random.randint(-12, 14), random.choice(PART_HOUR_ZONES), 0):
            shift, others = zone_of_hours(own, used, minutes)
            assert minutes in (shift, *others), (seed, minutes)
