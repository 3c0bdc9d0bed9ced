"""Reading EC2's XML: the right instance, its own fields, and nothing that a reply should not be able to do."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from examples.demo_cloud import Fault
from governor.adapters.clouds.ec2.instance import Instance, parse_instance
from governor.core.events.inputs import BillingAnswer
from governor.remote_ports import BillingReply
from tests.contract.clouds.rigs import AwsRig

OURS, OTHER = "i-0123456789abcdef0", "i-0fedcba9876543210"


def instance(instance_id: str, state: str, extra: str = "") -> str:
    fields = f"<instanceId>{instance_id}</instanceId><instanceState><name>{state}</name></instanceState>{extra}"
    return f"<item>{fields}</item>"


def reply(*instances: str, namespace: str = "") -> ElementTree.Element:
    inner = f"<reservationSet><item><instancesSet>{''.join(instances)}</instancesSet></item></reservationSet>"
    return ElementTree.fromstring(f"<DescribeInstancesResponse {namespace}>{inner}</DescribeInstancesResponse>")


def read(*instances: str, namespace: str = "") -> Instance:
    found = parse_instance(reply(*instances, namespace=namespace), OURS)
    assert found is not None
    return found


def test_the_state_of_another_instance_is_not_ours() -> None:
    assert parse_instance(reply(instance(OTHER, "stopped")), OURS) is None
    assert read(instance(OTHER, "stopped"), instance(OURS, "running")).state == "running"


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_namespace_does_not_matter(slash: str) -> None:
    namespace = f'xmlns="http://ec2.amazonaws.com/doc/2016-11-15{slash}"'
    assert read(instance(OURS, "running"), namespace=namespace).state == "running"


def test_the_tags_of_a_network_interface_are_not_the_instances() -> None:
    tag = "<tagSet><item><key>aws:autoscaling:groupName</key><value>x</value></item></tagSet>"
    interface = f"<networkInterfaceSet><item>{tag}</item></networkInterfaceSet>"
    assert read(instance(OURS, "running", interface)).asg is None
    assert read(instance(OURS, "running", tag)).asg == "x"


def test_what_is_absent_is_plain_on_demand() -> None:
    found = read(instance(OURS, "running"))
    assert (found.lifecycle, found.is_spot, found.capacity_reservation_id) == ("on-demand", False, None)
    assert (found.volume_ids, found.launched_at_wall) == ((), None)


def test_a_launch_time_that_is_none_is_absent() -> None:
    assert read(instance(OURS, "running", "<launchTime>yesterday</launchTime>")).launched_at_wall is None


def test_a_state_that_ec2_invents_is_unknown(aws: AwsRig) -> None:
    aws.cloud.billing()
    aws.demo.extra_instance_xml = "<instanceState><name>hibernating</name></instanceState>"
    assert aws.cloud.billing() == BillingReply(BillingAnswer.UNKNOWN, "hibernating")


def test_a_state_that_is_no_word_is_not_repeated(aws: AwsRig) -> None:
    aws.demo.extra_instance_xml = f"<instanceState><name>{'secret ' * 100}</name></instanceState>"
    assert aws.cloud.billing() == BillingReply(BillingAnswer.UNKNOWN, "unreadable")


def test_an_entity_bomb_is_no_answer(aws: AwsRig) -> None:
    levels = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    bomb = (
        f'<!DOCTYPE r [<!ENTITY a0 "{"x" * 1000}">{levels}]><DescribeInstancesResponse>&a9;</DescribeInstancesResponse>'
    )
    aws.demo.faults = [Fault("garbage", action="DescribeInstances", code=bomb)]
    assert aws.cloud.billing() == BillingReply(BillingAnswer.UNKNOWN, "malformed")
