"""Vast.ai: what this instance costs now, from `GET /api/v0/instances/{id}/`, field `dph_total` (USD an hour).

Read: Vast.ai's public OpenAPI document (path, Bearer key, `{"instances": {…} or null}`). It leaves the object open:
`dph_total`, `num_gpus`, `gpu_name` and `cur_state` are as public clients read them, `is_bid` is from memory. Not
verified against the real API. The key that every container is given is enough: it may read its own instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.adapters.http.price_lookup import (
    TIMEOUT_KEY,
    Failure,
    KeyedLookUp,
    answered,
    mapping,
    text_of,
    unanswered,
    usd_micros,
)
from governor.adapters.plugins import ConfigKey, Surroundings
from governor.core.money.prices import Machine, PriceKind
from governor.ports import PriceAnswer, PriceSource

NAME = "vast"
KEYS = (
    ConfigKey("instance_id", "text", None, "Default: $CONTAINER_ID."),
    ConfigKey("api_key_file", "text", None, "Default: vast in $CREDENTIALS_DIRECTORY, else $CONTAINER_API_KEY."),
    TIMEOUT_KEY,
    ConfigKey("endpoint", "text", "https://console.vast.ai", "API URL. Plain http only on loopback."),
)

ENDED: Final = frozenset({"stopped", "unloaded"})  # Of `cur_state`: the contract, not the container.


def _read(reply: Mapping[str, Any], instance_id: str, today: str) -> PriceAnswer:
    if "instances" in reply and reply["instances"] is None:
        return unanswered(Failure("http_404"))  # Said with a 200.
    instance = mapping(reply.get("instances"))
    if str(instance.get("id")) != instance_id:
        return unanswered(Failure("other_machine" if "id" in instance else "malformed"))
    gpus = instance.get("num_gpus")
    kind = PriceKind.SPOT if instance.get("is_bid") is True else PriceKind.ON_DEMAND
    machine = Machine("Vast.ai", None, text_of(instance.get("gpu_name")), gpus if isinstance(gpus, int) else None, kind)
    if text_of(instance.get("cur_state")) in ENDED:
        return unanswered(Failure("not_running"), machine)
    price = usd_micros(instance.get("dph_total"))
    return answered(price, machine, "Vast.ai, this instance's dph_total", f"instance {instance_id}", today)


def build(config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
    return KeyedLookUp(
        NAME, "/api/v0/instances/{id}/", ("CONTAINER_ID", "CONTAINER_API_KEY"), _read, config, surroundings
    )
