"""One instance as DescribeInstances shows it, and the pure plan of how to end its spending."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from governor.adapters.clouds.ec2.api import Call, text
from governor.core.base.units import NS_PER_S, WallNs
from governor.core.events.events import BillingAnswer

# `stopping` and `shutting-down` are on the way and can fail there; only the two final states have ended.
BILLING_BY_STATE: Final[Mapping[str, BillingAnswer]] = {
    "pending": BillingAnswer.RUNNING,
    "running": BillingAnswer.RUNNING,
    "stopping": BillingAnswer.RUNNING,
    "shutting-down": BillingAnswer.RUNNING,
    "stopped": BillingAnswer.ENDED,
    "terminated": BillingAnswer.ENDED,
}
_STATE: Final = re.compile(r"[a-z-]{1,32}")  # It is shown and journalled: a word, whatever it says.
ASG_TAG: Final = "aws:autoscaling:groupName"
LIVE_SPOT_REQUEST_STATES: Final = frozenset({"open", "active", "disabled"})  # These can start a machine (again).
VOLUMES_MAX: Final = 128  # The most that EC2 attaches to any instance type.


@dataclass(frozen=True, slots=True)
class SpotRequest:
    request_id: str
    type: str  # one-time | persistent
    state: str


@dataclass(frozen=True, slots=True)
class Instance:
    instance_id: str
    state: str
    lifecycle: str  # on-demand | spot | scheduled | capacity-block | …
    root_device: str  # ebs | instance-store
    asg: str | None
    capacity_reservation_id: str | None
    spot_request_id: str | None
    volume_ids: tuple[str, ...]
    launched_at_wall: WallNs | None

    @property
    def is_spot(self) -> bool:
        return self.lifecycle == "spot"


def parse_instance(root: ElementTree.Element, instance_id: str) -> Instance | None:
    """Return the instance of exactly this id from a DescribeInstances reply, or None when it is not in there."""
    for element in _items(root, "reservationSet", "instancesSet"):
        if text(element, "instanceId") != instance_id:
            continue
        state = text(element, "instanceState/name") or ""
        tags = {text(tag, "key"): text(tag, "value") for tag in _items(element, "tagSet")}
        return Instance(
            instance_id=instance_id,
            state=state if _STATE.fullmatch(state) else "unreadable",
            lifecycle=text(element, "instanceLifecycle") or "on-demand",
            root_device=text(element, "rootDeviceType") or "",
            asg=tags.get(ASG_TAG),
            capacity_reservation_id=text(element, "capacityReservationId"),
            spot_request_id=text(element, "spotInstanceRequestId"),
            volume_ids=tuple(
                volume
                for device in _items(element, "blockDeviceMapping")
                if (volume := text(device, "ebs/volumeId")) is not None
            )[:VOLUMES_MAX],
            launched_at_wall=_wall(text(element, "launchTime")),
        )
    return None


def parse_spot_request(root: ElementTree.Element, request_id: str) -> SpotRequest | None:
    for element in _items(root, "spotInstanceRequestSet"):
        if text(element, "spotInstanceRequestId") == request_id:
            return SpotRequest(request_id, text(element, "type") or "persistent", text(element, "state") or "open")
    return None


def stop_calls(
    instance: Instance | None, instance_id: str, spot: SpotRequest | None, rung: int, terminate: bool
) -> tuple[Call, ...]:
    """Return the calls of a rung, in order. Only `instance_id` and its own spot request ever appear in them.

    `instance` None: EC2 did not tell us; the plain stop is then the call that is never worse than none.
    A call before the last one prepares: if it fails, a stop still makes sense, a termination would be undone.
    """
    if instance is not None and instance.asg is not None and terminate and rung < 2:
        decrement = (("InstanceId", instance_id), ("ShouldDecrementDesiredCapacity", "true"))
        return (Call("TerminateInstanceInAutoScalingGroup", decrement, "autoscaling"),)
    prepare: tuple[Call, ...] = ()
    ends_by_termination = terminate and rung >= 2
    if instance is not None and instance.is_spot:
        one_time = spot is not None and spot.type == "one-time"
        # EC2 refuses to stop a one-time spot instance: terminating it is the only stop there is.
        ends_by_termination = ends_by_termination or one_time
        if not one_time and instance.spot_request_id and (spot is None or spot.state in LIVE_SPOT_REQUEST_STATES):
            # A persistent request starts a new machine in place of a terminated one.
            prepare = (Call("CancelSpotInstanceRequests", (("SpotInstanceRequestId.1", instance.spot_request_id),)),)
    if ends_by_termination:
        return (*prepare, Call("TerminateInstances", (("InstanceId.1", instance_id),)))
    force = (("Force", "true"), ("SkipOsShutdown", "true")) if rung >= 1 else ()
    return (*prepare, Call("StopInstances", (("InstanceId.1", instance_id), *force)))


def _items(element: ElementTree.Element, *sets: str) -> list[ElementTree.Element]:
    """Return the items along a path of sets. Children only: a network interface has a tagSet of its own."""
    found = [element]
    for name in sets:
        found = [item for parent in found for group in parent.iterfind(f"{{*}}{name}") for item in group]
    return found


def _wall(stamp: str | None) -> WallNs | None:
    try:
        return None if stamp is None else WallNs(int(datetime.fromisoformat(stamp).timestamp()) * NS_PER_S)
    except ValueError:
        return None
