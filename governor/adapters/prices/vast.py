"""Vast.ai: this instance's present price, from `GET /api/v0/instances/{id}/`, field `dph_total` (USD an hour).

Read: Vast.ai's public OpenAPI document (path, Bearer key, `{"instances": {…} or null}`). It leaves the object open:
`dph_total`, `num_gpus`, `gpu_name` and `cur_state` are as public clients read them, `is_bid` is from memory. Not
verified against the real API. The key in every container suffices: it may read its own instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.adapters.http.price_lookup import (
    Failure,
    InstanceReading,
    KeyedLookUp,
    count_of,
    mapping,
    text_of,
    usd_micros,
)
from governor.core.money.prices import Machine, PriceKind

# Values of `cur_state`, which describes the contract, not the container.
ENDED: Final = frozenset({"stopped", "unloaded"})


def _read(reply: Mapping[str, Any]) -> InstanceReading | Failure:
    if "instances" in reply and reply["instances"] is None:
        return Failure("http_404")  # The API sends this with status 200.
    instance = mapping(reply.get("instances"))
    contract = str(instance.get("id"))
    kind = PriceKind.SPOT if instance.get("is_bid") is True else PriceKind.ON_DEMAND
    machine = Machine("Vast.ai", None, text_of(instance.get("gpu_name")), count_of(instance.get("num_gpus")), kind)
    runs = text_of(instance.get("cur_state")) not in ENDED
    price = usd_micros(instance.get("dph_total"))
    source, basis = "Vast.ai, this instance's dph_total", f"instance {contract}"
    return InstanceReading(instance, contract, machine, runs, price, source, basis)


NAME = "vast"
_INSTANCE: Final = KeyedLookUp(
    NAME,
    "/api/v0/instances/{id}/",
    _read,
    id_variable="CONTAINER_ID",
    id_meaning="Default: $CONTAINER_ID.",
    key_variable="CONTAINER_API_KEY",
    endpoint="https://console.vast.ai",
)
KEYS, build = _INSTANCE.keys, _INSTANCE.build
