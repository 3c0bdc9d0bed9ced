"""What FOCUS 1.4 requires of the rows of Cost and Usage, as far as a file can show it: a validator of text rows.

Checked: columns (mandatory ones present, others known or x_), nulls, types and formats, allowed values, and what one
column says of another. Not checked: what only the provider knows, such as whether an amount was invoiced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from governor.core.base.utc import parse_utc
from governor.core.money.reports.focus_values import ALLOWED, COLUMNS, SUBCATEGORIES, Column, Kind

Row = Mapping[str, str | None]
# Issuers round, and we do: a run's share of a node is whole micro-dollars four times a second, 1.44 cents an hour.
COST_TOLERANCE_USD: Final = Fraction(3, 200)

_DECIMAL: Final = re.compile(r"-?\d+(\.\d+)?")
_DATE_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z")
_CUSTOM: Final = re.compile(r"x_\w+")
_GONE: Final = {"ProviderName": "ServiceProviderName", "PublisherName": "HostProviderName"}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, and in which column."""

    column: str
    text: str


def check_header(names: Sequence[str]) -> list[Problem]:
    """Return what is wrong with the columns of a file."""
    problems = [
        Problem(name, "this column is mandatory and missing")
        for name, column in COLUMNS.items()
        if column.mandatory and name not in names
    ]
    problems += [
        Problem(name, "stands there twice") for name in sorted({name for name in names if names.count(name) > 1})
    ]
    for name in names:
        if name in _GONE:
            problems.append(Problem(name, f"was removed in 1.4; {_GONE[name]} says it"))
        elif name not in COLUMNS and not _CUSTOM.fullmatch(name):
            problems.append(Problem(name, "no column of FOCUS 1.4; a custom one begins with x_"))
    return problems


def check_row(row: Row) -> list[Problem]:
    """Return what is wrong with one row. None is null; what is not in the row is not in the file."""
    problems = [problem for name, value in row.items() if name in COLUMNS for problem in _cell(name, value)]
    if not problems:  # What cannot be read cannot be compared.
        problems += [problem for rule in _RULES for problem in rule(row)]
    return problems


# --- one cell -----------------------------------------------------------------------------------------------


def _cell(name: str, value: str | None) -> Iterator[Problem]:
    column = COLUMNS[name]
    if value is None:
        if not column.nullable:
            yield Problem(name, "must not be null")
        return
    if value == "" or value != value.strip():
        yield Problem(name, f'"{value}" begins or ends with a space' if value else "an empty string is no value")
        return
    text = _type_error(column, value)
    if text:
        yield Problem(name, f'"{value[:80]}" {text}')
    elif name in ALLOWED and value not in ALLOWED[name]:
        yield Problem(name, f'"{value}" is none of {", ".join(ALLOWED[name])}')


def _type_error(column: Column, value: str) -> str:
    if column.kind is Kind.DECIMAL and not _DECIMAL.fullmatch(value):
        return "is no decimal number (digits, one point, no exponent, no plus)"
    if column.kind is Kind.PRICE and (not _DECIMAL.fullmatch(value) or value.startswith("-")):
        return "is no price: a decimal number that is not negative"
    if column.kind is Kind.DATE_TIME:
        return _date_error(value)
    if column.kind is Kind.CURRENCY and not re.fullmatch(r"[A-Z]{3}", value):
        return "is no currency of ISO 4217"
    return _json_error(value, flat=column.kind is Kind.KEY_VALUES) if column.is_json else ""


def _date_error(value: str) -> str:
    if not _DATE_TIME.fullmatch(value):
        return "is not written as 2026-11-21T20:00:00Z"
    try:
        parse_utc(value)
    except ValueError:
        return "is no date of the calendar"
    return ""


def _json_error(value: str, *, flat: bool) -> str:
    try:
        document = json.loads(value)
    except ValueError:
        return "is no JSON"
    if not isinstance(document, dict):
        return "is no JSON object"
    if flat and any(isinstance(inner, dict | list) for inner in document.values()):
        return "nests: keys have plain values"
    return ""


