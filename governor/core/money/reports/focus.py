"""Charges as rows of FOCUS, the FinOps Open Cost and Usage Specification: dataset Cost and Usage, version 1.4.

| column | from |
|---|---|
| BillingAccountId, BillingAccountName | `Issuer.account`: our own ledger, unless the provider's account was given |
| BillingPeriodStart, BillingPeriodEnd | the UTC month; a charge that crosses its end becomes two rows |
| ChargePeriodStart, ChargePeriodEnd | `from_wall`, `to_wall`, in whole seconds |
| ChargeCategory, ChargeFrequency | a charge by the piece is a One-Time Purchase, any other is Usage |
| ChargeClass | null: a closed month is never corrected |
| ChargeDescription | the line, the node and the run |
| ContractedUnitPrice, ListUnitPrice | the line's price: only one is known, and not which of the two it is |
| PricingQuantity, PricingUnit | `usd_micros` by the price, in Hours, GB-Months, GB or Units: what was charged |
| ConsumedQuantity, ConsumedUnit | `quantity`, for Usage: what was metered, before whole micro-dollars at each tick |
| ContractedCost, ListCost, EffectiveCost | `usd_micros` |
| BilledCost | 0, which is required without an invoice. With `Issuer.billed` the amount |
| HostProviderName, InvoiceIssuerName, ServiceProviderName | the cloud |
| ServiceName, ServiceCategory, ServiceSubcategory, SkuMeter | the kind of line |
| SkuId, SkuPriceId | the line's name |
| PricingCategory | Dynamic where the price's kind is spot, else Standard |
| RegionId, RegionName | the region; it has no other name here |
| ResourceId, ResourceName, ResourceType | the instance or the volume, and the node |
| Tags | the run's labels |
| x_… | the rest of the charge, so that a row can be traced to it |

Columns about discounts, commitments, invoices and sub accounts are left out: the ledger has no data for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from governor.core.base.units import NS_PER_S, month_of, utc_text
from governor.core.money.charges import UNALLOCATED, Charge, LineKind, Place, Unit
from governor.core.money.prices import PriceKind
from governor.core.money.reports.cost import decimal_text, exact_usd, slices

VERSION: Final = "1.4"
OWN_ACCOUNT: Final = "costgov"
OWN_MACHINES: Final = "self-hosted"
# 3.6 microseconds of an hour, or a byte of a GB: either costs less than a micro-dollar.
QUANTITY_DIGITS: Final = 9
# With them price x quantity is off by half a billionth of a dollar at a million dollars an hour, which FOCUS allows.
PRICED_DIGITS: Final = 15

COLUMNS: Final = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency"),
    *("ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost"),
    *("ContractedUnitPrice", "EffectiveCost", "HostProviderName", "InvoiceIssuerName", "ListCost", "ListUnitPrice"),
    *("PricingCategory", "PricingQuantity", "PricingUnit", "RegionId", "RegionName", "ResourceId", "ResourceName"),
    *("ResourceType", "ServiceCategory", "ServiceName", "ServiceProviderName", "ServiceSubcategory", "SkuId"),
    *("SkuMeter", "SkuPriceDetails", "SkuPriceId", "Tags"),
    *("x_ChargeId", "x_RunName", "x_AttemptId", "x_StageName", "x_NodeName", "x_PriceSource", "x_PriceDate"),
    "x_Reconstructed",
)

FocusRow = dict[str, str | None]

_PROVIDERS: Final = {"aws": "AWS", "none": OWN_MACHINES, "command": OWN_MACHINES}
_UNITS: Final = {Unit.HOUR: "Hours", Unit.GB_MONTH: "GB-Months", Unit.GB: "GB", Unit.PIECE: "Units"}
# Kind -> service (AWS's name, any other's), category, subcategory, meter.
_SERVICES: Final = {
    LineKind.COMPUTE: (("Amazon Elastic Compute Cloud", "Compute"), "Compute", "Virtual Machines", "Compute Usage"),
    LineKind.STORAGE: (("Amazon Elastic Block Store", "Block Storage"), "Storage", "Block Storage", "Volume Usage"),
    LineKind.EGRESS: (("AWS Data Transfer", "Data Transfer"), "Networking", "Network Connectivity", "Data Transfer"),
    LineKind.FIXED: (("Fixed Items", "Fixed Items"), "Other", "Other (Other)", "Fixed Items"),
}


@dataclass(frozen=True, slots=True)
class Issuer:
    """The issuer of the invoice, which the ledger does not know. `provider` is used if the cloud has no name."""

    account: str = OWN_ACCOUNT
    provider: str | None = None
    billed: bool = False


def focus_rows(charge: Charge, issuer: Issuer) -> Iterator[FocusRow]:
    """Yield one row for each month that the charge touches; the amounts of the rows add up to it."""
    for part in slices(charge, month_of):
        yield {**_who_and_what(part, issuer), **_when(part), **_how_much(part, issuer), **_trace(part)}


def resource_id(charge: Charge) -> str:
    """The name on the provider's bill: the volume (which names a storage line), the instance, or else the node."""
    if charge.line.kind is LineKind.STORAGE:
        return charge.line.name.split()[0] if charge.line.name.split() else charge.place.node
    return charge.place.instance_id or charge.place.node


