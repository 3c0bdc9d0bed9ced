"""Debian's promtool and a real Prometheus look at the endpoint."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from governor.adapters.exporters.prometheus import PrometheusExporter
from governor.core.base.units import NS_PER_MS, UsdMicros, WallNs
from governor.core.money.token_price import TokenPrices
from governor.core.views.metrics import GovernorHealth, LagReading, MetricsSnapshot, RunReading
from tests.drills.prometheus_server import DEADLINE_S, NEEDS_PROMETHEUS, prometheus

pytestmark = NEEDS_PROMETHEUS


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
