"""Lambda Cloud: this instance's list price, from `GET /api/v1/instances/{id}`, `instance_type.price_cents_per_hour`.

Read: Lambda's public OpenAPI document 1.8.3 (path, Bearer key, `data`) and a recorded answer in a public client's tests
(id, status, instance_type with name, price_cents_per_hour and specs.gpus). Not verified against the real API. It allows
one request a second for a whole account: many nodes that start at once may be told http_429.
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

NAME = "lambda_cloud"
KEYS = (
    ConfigKey("instance_id", "text", None, "Default: $LAMBDA_INSTANCE_ID. There is no metadata service to ask."),
    ConfigKey("api_key_file", "text", None, "Default: lambda_cloud in $CREDENTIALS_DIRECTORY, else $LAMBDA_API_KEY."),
    TIMEOUT_KEY,
    ConfigKey("endpoint", "text", "https://cloud.lambda.ai", "API URL. Plain http only on loopback."),
)

ENDED: Final = frozenset({"terminating", "terminated", "preempted"})
CENTS_PER_USD: Final = 100


def _read(reply: Mapping[str, Any], instance_id: str, today: str) -> PriceAnswer:
    instance = mapping(reply.get("data"))
    if instance.get("id") != instance_id:
        return unanswered(Failure("other_machine" if "id" in instance else "malformed"))
    kind = mapping(instance.get("instance_type"))
    gpus = mapping(kind.get("specs")).get("gpus")
    machine = Machine(
        "Lambda", text_of(kind.get("name")), None, gpus if isinstance(gpus, int) else None, PriceKind.ON_DEMAND
    )  # fmt: skip
    if text_of(instance.get("status")) in ENDED:
        return unanswered(Failure("not_running"), machine)
    price = usd_micros(kind.get("price_cents_per_hour"), CENTS_PER_USD)
    return answered(price, machine, "Lambda Cloud, this instance's type", machine.instance or "", today)


def build(config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
    return KeyedLookUp(
        NAME, "/api/v1/instances/{id}", ("LAMBDA_INSTANCE_ID", "LAMBDA_API_KEY"), _read, config, surroundings
    )
