"""Vast.ai: what this instance costs now, from `GET /api/v0/instances/{id}/`, field `dph_total` (USD an hour).

Read: Vast.ai's public OpenAPI document (path, Bearer key, `{"instances": {…} or null}`). It leaves the object open:
`dph_total`, `num_gpus`, `gpu_name` and `cur_state` are as public clients read them, `is_bid` is from memory. Not
verified against the real API. The key that every container is given is enough: it may read its own instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.adapters import price_http
from governor.adapters.clouds import ConfigKey, Surroundings
from governor.adapters.price_http import Failure, JsonApi, explained
from governor.core.prices import Machine, Origin, PriceKind, Quote
from governor.ports import PriceAnswer, PriceSource

NAME = "vast"
KEYS = (
    ConfigKey("instance_id", "text", None, "Default: $CONTAINER_ID."),
    ConfigKey("api_key_file", "text", None, "Default: vast in $CREDENTIALS_DIRECTORY, else $CONTAINER_API_KEY."),
    price_http.TIMEOUT_KEY,
    ConfigKey("endpoint", "text", "https://console.vast.ai", "API URL. Plain http only on loopback."),
)

ENDED: Final = frozenset({"stopped", "unloaded"})  # Of `cur_state`: the contract, not the container.


class VastPrices:
    name = NAME

    def __init__(self, config: Mapping[str, Any], surroundings: Surroundings) -> None:
        self._config = config
        self._surroundings = surroundings
        self._api = JsonApi(price_http.checked_endpoint(f"{NAME}.endpoint", config["endpoint"]), config["timeout_s"])
        self.bound_s = float(config["timeout_s"])

    def ask(self) -> PriceAnswer:
        instance_id = price_http.instance_id(self._config["instance_id"], "CONTAINER_ID", self._surroundings)
        key = price_http.read_key(self._config["api_key_file"], "CONTAINER_API_KEY", NAME, self._surroundings)
        reply = self._api.ask("/api/v0/instances/{id}/", instance_id, key)
        if isinstance(reply, Failure):
            return PriceAnswer(problem=explained(reply.reason))
        if "instances" in reply and reply["instances"] is None:
            return PriceAnswer(problem=explained("http_404"))  # Said with a 200.
        return self._read(price_http.mapping(reply.get("instances")), str(instance_id))

    def _read(self, instance: Mapping[str, Any], instance_id: str) -> PriceAnswer:
        if str(instance.get("id")) != instance_id:
            return PriceAnswer(problem=explained("other_machine" if "id" in instance else "malformed"))
        gpus = instance.get("num_gpus")
        kind = PriceKind.SPOT if instance.get("is_bid") is True else PriceKind.ON_DEMAND
        machine = Machine(
            "Vast.ai", None, price_http.text_of(instance.get("gpu_name")), gpus if isinstance(gpus, int) else None, kind
        )
        if instance.get("cur_state") in ENDED:
            return PriceAnswer(problem=explained("not_running"), machine=machine)
        price = price_http.usd_micros(instance.get("dph_total"))
        if isinstance(price, Failure):
            return PriceAnswer(problem=explained(price.reason), machine=machine)
        quote = Quote(
            price, "Vast.ai, this instance's dph_total", price_http.today(self._surroundings), kind,
            f"instance {instance_id}", Origin.MACHINE, machine.gpus,
        )  # fmt: skip
        return PriceAnswer(quote, machine=machine)


def build(config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
    return VastPrices(config, surroundings)
