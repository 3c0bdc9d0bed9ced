"""Azure: the public list price of this VM's size in its region, from the Retail Prices API. It needs no key.

It is a list price, not this customer's, so a price in costgov.toml takes precedence. Spot and low-priority rows are
left out, and so are rows with a Windows licence, which differ by their productName alone. The price of a Spot VM is
not known here. Read: Microsoft's "Azure Retail Prices overview" ($filter, Items, NextPageLink, priceType; values are
case-sensitive) and the shapes of ND H100 v5 rows in public clients. The VM's metadata (vmSize, location, priority) is
from memory of its documentation. Not verified against the real API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote as percent

from governor.adapters.http import price_lookup
from governor.adapters.http.price_lookup import Failure, JsonApi, explained
from governor.adapters.plugins import ConfigKey, Surroundings
from governor.core.base.units import format_usd
from governor.core.money.prices import Machine, Origin, PriceAnswer, PriceKind, Quote
from governor.remote_ports import PriceSource

NAME = "azure"
KEYS = (
    ConfigKey("instance_type", "text", None, "The VM's size, as Standard_ND96isr_H100_v5. Default: by its metadata."),
    ConfigKey("region", "text", None, "As eastus. Default: by the VM's metadata."),
    price_lookup.TIMEOUT_KEY,
    ConfigKey("endpoint", "text", "https://prices.azure.com", "URL of the prices. Plain http only on loopback."),
    ConfigKey("metadata_endpoint", "text", "http://169.254.169.254", "Metadata service; link-local or loopback."),
)

PAGES_MAX: Final = 10  # One size in one region has some ten rows; a page holds a hundred.
# It becomes part of a filter, so no quotes and no spaces.
_SIZE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REGION: Final = re.compile(r"[a-z0-9]{1,32}")
_METADATA: Final = "/metadata/instance/compute?api-version=2021-02-01"
_OTHER_SKUS: Final = ("spot", "low priority")


class AzurePrices:
    name = NAME

    def __init__(self, config: Mapping[str, Any], surroundings: Surroundings) -> None:
        self._size: str | None = config["instance_type"]
        self._region: str | None = config["region"]
        self._surroundings = surroundings
        endpoint = price_lookup.checked_endpoint(f"{NAME}.endpoint", config["endpoint"])
        metadata = price_lookup.checked_endpoint(f"{NAME}.metadata_endpoint", config["metadata_endpoint"])
        self._api = JsonApi(endpoint, config["timeout_s"])
        self._metadata = JsonApi(metadata, config["timeout_s"])
        self.bound_s = float(config["timeout_s"])

    def ask(self) -> PriceAnswer:
        ends_at = self._api.begin()
        machine = self._machine(ends_at)
        if isinstance(machine, Failure):
            return PriceAnswer(problem=f"metadata service: {explained(machine.reason)}")
        if machine.kind is PriceKind.SPOT:
            return PriceAnswer(
                problem="a Spot VM's price is not in the list; state node.price_usd_per_hour", machine=machine
            )
        rows = self._rows(machine, ends_at)
        if isinstance(rows, Failure):
            return PriceAnswer(problem=explained(rows.reason), machine=machine)
        return self._read(rows, machine)

    def _machine(self, ends_at: float) -> Machine | Failure:
        size, region, kind = self._size, self._region, None
        if size is None or region is None:
            found = self._metadata.get(_METADATA, ends_at, {"Metadata": "true"})
            if isinstance(found, Failure):
                return found
            compute = price_lookup.mapping(found)
            size, region = size or compute.get("vmSize"), region or compute.get("location")
            kind = PriceKind.SPOT if compute.get("priority") in ("Spot", "Low") else PriceKind.ON_DEMAND
        if not isinstance(size, str) or not isinstance(region, str):
            return Failure("malformed")
        if not _SIZE.fullmatch(size) or not _REGION.fullmatch(region):
            return Failure("malformed")
        return Machine("Azure", size, None, None, kind, region)

    def _rows(self, machine: Machine, ends_at: float) -> list[Mapping[str, Any]] | Failure:
        wanted = (
            f"serviceName eq 'Virtual Machines' and armSkuName eq '{machine.instance}'"
            f" and armRegionName eq '{machine.region}' and priceType eq 'Consumption'"
        )
        target: object = f"/api/retail/prices?$filter={percent(wanted)}"
        rows: list[Mapping[str, Any]] = []
        for _ in range(PAGES_MAX):
            page = self._api.get(str(target), ends_at, {})
            if isinstance(page, Failure):
                return page
            items = price_lookup.mapping(page).get("Items")
            if not isinstance(items, list):
                return Failure("malformed")
            rows += [price_lookup.mapping(item) for item in items]
            target = price_lookup.mapping(page).get("NextPageLink")
            if not target:
                return rows
        return Failure("too_large")

    def _read(self, rows: list[Mapping[str, Any]], machine: Machine) -> PriceAnswer:
        ours = [row for row in rows if _is_ours(row, machine)]
        # A meter may also be listed for regions in which it is not billed.
        ours = [row for row in ours if row.get("isPrimaryMeterRegion") is True] or ours
        prices = {price_lookup.usd_micros(row.get("retailPrice")) for row in ours}
        for price in prices:
            if isinstance(price, Failure):
                return PriceAnswer(problem=explained(price.reason), machine=machine)
        if len(prices) > 1:
            figures = ", ".join(format_usd(price) for price in sorted(p for p in prices if not isinstance(p, Failure)))
            return PriceAnswer(problem=f"{machine.instance} has several list prices: {figures}", machine=machine)
        if not prices:
            return PriceAnswer(problem=explained("no_price"), machine=machine)
        [price] = prices
        assert not isinstance(price, Failure), "failures were told above"
        quote = Quote(
            price, "Azure retail prices", price_lookup.today(self._surroundings), PriceKind.ON_DEMAND,
            f"{machine.instance} in {machine.region}", Origin.LIST,
        )  # fmt: skip
        return PriceAnswer(quote, machine=machine)


def _is_ours(row: Mapping[str, Any], machine: Machine) -> bool:
    skus = f"{row.get('skuName')} {row.get('meterName')}".casefold()
    return (
        row.get("armSkuName") == machine.instance
        and row.get("armRegionName") == machine.region
        and row.get("type") == "Consumption"
        and row.get("unitOfMeasure") == "1 Hour"
        and row.get("currencyCode") == "USD"
        and not any(other in skus for other in _OTHER_SKUS)
        and "windows" not in str(row.get("productName")).casefold()
    )


def build(config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
    return AzurePrices(config, surroundings)
