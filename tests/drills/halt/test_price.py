"""What a real daemon makes of a price that a provider, a list, or nobody knows."""

from __future__ import annotations

from collections.abc import Callable

from examples.demo_cloud import DemoCloud
from governor.cli_table import render_status
from tests.drills.halt.conftest import POLICY, SAFETY_S, Service, cloud_table

PRICE = "price_usd_per_hour = 98.32\n"
CEILING = (
    POLICY
    + """
[[rule]]
name = "budget"
trigger = "budget"
response = "halt"
[budget]
ceiling_usd = 1000.0
"""
)


def without_price(governor: Service) -> None:
    text = governor.config.read_text()
    assert PRICE in text
    governor.config.write_text(text.replace(PRICE, ""))


def test_a_halt_goes_on_where_the_price_has_become_unknown(service: Callable[..., Service]) -> None:
    governor = service(policy=CEILING)
    governor.start()
    trainee = governor.trainee("deaf_term")
    governor.until_stage("TERMED")
    governor.kill9()
    without_price(governor)
    governor.start()  # A ceiling and no price: without a halt under way this would be refused.
    governor.until_stage("HALTED")
    assert trainee.wait(SAFETY_S) != 0
    governor.until_said("price_unknown")


def test_an_aws_node_without_a_stated_price_is_charged_at_the_tables(
    service: Callable[..., Service], cloud: DemoCloud
) -> None:
    governor = service(cloud=cloud_table(cloud), policy=CEILING)
    without_price(governor)
    governor.start()
    told = governor.ask({"cmd": "status"})["governor"]
    assert told["price_usd_per_hour"] == 55.04  # p5.48xlarge, on demand.
    assert told["price_source"].startswith("built-in table: AWS")
    assert told["price"]["price"]["as_of"] == "2026-11-09"
    assert "price: $55.04/h on-demand (built-in table: AWS" in governor.log.read_text()


def test_a_spot_instance_is_charged_at_the_history_and_the_contradiction_is_alarmed(
    service: Callable[..., Service], cloud: DemoCloud
) -> None:
    """The stand-in for EC2 has a spot price of $0.00001 for everything."""
    cloud.spot_request = {"id": "sir-0demo", "state": "active", "type": "one-time"}
    governor = service(cloud=cloud_table(cloud))
    governor.start()
    told = governor.ask({"cmd": "status"})["governor"]
    assert told["price_usd_per_hour"] == 0.00001
    assert [remark["name"] for remark in told["price"]["remarks"]] == ["price_contradiction"]
    governor.until_said("but $98.32/h (costgov.toml")
    shown = render_status(governor.ask({"cmd": "status"}), colour=False)
    assert "price: $0.0000/h (EC2 spot price history" in shown
