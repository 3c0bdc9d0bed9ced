"""No cloud: a halt ends processes, and reports plainly that the machine stays billed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from governor.adapters.plugins import ConfigKey, Surroundings
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import BillingReply, Cloud, Notice, Preflight, StopReply

NAME = "none"
KEYS: tuple[ConfigKey, ...] = ()


class NoCloud:
    name = NAME
    stop_bound_s = 0.0
    granularity_s = 0.0
    gives_notice = False
    billing_source = NAME

    def preflight(self) -> Preflight:
        return Preflight(
            ok=True,
            instance_id=None,
            will="end the run's processes; stop no machine",
            stays_billed=("this machine: no cloud is configured",),
            problems=(),
            survives_stop=True,
        )

    def stop(self, incident_id: str, rung: int) -> StopReply:
        del incident_id, rung
        return StopReply(StopAnswer.REFUSED, retryable=False, reason="no_cloud_configured")

    def notice(self) -> Notice | None:
        return None

    def other(self, instance_id: str) -> Cloud | None:
        return None

    def billing(self, *, destroyed: bool = False) -> BillingReply:
        del destroyed
        return BillingReply(BillingAnswer.UNKNOWN, "no_cloud_configured")


def build(config: Mapping[str, Any], surroundings: Surroundings) -> Cloud:
    del config, surroundings
    return NoCloud()
