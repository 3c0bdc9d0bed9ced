"""Lines, and a price that moved, as people are told of them: tables, FOCUS rows, the comparison with a bill."""

from __future__ import annotations

from fractions import Fraction

import pytest

from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, NS_PER_S
from governor.core.money.charges import Charge
from governor.core.money.reports.bill import Bill, BillKind, BillLine, Cause
from governor.core.money.reports.cost import tally
from governor.core.money.reports.focus import Issuer, focus_rows
from governor.core.money.reports.focus_rules import check_row
from governor.core.money.reports.reconcile import reconcile
from tests.unit.billed import Billed, new_world
from tests.unit.core.engine.test_step import PRICE


def world_of(factor: float) -> Billed:
    """Two hours with a disk and an upload; the price moved in the middle and was read five minutes late."""
    world = new_world(instance_id="i-1", region="us-east-1")
    world.speak("run1", "a1", 100)
    world.at(3600)
    world.upload(123_456_789_012)
    world.reprice(round(PRICE * factor), 300 * NS_PER_S, said=True)
    for minute in range(61, 121):
        world.at(minute * 60)
    world.keep()
    return world


def charges_of(factor: float) -> list[Charge]:
    return list(world_of(factor).charges.values())


@pytest.mark.parametrize("factor", [2, 0.5])
def test_every_row_conforms_to_focus_and_all_of_them_add_up(factor: float) -> None:
    charges = charges_of(factor)
    rows = [row for charge in charges for row in focus_rows(charge, Issuer())]
    assert [problem for row in rows for problem in check_row(row)] == []
    assert {row["PricingUnit"] for row in rows} == {"Hours", "GB-Months", "GB", "Units"}
    assert {row["RegionId"] for row in rows} == {"us-east-1"}
    told = sum(Fraction(row["EffectiveCost"] or "x") for row in rows)
    assert told == Fraction(sum(charge.usd_micros for charge in charges), MICROS_PER_USD)


@pytest.mark.parametrize("factor", [2, 0.5])
def test_by_line_and_by_run(factor: float) -> None:
    charges = charges_of(factor)
    lines = {group.key: group for group in tally(charges, "line")}
    disk = lines["storage: vol-1 gp3, per GB-month"]
    assert Fraction(disk.quantity, disk.unit.base_units if disk.unit else 1) == Fraction(1000, 730), "500 GB, two hours"
    assert lines["egress: to the archive, per GB"].quantity == 123_456_789_012
    assert lines["fixed: launch fee, per piece"].usd_micros == 1_500_001
    run = next(group for group in tally(charges, "run") if group.key == "run1")
    assert run.node_ns == 2 * NS_PER_HOUR, "neither a disk nor a correction is a second machine"
    known = sorted([PRICE, round(PRICE * factor)])
    assert [run.price_min_usd_micros, run.price_max_usd_micros] == known


@pytest.mark.parametrize("factor", [2, 0.5])
def test_a_bill_at_the_true_prices_agrees_over_the_two_hours(factor: float) -> None:
    """The provider bills 55 minutes at the old and 65 at the new price; ours stands partly in another hour."""
    world = world_of(factor)
    start = min(charge.from_wall for charge in world.charges.values())
    end = start + 2 * NS_PER_HOUR
    lines = []
    for begin, until, price in ((0, 55, PRICE), (55, 120, PRICE * factor)):
        hours = Fraction(until - begin, 60)
        usd = hours * Fraction(price) / MICROS_PER_USD
        at = start + begin * 60 * NS_PER_S
        to = start + until * 60 * NS_PER_S
        lines.append(BillLine("i-1", BillKind.COMPUTE, at, to, start, end, usd, hours))
    compute = [charge for charge in world.charges.values() if charge.line.name.startswith("node")]
    result = reconcile(compute, Bill("test", tuple(lines), start, end), start, end)
    assert sum((one.usd for one in result.differences), Fraction(0)) == result.theirs_usd - result.ours_usd
    assert abs(result.theirs_usd - result.ours_usd) < Fraction(1, 100_000)
    assert {one.cause for one in result.differences} <= {Cause.PRICE, Cause.BELOW_A_CENT}, "of hours none"


def test_a_piece_that_makes_up_for_a_price_hides_no_missing_hours() -> None:
    world = world_of(2)
    start = min(charge.from_wall for charge in world.charges.values())
    second = start + NS_PER_HOUR
    ours = [
        charge
        for charge in world.charges.values()
        if charge.line.name.startswith("node") and charge.from_wall >= second
    ]
    assert any(charge.line.name != "node" for charge in ours), "the correction is of the second hour"
    line = BillLine(
        "i-1", BillKind.COMPUTE, second, second + NS_PER_HOUR, start, second + NS_PER_HOUR,
        Fraction(3 * PRICE, MICROS_PER_USD), Fraction(3, 2),
    )  # fmt: skip
    result = reconcile(ours, Bill("test", (line,), second, second + NS_PER_HOUR), second, second + NS_PER_HOUR)
    missing = {one.cause: one.hours for one in result.differences}
    assert missing.get(Cause.TOO_MANY_HOURS) == Fraction(1, 2), "one and a half in one hour of the clock"
