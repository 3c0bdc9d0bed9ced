"""Lambda Cloud: this instance's list price, from `GET /api/v1/instances/{id}`, `instance_type.price_cents_per_hour`.

Read: Lambda's public OpenAPI document 1.8.3 (path, Bearer key, `data`) and a recorded answer in a public client's tests
(id, status, instance_type with name, price_cents_per_hour and specs.gpus). Not verified against the real API. It allows
one request a second for a whole account: many nodes that start at once may get http_429.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.adapters.http.price_lookup import InstanceReading, KeyedLookUp, count_of, mapping, text_of, usd_micros
from governor.core.money.prices import Machine, PriceKind

ENDED: Final = frozenset({"terminating", "terminated", "preempted"})
CENTS_PER_USD: Final = 100


def _read(reply: Mapping[str, Any]) -> InstanceReading:
    instance = mapping(reply.get("data"))
    kind = mapping(instance.get("instance_type"))
    name, gpus = text_of(kind.get("name")), count_of(mapping(kind.get("specs")).get("gpus"))
    machine = Machine("Lambda", name, None, gpus, PriceKind.ON_DEMAND)
    runs = text_of(instance.get("status")) not in ENDED
    price = usd_micros(kind.get("price_cents_per_hour"), CENTS_PER_USD)
    return InstanceReading(
        instance, instance.get("id"), machine, runs, price, "Lambda Cloud, this instance's type", name or ""
    )


NAME = "lambda_cloud"
_INSTANCE: Final = KeyedLookUp(
    NAME,
    "/api/v1/instances/{id}",
    _read,
    id_variable="LAMBDA_INSTANCE_ID",
    id_meaning="Default: $LAMBDA_INSTANCE_ID. There is no metadata service to ask.",
    key_variable="LAMBDA_API_KEY",
    endpoint="https://cloud.lambda.ai",
)
KEYS, build = _INSTANCE.keys, _INSTANCE.build
