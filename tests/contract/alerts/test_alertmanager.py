"""What Alertmanager is told: which alert is which, until when it stands, and that a halt is resolved by its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.plugins import ConfigError
from tests.contract.alerts.rigs import TOKEN, WALL_NS, Rig, Told, a_halt, alertmanager_rig, an_alert

NS_PER_S = 10**9


@pytest.fixture
def alertmanager(server: Told, tmp_path: Path) -> Rig:
    return alertmanager_rig(server, tmp_path)


def posted(rig: Rig, place: int = -1) -> dict[str, Any]:
    (one,) = json.loads(rig.server.asked[place].body)
    assert isinstance(one, dict)
    return one


@pytest.mark.parametrize("base", ["", "/", "/prefix", "/prefix/", "/api/v2/alerts", "/api/v2/alerts/"])
def test_the_api_is_below_the_url(alertmanager: Rig, base: str) -> None:
    alertmanager.receiver(url=alertmanager.server.url + base).post(an_alert())
    prefix = "/prefix" if "prefix" in base else ""
    assert alertmanager.server.asked[0].path == f"{prefix}/api/v2/alerts"


def test_a_query_before_the_apis_path_would_be_all_that_is_asked_for(alertmanager: Rig) -> None:
    with pytest.raises(ConfigError, match=r"url holds a query") as refused:
        alertmanager.receiver(url=f"{alertmanager.server.url}/?tenant=S3CRET")
    assert "S3CRET" not in str(refused.value)


def test_an_alarm_is_an_event_with_an_end(alertmanager: Rig) -> None:
    alertmanager.wall_ns += 60 * NS_PER_S  # It was a minute in coming.
    alertmanager.receiver().post(an_alert())
    assert posted(alertmanager) == {
        "labels": {
            "alertname": "costgov_unwatched",
            "severity": "warning",
            "node": "node-a",
            "run": "llama",
            "stage": "8b",
            "team": "pretrain",
        },
        "annotations": {
            "summary": "run llama is not heard: is its node alive?",
            "description": "run llama is not heard: is its node alive?\nsee: costgov status",
            "spend": "$12.35",
            "ceiling": "$300.00",
            "usd_per_mtok": "$0.057400",
            "usd_per_mtok_all_in": "$0.061250",
            "usd_per_mtok_steady": "$0.056900",
            "failure_mode": "docs/reference/failure_modes.md#unwatched",
            "id": "msg_00000000000000000000000000000001",
        },
        "startsAt": "2027-01-15T08:00:00Z",
        "endsAt": "2027-01-15T08:16:00Z",
    }


def test_a_halt_is_told_again_under_the_same_labels_and_then_resolved(alertmanager: Rig) -> None:
    receiver = alertmanager.receiver()
    for alert in (a_halt("ASKED"), a_halt("VERIFYING"), a_halt("HALTED", ended_wall=WALL_NS + 950 * NS_PER_S)):
        receiver.post(alert)
        alertmanager.wall_ns += 500 * NS_PER_S
    told = [posted(alertmanager, place) for place in range(3)]
    assert told[0]["labels"] == told[1]["labels"] == told[2]["labels"]
    assert told[0]["labels"]["incident"] == "llama.node-a.1"
    assert [one["endsAt"] for one in told] == ["2027-01-15T08:15:00Z", "2027-01-15T08:23:20Z", "2027-01-15T08:15:50Z"]
    assert {one["startsAt"] for one in told} == {"2027-01-15T08:00:00Z"}
    assert [one["annotations"]["halt_stage"] for one in told] == ["ASKED", "VERIFYING", "HALTED"]


def test_a_halt_of_seconds_stands_until_whoever_waits_for_a_group_has_told_of_it(alertmanager: Rig) -> None:
    """Also where nobody was there to take it for an hour."""
    alertmanager.wall_ns += 3600 * NS_PER_S
    alertmanager.receiver().post(a_halt("HALTED", ended_wall=WALL_NS + 2 * NS_PER_S))
    assert posted(alertmanager)["startsAt"] == "2027-01-15T08:00:00Z"
    assert posted(alertmanager)["endsAt"] == "2027-01-15T09:15:00Z"


def test_an_end_is_never_before_its_beginning(alertmanager: Rig) -> None:
    """Alertmanager refuses such an alert; a wall clock may have been set meanwhile."""
    alertmanager.wall_ns -= 3600 * NS_PER_S
    alertmanager.receiver().post(a_halt("HALTED", ended_wall=alertmanager.wall_ns))
    assert posted(alertmanager)["endsAt"] == posted(alertmanager)["startsAt"]


def test_labels_of_the_run_become_labels_of_prometheus_and_ours_count(alertmanager: Rig) -> None:
    labels = {"cost-center": "17", "2nd": "x", "severity": "none", "node": "evil", "empty": "", "bytes": "a\udce9"}
    alertmanager.receiver().post(an_alert(labels=labels))
    told = posted(alertmanager)["labels"]
    assert (told["cost_center"], told["_2nd"], told["severity"], told["node"]) == ("17", "x", "warning", "node-a")
    assert "empty" not in told
    assert told["bytes"] == "a?"


def test_a_token_goes_into_its_header_and_without_one_there_is_none(alertmanager: Rig) -> None:
    alertmanager.receiver().post(an_alert())
    alertmanager.receiver(token_file=None).post(an_alert())
    first, second = alertmanager.server.asked
    assert first.headers["Authorization"] == f"Bearer {TOKEN}"
    assert "Authorization" not in second.headers
