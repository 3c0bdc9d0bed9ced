"""One EC2 instance: as DescribeInstances shows it, the calls that end its spending (pure), and the preflight."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from governor.adapters.clouds.ec2.api import ApiReply, Call, Ec2Api, named, text
from governor.adapters.clouds.ec2.metadata import Identity
from governor.core.base.units import NS_PER_S, WallNs
from governor.core.events.inputs import BillingAnswer
from governor.remote_ports import Preflight

# `stopping` and `shutting-down` are transitions that can fail. Only the two final states have ended.
BILLING_BY_STATE: Final[Mapping[str, BillingAnswer]] = {
    "pending": BillingAnswer.RUNNING,
    "running": BillingAnswer.RUNNING,
    "stopping": BillingAnswer.RUNNING,
    "shutting-down": BillingAnswer.RUNNING,
    "stopped": BillingAnswer.ENDED,
    "terminated": BillingAnswer.ENDED,
}
# It is shown and journalled, so it must be a word.
_STATE: Final = re.compile(r"[a-z-]{1,32}")
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
    """Return the instance with exactly this id from a DescribeInstances reply, or None if it is absent."""
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
    """Return the calls of a rung, in order. They name only `instance_id` and its own spot request.

    `instance` None: EC2 gave no description. The plain stop is then never worse than no call. A call before the last
    one prepares: if it fails, a stop still makes sense, but a termination would be undone.
    """
    if instance is not None and instance.asg is not None and terminate and rung < 2:
        decrement = (("InstanceId", instance_id), ("ShouldDecrementDesiredCapacity", "true"))
        return (Call("TerminateInstanceInAutoScalingGroup", decrement, "autoscaling"),)
    prepare: tuple[Call, ...] = ()
    ends_by_termination = terminate and rung >= 2
    if instance is not None and instance.is_spot:
        one_time = spot is not None and spot.type == "one-time"
        # EC2 refuses to stop a one-time spot instance. Termination is its only stop.
        ends_by_termination = ends_by_termination or one_time
        if not one_time and instance.spot_request_id and (spot is None or spot.state in LIVE_SPOT_REQUEST_STATES):
            # A persistent request replaces a terminated machine by a new one.
            prepare = (Call("CancelSpotInstanceRequests", (("SpotInstanceRequestId.1", instance.spot_request_id),)),)
    if ends_by_termination:
        return (*prepare, Call("TerminateInstances", (("InstanceId.1", instance_id),)))
    force = (("Force", "true"), ("SkipOsShutdown", "true")) if rung >= 1 else ()
    return (*prepare, Call("StopInstances", (("InstanceId.1", instance_id), *force)))


def _items(element: ElementTree.Element, *sets: str) -> list[ElementTree.Element]:
    """Return the items along a path of sets. Children only: a network interface has its own tagSet."""
    found = [element]
    for name in sets:
        found = [item for parent in found for group in parent.iterfind(f"{{*}}{name}") for item in group]
    return found


def _wall(stamp: str | None) -> WallNs | None:
    try:
        return None if stamp is None else WallNs(int(datetime.fromisoformat(stamp).timestamp()) * NS_PER_S)
    except (ValueError, OverflowError):
        return None


# --- the preflight: may we stop it, what undoes the stop, what stays billed after it -----------------------


def without_identity(reason: str, expected_id: str | None) -> Preflight:
    advice = {
        "instance_id_mismatch": f"it does not say {expected_id}; correct cloud.aws.instance_id or remove it",
        "instance_id_changed": "it names another instance than before; restart costgov on the machine it is meant for",
        "metadata_http_404": "the metadata service has no identity document; is this an EC2 instance?",
        "metadata_timeout": "no answer; in a container raise the hop limit (HttpPutResponseHopLimit=2)",
        "metadata_connect_failed": "nothing answers; is this an EC2 instance, and is the metadata service enabled?",
        "metadata_http_403": "the metadata service is disabled for this instance; enable it",
    }.get(reason, "the metadata service does not name this instance")
    return _blind(None, f"metadata service: {advice} ({reason})")


def without_instance(identity: Identity, reply: ApiReply) -> Preflight:
    advice = {
        "no_credentials": f"no credentials ({reply.credentials_reason}); attach a role or set credentials_file",
        "UnauthorizedOperation": "ec2:DescribeInstances is not allowed; see deploy/aws/iam-policy.json",
        "InvalidInstanceID.NotFound": f"EC2 in {identity.region} does not know it; wrong account or endpoint?",
        "RequestExpired": "the signature has expired: this machine's clock is wrong; enable time synchronisation",
    }.get(reply.code, f"DescribeInstances failed ({'absent' if reply.ok else reply.code})")
    return _blind(identity.instance_id, f"{identity.instance_id}: {advice}", identity.region)


def _blind(instance_id: str | None, problem: str, region: str | None = None) -> Preflight:
    return Preflight(
        ok=False,
        instance_id=instance_id,
        will="try to stop this EC2 instance, as yet without success in sight",
        stays_billed=("unknown",),
        problems=(problem,),
        region=region,
    )


def learn(
    api: Ec2Api,
    identity: Identity,
    instance: Instance,
    spot: SpotRequest | None,
    *,
    local_stores: tuple[str, ...],
    survives_stop: bool | None,
    first_calls: tuple[Call, ...],
    terminate: bool,
    override_protection: bool,
) -> Preflight:
    """Check everything that a halt will depend on. Dry runs only: nothing here changes the machine."""
    final = first_calls[-1].action
    ends_by_termination = final != "StopInstances"
    denied = _denied(api, identity, terminate=terminate or ends_by_termination, stop=not ends_by_termination)
    protected = _protected(api, identity, terminate=ends_by_termination)
    problems = list(denied)
    if protected and not (override_protection and not instance.is_spot):
        problems.append(f"{protected} is set on {identity.instance_id}; unset it or set override_protection = true")
    if api.skew_s:
        problems.append(
            f"this machine's clock is {abs(api.skew_s)} s {'behind' if api.skew_s > 0 else 'ahead'}; correct it"
        )
    if local_stores and survives_stop is None and not ends_by_termination:
        problems.append(
            f"local disks {', '.join(local_stores)} are erased by a stop; keep checkpoints elsewhere, "
            "then set cloud.aws.survives_stop = true"
        )
    if instance.asg and not terminate:
        problems.append(f"Auto Scaling group {instance.asg} will replace the stopped machine; set terminate = true")
    return Preflight(
        ok=not denied and not (protected and not (override_protection and not instance.is_spot)),
        instance_id=identity.instance_id,
        will=_will(identity, [call.action for call in first_calls], terminate=terminate),
        stays_billed=_stays_billed(api, identity, instance),
        problems=tuple(problems),
        launched_at_wall=instance.launched_at_wall,
        region=identity.region,
        respawners=_respawners(instance, spot),
        survives_stop=_survives(instance, local_stores, survives_stop) and not ends_by_termination,
        said_running=BILLING_BY_STATE.get(instance.state) is BillingAnswer.RUNNING,
    )


def local_stores(sys: Path) -> tuple[str, ...]:
    """Name the machine's local disks. Unlike EBS, a stop erases them."""
    found = []
    for model in sorted(sys.glob("block/*/device/model")):
        try:
            if "Instance Storage" in model.read_text(encoding="ascii", errors="replace"):
                found.append(model.parts[-3])
        except OSError:
            continue  # It vanished meanwhile.
    return tuple(found)


