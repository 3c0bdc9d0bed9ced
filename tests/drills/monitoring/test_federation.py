"""Two governors, each with a Prometheus beside it, and one that federates both: nothing collides, sums are right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.exporters.prometheus import PrometheusExporter
from governor.adapters.exporters.prometheus_metrics import METRICS, info_metrics
from governor.core.base.units import NS_PER_MS, UsdMicros
from governor.core.views.metrics import GovernorHealth, MetricsSnapshot
from tests.drills.prometheus_server import NEEDS_PROMETHEUS, Prometheus, prometheus, scrape_of
from tests.drills.test_prometheus import snapshot
from tests.tidy.sources import ROOT

pytestmark = NEEDS_PROMETHEUS
RULES = ROOT / "deploy/prometheus/costgov.rules.yml"
LOOPBACK = "127.0.0.1:9477"
# As docs/howto/monitoring.md has it.
FEDERATE = {
    "honor_labels": True,
    "metrics_path": "/federate",
    "params": {"match[]": ['{__name__=~"costgov_.+"}', 'up{job="costgov"}']},
}
NAMES = {metric.name for metric in (*METRICS, *info_metrics("", ""))}


def told(node: str, usd_micros: int) -> MetricsSnapshot:
    """Both nodes are of one run, and have the same tokens."""
    one = snapshot(2, "halted")
    [run] = one.runs
    return replace(
        one, node=node, cloud_instance=f"i-{node}", runs=(replace(run, spend_usd_micros=UsdMicros(usd_micros)),),
        unallocated_usd_micros=1_000_000,
    )  # fmt: skip


@pytest.fixture
def federated(tmp_path: Path) -> Iterator[Prometheus]:
    """The one that federates. On each node `instance` is loopback's, as where Prometheus runs beside the governor."""
    alike = [{"target_label": "instance", "replacement": LOOPBACK}]
    with ExitStack() as running:
        places = []
        for node, usd_micros in (("gpu-1", 60_000_000), ("gpu-2", 40_000_000)):
            exporter = PrometheusExporter("127.0.0.1", 0, health=GovernorHealth, tick_ns=250 * NS_PER_MS, fleet="main")
            running.enter_context(closing(exporter))
            exporter.publish(told(node, usd_micros))
            target = exporter.url.removeprefix("http://").removesuffix("/metrics")
            own = folder(tmp_path, node)
            server = running.enter_context(prometheus("", own, scrape=scrape_of([target], relabel_configs=alike)))
            server.await_value("costgov_run_step", "2")
            places.append(server.url.removeprefix("http://"))
        federate: dict[str, Any] = scrape_of(places, **FEDERATE)
        yield running.enter_context(prometheus("", folder(tmp_path, "whole"), [RULES], scrape=federate))


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made


def test_series_of_two_nodes_stand_beside_each_other_and_their_sums_are_right(federated: Prometheus) -> None:
    federated.await_value("count(costgov_run_spend_usd_total)", "2")
    assert {one["metric"]["instance"] for one in federated.series("costgov_run_spend_usd_total")} == {LOOPBACK}
    for name in {one["metric"]["__name__"] for one in federated.series('{__name__=~"costgov_.+"}')}:
        nodes = {one["metric"].get("node") for one in federated.series(name)}
        assert nodes == {"gpu-1", "gpu-2"} or not is_ours(name), f"{name} is of {nodes}"
    federated.await_value("costgov:run_spend_usd:all_nodes", "100")
    federated.await_value("costgov:run_tokens:all_nodes", str(2 * 4096))
    federated.await_value("costgov:run_halts:all_nodes", "1")
    federated.await_value('costgov:fleet_spend_usd:sum{fleet="main"}', "102")
    federated.await_value('costgov:fleet_nodes:count{fleet="main"}', "2")
    federated.await_value('costgov:fleet_runs:count{fleet="main"}', "1")


def is_ours(name: str) -> bool:
    return re.sub("_(bucket|sum|count)$", "", name) in NAMES


def test_the_page_tells_the_job_that_is_played_here() -> None:
    page = (ROOT / "docs/howto/monitoring.md").read_text()
    for said in ("honor_labels: true", "metrics_path: /federate", *FEDERATE["params"]["match[]"]):  # type: ignore[index]
        assert said in page