# --- one column against another -----------------------------------------------------------------------------

_Rule = Callable[[Row], Iterator[Problem]]


def _is_regular(row: Row) -> bool:
    """Usage or a purchase, and no correction of a closed month: what the strictest rules are about."""
    return row.get("ChargeCategory") in ("Usage", "Purchase") and row.get("ChargeClass") != "Correction"


def _periods(row: Row) -> Iterator[Problem]:
    for what in ("ChargePeriod", "BillingPeriod"):
        start, end = row.get(f"{what}Start"), row.get(f"{what}End")
        if start is not None and end is not None and start >= end:  # This form sorts as its times do.
            yield Problem(f"{what}End", f"{end} is not later than {what}Start {start}")
    if row.get("ChargeCategory") != "Usage" or not _is_regular(row):
        return  # A commitment is bought for years, a correction belongs to a month that was.
    first, last = row.get("BillingPeriodStart"), row.get("BillingPeriodEnd")
    start, end = row.get("ChargePeriodStart"), row.get("ChargePeriodEnd")
    if first is not None and start is not None and start < first:
        yield Problem("ChargePeriodStart", f"{start} is before BillingPeriodStart {first}")
    if last is not None and end is not None and end > last:
        yield Problem("ChargePeriodEnd", f"{end} is after BillingPeriodEnd {last}")


def _products(row: Row) -> Iterator[Problem]:
    quantity = row.get("PricingQuantity")
    if quantity is None or not _is_regular(row):
        return
    for kind in ("List", "Contracted"):
        price, cost = row.get(f"{kind}UnitPrice"), row.get(f"{kind}Cost")
        if price is not None and cost is not None:
            product = Fraction(price) * Fraction(quantity)
            if abs(product - Fraction(cost)) > COST_TOLERANCE_USD:
                yield Problem(f"{kind}Cost", f"{cost} is not {kind}UnitPrice {price} x PricingQuantity {quantity}")


def _together(row: Row) -> Iterator[Problem]:
    """Columns that are null together."""
    for name, other in (
        ("PricingUnit", "PricingQuantity"),
        ("ConsumedUnit", "ConsumedQuantity"),
        ("RegionName", "RegionId"),
        ("ResourceType", "ResourceId"),
    ):
        if name in row and other in row and (row[name] is None) != (row[other] is None):
            yield Problem(name, f"must {'not ' if row[name] is None else ''}be null, as {other} is")


def _required(row: Row) -> Iterator[Problem]:
    category = row.get("ChargeCategory")
    names = ("PricingQuantity", "PricingUnit", "ListUnitPrice", "ContractedUnitPrice", "PricingCategory")
    for name in (*names, "SkuId", "SkuPriceId"):
        if name not in row:
            continue
        if row[name] is None and _is_regular(row):
            yield Problem(name, f"must not be null for {category}")
        if row[name] is not None and category == "Tax":
            yield Problem(name, "must be null for Tax")
        if row[name] is not None and "SkuPriceId" in row and row["SkuPriceId"] is None and name in names:
            yield Problem(name, "must be null without a SkuPriceId")
    for name in ("ConsumedQuantity", "ConsumedUnit"):
        if row.get(name) is not None and category != "Usage":
            yield Problem(name, f"must be null for {category}")


def _values(row: Row) -> Iterator[Problem]:
    if row.get("ChargeCategory") == "Purchase" and row.get("ChargeFrequency") == "Usage-Based":
        yield Problem("ChargeFrequency", "a Purchase is not Usage-Based")
    category, inner = row.get("ServiceCategory"), row.get("ServiceSubcategory")
    if category in SUBCATEGORIES and inner is not None and inner not in SUBCATEGORIES[category]:
        yield Problem("ServiceSubcategory", f'"{inner}" is not of ServiceCategory {category}')


_RULES: Final[tuple[_Rule, ...]] = (_periods, _products, _together, _required, _values)
