"""Whoever is told of a halt: a real Alertmanager, and receivers that hang, refuse, or see the governor die."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from examples.demo_cloud import DemoCloud
from governor.adapters import alerts
from governor.cli.status_table import render_status
from governor.core.alerts.outbox import Took
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, WallNs
from governor.text.screen import FILE
from tests.contract.alerts.rigs import SECRET, Answer, Told, a_halt, receiver_server
from tests.drills.halt.conftest import SAFETY_S, Service, cloud_table

PACE_S = 0.1


@pytest.fixture
def pager() -> Iterator[Told]:
    with receiver_server() as told:
        yield told


def webhook_table(pager: Told, directory: Path) -> str:
    secret = directory / "pager.secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    return f'[[alert]]\nkind = "webhook"\nname = "pager"\nurl = "{pager.url}/hook"\nsecret_file = "{secret}"\n'


def heard(pager: Told) -> list[dict[str, Any]]:
    return [json.loads(asked.body) for asked in pager.asked]


def is_resolved(pager: Told) -> bool:
    return any(one["state"] == "resolved" for one in heard(pager))


@contextmanager
def alertmanager(directory: Path, tells: str, group_wait: str = "1ms") -> Iterator[str]:
    """A real server on loopback, which tells `tells` of whatever fires and resolves. Yields its URL."""
    config = directory / "alertmanager.yml"
    receiver = {"name": "r", "webhook_configs": [{"url": tells, "send_resolved": True}]}
    route = {"receiver": "r", "group_by": ["alertname"], "group_wait": group_wait, "group_interval": "1s"}
    config.write_text(json.dumps({"route": route, "receivers": [receiver]}))  # JSON is YAML.
    with (directory / "alertmanager.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus-alertmanager",
                f"--config.file={config}",
                f"--storage.path={directory / 'alertmanager'}",
                "--web.listen-address=127.0.0.1:0",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=log,
        )
    pidfd = os.pidfd_open(process.pid)
    try:
        for _ in range(round(SAFETY_S / PACE_S)):
            ports = [c.laddr.port for c in psutil.Process(process.pid).net_connections() if c.status == "LISTEN"]
            if ports:
                yield f"http://127.0.0.1:{ports[0]}"
                break
            assert not select.select([pidfd], [], [], PACE_S)[0], (directory / "alertmanager.log").read_text()
        else:
            pytest.fail("alertmanager does not listen")
    finally:
        process.terminate()
        process.wait(SAFETY_S)
        os.close(pidfd)


def standing(url: str) -> dict[str, Any]:
    """What Alertmanager's own API shows as not resolved, by name."""
    found = httpx.get(f"{url}/api/v2/alerts", trust_env=False, timeout=SAFETY_S).json()
    return {one["labels"]["alertname"]: one for one in found}


NEEDS_ALERTMANAGER = pytest.mark.skipif(
    shutil.which("prometheus-alertmanager") is None, reason="Debian's package prometheus-alertmanager is not installed"
)


def notified(pager: Told, state: str) -> bool:
    return any(one["status"] == state and one["groupLabels"]["alertname"] == "costgov_halt" for one in heard(pager))


@NEEDS_ALERTMANAGER
def test_an_alertmanager_shows_the_halt_while_it_lasts_and_then_its_end(
    service: Callable[..., Service], cloud: DemoCloud, pager: Told, tmp_path: Path
) -> None:
    cloud.stopping_s = 10**9  # The stop is accepted, and lasts until we say so.
    with alertmanager(tmp_path, f"{pager.url}/notified") as url:
        table = f'[[alert]]\nkind = "alertmanager"\nurl = "{url}"\n'
        governor = service(stop="instance", cloud=cloud_table(cloud) + table)
        governor.start()
        governor.trainee("polite")
        governor.until_stage("VERIFYING")

        pager.until(lambda: notified(pager, "firing"))
        halt = standing(url)["costgov_halt"]
        incident = governor.incidents()[0]
        assert halt["labels"] == {
            "alertname": "costgov_halt",
            "severity": "critical",
            "node": "drill",
            "run": "drill",
            "incident": incident["incident_id"],
        }
        assert halt["annotations"]["reason"] == incident["reason"]
        assert "loss nan" in halt["annotations"]["summary"]
        cloud.stopping_s = 0.0
        governor.until_stage("HALTED")
        governor.process.terminate()
        assert governor.process.wait(SAFETY_S) == 0  # Then everything is told.
        assert standing(url)["costgov_halt"]["annotations"]["halt_stage"] == "HALTED"
        assert not notified(pager, "resolved")


