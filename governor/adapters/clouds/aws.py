"""AWS EC2: stops the instance it runs on, and no other.

The metadata service gives the id, and is asked again before every effect. "Accepted" is never "ended": only
DescribeInstances with `stopped` or `terminated` is. A capacity reservation stays billed without its instance; that is
not the instance's billing and is listed in `stays_billed`. The metadata service is asked every five seconds whether
EC2 reclaims a spot instance. It announces that two minutes ahead at best, and before a hibernation not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from governor.adapters.clouds.ec2 import instance as preflight
from governor.adapters.clouds.ec2 import metadata as notice
from governor.adapters.clouds.ec2.api import CLOCK_CODES, ApiReply, Call, Ec2Api
from governor.adapters.clouds.ec2.instance import (
    BILLING_BY_STATE,
    Instance,
    SpotRequest,
    parse_instance,
    parse_spot_request,
    stop_calls,
)
from governor.adapters.clouds.ec2.metadata import Identity, Metadata, MetadataFailure
from governor.adapters.clouds.ec2.signing import CredentialCache, Source, from_environment, from_file, from_role
from governor.adapters.http.client import may_be_asked
from governor.adapters.plugins import ConfigError, ConfigKey, Surroundings
from governor.core.events.inputs import BillingAnswer, StopAnswer
from governor.remote_ports import BillingReply, Cloud, Notice, Preflight, StopReply

NAME = "aws"
KEYS = (
    ConfigKey("instance_id", "text", None, "Must be what the metadata service says, else nothing is done."),
    ConfigKey("terminate", "flag", False, "Allow TerminateInstances where a stop does not help. Local disks are lost."),
    ConfigKey("stops_others", "flag", False, "Stop the machine of a node of our runs whose governor is silent."),
    ConfigKey("override_protection", "flag", False, "Lift stop or termination protection of this instance (not spot)."),
    ConfigKey("survives_stop", "flag", None, "Whether what must be kept outlives a stop. Default: found out at start."),
    ConfigKey("credentials", "text", "auto", "auto: instance role, else file. Or only: role, file, environment."),
    ConfigKey("credentials_file", "text", None, "AWS credentials file. Default: aws in $CREDENTIALS_DIRECTORY."),
    ConfigKey("profile", "text", "default", "Section of the credentials file."),
    ConfigKey("timeout_s", "seconds", 10.0, "Of one API call."),
    ConfigKey("stop_bound_s", "seconds", 240.0, "An accepted stop ends billing within this; reserved under a ceiling."),
    ConfigKey("proxy", "text", None, "HTTP proxy for API calls; proxy variables of the environment are ignored."),
    ConfigKey("endpoint", "text", None, "API URL in place of the region's own. Plain http only on loopback."),
    ConfigKey("metadata_endpoint", "text", "http://169.254.169.254", "Metadata service; link-local or loopback."),
)

INSTANCE_ID: Final = re.compile(r"i-[0-9a-f]{8,17}")
TERMINATING: Final = ("TerminateInstances", "TerminateInstanceInAutoScalingGroup")
_PROTECTION: Final[Mapping[str, str]] = {
    "StopInstances": "DisableApiStop",
    "TerminateInstances": "DisableApiTermination",
}


class _Named:
    """In the place of the metadata service: another machine, as its own governor had named it."""

    def __init__(self, instance_id: str, region: str) -> None:
        self._identity = Identity(instance_id, region, "")

    def identity(self) -> Identity | MetadataFailure:
        return self._identity


class AwsCloud:
    name = NAME
    gives_notice = True
    billing_source = NAME  # It knows the instance by its id, and answers "unknown" about any other.
    granularity_s = 1.0  # Per second after the first minute, for Linux on demand and spot.

    def __init__(self, config: Mapping[str, Any], metadata: Metadata | _Named, api: Ec2Api, sys: Path) -> None:
        self._config = config
        self._stops_others: bool = config["stops_others"]
        self._expected_id: str | None = config["instance_id"]
        self._terminate: bool = config["terminate"]
        self._override_protection: bool = config["override_protection"]
        self.stop_bound_s = float(config["stop_bound_s"])
        self._survives_stop: bool | None = config["survives_stop"]
        self._sys = sys
        self._metadata = metadata
        self._api = api
        self._identity: Identity | None = None
        # As last seen; used if EC2 answers the stop but not the question.
        self._instance: Instance | None = None
        self._spot: SpotRequest | None = None
        # EC2 has confirmed that this id exists, here, under these credentials.
        self._seen_id: str | None = None

    def preflight(self) -> Preflight:
        identity = self._who()
        if isinstance(identity, str):
            return preflight.without_identity(identity, self._expected_id)
        instance, reply = self._describe(identity)
        # Once more, by the provider's clock, so that the rest can be learned too.
        if reply.code in CLOCK_CODES:
            instance, reply = self._describe(identity)
        if instance is None:
            return preflight.without_instance(identity, reply)
        return preflight.learn(
            self._api,
            identity,
            instance,
            self._spot,
            local_stores=preflight.local_stores(self._sys),
            survives_stop=self._survives_stop,
            first_calls=stop_calls(instance, identity.instance_id, self._spot, 0, self._terminate),
            terminate=self._terminate,
            override_protection=self._override_protection,
        )

    def stop(self, incident_id: str, rung: int) -> StopReply:
        identity = self._who()
        if isinstance(identity, str):
            return StopReply(StopAnswer.REFUSED, retryable=not identity.startswith("instance_id"), reason=identity)
        instance, _ = self._describe(identity)
        if instance is not None and BILLING_BY_STATE.get(instance.state) is BillingAnswer.ENDED:
            gone = instance.state == "terminated"
            return StopReply(StopAnswer.ACCEPTED, retryable=False, reason=f"already_{instance.state}", destroys=gone)
        # If EC2 does not answer now, its last answer is better than treating a spot instance as any other.
        instance = instance or self._instance
        may_terminate = instance is not None and instance.is_spot
        *prepare, final = stop_calls(instance, identity.instance_id, self._spot, rung, self._terminate)
        for call in prepare:
            prepared = self._api.call(call, identity.region, incident_id)
            if not prepared.ok and final.action == "TerminateInstances":
                return _stop_reply(prepared, f"{call.action}:{prepared.code}")
            may_terminate = prepared.ok
        reply = self._api.call(final, identity.region, incident_id)
        if reply.code == "OperationNotPermitted" and self._may_unlock(instance, final):
            attribute = ((f"{_PROTECTION[final.action]}.Value", "false"), ("InstanceId", identity.instance_id))
            self._api.call(Call("ModifyInstanceAttribute", attribute), identity.region, incident_id)
            reply = self._api.call(final, identity.region, incident_id)
        if reply.code == "UnsupportedOperation" and may_terminate:
            # Neither type of spot request guarantees that a stop is possible. For spot, termination is the stop.
            final = Call("TerminateInstances", (("InstanceId.1", identity.instance_id),))
            reply = self._api.call(final, identity.region, incident_id)
        destroys = reply.ok and final.action in TERMINATING
        return replace(_stop_reply(reply, "accepted" if reply.ok else reply.code), destroys=destroys)

    def other(self, instance_id: str) -> Cloud | None:
        if not self._stops_others or self._identity is None or INSTANCE_ID.fullmatch(instance_id) is None:
            return None
        config = {**self._config, "instance_id": instance_id, "terminate": False, "override_protection": False}
        return AwsCloud(config, _Named(instance_id, self._identity.region), self._api, self._sys)

    def notice(self) -> Notice | None:
        return notice.read_notice(self._metadata) if isinstance(self._metadata, Metadata) else None

    def billing(self, *, destroyed: bool = False) -> BillingReply:
        identity = self._who()
        if isinstance(identity, str):
            return BillingReply(BillingAnswer.UNKNOWN, identity)
        instance, reply = self._describe(identity)
        if instance is not None:
            return BillingReply(BILLING_BY_STATE.get(instance.state, BillingAnswer.UNKNOWN), instance.state)
        if reply.code == "InvalidInstanceID.NotFound" and (destroyed or self._seen_id == identity.instance_id):
            # EC2 forgets a terminated instance after about an hour. An id never seen may mean a wrong region, unless an
            # earlier governor's termination was accepted.
            # a governor before us had its termination accepted.
            return BillingReply(BillingAnswer.ENDED, reply.code)
        return BillingReply(BillingAnswer.UNKNOWN, "absent" if reply.ok else reply.code)

    def _who(self) -> Identity | str:
        """Return our identity from the metadata service, or the reason why nothing may be done."""
        found = self._metadata.identity()
        if isinstance(found, MetadataFailure):
            # A process does not move between machines, so an identity learned once stays true.
            return self._identity or f"metadata_{found.reason}"
        if self._expected_id is not None and found.instance_id != self._expected_id:
            return "instance_id_mismatch"
        if self._identity is not None and found.instance_id != self._identity.instance_id:
            return "instance_id_changed"
        self._identity = found
        return found

    def _describe(self, identity: Identity) -> tuple[Instance | None, ApiReply]:
        reply = self._api.call(Call("DescribeInstances", (("InstanceId.1", identity.instance_id),)), identity.region)
        instance = parse_instance(reply.root, identity.instance_id) if reply.root is not None else None
        if instance is not None:
            self._instance, self._seen_id = instance, identity.instance_id
            if instance.is_spot and instance.spot_request_id is not None:
                self._spot = self._describe_spot(identity, instance.spot_request_id) or self._spot
        return instance, reply

    def _describe_spot(self, identity: Identity, request_id: str) -> SpotRequest | None:
        reply = self._api.call(
            Call("DescribeSpotInstanceRequests", (("SpotInstanceRequestId.1", request_id),)), identity.region
        )
        return parse_spot_request(reply.root, request_id) if reply.root is not None else None

    def _may_unlock(self, instance: Instance | None, call: Call) -> bool:
        if not self._override_protection or call.action not in _PROTECTION:
            return False
        return instance is not None and not instance.is_spot


def _stop_reply(reply: ApiReply, reason: str) -> StopReply:
    return StopReply(reply.meaning.answer, retryable=reply.meaning.retryable, reason=reason)


def build(config: Mapping[str, Any], surroundings: Surroundings) -> Cloud:
    _check_url("endpoint", config["endpoint"], plain_http_on=("loopback",))
    _check_url("metadata_endpoint", config["metadata_endpoint"], plain_http_on=("loopback", "link-local"))
    metadata, api = connected(config, surroundings, float(config["timeout_s"]))
    return AwsCloud(config, metadata, api, surroundings.sys)


def connected(config: Mapping[str, Any], surroundings: Surroundings, timeout_s: float) -> tuple[Metadata, Ec2Api]:
    """The services that a table's keys name. Nothing is asked yet. `timeout_s` is for one call."""
    metadata = Metadata(config["metadata_endpoint"])
    credentials = CredentialCache(credential_sources(config, surroundings, metadata), surroundings.wall_ns)
    api = Ec2Api(
        credentials,
        endpoint=config["endpoint"],
        timeout_s=timeout_s,
        proxy=config["proxy"],
        wall_ns=surroundings.wall_ns,
        version=version("costgov"),
    )
    return metadata, api


def credential_sources(config: Mapping[str, Any], surroundings: Surroundings, metadata: Metadata) -> dict[str, Source]:
    directory = surroundings.environ.get("CREDENTIALS_DIRECTORY")
    path = config["credentials_file"] or (str(Path(directory) / "aws") if directory else None)
    every: dict[str, Source] = {"role": lambda: from_role(metadata)}
    if path is not None:
        every["file"] = lambda: from_file(Path(path), config["profile"])
    every["environment"] = lambda: from_environment(surroundings.environ)
    match config["credentials"]:
        case "auto":
            return {name: source for name, source in every.items() if name != "environment"}
        case "file" if path is None:
            raise ConfigError('cloud.aws.credentials is "file", but cloud.aws.credentials_file is not set')
        case "role" | "file" | "environment" as name:
            return {name: every[name]}
    raise ConfigError("cloud.aws.credentials must be one of auto, role, file, environment")


def _check_url(key: str, url: str | None, *, plain_http_on: tuple[str, ...]) -> None:
    if url is not None and not may_be_asked(url, link_local="link-local" in plain_http_on):
        where = " or ".join(plain_http_on)
        raise ConfigError(f"cloud.aws.{key} must be an https URL, or plain http on a {where} address")
