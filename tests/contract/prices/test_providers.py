"""What one provider's answer means, beyond what all of them keep to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from governor.adapters import prices
from governor.adapters.plugins import ConfigError
from governor.core.money.prices import PriceKind
from tests.contract.prices import rigs
from tests.contract.prices.rigs import AZURE_ROW, SECRET, Loopback, azure_page, spot_history, spot_item

# --- those that are asked with a key ------------------------------------------------------------------------


def pod(**fields: Any) -> bytes:
    return json.dumps({"id": "pod1", "status": "RUNNING", "cost": 2.5, **fields}).encode()


@pytest.mark.parametrize("status", ["EXITED", "ERROR", "TERMINATED", "NEWLY_INVENTED", None])
def test_a_pod_that_does_not_run_has_no_price_whatever_its_cost_says(server: Loopback, status: str | None) -> None:
    rig = rigs.runpod(server)
    rig.says(200, pod(status=status, cost=0.06))
    answer = rig.source().ask()
    assert (answer.quote, "not_running" in answer.problem) == (None, True)


def test_a_pod_says_what_gpus_it_has(server: Loopback) -> None:
    rig = rigs.runpod(server)
    rig.says(200, pod(gpu={"id": "NVIDIA H200", "count": 4}))
    answer = rig.source().ask()
    assert answer.machine is not None
    assert (answer.machine.gpu, answer.machine.gpus) == ("NVIDIA H200", 4)
    assert answer.quote is not None
    assert answer.quote.gpus == 4


def test_another_pods_price_is_not_ours(server: Loopback) -> None:
    rig = rigs.runpod(server)
    rig.says(200, pod(id="pod2"))
    assert "other_machine" in rig.source().ask().problem


def test_a_lambda_instance_on_its_way_out_has_no_price(server: Loopback) -> None:
    rig = rigs.lambda_cloud(server)
    kind = {"name": "gpu_1x_a100", "price_cents_per_hour": 199}
    rig.says(200, json.dumps({"data": {"id": "0920582c", "status": "terminating", "instance_type": kind}}).encode())
    answer = rig.source().ask()
    assert (answer.quote, "not_running" in answer.problem) == (None, True)
    assert answer.machine is not None
    assert answer.machine.instance == "gpu_1x_a100"  # For the built-in table.


def test_vast_says_not_found_with_a_200_and_spot_with_is_bid(server: Loopback) -> None:
    rig = rigs.vast(server)
    rig.says(200, b'{"instances": null}')
    assert "http_404" in rig.source().ask().problem
    rig.says(200, b'{"instances": {"id": 77, "cur_state": "running", "is_bid": true, "dph_total": 1.2}}')
    quote = rig.source().ask().quote
    assert quote is not None
    assert quote.kind is PriceKind.SPOT
    rig.says(200, b'{"instances": {"id": 77, "cur_state": "stopped", "dph_total": 0.02}}')
    assert "not_running" in rig.source().ask().problem


def test_a_machine_that_nobody_named_is_not_asked_for(server: Loopback) -> None:
    for rig in (rigs.runpod(server), rigs.lambda_cloud(server), rigs.vast(server)):
        rig.environ = {name: value for name, value in rig.environ.items() if name.endswith("_KEY")}
        rig.config = {}
        assert "no_instance_id" in rig.source().ask().problem
        assert "bad_instance_id" in rig.source(instance_id="../pods").ask().problem
    assert server.asked == []


def test_a_key_comes_from_its_file_which_others_may_not_read(server: Loopback, tmp_path: Path) -> None:
    rig = rigs.runpod(server)
    rig.costs(2.5)
    rig.environ = {"RUNPOD_POD_ID": "pod1"}
    assert "no_key" in rig.source().ask().problem
    file = tmp_path / "runpod"
    assert "key_not_readable" in rig.source(api_key_file=str(file)).ask().problem
    file.write_text(f"{SECRET}\n")
    file.chmod(0o644)
    assert "key_readable_by_everyone" in rig.source(api_key_file=str(file)).ask().problem
    file.chmod(0o400)
    assert rig.source(api_key_file=str(file)).ask().quote is not None
    rig.environ["CREDENTIALS_DIRECTORY"] = str(tmp_path)  # As systemd hands it over.
    assert rig.source().ask().quote is not None
    file.chmod(0o600)
    for broken in ("two words", "line\r\nX-Evil: 1", "", "k\u00e9y"):
        file.write_text(broken)
        problem = rig.source().ask().problem
        assert "key_malformed" in problem
        assert "X-Evil" not in problem
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert "key_not_readable" in rig.source(api_key_file=str(tmp_path / "fifo")).ask().problem


# --- Azure --------------------------------------------------------------------------------------------------


def azure_row(**fields: Any) -> dict[str, Any]:
    return {**AZURE_ROW, "retailPrice": 98.32, **fields}


NOT_OURS = [
    azure_row(retailPrice=102.736, productName="Virtual Machines NDsr H100 v5 Series Windows"),
    azure_row(retailPrice=18.17, skuName="ND96isrH100v5 Spot", meterName="ND96isrH100v5 Spot"),
    azure_row(retailPrice=19.66, skuName="ND96isrH100v5 Low Priority"),
    azure_row(retailPrice=19.66, meterName="ND96isrH100v5 Low Priority"),
    azure_row(retailPrice=350_400.0, type="Reservation", reservationTerm="1 Year"),
    azure_row(retailPrice=90.0, type="DevTestConsumption"),
    azure_row(retailPrice=81.0, armRegionName="eastus2"),
    azure_row(retailPrice=82.0, armSkuName="Standard_ND96isr_H200_v5"),
    azure_row(retailPrice=83.0, currencyCode="EUR"),
    azure_row(retailPrice=84.0, unitOfMeasure="1 Month"),
    azure_row(retailPrice=85.0, isPrimaryMeterRegion=False),
]


def test_of_azures_rows_only_the_plain_linux_hour_counts(server: Loopback) -> None:
    rig = rigs.azure(server)
    rig.says(200, azure_page(*NOT_OURS[:5], azure_row(), *NOT_OURS[5:]))
    answer = rig.source().ask()
    assert answer.quote is not None
    assert answer.quote.usd_micros_per_hour == 98_320_000
    asked = next(one for one in server.asked if one.path.startswith("/api/retail/prices"))
    assert parse_qs(urlsplit(asked.path).query)["$filter"] == [
        "serviceName eq 'Virtual Machines' and armSkuName eq 'Standard_ND96isr_H100_v5'"
        " and armRegionName eq 'eastus' and priceType eq 'Consumption'"
    ]


@pytest.mark.parametrize("row", NOT_OURS[:-1], ids=lambda row: str(row["retailPrice"]))
def test_none_of_the_others_is_taken_where_it_stands_alone(server: Loopback, row: dict[str, Any]) -> None:
    rig = rigs.azure(server)
    rig.says(200, azure_page(row))
    answer = rig.source().ask()
    assert (answer.quote, "no_price" in answer.problem) == (None, True)


def test_rows_that_disagree_are_told_and_not_chosen_from(server: Loopback) -> None:
    rig = rigs.azure(server)
    rig.says(200, azure_page(azure_row(), azure_row(retailPrice=99.0)))
    answer = rig.source().ask()
    assert (answer.quote, "$98.32, $99.00" in answer.problem) == (None, True)


def test_pages_are_followed_to_the_end_and_no_further_than_ten(server: Loopback) -> None:
    rig = rigs.azure(server)
    following = f"{server.url}/api/retail/prices?$skip=100"
    server.answers["/api/retail/prices?$skip=100"] = lambda _: (200, azure_page(azure_row()))
    rig.says(200, azure_page(*NOT_OURS, following=following))
    assert rig.source().ask().quote is not None
    server.answers["/api/retail/prices?$skip=100"] = lambda _: (200, azure_page(azure_row(), following=following))
    assert "too_large" in rig.source().ask().problem
    assert sum("skip" in asked.path for asked in server.asked) == 1 + 9


def test_a_link_to_another_host_is_not_followed(server: Loopback) -> None:
    rig = rigs.azure(server)
    for link in ("http://127.0.0.1:1/x", "https://127.0.0.1/x", "file:///etc/passwd", "http://127.0.0.1:port/x"):
        rig.says(200, azure_page(azure_row(), following=link))
        assert "malformed" in rig.source().ask().problem


def test_a_spot_vm_has_no_list_price(server: Loopback) -> None:
    rig = rigs.azure(server)
    compute = {"vmSize": "Standard_ND96isr_H100_v5", "location": "eastus", "priority": "Spot"}
    server.answers["/metadata/instance/compute"] = lambda _: (200, json.dumps(compute).encode())
    answer = rig.source().ask()
    assert (answer.quote, "Spot" in answer.problem) == (None, True)


def test_a_size_cannot_end_the_filter(server: Loopback) -> None:
    rig = rigs.azure(server)
    answer = rig.source(instance_type="x' or armSkuName ne '", region="eastus").ask()
    assert (answer.quote, "malformed" in answer.problem) == (None, True)
    assert server.asked == []


def test_what_is_configured_is_not_asked_of_the_metadata(server: Loopback) -> None:
    rig = rigs.azure(server)
    rig.costs(98.32)
    assert rig.source(instance_type="Standard_ND96isr_H100_v5", region="eastus").ask().quote is not None
    assert not [asked for asked in server.asked if "metadata" in asked.path]


# --- AWS ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["\udc80", "p5 48xlarge", "", "p" * 65])
def test_what_is_no_type_of_a_machine_is_asked_of_nobody(server: Loopback, named: str) -> None:
    """A lone surrogate in the metadata's JSON ended the thread that asks."""
    rig = rigs.aws(server)
    document = {"instanceId": "i-0123456789abcdef0", "region": "us-east-1", "instanceType": named}
    server.answers["/latest/dynamic/instance-identity/document"] = lambda _: (200, json.dumps(document).encode())
    answer = rig.source().ask()
    assert (answer.quote, "type" in answer.problem) == (None, True)
    assert not [asked for asked in server.asked if asked.path == "/"]


