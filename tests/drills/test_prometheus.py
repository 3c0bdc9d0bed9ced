"""Debian's promtool and a real Prometheus look at the endpoint."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from governor.adapters.exporters.prometheus import PrometheusExporter
from governor.core.base.units import NS_PER_MS, UsdMicros, WallNs
from governor.core.money.token_price import TokenPrices
from governor.core.views.metrics import GovernorHealth, LagReading, MetricsSnapshot, RunReading

DEADLINE_S = 60.0
PACE_S = 0.1

pytestmark = [
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed"),
    pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's package prometheus is not installed"),
]


def snapshot(step: int, halt_stage: str | None) -> MetricsSnapshot:
    run = RunReading(
        run="llama",
        stage="8b",
        scheduler_job="slurm:4711",
        attempt="a1",
        mode="enforce",
        step=step,
        skipped_steps=0,
        tokens_total=step * 4096,
        tokens_per_s=40_000.0,
        step_s=0.1,
        loss=float("nan"),
        grad_norm=0.5,
        spend_usd_micros=UsdMicros(12_345_678),
        prices=TokenPrices(2_469_135, 3_000_001, 3_100_002),
        spend_rate_usd_micros_per_hour=55_040_000,
        ceiling_usd_micros=300_000_000,
        last_frame_wall=WallNs(1_800_000_000_000_000_000),
        ranks_connected=8,
        world_size=8,
        incidents_total=int(halt_stage is not None),
        halt_stage=halt_stage,
    )
    return MetricsSnapshot(
        node="gpu-17",
        cloud_instance="i-0abc",
        can_stop=True,
        price_usd_micros_per_hour=55_040_000,
        runs=(run,),
        frames_received_total=step,
        lag=LagReading((step, *(0,) * 10), 0.001 * step),
        health=GovernorHealth(config_last_reload_wall=WallNs(1_800_000_000_000_000_000), unattached_gpu_processes=1),
    )


@pytest.fixture
def exporter() -> Iterator[PrometheusExporter]:
    with closing(PrometheusExporter("127.0.0.1", 0, health=GovernorHealth, tick_ns=250 * NS_PER_MS)) as running:
        running.publish(snapshot(1, "verifying"))
        yield running


def test_promtool_finds_nothing_to_say(exporter: PrometheusExporter) -> None:
    page = httpx.get(exporter.url, trust_env=False, timeout=DEADLINE_S).content
    found = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=DEADLINE_S)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")


class Prometheus:
    """A real server on loopback; every wait also notices its death."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self.url = ""

    def await_ready(self) -> None:
        for _ in range(round(DEADLINE_S / PACE_S)):
            ports = [c.laddr.port for c in psutil.Process(self._process.pid).net_connections() if c.status == "LISTEN"]
            if ports:
                self.url = f"http://127.0.0.1:{ports[0]}"
                return
            self._pace()
        pytest.fail("prometheus does not listen")

    def value(self, query: str) -> str | None:
        """Return the value of a query that has one sample, or None while there is no answer."""
        try:
            reply = httpx.get(
                f"{self.url}/api/v1/query", params={"query": query}, trust_env=False, timeout=DEADLINE_S
            )  # fmt: skip
            result: list[Any] = reply.json()["data"]["result"] if reply.status_code == 200 else []
        except httpx.TransportError:
            return None
        assert len(result) <= 1, result
        return str(result[0]["value"][1]) if result else None

    def await_value(self, query: str, expected: str) -> None:
        found = None
        for _ in range(round(DEADLINE_S / PACE_S)):
            if (found := self.value(query)) == expected:
                return
            self._pace()
        pytest.fail(f"{query} is {found}, not {expected}")

    def _pace(self) -> None:
        if select.select([self._pidfd], [], [], PACE_S)[0]:
            pytest.fail(f"prometheus ended with {self._process.wait()}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        os.close(self._pidfd)


@contextmanager
def prometheus(target: str, directory: Path) -> Iterator[Prometheus]:
    scrape = {"job_name": "costgov", "static_configs": [{"targets": [target]}]}
    config = directory / "prometheus.yml"
    # JSON is YAML. The interval decides only how long the drill waits.
    config.write_text(json.dumps({"global": {"scrape_interval": "500ms"}, "scrape_configs": [scrape]}))
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=log,
            stderr=log,
        )
    with closing(Prometheus(process)) as running:
        running.await_ready()
        yield running


def test_a_real_prometheus_scrapes_and_follows(exporter: PrometheusExporter, tmp_path: Path) -> None:
    target = exporter.url.removeprefix("http://").removesuffix("/metrics")
    host, port = target.split(":")
    rude = socket.create_connection((host, int(port)))
    rude.sendall(b"GET /metrics HTTP/1.1\r\nX-Never-Ends: ")  # Must neither hold up the scrapes nor stay for ever.
    with prometheus(target, tmp_path) as server:
        server.await_value('up{job="costgov"}', "1")
        labels = '{run="llama",stage="8b",node="gpu-17",cloud_instance="i-0abc",scheduler_job="slurm:4711"}'
        server.await_value(f"costgov_run_spend_usd_total{labels}", "12.345678")
        server.await_value(f"costgov_run_usd_per_mtok{labels}", "2.469135")
        server.await_value(f"costgov_run_loss{labels}", "NaN")
        server.await_value('costgov_halt_stage{stage="verifying"} == 1', "1")
        server.await_value("costgov_unattached_gpu_processes", "1")
        server.await_value("costgov_loop_lag_seconds_count", "1")
        exporter.publish(snapshot(2, "halted"))
        server.await_value("costgov_run_step", "2")
        server.await_value('costgov_halt_stage{stage="halted"} == 1', "1")
        assert server.value('costgov_halt_stage{stage="verifying"} == 1') is None
        rude.settimeout(DEADLINE_S)
        assert rude.recv(1) == b"", "a client that never finishes its request is hung up on"
        server.await_value('up{job="costgov"}', "1")
    rude.close()
