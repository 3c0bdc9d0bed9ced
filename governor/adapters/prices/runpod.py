"""RunPod: this pod's present price, from `GET /v2/pods/{id}`, field `cost` (USD an hour of the whole pod).

Read: the pod schema of RunPod's public OpenAPI document for API v2 (id, status, cost, gpu.id and gpu.count). Not
verified against the real API. Others have seen stopped pods there with a cost above 0, so only the cost of a running
pod counts. The schema does not mention interruptible pods, so every price is called on-demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.adapters.http.price_lookup import InstanceReading, KeyedLookUp, count_of, mapping, text_of, usd_micros
from governor.core.money.prices import Machine, PriceKind

RUNNING: Final = frozenset({"PROVISIONING", "STARTING", "RUNNING"})


def _read(pod: Mapping[str, Any]) -> InstanceReading:
    gpu = mapping(pod.get("gpu"))
    machine = Machine("RunPod", None, text_of(gpu.get("id")), count_of(gpu.get("count", 1)), PriceKind.ON_DEMAND)
    runs = text_of(pod.get("status")) in RUNNING
    basis = f"pod {pod.get('id')}"
    return InstanceReading(
        pod, pod.get("id"), machine, runs, usd_micros(pod.get("cost")), "RunPod, this pod's cost", basis
    )


NAME = "runpod"
_POD: Final = KeyedLookUp(
    NAME,
    "/v2/pods/{id}",
    _read,
    id_variable="RUNPOD_POD_ID",
    id_meaning="The pod's id. Default: $RUNPOD_POD_ID.",
    key_variable="RUNPOD_API_KEY",
    endpoint="https://api.runpod.io",
)
KEYS, build = _POD.keys, _POD.build
