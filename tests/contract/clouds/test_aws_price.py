"""The spot price of an instance of moto's EC2: signed as EC2 wants it, read as a second implementation writes it."""

from __future__ import annotations

import pytest

from governor.adapters import prices
from governor.adapters.plugins import Surroundings
from governor.core.money.prices import PriceKind
from governor.remote_ports import PriceSource
from tests.contract.clouds.rigs import AwsRig


def source(rig: AwsRig) -> PriceSource:
    cloud = {"endpoint": rig.demo.endpoint, "metadata_endpoint": rig.demo.metadata_endpoint, "timeout_s": 30.0}
    return prices.load("aws", {}, cloud, Surroundings(environ={}))


def test_a_spot_instance_has_motos_price(aws: AwsRig) -> None:
    """moto's spot price of anything is $0.00001."""
    aws.demo.spot_request = {"id": "sir-0demo", "state": "active", "type": "one-time"}
    answer = source(aws).ask()
    assert answer.problem == ""
    assert answer.quote is not None
    assert (answer.quote.usd_micros_per_hour, answer.quote.kind) == (10, PriceKind.SPOT)
    assert [call["action"] for call in aws.demo.calls] == ["DescribeSpotPriceHistory"]


def test_an_on_demand_instance_is_named_for_the_table(aws: AwsRig) -> None:
    answer = source(aws).ask()
    assert (answer.quote, answer.problem) == (None, "")
    assert answer.machine is not None
    assert (answer.machine.instance, answer.machine.kind) == ("p5.48xlarge", PriceKind.ON_DEMAND)


@pytest.mark.parametrize("secret", ["AccessKeyId", "SecretAccessKey", "Token"])
def test_the_roles_credentials_are_in_no_representation(aws: AwsRig, secret: str) -> None:
    aws.demo.spot_request = {"id": "sir-0demo", "state": "active", "type": "one-time"}
    asked = source(aws)
    assert aws.demo.credentials[secret] not in f"{asked.ask()!r}{asked!r}"
