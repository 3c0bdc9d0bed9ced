"""Lambda Cloud: this instance's list price, from `GET /api/v1/instances/{id}`, `instance_type.price_cents_per_hour`.

Read: Lambda's public OpenAPI document 1.8.3 (path, Bearer key, `data`) and a recorded answer in a public client's tests
(id, status, instance_type with name, price_cents_per_hour and specs.gpus). Not verified against the real API. It allows
one request a second for a whole account: many nodes that start at once may be told http_429.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.adapters import price_http
from governor.adapters.clouds import ConfigKey, Surroundings
from governor.adapters.price_http import Failure, JsonApi, explained
from governor.core.prices import Machine, Origin, PriceKind, Quote
from governor.ports import PriceAnswer, PriceSource

NAME = "lambda_cloud"
KEYS = (
    ConfigKey("instance_id", "text", None, "Default: $LAMBDA_INSTANCE_ID. There is no metadata service to ask."),
    ConfigKey("api_key_file", "text", None, "Default: lambda_cloud in $CREDENTIALS_DIRECTORY, else $LAMBDA_API_KEY."),
    price_http.TIMEOUT_KEY,
    ConfigKey("endpoint", "text", "https://cloud.lambda.ai", "API URL. Plain http only on loopback."),
)

ENDED: Final = frozenset({"terminating", "terminated", "preempted"})
CENTS_PER_USD: Final = 100


class LambdaPrices:
    name = NAME

    def __init__(self, config: Mapping[str, Any], surroundings: Surroundings) -> None:
        self._config = config
        self._surroundings = surroundings
        self._api = JsonApi(price_http.checked_endpoint(f"{NAME}.endpoint", config["endpoint"]), config["timeout_s"])
        self.bound_s = float(config["timeout_s"])

    def ask(self) -> PriceAnswer:
        instance_id = price_http.instance_id(self._config["instance_id"], "LAMBDA_INSTANCE_ID", self._surroundings)
        key = price_http.read_key(self._config["api_key_file"], "LAMBDA_API_KEY", NAME, self._surroundings)
        reply = self._api.ask("/api/v1/instances/{id}", instance_id, key)
        if isinstance(reply, Failure):
            return PriceAnswer(problem=explained(reply.reason))
        return self._read(price_http.mapping(reply.get("data")), str(instance_id))

    def _read(self, instance: Mapping[str, Any], instance_id: str) -> PriceAnswer:
        if instance.get("id") != instance_id:
            return PriceAnswer(problem=explained("other_machine" if "id" in instance else "malformed"))
        kind = price_http.mapping(instance.get("instance_type"))
        gpus = price_http.mapping(kind.get("specs")).get("gpus")
        machine = Machine(
            "Lambda", price_http.text_of(kind.get("name")), None, gpus if isinstance(gpus, int) else None,
            PriceKind.ON_DEMAND,
        )  # fmt: skip
        if instance.get("status") in ENDED:
            return PriceAnswer(problem=explained("not_running"), machine=machine)
        price = price_http.usd_micros(kind.get("price_cents_per_hour"), CENTS_PER_USD)
        if isinstance(price, Failure):
            return PriceAnswer(problem=explained(price.reason), machine=machine)
        quote = Quote(
            price, "Lambda Cloud, this instance's type", price_http.today(self._surroundings), PriceKind.ON_DEMAND,
            machine.instance or "", Origin.MACHINE, machine.gpus,
        )  # fmt: skip
        return PriceAnswer(quote, machine=machine)


def build(config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
    return LambdaPrices(config, surroundings)
