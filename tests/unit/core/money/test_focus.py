"""Charges become FOCUS rows that pass FOCUS's rules, and nothing of them is lost on the way."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.core.base.units import NS_PER_HOUR, BootNs, UsdMicros, WallNs
from governor.core.money.charges import Charge, Line, LineKind, Payer, Place, Unit, charge_of, charge_row
from governor.core.money.ledger import new_ledger
from governor.core.money.lines import Metered, compute_line, price_of, price_row
from governor.core.money.reports.focus import COLUMNS, FocusRow, Issuer, focus_rows
from governor.core.money.reports.focus_rules import check_header, check_row
from tests.unit.cost.ledger_file import ANNA, BEN, DISK, NODE, ON_DEMAND, SPOT, a_month, charge

OURS = Issuer()
LICENCE = Line(LineKind.FIXED, "licence", Unit.PIECE, 5_000_000, "contract", "2026-01-01")
TRAFFIC = Line(LineKind.EGRESS, "out of eu-west-1", Unit.GB, 90_000, "table", "2026-06-01")


def row_of(one: Charge, issuer: Issuer = OURS) -> FocusRow:
    [row] = focus_rows(one, issuer)
    return row


def breaks(row: FocusRow) -> list[str]:
    return [f"{problem.column}: {problem.text}" for problem in check_row(row)]


def of_quantity(line: Line, quantity: int) -> Charge:
    micros = UsdMicros(line.price_usd_micros * quantity // line.unit.base_units)
    start = WallNs(1_793_000_000_000_000_000)
    return Charge("node-1/a/1", NODE, ANNA, line, start, WallNs(start + 10**9), quantity, micros)


@pytest.mark.parametrize("one", [*a_month(), of_quantity(LICENCE, 1), of_quantity(TRAFFIC, 123_456_789_012)])
@pytest.mark.parametrize("issuer", [OURS, Issuer("1234", "Somebody", billed=True)])
def test_every_charge_makes_a_row_that_conforms(one: Charge, issuer: Issuer) -> None:
    for row in focus_rows(one, issuer):
        assert tuple(sorted(row, key=COLUMNS.index)) == COLUMNS
        assert breaks(row) == []


def test_the_columns_are_focus_columns_in_order_and_then_our_own() -> None:
    assert check_header(COLUMNS) == []
    focus = [name for name in COLUMNS if not name.startswith("x_")]
    assert focus == sorted(focus)
    assert COLUMNS[: len(focus)] == tuple(focus)


def test_an_hour_of_compute() -> None:
    row = row_of(charge("2026-11-02T10:00:00Z"))
    expected = {
        "BillingPeriodStart": "2026-11-01T00:00:00Z",
        "BillingPeriodEnd": "2026-12-01T00:00:00Z",
        "ChargePeriodStart": "2026-11-02T10:00:00Z",
        "ChargePeriodEnd": "2026-11-02T11:00:00Z",
        "PricingQuantity": "1",
        "ContractedUnitPrice": "55.040000",
        "EffectiveCost": "55.040000",
        "BilledCost": "0.000000",
        "InvoiceIssuerName": "AWS",
        "ResourceId": "i-0aaa",
        "ResourceName": "node-1",
        "Tags": '{"team": "nlp"}',
        "x_RunName": "anna",
        "x_StageName": "stage1",
    }
    assert {name: row[name] for name in expected} == expected


def test_who_issues_no_invoice_states_no_billed_cost() -> None:
    one = charge("2026-11-02T10:00:00Z")
    assert (row_of(one)["BilledCost"], row_of(one, Issuer(billed=True))["BilledCost"]) == ("0.000000", "55.040000")


def test_a_volume_is_its_own_resource() -> None:
    row = row_of(charge("2026-11-02T10:00:00Z", 1.0, ANNA, DISK))
    assert (row["ResourceId"], row["ResourceName"], row["ResourceType"]) == ("vol-0bbb", None, "Volume")


def test_a_spot_price_is_dynamic() -> None:
    assert row_of(charge("2026-11-04T02:00:00Z", 0.5, BEN, SPOT))["PricingCategory"] == "Dynamic"
    assert row_of(charge("2026-11-04T02:00:00Z", 0.5, BEN, ON_DEMAND))["PricingCategory"] == "Standard"


def test_what_a_price_is_called_makes_it_no_spot_price() -> None:
    """Vast's interruptible machines have "spot" in no name; a contract with Hotspot has."""
    named = replace(ON_DEMAND, name="hotspot", source="hotspot contract", price_kind="on-demand")
    assert row_of(charge("2026-11-04T02:00:00Z", 0.5, BEN, named))["PricingCategory"] == "Standard"
    bid = replace(ON_DEMAND, source="Vast API", price_kind="spot")
    assert row_of(charge("2026-11-04T02:00:00Z", 0.5, BEN, bid))["PricingCategory"] == "Dynamic"