def _resource_type(charge: Charge) -> str:
    if charge.line.kind is LineKind.STORAGE:
        return "Volume"
    return "Virtual Machine" if charge.place.instance_id else "Node"


def provider_name(place: Place, issuer: Issuer) -> str:
    known = _PROVIDERS.get(place.cloud, place.cloud)
    return issuer.provider if issuer.provider is not None and known == OWN_MACHINES else known


def _who_and_what(charge: Charge, issuer: Issuer) -> FocusRow:
    place, line = charge.place, charge.line
    provider = provider_name(place, issuer)
    (on_aws, anywhere), category, subcategory, meter = _SERVICES[line.kind]
    whose = f"run {charge.payer.run}" if charge.payer.run != UNALLOCATED else "no run"
    return {
        "BillingAccountId": issuer.account,
        "BillingAccountName": issuer.account,
        "ChargeCategory": "Purchase" if line.unit is Unit.PIECE else "Usage",
        "ChargeClass": None,
        "ChargeDescription": f"{line.name} on {place.node}, {whose}",
        "ChargeFrequency": "One-Time" if line.unit is Unit.PIECE else "Usage-Based",
        "HostProviderName": provider,
        "InvoiceIssuerName": provider,
        "PricingCategory": "Dynamic" if line.price_kind == PriceKind.SPOT.value else "Standard",
        "RegionId": place.region or None,
        "RegionName": place.region or None,
        "ResourceId": resource_id(charge),
        # A display name that repeats the id adds nothing, and a volume has none of its own.
        "ResourceName": place.node if line.kind is not LineKind.STORAGE and place.instance_id else None,
        "ResourceType": _resource_type(charge),
        "ServiceCategory": category,
        "ServiceName": on_aws if place.cloud == "aws" else anywhere,
        "ServiceProviderName": provider,
        "ServiceSubcategory": subcategory,
        "SkuId": line.name,
        "SkuMeter": meter,
        "SkuPriceDetails": None,
        "SkuPriceId": line.name,
        "Tags": json.dumps(dict(charge.payer.labels), ensure_ascii=False) if charge.payer.labels else None,
    }


def _when(charge: Charge) -> FocusRow:
    start, end = charge.from_wall, charge.to_wall
    first = start - start % NS_PER_S
    last = max(end - end % NS_PER_S, first + NS_PER_S)  # The shortest period has one second.
    billing_start, billing_end = month_of(start)
    return {
        "BillingPeriodStart": utc_text(billing_start),
        "BillingPeriodEnd": utc_text(billing_end),
        "ChargePeriodStart": utc_text(first),
        "ChargePeriodEnd": utc_text(last),
    }


def _how_much(charge: Charge, issuer: Issuer) -> FocusRow:
    line, amount = charge.line, exact_usd(charge.usd_micros)
    quantity = decimal_text(charge.quantity, line.unit.base_units, QUANTITY_DIGITS)
    used = line.unit is not Unit.PIECE
    return {
        "BilledCost": amount if issuer.billed else exact_usd(0),
        "BillingCurrency": "USD",
        "ConsumedQuantity": quantity if used else None,
        "ConsumedUnit": _UNITS[line.unit] if used else None,
        "ContractedCost": amount,
        "ContractedUnitPrice": exact_usd(line.price_usd_micros),
        "EffectiveCost": amount,
        "ListCost": amount,
        "ListUnitPrice": exact_usd(line.price_usd_micros),
        "PricingQuantity": _priced_quantity(charge),
        "PricingUnit": _UNITS[line.unit],
    }


def _priced_quantity(charge: Charge) -> str:
    """The quantity whose price is the amount, to the last digit: 1, 0.5, 0.333333327277616."""
    line = charge.line
    if line.price_usd_micros:
        text = decimal_text(charge.usd_micros, line.price_usd_micros, PRICED_DIGITS)
    else:
        text = decimal_text(charge.quantity, line.unit.base_units, PRICED_DIGITS)
    return text.rstrip("0").rstrip(".")


def _trace(charge: Charge) -> FocusRow:
    payer, line = charge.payer, charge.line
    return {
        "x_ChargeId": charge.charge_id,
        "x_RunName": payer.run or None,
        "x_AttemptId": payer.attempt or None,
        "x_StageName": payer.stage or None,
        "x_NodeName": charge.place.node,
        "x_PriceSource": line.source or None,
        "x_PriceDate": line.as_of or None,
        "x_Reconstructed": "true" if charge.reconstructed else "false",
    }