def _survives(instance: Instance, local_stores: tuple[str, ...], said: bool | None) -> bool:
    if said is not None:
        return said
    return instance.root_device == "ebs" and not local_stores


def _will(identity: Identity, actions: list[str], *, terminate: bool) -> str:
    verb = {
        "StopInstances": "stop EC2 instance",
        "TerminateInstances": "terminate EC2 instance (a one-time spot instance cannot be stopped)",
        "TerminateInstanceInAutoScalingGroup": "terminate, within its Auto Scaling group, EC2 instance",
    }[actions[-1]]
    first = "cancel its spot request, " if len(actions) > 1 else ""
    last = ", terminate if that does not help" if terminate and actions[-1] == "StopInstances" else ""
    return f"{first}{verb} {identity.instance_id} in {identity.region} (read back until it has ended{last})"


def _denied(api: Ec2Api, identity: Identity, *, stop: bool, terminate: bool) -> list[str]:
    problems = []
    for action, wanted in (("StopInstances", stop), ("TerminateInstances", terminate)):
        if not wanted:
            continue
        reply = api.call(Call(action, (("InstanceId.1", identity.instance_id), ("DryRun", "true"))), identity.region)
        if reply.code == "DryRunOperation":
            continue
        if reply.code == "UnauthorizedOperation":
            problems.append(f"ec2:{action} on {identity.instance_id} is not allowed; see deploy/aws/iam-policy.json")
        else:
            problems.append(f"the dry run of {action} answered {reply.code}; a halt may fail the same way")
    return problems


