"""Each rule of FOCUS refuses the row that breaks it, and names the column."""

from __future__ import annotations

import pytest

from governor.core.money.reports.focus import COLUMNS, FocusRow, Issuer, focus_rows
from governor.core.money.reports.focus_rules import check_header, check_row
from tests.unit.cost.ledger_file import charge


def good() -> FocusRow:
    [row] = focus_rows(charge("2026-11-02T10:00:00Z"), Issuer())
    return row


BROKEN: list[tuple[dict[str, str | None], str, str]] = [
    ({"BilledCost": None}, "BilledCost", "must not be null"),
    ({"BilledCost": "1e3"}, "BilledCost", "no decimal number"),
    ({"BilledCost": "+1.00"}, "BilledCost", "no decimal number"),
    ({"BilledCost": "1,000.00"}, "BilledCost", "no decimal number"),
    ({"ListUnitPrice": "-1.00"}, "ListUnitPrice", "not negative"),
    ({"BillingCurrency": "usd"}, "BillingCurrency", "no currency"),
    ({"ChargePeriodStart": "2026-11-02 10:00:00"}, "ChargePeriodStart", "is not written as"),
    ({"ChargePeriodStart": "2026-11-31T10:00:00Z"}, "ChargePeriodStart", "no date of the calendar"),
    ({"ChargePeriodEnd": "2026-11-02T10:00:00Z"}, "ChargePeriodEnd", "is not later than"),
    ({"BillingPeriodEnd": "2026-11-01T00:00:00Z"}, "BillingPeriodEnd", "is not later than"),
    ({"ChargePeriodStart": "2026-10-31T23:00:00Z"}, "ChargePeriodStart", "is before BillingPeriodStart"),
    ({"ChargePeriodEnd": "2026-12-01T00:00:01Z"}, "ChargePeriodEnd", "is after BillingPeriodEnd"),
    ({"ChargeCategory": "Consumption"}, "ChargeCategory", "is none of Usage"),
    ({"ChargeClass": "Regular"}, "ChargeClass", "is none of Correction"),
    ({"ListCost": "55.060000"}, "ListCost", "is not ListUnitPrice 55.040000 x PricingQuantity 1"),
    ({"ContractedUnitPrice": "55.060000"}, "ContractedCost", "is not ContractedUnitPrice"),
    ({"PricingUnit": None}, "PricingUnit", "must not be null"),
    ({"PricingQuantity": None, "PricingUnit": None}, "PricingQuantity", "must not be null for Usage"),
    ({"SkuPriceId": None}, "PricingQuantity", "must be null without a SkuPriceId"),
    ({"ChargeCategory": "Tax"}, "SkuId", "must be null for Tax"),
    ({"ChargeCategory": "Credit"}, "ConsumedQuantity", "must be null for Credit"),
    ({"ChargeCategory": "Purchase"}, "ChargeFrequency", "not Usage-Based"),
    ({"RegionName": None}, "RegionName", "must not be null, as RegionId is"),
    ({"ResourceId": None}, "ResourceType", "must be null, as ResourceId is"),
    ({"ServiceSubcategory": "Block Storage"}, "ServiceSubcategory", "is not of ServiceCategory Compute"),
    ({"Tags": "team=nlp"}, "Tags", "no JSON"),
    ({"Tags": '["nlp"]'}, "Tags", "no JSON object"),
    ({"Tags": '{"team": {"name": "nlp"}}'}, "Tags", "plain values"),
    ({"ServiceName": " Compute"}, "ServiceName", "begins or ends with a space"),
    ({"ServiceName": ""}, "ServiceName", "an empty string"),
]


def test_the_row_that_they_change_is_good() -> None:
    assert check_row(good()) == []


@pytest.mark.parametrize(("change", "column", "text"), BROKEN)
def test_a_broken_rule_is_named(change: dict[str, str | None], column: str, text: str) -> None:
    found = check_row(good() | change)
    assert any(problem.column == column and text in problem.text for problem in found), found


def test_a_correction_may_leave_its_month_and_its_product() -> None:
    change = {"ChargeClass": "Correction", "ChargePeriodStart": "2026-09-01T00:00:00Z", "ListCost": "-1.00"}
    assert check_row(good() | change) == []


def test_costs_may_be_off_by_a_billionth_as_the_official_validator_allows() -> None:
    assert check_row(good() | {"ListCost": "55.04000005"}) == []
    [problem] = check_row(good() | {"ListCost": "55.0400001"})
    assert problem.column == "ListCost"
    cheap = {"PricingQuantity": "0.001", "ContractedCost": "0.05504", "ListCost": "0.055040001"}
    assert check_row(good() | cheap) == []
    assert [one.column for one in check_row(good() | cheap | {"ListCost": "0.0550400021"})] == ["ListCost"]


@pytest.mark.parametrize(
    ("names", "column", "text"),
    [
        ([name for name in COLUMNS if name != "ListCost"], "ListCost", "mandatory and missing"),
        ([*COLUMNS, "ProviderName"], "ProviderName", "was removed in 1.4; ServiceProviderName says it"),
        ([*COLUMNS, "RunName"], "RunName", "no column of FOCUS 1.4"),
        ([*COLUMNS, "Tags"], "Tags", "stands there twice"),
    ],
)
def test_wrong_columns_are_named(names: list[str], column: str, text: str) -> None:
    [problem] = check_header(names)
    assert problem.column == column
    assert text in problem.text


def test_a_file_without_the_optional_columns_is_good() -> None:
    optional = [name for name in COLUMNS if not check_header([other for other in COLUMNS if other != name])]
    assert {"Tags", "RegionId", "x_RunName"} < set(optional)
    assert check_row({name: value for name, value in good().items() if name not in optional}) == []
