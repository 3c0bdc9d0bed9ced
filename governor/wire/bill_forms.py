"""The kinds of bill with columns of their own: FOCUS rows, and AWS CUR rows of either generation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from governor.core.money.charges import HOURS_PER_MONTH
from governor.core.money.reports.bill import BillKind, short_resource

_COMPUTE_USAGE: Final = re.compile(r"(Box|Spot|Dedicated|Host)Usage")
_EGRESS_USAGE: Final = re.compile(r"DataTransfer|-Bytes")
_CUR_TYPES: Final = {
    "Tax": BillKind.TAX,
    "Credit": BillKind.CREDIT,
    "Refund": BillKind.REFUND,
    "Fee": BillKind.PURCHASE,
    "RIFee": BillKind.COMMITMENT,
    "SavingsPlanNegation": BillKind.COMMITMENT,
    "SavingsPlanRecurringFee": BillKind.COMMITMENT,
    "SavingsPlanUpfrontFee": BillKind.COMMITMENT,
}
_CUR_USAGE: Final = ("Usage", "DiscountedUsage", "SavingsPlanCoveredUsage")
_FOCUS_CATEGORIES: Final = {
    "Tax": BillKind.TAX,
    "Credit": BillKind.CREDIT,
    "Purchase": BillKind.PURCHASE,
    "Adjustment": BillKind.REFUND,
}

# --- units of time ------------------------------------------------------------------------------------------

_HOURS_IN: Final = {
    **dict.fromkeys(("hours", "hour", "hrs", "hr", "h"), Fraction(1)),
    **dict.fromkeys(("days", "day", "d"), Fraction(24)),
    **dict.fromkeys(("minutes", "minute", "mins", "min"), Fraction(1, 60)),
    **dict.fromkeys(("seconds", "second", "secs", "sec", "s"), Fraction(1, 3600)),
    **dict.fromkeys(("milliseconds", "millisecond", "ms"), Fraction(1, 3_600_000)),
}
# "Hours", "1 Hour", "GPU-Hours", "gpu_hours", "Instance Hours". A vCPU-hour is no hour of a machine.
_TIME_UNIT: Final = re.compile(r"(?:1\s)?(?:(gpu|instance|vm|node|machine|server|pod)s?[-_ /]?)?([a-z]+)")
_DISK_UNIT: Final = re.compile(r"(?:gi?b|gigabyte|gibibyte)s?[-_ /]?(mo|months?|hours?|hrs?)")


@dataclass(frozen=True, slots=True)
class TimeUnit:
    hours: Fraction
    of_a_gpu: bool
    is_assumed: bool = False


@lru_cache(maxsize=1_024)
def time_unit(text: str) -> TimeUnit | None:
    """What a unit's name means, if it is one of time."""
    found = _TIME_UNIT.fullmatch(text.strip().lower())
    if found is None or found[2] not in _HOURS_IN:
        return None
    return TimeUnit(_HOURS_IN[found[2]], found[1] == "gpu")


@lru_cache(maxsize=1_024)
def gb_months_in(text: str) -> Fraction | None:
    """What one of a unit is in GB-months: "GB-Mo", "GB-Months", "GB-Hours". GiB are GB: of a disk people say both."""
    found = _DISK_UNIT.fullmatch(text.strip().lower())
    if found is None:
        return None
    return Fraction(1) if found[1].startswith("mo") else _HOURS_IN[found[1]] / HOURS_PER_MONTH


