"""RunPod: what this pod costs now, from `GET /v2/pods/{id}`, field `cost` (USD an hour of the whole pod).

Read: the pod schema of RunPod's public OpenAPI document for API v2 (id, status, cost, gpu.id and gpu.count). Not
verified against the real API. Others have seen stopped pods there with a cost above 0, so only a pod that runs is
believed. The schema has no word on interruptible pods: the price is called on-demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.adapters import price_http
from governor.adapters.clouds import ConfigKey, Surroundings
from governor.adapters.price_http import Failure, JsonApi, explained
from governor.core.prices import Machine, Origin, PriceKind, Quote
from governor.ports import PriceAnswer, PriceSource

NAME = "runpod"
KEYS = (
    ConfigKey("instance_id", "text", None, "The pod's id. Default: $RUNPOD_POD_ID."),
    ConfigKey("api_key_file", "text", None, "Default: runpod in $CREDENTIALS_DIRECTORY, else $RUNPOD_API_KEY."),
    price_http.TIMEOUT_KEY,
    ConfigKey("endpoint", "text", "https://api.runpod.io", "API URL. Plain http only on loopback."),
)

RUNNING: Final = frozenset({"PROVISIONING", "STARTING", "RUNNING"})


class RunpodPrices:
    name = NAME

    def __init__(self, config: Mapping[str, Any], surroundings: Surroundings) -> None:
        self._config = config
        self._surroundings = surroundings
        self._api = JsonApi(price_http.checked_endpoint(f"{NAME}.endpoint", config["endpoint"]), config["timeout_s"])
        self.bound_s = float(config["timeout_s"])

    def ask(self) -> PriceAnswer:
        pod_id = price_http.instance_id(self._config["instance_id"], "RUNPOD_POD_ID", self._surroundings)
        key = price_http.read_key(self._config["api_key_file"], "RUNPOD_API_KEY", NAME, self._surroundings)
        pod = self._api.ask("/v2/pods/{id}", pod_id, key)
        if isinstance(pod, Failure):
            return PriceAnswer(problem=explained(pod.reason))
        return self._read(pod, str(pod_id))

    def _read(self, pod: Mapping[str, Any], pod_id: str) -> PriceAnswer:
        if pod.get("id") != pod_id:
            return PriceAnswer(problem=explained("other_machine" if "id" in pod else "malformed"))
        gpu = price_http.mapping(pod.get("gpu"))
        count = gpu.get("count", 1)
        machine = Machine(
            "RunPod", None, price_http.text_of(gpu.get("id")), count if isinstance(count, int) else None,
            PriceKind.ON_DEMAND,
        )  # fmt: skip
        if pod.get("status") not in RUNNING:
            return PriceAnswer(problem=explained("not_running"), machine=machine)
        price = price_http.usd_micros(pod.get("cost"))
        if isinstance(price, Failure):
            return PriceAnswer(problem=explained(price.reason), machine=machine)
        quote = Quote(
            price, "RunPod, this pod's cost", price_http.today(self._surroundings), PriceKind.ON_DEMAND,
            f"pod {pod_id}", Origin.MACHINE, machine.gpus,
        )  # fmt: skip
        return PriceAnswer(quote, machine=machine)


def build(config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
    return RunpodPrices(config, surroundings)
