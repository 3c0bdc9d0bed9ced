"""The columns of FOCUS 1.4's Cost and Usage, and the values that it allows in some of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


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


# A conditional column depends on what a provider offers, which no file shows: only the mandatory are asked for.
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