def test_the_newest_price_of_the_very_type_zone_and_product_counts(server: Loopback) -> None:
    rig = rigs.aws(server)
    rig.says(200, spot_history(
        spot_item(16.0, "2026-11-20T11:00:00.000Z"),
        spot_item(17.25, "2026-11-20T23:00:00.000Z", product="Linux/UNIX (Amazon VPC)"),
        spot_item(1.0, "2026-11-20T23:30:00.000Z", zone="us-east-1b"),
        spot_item(2.0, "2026-11-20T23:30:00.000Z", type="p5.4xlarge"),
        spot_item(99.0, "2026-11-20T23:30:00.000Z", product="Windows"),
        spot_item(3.0, "tomorrow"),
    ))  # fmt: skip
    quote = rig.source().ask().quote
    assert quote is not None
    assert quote.usd_micros_per_hour == 17_250_000
    assert quote.basis == "p5.48xlarge in us-east-1a, in effect since 2026-11-20T23:00"
    [form] = [asked.form for asked in server.asked if asked.method == "POST"]
    assert form["StartTime"] == ["2026-11-21T12:00:00Z"]
    assert (form["InstanceType.1"], form["AvailabilityZone"]) == (["p5.48xlarge"], ["us-east-1a"])


@pytest.mark.parametrize(("lifecycle", "kind"), [
    ("on-demand", PriceKind.ON_DEMAND), ("scheduled", PriceKind.RESERVED), ("capacity-block", PriceKind.RESERVED),
])  # fmt: skip
def test_what_is_not_spot_is_named_for_the_table_and_nothing_is_wrong(
    server: Loopback, lifecycle: str, kind: PriceKind
) -> None:
    rig = rigs.aws(server)
    server.answers["/latest/meta-data/instance-life-cycle"] = lambda _: (200, lifecycle.encode())
    answer = rig.source().ask()
    assert (answer.quote, answer.problem) == (None, "")
    assert answer.machine is not None
    assert (answer.machine.provider, answer.machine.instance, answer.machine.kind) == ("AWS", "p5.48xlarge", kind)
    assert not [asked for asked in server.asked if asked.method == "POST"]


