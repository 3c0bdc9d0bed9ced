"""What many governors tell one Prometheus: whose each series is, and what of a run over several nodes is whose."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from governor.adapters.exporters.prometheus import PrometheusExporter
from governor.adapters.exporters.prometheus_metrics import METRICS, info_metrics
from governor.core.base.units import NS_PER_MS, UsdMicros, WallNs
from governor.core.views.machines import OverNodes
from governor.core.views.metrics import AlertCounts, BudgetReading, GovernorHealth, MetricsSnapshot, RunReading
from tests.unit.adapters.exporters.test_prometheus import FULL, snapshot
from tests.unit.adapters.exporters.test_prometheus_machine import MACHINE

Series = tuple[str, tuple[tuple[str, str], ...]]
CHARS_MAX = 128


def everything(node: str, instance: str) -> MetricsSnapshot:
    """A snapshot in which each metric has a value."""
    health = GovernorHealth(
        unattached_gpu_processes=2, config_last_reload_wall=WallNs(1), alerts=(AlertCounts("pager", 1, 2, 3),),
        recording_lost_total=4, machine=MACHINE,
    )  # fmt: skip
    budgets = (BudgetReading("stage:s1", 9_000_000, 4_500_000, 250_000),)
    return replace(
        snapshot(FULL, price=98_320_000), node=node, cloud_instance=instance, cloud="aws", region="eu-west-1",
        health=health, budgets=budgets, idle_s=600.0, stops_in_s=300.0, stop_stage="verifying",
        unallocated_usd_micros=2_500_000,
    )  # fmt: skip


def series_of(shown: MetricsSnapshot, fleet: str = "") -> dict[Series, float]:
    exporter = PrometheusExporter("127.0.0.1", 0, health=GovernorHealth, tick_ns=250 * NS_PER_MS, fleet=fleet)
    with closing(exporter):
        exporter.publish(shown)
        families = text_string_to_metric_families(exporter.render().decode())
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
            if sample.name.startswith("costgov_")
        }


@pytest.mark.parametrize(
    ("one", "other"), [(("gpu-1", "i-1"), ("gpu-2", "i-2")), (("gpu", "i-1"), ("gpu", "i-2")), (("a", ""), ("b", ""))],
    ids=["names and instances", "instances alone", "names alone"],
)  # fmt: skip
def test_no_series_of_two_governors_is_the_same_without_the_scrapers_own_labels(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    """Where each node's Prometheus scrapes 127.0.0.1:9477, `instance` is the same for all once they are federated."""
    first, second = (series_of(everything(*names)) for names in (one, other))
    alike = {name for name, _ in first.keys() & second.keys()}
    if one[0] == other[0]:  # GPUs differ by their UUIDs; those of the test do not.
        alike = {name for name in alike if not name.startswith("costgov_gpu_")}
    assert alike == set()
    shown = {re.sub("_(bucket|sum|count)$", "", name) for name, _ in first}
    declared = {metric.name for metric in (*METRICS, *info_metrics("", ""))}
    assert declared <= shown | {metric.name for metric in METRICS if metric.type == "histogram"}


def test_the_info_of_a_node_joins_with_its_series_and_says_what_it_is() -> None:
    shown = {name: dict(labels) for name, labels in series_of(everything("gpu-17", "i-1"), "main")}
    told = shown["costgov_node_info"]
    assert {name: told[name] for name in ("node", "cloud_instance", "fleet", "cloud", "region")} == {
        "node": "gpu-17", "cloud_instance": "i-1", "fleet": "main", "cloud": "aws", "region": "eu-west-1",
    }  # fmt: skip
    assert told["version"] == shown["costgov_build_info"]["version"] != ""
    for name in ("costgov_node_price_usd_per_hour", "costgov_run_alive", "costgov_loop_lag_seconds_count"):
        assert {label: shown[name][label] for label in ("node", "cloud_instance")} == {
            label: told[label] for label in ("node", "cloud_instance")
        }


def test_what_a_label_may_hold_is_bounded() -> None:
    long = replace(everything("n" * 999, "i" * 999), cloud="c" * 999, region="r" * 999)
    assert max(len(value) for _, labels in series_of(long, "f" * 999) for _, value in labels) <= CHARS_MAX


def of_a_run(reading: RunReading) -> dict[str, float]:
    shown = series_of(snapshot(reading))
    return {name: value for (name, _), value in shown.items() if name.startswith("costgov_run_nodes")}


def test_a_run_over_several_nodes_tells_its_share_and_what_all_of_them_have_spent() -> None:
    run = RunReading(run="llama", spend_usd_micros=UsdMicros(4_000_000))
    assert of_a_run(run) == {}
    assert of_a_run(replace(run, over_nodes=OverNodes(3, UsdMicros(9_000_000)))) == {
        "costgov_run_nodes": 3, "costgov_run_nodes_spend_usd": 9,
    }  # fmt: skip
    assert of_a_run(replace(run, over_nodes=OverNodes(3, None))) == {"costgov_run_nodes": 3}
