"""What "there is no such instance" means: the end, only for whoever knows that its end was accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from examples.demo_cloud import Fault
from governor.core.events.inputs import BillingAnswer
from governor.remote_ports import BillingReply
from tests.contract.clouds.rigs import LOST_REPLY_S, AwsRig
from tests.contract.clouds.rigs import aws as load_aws

NOT_FOUND = Fault("refuse", count=100, action="DescribeInstances", status=400, code="InvalidInstanceID.NotFound")


def as_one_time_spot(aws: AwsRig) -> None:
    """Its stop is its termination."""
    aws.demo.spot_request = {"id": "sir-0demo", "type": "one-time", "state": "active"}


def test_an_instance_whose_termination_was_accepted_has_ended_also_for_the_next_governor(aws: AwsRig) -> None:
    as_one_time_spot(aws)
    assert aws.cloud.stop("run-7-1", 0).destroys
    aws.demo.faults = [NOT_FOUND]  # An hour later.
    restarted = load_aws(aws.demo)
    assert restarted.billing() == BillingReply(BillingAnswer.UNKNOWN, "InvalidInstanceID.NotFound")
    assert restarted.billing(destroyed=True) == BillingReply(BillingAnswer.ENDED, "InvalidInstanceID.NotFound")


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "AuthFailure", "RequestLimitExceeded", ""])
def test_nothing_else_that_ec2_may_answer_is_an_end(aws: AwsRig, code: str) -> None:
    aws.demo.faults = [replace(NOT_FOUND, code=code)]
    assert load_aws(aws.demo).billing(destroyed=True).answer is BillingAnswer.UNKNOWN


def test_an_instance_that_is_seen_is_as_it_is_seen(aws: AwsRig) -> None:
    assert load_aws(aws.demo).billing(destroyed=True) == BillingReply(BillingAnswer.RUNNING, "running")


def test_a_stop_that_can_be_undone_destroys_nothing(aws: AwsRig) -> None:
    aws.demo.faults = [Fault("http_503", count=1)]
    assert not aws.cloud.stop("run-7-1", 0).destroys
    assert not aws.cloud.stop("run-7-1", 0).destroys


def test_a_termination_whose_answer_was_lost_is_not_known_to_have_been_accepted(aws: AwsRig) -> None:
    as_one_time_spot(aws)
    aws.demo.faults = [Fault("timeout_after_effect", count=1, action="TerminateInstances")]
    assert not load_aws(aws.demo, timeout_s=LOST_REPLY_S).stop("run-7-1", 0).destroys