def test_where_metadata_has_no_lifecycle_nobody_guesses_spot(server: Loopback) -> None:
    rig = rigs.aws(server)
    server.answers["/latest/meta-data/instance-life-cycle"] = lambda _: (404, b"")
    answer = rig.source().ask()  # DescribeInstances is answered with a price history: no instance of ours in it.
    assert (answer.quote, answer.problem) == (None, "")
    assert answer.machine is not None
    assert answer.machine.kind is None


def test_a_refused_spot_history_names_the_permission(server: Loopback) -> None:
    rig = rigs.aws(server)
    error = "<Response><Errors><Error><Code>UnauthorizedOperation</Code></Error></Errors></Response>"
    rig.says(403, error.encode())
    answer = rig.source().ask()
    assert (answer.quote, "ec2:DescribeSpotPriceHistory" in answer.problem) == (None, True)
    assert answer.machine is not None
    assert answer.machine.kind is PriceKind.SPOT  # So that no on-demand price is taken for it.


def test_another_instance_than_configured_is_not_priced(server: Loopback) -> None:
    answer = rigs.aws(server).source(instance_id="i-0fffffffffffffff0").ask()
    assert (answer.quote, answer.machine) == (None, None)
    assert "another instance" in answer.problem


# --- configuration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "config", "told"), [
    ("gcp", {}, f'there is no price look-up "gcp"; known: {", ".join(prices.names())}'),
    ("runpod", {"api_key": SECRET}, 'price.runpod: unknown key "api_key"'),
    ("runpod", {"timeout_s": 0}, "price.runpod.timeout_s must be a number of seconds"),
    ("vast", {"endpoint": "http://vast.example/"}, "price.vast.endpoint: must be an https URL"),
    ("azure", {"endpoint": "prices.azure.com"}, "price.azure.endpoint: must be an https URL"),
    ("azure", {"metadata_endpoint": "http://203.0.113.9"}, "price.azure.metadata_endpoint: must be an https URL"),
    ("aws", {"endpoint": "http://10.0.0.1/"}, "price.aws.endpoint: must be an https URL"),
])  # fmt: skip
def test_a_wrong_configuration_is_one_line(name: str, config: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        prices.load(name, config, {})
    assert told in str(error.value)
    assert SECRET not in str(error.value)


def test_keys_of_the_cloud_hold_here_too_and_its_others_do_not_matter() -> None:
    cloud = {"timeout_s": 7.0, "terminate": True}
    assert prices.load("runpod", {}, cloud).bound_s == 7.0
    assert prices.load("runpod", {"timeout_s": 3.0}, cloud).bound_s == 3.0


@pytest.mark.parametrize("name", ["aws", "azure"])
@pytest.mark.parametrize("address", ["169.254.169.254", "[fd00:ec2::254]", "[fe80::1]", "127.0.0.1:80", "[::1]:80"])
def test_the_metadata_address_of_both_families_is_accepted(name: str, address: str) -> None:
    """As the table of the cloud takes it: one service answers both."""
    prices.load(name, {"metadata_endpoint": f"http://{address}"}, {})
