"""Every answer that EC2 can give has a meaning; the table here is written out by hand, apart from the code's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.demo_cloud import Fault
from governor.adapters.clouds.ec2.api import BY_CODE, meaning
from governor.core.events.inputs import StopAnswer
from tests.contract.clouds.rigs import AwsRig, aws_rig

# status -> (answer, retryable). Absent below 500: REFUSED, final. Absent from 500 on, and 1xx, 2xx: UNKNOWN, retryable.
WORTH_A_TRY = {401, 408, 421, 423, 425, 429, 503}


def test_every_http_status_without_a_known_code() -> None:
    expected = {
        status: (StopAnswer.REFUSED, True)
        if status in WORTH_A_TRY
        else (StopAnswer.REFUSED, False)
        if 300 <= status < 500
        else (StopAnswer.UNKNOWN, True)
        for status in range(600)  # 0: there was no answer.
    }
    found = {status: meaning("SomethingNew", status) for status in expected}
    assert expected == {status: (meant.answer, meant.retryable) for status, meant in found.items()}


CODES = {
    "RequestLimitExceeded": (503, StopAnswer.REFUSED, True),
    "EC2ThrottledException": (503, StopAnswer.REFUSED, True),
    "Throttling": (400, StopAnswer.REFUSED, True),
    "Unavailable": (503, StopAnswer.REFUSED, True),
    "InternalError": (500, StopAnswer.UNKNOWN, True),
    "InternalFailure": (500, StopAnswer.UNKNOWN, True),
    "AuthFailure": (401, StopAnswer.REFUSED, True),
    "ExpiredToken": (400, StopAnswer.REFUSED, True),
    "RequestExpired": (400, StopAnswer.REFUSED, True),
    "SignatureDoesNotMatch": (403, StopAnswer.REFUSED, True),
    "IncorrectInstanceState": (400, StopAnswer.REFUSED, True),
    "UnauthorizedOperation": (403, StopAnswer.REFUSED, False),
    "OperationNotPermitted": (400, StopAnswer.REFUSED, False),
    "UnsupportedOperation": (400, StopAnswer.REFUSED, False),
    "InvalidInstanceID.NotFound": (400, StopAnswer.REFUSED, False),
    "InvalidInstanceID.Malformed": (400, StopAnswer.REFUSED, False),
    "OptInRequired": (403, StopAnswer.REFUSED, False),
    "DryRunOperation": (412, StopAnswer.REFUSED, False),
    "SomethingNew": (418, StopAnswer.REFUSED, False),
}


@pytest.fixture(scope="module")
def refusing(moto_port: int) -> Iterator[AwsRig]:
    """One cloud for all refusals: none of them changes it."""
    with aws_rig(moto_port) as rig:
        yield rig


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_code_on_the_wire_becomes_the_reason(refusing: AwsRig, code: str) -> None:
    status, answer, retryable = CODES[code]
    refusing.demo.faults = [Fault("refuse", status=status, code=code)]
    reply = refusing.cloud.stop("run-7-1", 0)
    assert (reply.answer, reply.retryable, reply.reason) == (answer, retryable, code)
    assert refusing.meter_runs()


@pytest.mark.parametrize("status", [302, 400, 403, 404, 418, 429, 500, 502, 503, 504, 599])
def test_a_status_without_a_code_becomes_the_reason(refusing: AwsRig, status: int) -> None:
    refusing.demo.faults = [Fault("refuse", status=status, code="")]
    assert refusing.cloud.stop("run-7-1", 0).reason == f"http_{status}"


@pytest.mark.parametrize("code", ["<script>", "two words", "secret=AKIA123", "x" * 65])
def test_a_code_that_is_no_code_does_not_become_a_reason(refusing: AwsRig, code: str) -> None:
    refusing.demo.faults = [Fault("refuse", status=400, code=code.replace("<", "&lt;"))]
    assert refusing.cloud.stop("run-7-1", 0).reason == "http_400"


def test_a_broken_connection_is_unknown(aws: AwsRig) -> None:
    aws.demo.faults = [Fault("broken_after_effect")]
    reply = aws.cloud.stop("run-7-1", 0)
    assert (reply.answer, reply.retryable, reply.reason) == (StopAnswer.UNKNOWN, True, "broken_off")
    assert not aws.meter_runs()


def test_only_success_is_accepted() -> None:
    accepted = [code for code, found in BY_CODE.items() if found.answer is StopAnswer.ACCEPTED]
    assert accepted == ["ok"]
