"""RunPod: what this pod costs now, from `GET /v2/pods/{id}`, field `cost` (USD an hour of the whole pod).

Read: the pod schema of RunPod's public OpenAPI document for API v2 (id, status, cost, gpu.id and gpu.count). Not
verified against the real API. Others have seen stopped pods there with a cost above 0, so only a pod that runs is
believed. The schema has no word on interruptible pods: the price is called on-demand.
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

NAME = "runpod"
KEYS = (
    ConfigKey("instance_id", "text", None, "The pod's id. Default: $RUNPOD_POD_ID."),
    ConfigKey("api_key_file", "text", None, "Default: runpod in $CREDENTIALS_DIRECTORY, else $RUNPOD_API_KEY."),
    TIMEOUT_KEY,
    ConfigKey("endpoint", "text", "https://api.runpod.io", "API URL. Plain http only on loopback."),
)

RUNNING: Final = frozenset({"PROVISIONING", "STARTING", "RUNNING"})


def _read(pod: Mapping[str, Any], pod_id: str, today: str) -> PriceAnswer:
    if pod.get("id") != pod_id:
        return unanswered(Failure("other_machine" if "id" in pod else "malformed"))
    gpu = mapping(pod.get("gpu"))
    gpus = gpu.get("count", 1)
    machine = Machine(
        "RunPod", None, text_of(gpu.get("id")), gpus if isinstance(gpus, int) else None, PriceKind.ON_DEMAND
    )  # fmt: skip
    if text_of(pod.get("status")) not in RUNNING:
        return unanswered(Failure("not_running"), machine)
    return answered(usd_micros(pod.get("cost")), machine, "RunPod, this pod's cost", f"pod {pod_id}", today)


def build(config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
    return KeyedLookUp(NAME, "/v2/pods/{id}", ("RUNPOD_POD_ID", "RUNPOD_API_KEY"), _read, config, surroundings)