def _protected(api: Ec2Api, identity: Identity, *, terminate: bool) -> str | None:
    """Return the name of the protection that prevents the stop. A refused question is no protection."""
    attribute = "disableApiTermination" if terminate else "disableApiStop"
    call = Call("DescribeInstanceAttribute", (("Attribute", attribute), ("InstanceId", identity.instance_id)))
    reply = api.call(call, identity.region)
    if reply.root is not None and text(reply.root, f"{attribute}/value") == "true":
        return attribute
    return None


def _respawners(instance: Instance, spot: SpotRequest | None) -> tuple[str, ...]:
    found = []
    if instance.asg:
        found.append(f"Auto Scaling group {instance.asg}")
    if instance.is_spot and instance.spot_request_id and (spot is None or spot.type == "persistent"):
        found.append(f"persistent spot request {instance.spot_request_id}")
    return tuple(found)


def _stays_billed(api: Ec2Api, identity: Identity, instance: Instance) -> tuple[str, ...]:
    lines = [f"EBS volume {volume_id}{size}" for volume_id, size in _volume_sizes(api, identity, instance).items()]
    call = Call("DescribeAddresses", (("Filter.1.Name", "instance-id"), ("Filter.1.Value.1", identity.instance_id)))
    reply = api.call(call, identity.region)
    if reply.root is not None:
        addresses = [address for item in named(reply.root, "item") if (address := text(item, "publicIp"))]
        lines += [f"Elastic IP {address}" for address in addresses[:16]]
    if instance.capacity_reservation_id:
        lines.append(f"capacity reservation {instance.capacity_reservation_id}: at the full rate, used or not")
    if instance.lifecycle in ("capacity-block", "scheduled"):
        lines.append(f"{instance.lifecycle} reservation: paid in advance")
    return tuple(lines)


def _volume_sizes(api: Ec2Api, identity: Identity, instance: Instance) -> dict[str, str]:
    """Map volume id to " (100 GiB)", or to "" if we may not ask."""
    sizes = dict.fromkeys(instance.volume_ids, "")
    if not sizes:
        return sizes
    wanted = tuple((f"VolumeId.{n}", volume_id) for n, volume_id in enumerate(instance.volume_ids[:VOLUMES_MAX], 1))
    reply = api.call(Call("DescribeVolumes", wanted), identity.region)
    if reply.root is not None:
        for item in named(reply.root, "item"):
            volume_id, gib = text(item, "volumeId"), text(item, "size")
            if volume_id in sizes and gib:
                sizes[volume_id] = f" ({gib} GiB)"
    return sizes
