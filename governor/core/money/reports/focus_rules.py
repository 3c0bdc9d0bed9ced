"""The columns of FOCUS 1.4's Cost and Usage, and the values that it allows in some of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

from governor.core.base.units import parse_utc


class Kind(Enum):
    STRING = "string"
    DECIMAL = "decimal"
    PRICE = "price"  # A decimal that is not negative.
    DATE_TIME = "date/time"
    CURRENCY = "currency"
    KEY_VALUES = "key-values"  # A JSON object of plain values.
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Column:
    kind: Kind
    mandatory: bool
    nullable: bool

    @property
    def is_json(self) -> bool:
        return self.kind in (Kind.JSON, Kind.KEY_VALUES)


def _columns(kind: Kind, names: str, *, mandatory: bool = False, nullable: bool = True) -> dict[str, Column]:
    return {name: Column(kind, mandatory, nullable) for name in names.split()}


# A conditional column depends on the provider's offers, which no file shows. Only mandatory columns are required.
COLUMNS: Final[dict[str, Column]] = {
    **_columns(Kind.DECIMAL, "BilledCost ContractedCost EffectiveCost ListCost", mandatory=True, nullable=False),
    **_columns(
        Kind.STRING,
        "BillingAccountId ChargeCategory HostProviderName InvoiceIssuerName ServiceCategory ServiceName"
        " ServiceProviderName",
        mandatory=True,
        nullable=False,
    ),
    **_columns(Kind.CURRENCY, "BillingCurrency", mandatory=True, nullable=False),
    **_columns(
        Kind.DATE_TIME,
        "BillingPeriodEnd BillingPeriodStart ChargePeriodEnd ChargePeriodStart",
        mandatory=True,
        nullable=False,
    ),
    **_columns(Kind.STRING, "BillingAccountName ChargeClass ChargeDescription PricingUnit", mandatory=True),
    **_columns(Kind.DECIMAL, "PricingQuantity", mandatory=True),
    **_columns(Kind.STRING, "BillingAccountType ChargeFrequency ServiceSubcategory", nullable=False),
    **_columns(
        Kind.STRING,
        "AllocatedMethodId AllocatedResourceId AllocatedResourceName AvailabilityZone CapacityReservationId"
        " CapacityReservationStatus CommitmentDiscountCategory CommitmentDiscountId CommitmentDiscountName"
        " CommitmentDiscountStatus CommitmentDiscountType CommitmentDiscountUnit ConsumedUnit InvoiceDetailId InvoiceId"
        " PricingCategory PricingCurrency RegionId RegionName ResourceId ResourceName ResourceType SkuId SkuMeter"
        " SkuPriceId SubAccountId SubAccountName SubAccountType",
    ),
    **_columns(Kind.DECIMAL, "CommitmentDiscountQuantity ConsumedQuantity PricingCurrencyEffectiveCost"),
    **_columns(
        Kind.PRICE,
        "ContractedUnitPrice ListUnitPrice PricingCurrencyContractedUnitPrice PricingCurrencyListUnitPrice",
    ),
    **_columns(Kind.KEY_VALUES, "AllocatedTags Tags"),
    **_columns(Kind.JSON, "AllocatedMethodDetails CommitmentProgramEligibilityDetails ContractApplied SkuPriceDetails"),
}

SUBCATEGORIES: Final[dict[str, tuple[str, ...]]] = {
    "AI and Machine Learning": (
        *("AI Platforms", "Bots", "Generative AI", "Machine Learning", "Natural Language Processing"),
        "Other (AI and Machine Learning)",
    ),
    "Analytics": (
        *("Analytics Platforms", "Business Intelligence", "Data Processing", "Search", "Streaming Analytics"),
        "Other (Analytics)",
    ),
    "Business Applications": ("Productivity and Collaboration", "Other (Business Applications)"),
    "Compute": (
        *("Containers", "End User Computing", "Quantum Compute", "Serverless Compute", "Virtual Machines"),
        "Other (Compute)",
    ),
    "Databases": (
        *("Caching", "Data Warehouses", "Ledger Databases", "NoSQL Databases", "Relational Databases"),
        *("Time Series Databases", "Other (Databases)"),
    ),
    "Developer Tools": (
        *("Developer Platforms", "Continuous Integration and Deployment", "Development Environments"),
        *("Source Code Management", "Quality Assurance", "Other (Developer Tools)"),
    ),
    "Identity": ("Identity and Access Management", "Other (Identity)"),
    "Integration": ("API Management", "Messaging", "Workflow Orchestration", "Other (Integration)"),
    "Internet of Things": ("IoT Analytics", "IoT Platforms", "Other (Internet of Things)"),
    "Management and Governance": (
        *("Architecture", "Compliance", "Cost Management", "Data Governance", "Disaster Recovery"),
        *("Endpoint Management", "Observability", "Support", "Other (Management and Governance)"),
    ),
    "Media": ("Content Creation", "Gaming", "Media Streaming", "Mixed Reality", "Other (Media)"),
    "Migration": ("Data Migration", "Resource Migration", "Other (Migration)"),
    "Mobile": ("Other (Mobile)",),
    "Multicloud": ("Multicloud Integration", "Other (Multicloud)"),
    "Networking": (
        *("Application Networking", "Content Delivery", "Network Connectivity", "Network Infrastructure"),
        *("Network Routing", "Network Security", "Other (Networking)"),
    ),
    "Security": (
        *("Secret Management", "Security Posture Management", "Threat Detection and Response"),
        "Other (Security)",
    ),
    "Storage": (
        *("Backup Storage", "Block Storage", "File Storage", "Object Storage", "Storage Platforms"),
        "Other (Storage)",
    ),
    "Web": ("Application Platforms", "Other (Web)"),
    "Other": ("Other (Other)",),
}

ALLOWED: Final[dict[str, tuple[str, ...]]] = {
    "CapacityReservationStatus": ("Used", "Unused"),
    "ChargeCategory": ("Usage", "Purchase", "Tax", "Credit", "Adjustment"),
    "ChargeClass": ("Correction",),
    "ChargeFrequency": ("One-Time", "Recurring", "Usage-Based"),
    "CommitmentDiscountCategory": ("Spend", "Usage"),
    "CommitmentDiscountStatus": ("Used", "Unused"),
    "PricingCategory": ("Standard", "Dynamic", "Committed", "Other"),
    "ServiceCategory": tuple(SUBCATEGORIES),
    "ServiceSubcategory": tuple(name for names in SUBCATEGORIES.values() for name in names),
}


# A validator of text rows: the requirements of FOCUS 1.4 for Cost and Usage, as far as a file shows them. Checked:
# columns (mandatory ones present, others known or x_), nulls, types and formats, allowed values, and relations between
# columns. Not checked: what only the provider knows, such as whether an amount was invoiced.


Row = Mapping[str, str | None]
# As the FinOps Foundation's own validator compares a cost with its product: relative, and absolute below a dollar.
COST_TOLERANCE: Final = Fraction(1, 10**9)

_DECIMAL: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_DATE_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_CUSTOM: Final = re.compile(r"x_\w+")
_GONE: Final = {"ProviderName": "ServiceProviderName", "PublisherName": "HostProviderName"}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error, and its column."""

    column: str
    text: str


def check_header(names: Sequence[str]) -> list[Problem]:
    """Return the errors of a file's columns."""
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
    """Return the errors of one row. None is null; a column that is not in the row is not in the file."""
    problems = [problem for name, value in row.items() if name in COLUMNS for problem in _cell(name, value)]
    if not problems:  # Unreadable values cannot be compared.
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
    """Usage or a purchase, and no correction of a closed month: the strictest rules hold for these."""
    return row.get("ChargeCategory") in ("Usage", "Purchase") and row.get("ChargeClass") != "Correction"


def _periods(row: Row) -> Iterator[Problem]:
    for what in ("ChargePeriod", "BillingPeriod"):
        start, end = row.get(f"{what}Start"), row.get(f"{what}End")
        if start is not None and end is not None and start >= end:  # This text form sorts by time.
            yield Problem(f"{what}End", f"{end} is not later than {what}Start {start}")
    if row.get("ChargeCategory") != "Usage" or not _is_regular(row):
        # A commitment is bought for years, and a correction belongs to an earlier month.
        return
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
            if abs(product - Fraction(cost)) > COST_TOLERANCE * max(abs(Fraction(cost)), Fraction(1)):
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
