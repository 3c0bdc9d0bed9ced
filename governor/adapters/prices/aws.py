"""AWS: the present price of a spot instance, from `DescribeSpotPriceHistory`; for others, their type for the table.

Every spot instance of a type in a zone is charged the current spot price there. On-demand prices are not asked for:
they need a second API, and a permission that a training node needs for nothing else. The metadata service states the
kind of this instance, else DescribeInstances does. Uses [cloud.aws], its credentials and its signer.
Read: EC2's service model as botocore ships it (names, the set of products, that the last change before the start time
is included and is the price in effect). Tested against moto and our own XML; not verified against the real API.
"""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from governor.adapters.clouds import aws
from governor.adapters.clouds.ec2.api import ApiReply, Call, Ec2Api, named, text
from governor.adapters.clouds.ec2.instance import parse_instance
from governor.adapters.clouds.ec2.metadata import Identity, Metadata, MetadataFailure
from governor.adapters.http import price_lookup
from governor.adapters.http.price_lookup import Failure
from governor.adapters.plugins import Surroundings
from governor.core.base.units import NS_PER_S, WallNs
from governor.core.money.prices import Machine, Origin, PriceAnswer, PriceKind, Quote
from governor.remote_ports import PriceSource

NAME = "aws"
KEYS = tuple(
    key
    for key in aws.KEYS
    if key.name
    in (
        "instance_id",
        "credentials",
        "credentials_file",
        "profile",
        "timeout_s",
        "proxy",
        "endpoint",
        "metadata_endpoint",
    )
)

QUESTION_S: Final = 10.0  # For the whole question, whatever cloud.aws.timeout_s grants a stop.
# An API across an ocean answers in 0.3 s. A price is not worth a longer wait.
CALL_S: Final = 4.0
_STAMP: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,20}Z")
PRODUCTS: Final = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")  # The same price under two names.
LIFECYCLES: Final[Mapping[str, PriceKind]] = {
    "on-demand": PriceKind.ON_DEMAND,
    "spot": PriceKind.SPOT,
    "scheduled": PriceKind.RESERVED,
    "capacity-block": PriceKind.RESERVED,
}
_ZONE: Final = re.compile(r"[a-z]{2,3}(-[a-z0-9]{1,16}){2,6}")