def test_the_price_kind_goes_through_the_journal_and_older_rows_have_none() -> None:
    spot, older = charge("2026-11-04", 0.5, BEN, SPOT), charge("2026-11-04", 0.5, BEN, ON_DEMAND)
    assert [charge_of(charge_row(one)).line.price_kind for one in (spot, older)] == ["spot", ""]
    assert "price_kind" not in charge_row(older)
    metered = compute_line(UsdMicros(20_123_457), "spot history", "2026-11-03", "spot")
    assert price_of(price_row(metered)) == metered
    assert price_of({"usd_micros_per_hour": 1, "source": "s", "as_of": ""}) == compute_line(UsdMicros(1), "s", "")


@pytest.mark.parametrize("price", [1, 999_983, 55_040_000, 3_600_000_000, 999_999_999_989])
@pytest.mark.parametrize("quantity", [1, 12_664_526_400, NS_PER_HOUR // 3, NS_PER_HOUR, 31 * 24 * NS_PER_HOUR // 7])
def test_costs_are_price_times_quantity_to_a_billionth(price: int, quantity: int) -> None:
    row = row_of(of_quantity(replace(ON_DEMAND, price_usd_micros=price), quantity))
    for kind in ("List", "Contracted"):
        cost, product = (
            Fraction(row[f"{kind}Cost"] or "x"),
            Fraction(row[f"{kind}UnitPrice"] or "x") * Fraction(row["PricingQuantity"] or "x"),
        )
        assert abs(cost - product) <= max(abs(cost), Fraction(1)) / 10**9
    assert row["EffectiveCost"] == row["ListCost"] == row["ContractedCost"]


def test_what_is_bought_by_the_piece_is_a_purchase() -> None:
    row = row_of(of_quantity(LICENCE, 2))
    assert (row["ChargeCategory"], row["ChargeFrequency"], row["PricingUnit"]) == ("Purchase", "One-Time", "Units")
    assert row["ConsumedQuantity"] is None


def test_ones_own_machine_has_no_provider_unless_it_is_named() -> None:
    one = charge("2026-11-02", 1.0, place=Place("node-9"))
    assert row_of(one)["ServiceProviderName"] == "self-hosted"
    assert row_of(one, Issuer(provider="Rack & Co"))["ServiceProviderName"] == "Rack & Co"
    assert row_of(charge("2026-11-02"), Issuer(provider="Rack & Co"))["ServiceProviderName"] == "AWS"
    assert (row_of(one)["ResourceId"], row_of(one)["ResourceType"], row_of(one)["RegionId"]) == ("node-9", "Node", None)


def test_nobodys_time_has_no_run_and_no_tags() -> None:
    row = row_of(charge("2026-11-02", 1.0, Payer()))
    assert (row["x_RunName"], row["Tags"], row["x_StageName"]) == (None, None, None)
    assert row["ChargeDescription"] == "p5.48xlarge on-demand on node-1, no run"


def test_a_charge_over_the_months_end_is_a_row_in_each_month() -> None:
    rows = list(focus_rows(charge("2026-10-31T23:00:00Z", 3.0), OURS))
    assert [(row["BillingPeriodStart"], row["ChargePeriodEnd"], row["EffectiveCost"]) for row in rows] == [
        ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z", "55.040000"),
        ("2026-11-01T00:00:00Z", "2026-11-01T02:00:00Z", "110.080000"),
    ]


def test_an_hour_that_eight_runs_share_by_the_tick_conforms() -> None:
    """At a price that no eighth and no tick divides, so that each share is rounded each time."""
    runs = [Payer(f"run{number}", "0") for number in range(8)]
    line = Line(LineKind.COMPUTE, "g5.xlarge", Unit.HOUR, 2_490_000, "table", "2026-06-01")
    ledger = new_ledger(Metered(line), BootNs(0), NODE, WallNs(0))
    at = 0
    while at < NS_PER_HOUR:
        at = min(NS_PER_HOUR, at + 250_000_000 + at % 1_999_993)  # Ticks come a little late, by this or that.
        ledger.charge(BootNs(at), WallNs(0), {run.run: 1 for run in runs}, {run.run: run for run in runs})
    rows = [row for one in ledger.take_charges() for row in focus_rows(one, OURS)]
    assert [breaks(row) for row in rows] == [[]] * 8
    assert sum(Decimal(row["EffectiveCost"] or "x") for row in rows) == Decimal("2.49")


@given(
    st.integers(1_700_000_000 * 10**9, 1_900_000_000 * 10**9),
    st.integers(0, 100 * 86_400 * 10**9),
    st.integers(0, 10**9),
)
def test_rows_conform_and_add_up_whenever_a_charge_begins_and_however_long_it_is(
    start: int, length: int, price: int
) -> None:
    line = Line(LineKind.COMPUTE, "p5", Unit.HOUR, price, "table", "2026-06-01")
    micros = UsdMicros(price * length // Unit.HOUR.base_units)
    one = Charge("node-1/a/1", NODE, ANNA, line, WallNs(start), WallNs(start + length), length, micros)
    rows = list(focus_rows(one, OURS))
    assert [breaks(row) for row in rows] == [[] for _ in rows]
    assert sum(Decimal(row["EffectiveCost"] or "x") for row in rows) == Decimal(micros) / 10**6