@NEEDS_ALERTMANAGER
def test_an_alertmanager_tells_of_a_halt_that_was_over_before_it_tells_of_anything(pager: Told, tmp_path: Path) -> None:
    with alertmanager(tmp_path, f"{pager.url}/notified", group_wait="5s") as url:
        receiver = alerts.load("alertmanager", {"url": url})
        ended = time.time_ns() - NS_PER_S
        for halt in (a_halt("TERMED"), a_halt("HALTED", ended_wall=ended)):
            assert receiver.post(replace(halt, wall=WallNs(ended - NS_PER_S))).took is Took.TAKEN
        pager.until(lambda: notified(pager, "firing"))


@NEEDS_ALERTMANAGER
def test_an_alertmanager_resolves_a_halt_of_an_hour_with_its_end(pager: Told, tmp_path: Path) -> None:
    with alertmanager(tmp_path, f"{pager.url}/notified") as url:
        receiver = alerts.load("alertmanager", {"url": url})
        begun = WallNs(time.time_ns() - NS_PER_HOUR)
        assert receiver.post(replace(a_halt("VERIFYING"), wall=begun)).took is Took.TAKEN
        pager.until(lambda: notified(pager, "firing"))
        assert receiver.post(replace(a_halt("HALTED", ended_wall=time.time_ns()), wall=begun)).took is Took.TAKEN
        pager.until(lambda: notified(pager, "resolved"))
        assert standing(url) == {}


def test_receivers_that_hang_cost_the_halt_nothing_nor_the_governors_end(
    service: Callable[..., Service], pager: Told, tmp_path: Path
) -> None:
    pager.then(*[Answer(hangs=True)] * 100)
    governor = service(cloud=webhook_table(pager, tmp_path) + f"timeout_s = {SAFETY_S}\n")
    governor.start()
    trainee = governor.trainee("deaf_term")
    governor.until_stage("HALTED")
    assert trainee.wait(SAFETY_S) != 0
    pager.until(lambda: pager.asked)
    assert "alert_receiver_fails" not in governor.log.read_text(), "it hangs to this moment"
    governor.process.terminate()
    assert governor.process.wait(SAFETY_S) == 0
    log = governor.log_at_end()
    assert "alert_receiver_fails" not in log, "it hangs to this moment"
    assert "alerts_not_sent" in log
    assert SECRET not in log


def test_a_halt_that_is_resumed_is_told_under_the_same_ids(
    service: Callable[..., Service], pager: Told, tmp_path: Path
) -> None:
    governor = service(cloud=webhook_table(pager, tmp_path))
    governor.start()
    governor.trainee("deaf_term")
    governor.until_stage("TERMED")
    pager.until(lambda: any((one["incident"] or {}).get("stage") == "TERMED" for one in heard(pager)))
    governor.kill9()
    governor.start()
    governor.until_stage("HALTED")
    pager.until(lambda: is_resolved(pager))
    halts = [one for one in heard(pager) if one["name"] == "halt"]
    assert len({one["incident"]["id"] for one in halts}) == 1
    stages = {one["incident"]["stage"] for one in halts}
    assert {one["id"] for one in halts} == {next(o["id"] for o in halts if o["incident"]["stage"] == s) for s in stages}
    assert len({one["id"] for one in halts}) == len(stages)
    assert {"TERMED", "HALTED"} <= stages


def test_what_waits_at_the_governors_end_is_sent_then(
    service: Callable[..., Service], pager: Told, tmp_path: Path
) -> None:
    pager.then(Answer(503, {"Retry-After": "300"}))
    governor = service(cloud=webhook_table(pager, tmp_path))
    governor.start()
    governor.trainee("polite")
    governor.until_stage("HALTED")
    pager.until(lambda: pager.asked)
    governor.until_said("alert_receiver_fails")
    assert len(pager.asked) == 1, "it asked to be left alone"
    shown = render_status(governor.ask({"cmd": "status"}), FILE)
    assert "problem: alerts are not taken by pager: the receiver has trouble (http_503); " in shown
    governor.process.terminate()
    assert governor.process.wait(SAFETY_S) == 0
    assert is_resolved(pager)