def is_time_of_a_part(text: str) -> bool:
    """Whether it is time of a machine's part ("vCPU-Hours"): hours of which the machine has many at once."""
    *parts, last = re.split(r"[-_ /]+", text.strip().lower())
    return bool(parts) and last in _HOURS_IN and time_unit(text) is None


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of bill: its columns under our names, and how its rows are classified."""

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    cost: str
    currency: str
    resource: str
    start: str
    end: str
    quantity: str
    unit: str
    period: tuple[str, str]
    # Columns that identify a row. None: rows have no id, and may be equal.
    identity: tuple[str, ...] | None
    kind: Callable[[Mapping[str, str]], BillKind]
    committed: Callable[[Mapping[str, str]], bool]
    # Whether a row of OTHER says compute, in a unit that is no time of a machine.
    in_parts: Callable[[Mapping[str, str]], bool]


# --- FOCUS --------------------------------------------------------------------------------------------------


def _focus_kind(cells: Mapping[str, str]) -> BillKind:
    if cells.get("ChargeClass") == "Correction":
        return BillKind.REFUND
    commitment = bool(cells.get("CommitmentDiscountId"))
    if cells["ChargeCategory"] != "Usage":
        kind = _FOCUS_CATEGORIES.get(cells["ChargeCategory"], BillKind.OTHER)
        return BillKind.COMMITMENT if commitment and kind is BillKind.PURCHASE else kind
    if cells.get("CommitmentDiscountStatus") == "Unused":
        return BillKind.COMMITMENT
    unit = cells.get("PricingUnit", "").lower()
    category = cells.get("ServiceCategory", "")
    # Some providers file a machine's disks and traffic under compute. The unit distinguishes them.
    if short_resource(cells["ResourceId"]).startswith("vol-") or category == "Storage":
        return BillKind.STORAGE
    if category == "Networking" or (category == "Compute" and unit == "gb"):
        return BillKind.EGRESS
    by_time = unit == "" or time_unit(unit) is not None
    return BillKind.COMPUTE if category == "Compute" and by_time else BillKind.OTHER


FOCUS: Final = Form(
    name="FOCUS",
    required=(
        *("BilledCost", "BillingCurrency", "ChargeCategory", "ChargePeriodStart", "ChargePeriodEnd", "ResourceId"),
        "ServiceCategory",
    ),
    optional=(
        *("BillingPeriodStart", "BillingPeriodEnd", "ChargeClass", "CommitmentDiscountId", "CommitmentDiscountStatus"),
        *("PricingCategory", "PricingQuantity", "PricingUnit"),
    ),
    cost="BilledCost",
    currency="BillingCurrency",
    resource="ResourceId",
    start="ChargePeriodStart",
    end="ChargePeriodEnd",
    quantity="PricingQuantity",
    unit="PricingUnit",
    period=("BillingPeriodStart", "BillingPeriodEnd"),
    identity=None,
    kind=_focus_kind,
    committed=lambda cells: bool(cells.get("CommitmentDiscountId")) or cells.get("PricingCategory") == "Committed",
    in_parts=lambda cells: (
        cells.get("ServiceCategory") == "Compute" and is_time_of_a_part(cells.get("PricingUnit", ""))
    ),
)

# --- AWS CUR ------------------------------------------------------------------------------------------------


def _cur_kind(cells: Mapping[str, str]) -> BillKind:
    line_type = cells["lineItem/LineItemType"]
    if line_type not in _CUR_USAGE:
        return _CUR_TYPES.get(line_type, BillKind.DISCOUNT if line_type.endswith("Discount") else BillKind.OTHER)
    usage, resource = cells.get("lineItem/UsageType", ""), short_resource(cells["lineItem/ResourceId"])
    if _COMPUTE_USAGE.search(usage):
        return BillKind.COMPUTE
    if "EBS:" in usage or resource.startswith("vol-"):
        return BillKind.STORAGE
    if _EGRESS_USAGE.search(usage):
        return BillKind.EGRESS
    unit = cells.get("pricing/unit", "")
    by_time = unit == "" or time_unit(unit) is not None
    is_machine = resource.startswith("i-") or bool(cells.get("product/instanceType"))
    return BillKind.COMPUTE if not usage and by_time and is_machine else BillKind.OTHER


CUR: Final = Form(
    name="AWS CUR",
    required=(
        *("lineItem/LineItemType", "lineItem/UsageStartDate", "lineItem/UsageEndDate", "lineItem/UnblendedCost"),
        "lineItem/ResourceId",
    ),
    optional=(
        *("bill/BillingPeriodStartDate", "bill/BillingPeriodEndDate", "identity/LineItemId", "identity/TimeInterval"),
        *("lineItem/CurrencyCode", "lineItem/UsageAmount", "lineItem/UsageType", "pricing/unit"),
        "product/instanceType",
    ),
    cost="lineItem/UnblendedCost",
    currency="lineItem/CurrencyCode",
    resource="lineItem/ResourceId",
    start="lineItem/UsageStartDate",
    end="lineItem/UsageEndDate",
    quantity="lineItem/UsageAmount",
    unit="pricing/unit",
    period=("bill/BillingPeriodStartDate", "bill/BillingPeriodEndDate"),
    identity=("identity/LineItemId", "identity/TimeInterval"),
    kind=_cur_kind,
    # A savings plan lists a covered hour at the full price and takes it off again in a separate row.
    committed=lambda cells: cells["lineItem/LineItemType"] == "DiscountedUsage",
    # A usage type names what it is. Without one, only the unit hides the machine.
    in_parts=lambda cells: not cells.get("lineItem/UsageType") and is_time_of_a_part(cells.get("pricing/unit", "")),
)
