"""Groups of charges add up to what was charged, however they are cut and rounded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.units import NS_PER_HOUR, UsdMicros, WallNs, day_of, hour_of, month_of, parse_utc
from governor.core.money.charges import Charge, Line, LineKind, Unit
from governor.core.money.reports.cost import Sum, clip, decimal_text, exact_usd, slices, sum_of, tally, whole_cents
from governor.core.money.reports.stage_table import StageTally
from tests.unit.cost.ledger_file import ANNA, NODE, ON_DEMAND, a_month, charge

GROUPS = ("run", "stage", "day", "node", "line", "label:team")
some_charge = st.builds(
    lambda start, length, quantity, micros: Charge(
        "c", NODE, ANNA, ON_DEMAND, WallNs(start), WallNs(start + length), quantity, UsdMicros(micros)
    ),
    st.integers(0, 10**18),
    st.integers(0, 100 * NS_PER_HOUR),
    st.integers(0, 10**15),
    st.integers(0, 10**12),
)


@given(some_charge, st.sampled_from([hour_of, day_of, month_of]))
def test_slices_add_up_and_lie_in_one_period_each(one: Charge, period: object) -> None:
    parts = list(slices(one, period))  # type: ignore[arg-type]
    assert sum(part.usd_micros for part in parts) == one.usd_micros
    assert sum(part.quantity for part in parts) == one.quantity
    assert [part.from_wall for part in parts[1:]] == [part.to_wall for part in parts[:-1]]
    assert (parts[0].from_wall, parts[-1].to_wall) == (one.from_wall, one.to_wall)
    for part in parts:
        start, end = period(part.from_wall)  # type: ignore[operator]
        assert start <= part.from_wall <= part.to_wall <= end


@given(some_charge, st.lists(st.integers(0, 10**18 + 10**15), min_size=1, max_size=5))
def test_clips_that_adjoin_add_up(one: Charge, cuts: list[int]) -> None:
    inside = sorted(min(max(cut, one.from_wall), one.to_wall) for cut in cuts)
    bounds = [one.from_wall, *inside, one.to_wall]
    parts = [clip(one, first, last) for first, last in pairwise(bounds) if first < last]
    if parts:  # Without length it has no parts.
        assert sum(part.usd_micros for part in parts) == one.usd_micros


@pytest.mark.parametrize("by", GROUPS)
def test_every_grouping_has_the_same_total(by: str) -> None:
    total = sum_of(tally(a_month(), by))
    assert total.usd_micros == sum(one.usd_micros for one in a_month())
    assert total.node_ns == sum(one.quantity for one in a_month() if one.line.kind is LineKind.COMPUTE)
    assert total.reconstructed_usd_micros == 20_123_457


def test_a_charge_over_midnight_belongs_to_both_days() -> None:
    groups = {group.key: group for group in tally([charge("2026-11-03T23:30:00Z", 1.0)], "day")}
    assert [(key, group.usd_micros) for key, group in groups.items()] == [
        ("2026-11-03", 27_520_000),
        ("2026-11-04", 27_520_000),
    ]


def test_a_disk_is_no_second_machine() -> None:
    [group] = tally(a_month(), "node")
    assert group.node_ns == 3 * NS_PER_HOUR + round(NS_PER_HOUR / 3)
    assert (group.price_min_usd_micros, group.price_max_usd_micros) == (20_123_457, 55_040_000)


def test_what_has_no_run_stage_or_label_has_a_group_that_says_so() -> None:
    assert {group.key for group in tally(a_month(), "run")} == {"anna", "ben", "(unallocated)"}
    assert {group.key for group in tally(a_month(), "stage")} == {"stage1", "(no stage)", "(unallocated)"}
    assert {group.key for group in tally(a_month(), "label:team")} == {"nlp", "vision", "(unallocated)"}
    assert {group.key for group in tally(a_month(), "label:owner")} == {"(no owner)", "(unallocated)"}


def test_no_stage_is_the_same_sum_as_in_the_table_of_stages() -> None:
    table = StageTally()
    for one in a_month():
        table.enter_charges(Sum(one, 1))
    rows = {row.stage: row.actual_usd_micros for row in table.rows()}
    assert {group.key: group.usd_micros for group in tally(a_month(), "stage")} == rows


def test_lines_of_two_units_are_two_groups() -> None:
    per_piece = Line(LineKind.FIXED, "licence", Unit.PIECE, 5_000_000, "contract", "2026-01-01")
    per_hour = Line(LineKind.FIXED, "licence", Unit.HOUR, 1_000_000, "contract", "2026-01-01")
    begin = "2026-11-02T10:00:00Z"
    assert len(tally([charge(begin, line=per_piece), charge(begin, line=per_hour)], "line")) == 2


@pytest.mark.parametrize("by", ["colour", "label:", ""])
def test_an_unknown_grouping_is_refused(by: str) -> None:
    with pytest.raises(ValueError, match="no way to group"):
        tally([], by)


@given(st.lists(st.integers(0, 10**13), max_size=30))
def test_cents_add_up_and_are_off_by_less_than_one(amounts: list[int]) -> None:
    cents = whole_cents(amounts)
    assert abs(sum(cents) * 10_000 - sum(amounts)) <= 5_000
    assert all(abs(cent * 10_000 - amount) < 10_000 for cent, amount in zip(cents, amounts, strict=True))


def test_three_thirds_of_a_dollar_make_a_dollar() -> None:
    assert sum(whole_cents([333_333, 333_333, 333_334])) == 100


@pytest.mark.parametrize(
    ("ratio", "digits", "text"),
    [((1, 3), 2, "0.33"), ((2, 3), 2, "0.67"), ((-1, 2), 0, "-1"), ((-1, 1000), 2, "0.00"), ((1005, 1000), 2, "1.01")],
)
def test_decimals_are_rounded_half_away_from_zero(ratio: tuple[int, int], digits: int, text: str) -> None:
    assert decimal_text(*ratio, digits) == text


def test_dollars_are_exact_beyond_a_floats_digits() -> None:
    assert exact_usd(12_345_678_901_234_567) == "12345678901.234567"
    assert exact_usd(-1) == "-0.000001"


def test_days_follow_one_another() -> None:
    keys = [group.key for group in tally(a_month(), "day")]
    assert keys == sorted(keys)
    assert parse_utc(keys[0]) == parse_utc("2026-11-02")
