"""What we send to AWS is in AWS's own model, and exactly what the shipped policies allow."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.model import ServiceModel

from governor.adapters import prices
from tests.contract.clouds.rigs import aws_rig

POLICIES = Path(__file__).parents[3] / "deploy" / "aws"
ASG_XML = "<tagSet><item><key>aws:autoscaling:groupName</key><value>gpu-fleet</value></item></tagSet>"
SPOT = {"id": "sir-0demo", "state": "active"}
CASES = [(None, ""), ({**SPOT, "type": "one-time"}, ""), ({**SPOT, "type": "persistent"}, ""), (None, ASG_XML)]


@pytest.fixture(scope="module")
def calls(moto_port: int) -> list[dict[str, Any]]:
    """Every call of a preflight, a price and all rungs, for every kind of instance that makes a difference."""
    made: list[dict[str, Any]] = []
    for spot, xml in CASES:
        with aws_rig(moto_port, terminate=True, override_protection=True) as rig:
            rig.demo.spot_request, rig.demo.extra_instance_xml = spot, xml
            rig.cloud.preflight()
            here = {"endpoint": rig.demo.endpoint, "metadata_endpoint": rig.demo.metadata_endpoint}
            prices.load("aws", {}, here).ask()
            protect = {"InstanceId": rig.demo.instance_id, "DisableApiStop.Value": "true"}
            rig.demo.moto(Action="ModifyInstanceAttribute", **protect)
            for rung in range(3):
                rig.cloud.stop("run-7-1", rung)
            made += rig.demo.calls
    return made


def allowed(name: str) -> set[str]:
    policy = json.loads((POLICIES / name).read_text())
    assert policy["Version"] == "2012-10-17"
    found: set[str] = set()
    for statement in policy["Statement"]:
        actions = statement["Action"]
        names = {action.split(":")[1] for action in ([actions] if isinstance(actions, str) else actions)}
        changes = any(action.startswith(("Stop", "Terminate", "Modify")) for action in names)
        assert not changes or "Condition" in statement, f"{statement['Sid']} is not bound to anything"
        found |= names
    return found


def test_the_policies_allow_every_call_and_no_other(calls: list[dict[str, Any]]) -> None:
    asked = {call["action"] for call in calls}
    assert asked == allowed("iam-policy.json") | allowed("iam-policy-optional.json")


@cache
def model_of(service: str) -> ServiceModel:
    return botocore.session.Session().get_service_model(service)


def parameters_of(action: str) -> set[str]:
    """The names that AWS's model gives to an operation's parameters on the wire."""
    service = "autoscaling" if action.endswith("AutoScalingGroup") else "ec2"
    shape = model_of(service).operation_model(action).input_shape
    assert shape is not None
    names = set()
    for name, member in shape.members.items():
        location = member.serialization.get("name", name)
        names.add(member.serialization.get("queryName") or location[:1].upper() + location[1:])
    return names


def test_every_parameter_is_in_awss_model(calls: list[dict[str, Any]]) -> None:
    """moto ignores what it does not know, so it would not notice a misspelt Force."""
    sent: dict[str, set[str]] = {}
    for call in calls:
        names = {name.partition(".")[0] for name in call["params"]} - {"Action", "Version"}
        sent.setdefault(call["action"], set()).update(names)
    unknown = {action: names - parameters_of(action) for action, names in sent.items()}
    assert {action: names for action, names in unknown.items() if names} == {}
    assert {"Force", "SkipOsShutdown"} <= sent["StopInstances"]