class AwsPrices:
    name = NAME
    bound_s = QUESTION_S + CALL_S  # The last call may begin just before the end.

    def __init__(self, config: Mapping[str, Any], metadata: Metadata, api: Ec2Api, surroundings: Surroundings) -> None:
        self._expected_id: str | None = config["instance_id"]
        self._metadata = metadata
        self._api = api
        self._surroundings = surroundings

    def ask(self) -> PriceAnswer:
        ends_at = time.monotonic() + QUESTION_S
        identity = self._metadata.identity()
        if isinstance(identity, MetadataFailure):
            return PriceAnswer(problem=f"the metadata service does not say which machine this is ({identity.reason})")
        if self._expected_id not in (None, identity.instance_id):
            return PriceAnswer(problem="the metadata service names another instance; see cloud.aws.instance_id")
        kind = self._kind(identity)
        machine = Machine("AWS", identity.instance_type or None, None, None, kind, identity.region)
        if kind is not PriceKind.SPOT:
            return PriceAnswer(machine=machine)
        if not identity.instance_type:
            return PriceAnswer(problem="the metadata service does not name the machine's type", machine=machine)
        zone = self._metadata.get("/latest/meta-data/placement/availability-zone")
        name = zone.decode("ascii", "replace").strip() if isinstance(zone, bytes) else ""
        if not _ZONE.fullmatch(name):
            reason = zone.reason if isinstance(zone, MetadataFailure) else "malformed"
            return PriceAnswer(problem=f"the metadata service does not name the zone ({reason})", machine=machine)
        if time.monotonic() > ends_at:
            return PriceAnswer(problem=price_lookup.explained("timeout"), machine=machine)
        return self._spot(machine, name)

    def _kind(self, identity: Identity) -> PriceKind | None:
        """By the metadata service, else by EC2. None if neither states it."""
        said = self._metadata.get("/latest/meta-data/instance-life-cycle")
        if isinstance(said, bytes) and (known := LIFECYCLES.get(said.decode("ascii", "replace").strip())):
            return known
        reply = self._api.call(Call("DescribeInstances", (("InstanceId.1", identity.instance_id),)), identity.region)
        instance = parse_instance(reply.root, identity.instance_id) if reply.root is not None else None
        return LIFECYCLES.get(instance.lifecycle) if instance is not None else None

    def _spot(self, machine: Machine, zone: str) -> PriceAnswer:
        now = datetime.fromtimestamp(self._surroundings.wall_ns() // NS_PER_S, UTC)
        products = tuple((f"ProductDescription.{n}", product) for n, product in enumerate(PRODUCTS, 1))
        params = (
            ("AvailabilityZone", zone),
            ("InstanceType.1", machine.instance or ""),
            *products,
            # Starting now: the price in effect, without history.
            ("StartTime", now.strftime("%Y-%m-%dT%H:%M:%SZ")),
        )
        reply = self._api.call(Call("DescribeSpotPriceHistory", params), machine.region or "")
        if reply.root is None:
            return PriceAnswer(problem=_refused(reply), machine=machine)
        found = _newest(reply.root, machine.instance or "", zone)
        if isinstance(found, Failure):
            return PriceAnswer(problem=price_lookup.explained(found.reason), machine=machine)
        stamp, amount = found
        price = price_lookup.usd_micros(amount)
        if isinstance(price, Failure):
            return PriceAnswer(problem=price_lookup.explained(price.reason), machine=machine)
        quote = Quote(
            price, "EC2 spot price history", price_lookup.today(self._surroundings), PriceKind.SPOT,
            f"{machine.instance} in {zone}, in effect since {stamp[:16]}", Origin.MACHINE, since=_wall(stamp),
        )  # fmt: skip
        return PriceAnswer(quote, machine=machine)


def _refused(reply: ApiReply) -> str:
    if reply.code == "no_credentials":
        return f"no credentials ({reply.credentials_reason}); attach a role or set cloud.aws.credentials_file"
    if reply.code == "UnauthorizedOperation":
        return "ec2:DescribeSpotPriceHistory is not allowed; see deploy/aws/iam-policy.json (UnauthorizedOperation)"
    return price_lookup.explained(reply.code)


def _newest(root: ElementTree.Element, instance_type: str, zone: str) -> tuple[str, str | None] | Failure:
    """(since when, the amount) of the newest price for exactly this type and zone and one of our products."""
    found = [
        (stamp, text(item, "spotPrice"))
        for item in named(root, "item")
        if text(item, "instanceType") == instance_type
        and text(item, "availabilityZone") == zone
        and text(item, "productDescription") in PRODUCTS
        and (stamp := text(item, "timestamp")) is not None
    ]
    # ISO 8601 in UTC sorts as text. The stamp is shown, so its form is checked.
    found = [(stamp, amount) for stamp, amount in found if _STAMP.fullmatch(stamp)]
    return max(found, key=lambda one: one[0]) if found else Failure("no_price")


def _wall(stamp: str) -> WallNs | None:
    """When the price came into force, to the second."""
    try:
        seconds = datetime.fromisoformat(stamp[:19]).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
    return WallNs(round(seconds) * NS_PER_S)


def build(config: Mapping[str, Any], surroundings: Surroundings) -> PriceSource:
    for key in ("endpoint", "metadata_endpoint"):
        if config[key] is not None:
            price_lookup.checked_endpoint(f"{NAME}.{key}", config[key])
    metadata, api = aws.connected(config, surroundings, min(float(config["timeout_s"]), CALL_S))
    return AwsPrices(config, metadata, api, surroundings)
