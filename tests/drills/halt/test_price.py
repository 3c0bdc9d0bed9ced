"""What a real daemon makes of a price that a provider, a list, or nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from examples.demo_cloud import DemoCloud
from governor.adapters.journal.reader import read_charges
from governor.cli.status_table import render_status
from governor.core.base.units import NS_PER_HOUR
from governor.core.money.charges import LineKind
from governor.text.screen import FILE
from tests.contract.prices.rigs import SECRET, loopback, runpod
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
    governor.until_said("price: $55.04/h on-demand (built-in table: AWS")


def test_a_spot_instance_is_charged_at_the_history_and_the_contradiction_is_alarmed(
    service: Callable[..., Service], cloud: DemoCloud
) -> None:
    """The stand-in for EC2 has a spot price of $0.00001 for everything."""
    cloud.spot_request = {"id": "sir-0demo", "state": "active", "type": "one-time"}
    governor = service(cloud=cloud_table(cloud))
    governor.start()
    told = governor.ask({"cmd": "status"})["governor"]
    assert told["price_usd_per_hour"] == 0.00001
    # Of the file's price, and of the table's for such a spot instance.
    assert [remark["name"] for remark in told["price"]["remarks"]] == ["price_contradiction", "price_listed"]
    governor.until_said("but $98.32/h (costgov.toml")
    shown = render_status(governor.ask({"cmd": "status"}), FILE)
    assert "price: $0.000010/h (EC2 spot price history" in shown


LINES = """
[price]
source = "runpod"
ask_again = "10s"
[price.runpod]
endpoint = "{url}"
instance_id = "pod1"
api_key_file = "{key}"
[[line]]
kind = "storage"
name = "vol-1 gp3"
gb = 500
price_usd_per_gb_month = 0.08
"""


def test_a_price_that_moves_is_followed_and_kept_over_a_kill(service: Callable[..., Service], tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    with loopback() as server:
        rig = runpod(server)
        rig.costs(20)
        governor = service(cloud=LINES.format(url=server.url, key=key), policy=CEILING)
        governor.start()
        trainee = governor.trainee("healthy")
        governor.until(lambda: governor.run().get("spend_usd"), "the run is metered")
        assert governor.run()["spend_rate_usd_per_hour"] == pytest.approx(20 + 500 * 0.08 / 730, abs=1e-6)
        rig.costs(30)
        governor.until(lambda: node(governor).get("price_usd_per_hour") == 30, "the new price counts")
        governor.kill9()
        governor.start()
        assert node(governor)["price_usd_per_hour"] == 30
        governor.until(lambda: governor.run().get("ranks_connected"), "the run is heard again")
        trainee.kill()
        governor.end()
    charges = list(read_charges(str(governor.work / "state" / "costgov.db")))
    prices = [charge.line.price_usd_micros for charge in charges if charge.line.kind is LineKind.COMPUTE]
    assert set(prices) == {20_000_000, 30_000_000}
    compute = [charge for charge in charges if charge.line.kind is LineKind.COMPUTE]
    disk = [charge for charge in charges if charge.line.kind is LineKind.STORAGE]
    assert sum(charge.quantity for charge in disk) == 500 * sum(charge.quantity for charge in compute)
    exact = sum(Fraction(charge.line.price_usd_micros * charge.quantity, NS_PER_HOUR) for charge in compute)
    assert abs(sum(charge.usd_micros for charge in compute) - exact) < len(compute)


def test_a_restart_while_the_provider_is_down_keeps_the_ceiling_and_the_price(
    service: Callable[..., Service], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    with loopback() as server:
        rig = runpod(server)
        rig.costs(20)
        governor = service(cloud=LINES.format(url=server.url, key=key), policy=CEILING)
        without_price(governor)
        governor.start()
        governor.trainee("healthy")
        governor.until(lambda: governor.run().get("spend_usd"), "the run is metered")
        governor.kill9()
        rig.says(500)
        governor.start()  # With a ceiling: while the price is unknown this is refused.
        assert node(governor)["price_usd_per_hour"] == 20
        governor.until_said("runpod does not say what this machine costs")
        rig.costs(30)
        governor.until(lambda: node(governor).get("price_usd_per_hour") == 30, "it is asked again")


def node(governor: Service) -> dict[str, Any]:
    told: dict[str, Any] = (governor.ask({"cmd": "status"}) or {"governor": {}})["governor"]
    return told
