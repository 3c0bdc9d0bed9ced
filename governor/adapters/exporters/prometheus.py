"""The Prometheus endpoint: the loop leaves a snapshot, a thread of its own answers scrapers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from governor.adapters.exporters.prometheus_metrics import METRICS, Metric, build_info, shown
from governor.adapters.exporters.scrape_server import ScrapeServer
from governor.core.base.units import MonoNs
from governor.core.views.metrics import LAG_BOUNDS_S, GovernorHealth, LagMeter, LagReading, Snapshot, take_snapshot

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"  # Understood by every Prometheus since 0.0.4.
_FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class SnapshotCollector(Collector):
    """Turns the newest snapshot into metric families. Before the first one there are none."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None  # Replaced as a whole: no lock.
        self._metrics = (*METRICS, build_info(version("costgov")))

    def describe(self) -> Iterable[Family]:
        return []  # Registering must not collect.

    def collect(self) -> Iterable[Family]:
        if self.snapshot is None:
            return
        snapshot = shown(self.snapshot)
        for metric in self._metrics:
            if metric.type == "histogram":
                yield _lag_family(metric, snapshot.lag)
                continue
            family = _FAMILIES[metric.type](metric.name, metric.meaning, labels=metric.labels)
            for labels, value in metric.samples(snapshot):
                family.add_metric(labels, value)
            if family.samples:
                yield family


class PrometheusExporter:
    """`ports.Observer`. `health` is asked on the loop's thread at every tick and must not block.

    MetricsUnavailable (scrape_server) when the address cannot be bound: metrics are worth a line, never a start.
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        health: Callable[[], GovernorHealth],
        tick_ns: int,
        scheduler_job: str = "",
    ) -> None:
        self._health = health
        self._scheduler_job = scheduler_job
        self._lag = LagMeter(tick_ns)
        self._collector = SnapshotCollector()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        self._server = ScrapeServer(address, port, self.render, CONTENT_TYPE)
        self.url = f"http://{f'[{address}]' if ':' in address else address}:{self._server.port}/metrics"

    def publish(self, snapshot: Snapshot) -> None:
        """Show this from now on."""
        self._collector.snapshot = snapshot

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def tick(self, node: Any, at: MonoNs) -> None:
        self._lag.observe(at)
        self.publish(take_snapshot(node, at, self._health(), self._lag.reading(), self._scheduler_job))

    def incident(self, snapshot: Mapping[str, Any]) -> None:
        pass

    def alarm(self, name: str, run: str | None, text: str) -> None:
        pass

    def close(self) -> None:
        self._server.close()


def _lag_family(metric: Metric, lag: LagReading) -> Family:
    bounds = (*(str(bound) for bound in LAG_BOUNDS_S), "+Inf")
    buckets = list(zip(bounds, map(float, accumulate(lag.counts)), strict=True))
    return HistogramMetricFamily(metric.name, metric.meaning, buckets=buckets, sum_value=lag.sum_s)
