"""Every query of the dashboard has an answer from a real Prometheus that scraped a run of the engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs.generators.dashboard import PANELS, Panel
from governor.adapters.exporters.prometheus import PrometheusExporter
from governor.core.base.identity import ConnectionId
from governor.core.base.policy import Budget, Expected, Policy, PolicySet
from governor.core.base.units import MTOK, NS_PER_MS, BootNs, MonoNs, WallNs, usd
from governor.core.engine.node import new_node
from governor.core.events.hardware import GpuFigures
from governor.core.events.inputs import PhaseChange
from governor.core.events.machine import NodeUse
from governor.core.events.operators import OperatorHalt
from governor.core.money.budgets import ScopedBudget, parse_scope
from governor.core.views.metrics import (
    AlertCounts,
    GovernorHealth,
    GpuMetrics,
    LagReading,
    MachineMetrics,
    take_snapshot,
)
from tests.drills.prometheus_server import NEEDS_PROMETHEUS, Prometheus, prometheus
from tests.tidy.sources import ROOT
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import a_step, make_node, rule
from tests.unit.core.money.test_waste import until

pytestmark = NEEDS_PROMETHEUS
RULES = ROOT / "deploy/prometheus/costgov.rules.yml"
# What Grafana puts in. The drill's scrapes are twice a second.
IN_GRAFANA = {"$__rate_interval": "30s", "$__range": "2m", "$node": ".*", "$run": ".*"}
SCRAPES = 8
STEPS_A_SCRAPE = 20
STEP_TOKENS = 10_000
POLICY = Policy(
    "drill",
    budget=Budget(ceiling_usd_micros=usd(100), tokens=100 * MTOK, window_tokens=MTOK // 10),
    expected=Expected(usd_micros_per_mtok=400_000, tokens_per_s=10_000.0, usd_micros_per_mtok_all_in=500_000),
    rules=(rule(),),
)
HALT_PANELS = {"Stage of the halt"}


GPUS = 8
LOST = 5


def machine_at(second: int) -> MachineMetrics:
    """Eight GPUs with all figures, one of which is lost, and a node with all of its."""
    figures = GpuFigures(
        600.0, 700.0, 65.0, 1_500.0, 1_980.0, 2_600.0, 2_619.0, 0x40, 1e9, 2e9, 3e9, 4e9, second, 1, 2, (13, 79), False
    )
    gpus = tuple(
        GpuMetrics(index, f"GPU-{index}", 0.9, 60, 80, 1, GpuFigures(is_lost=True) if index == LOST else figures)
        for index in range(GPUS)
    )
    node = NodeUse(16, second * 8.0, second * 0.5, 64, 128, 1, second * 9, second * 8, second * 7, second * 6,
                   second * 0.1, second * 0.2, second * 0.3)  # fmt: skip
    return MachineMetrics(gpus, node)


class Demo:
    """A small engine run, whose every moment that is published a Prometheus has scraped."""

    def __init__(self, exporter: PrometheusExporter, server: Prometheus) -> None:
        self._exporter, self._server = exporter, server
        facts = replace(make_node().facts, price_usd_micros_per_hour=usd(20))
        budget = ScopedBudget(parse_scope("day"), usd(1000), "costgov.toml")
        self.world = World(new_node(facts, PolicySet((POLICY,), "d"), BootNs(0), WallNs(0), (budget,)))
        self.world.tick()
        until(self.world, 5)
        self.world.hear(tokens_per_step=STEP_TOKENS)
        self.world.play(PhaseChange(MonoNs(self.world.mono), ConnectionId(1), "llama", 0, "train"))

    def trained(self, first: int, last: int) -> None:
        """A step a second, a tenth of each of which is data."""
        for number in range(first, last + 1):
            until(self.world, 10 + number)
            said: dict[str, Any] = {
                "tokens": STEP_TOKENS,
                "tokens_total": number * STEP_TOKENS,
                "grad_norm": 0.5,
                "skipped_steps": 2,
            }
            parts = {"data_s": 0.1, "forward_s": 0.3, "backward_s": 0.5, "optimizer_s": 0.1}
            now = MonoNs(self.world.mono)
            self.world.play(a_step(number, when=10.0 + number, ended=now, **said, **parts))

    def scraped(self, query: str, expected: str) -> None:
        """The present moment is published, and in the server's hands."""
        second = round(self.world.mono / 1e9)
        alerts, machine = (AlertCounts("pager", second),), machine_at(second)
        health = GovernorHealth(unattached_gpu_processes=0, alerts=alerts, machine=machine)
        lag = LagReading((second * 4, *(0,) * 10), 0.001)
        self._exporter.publish(take_snapshot(self.world.node, MonoNs(self.world.mono), health, lag, "slurm:1"))
        self._server.await_value(query, expected)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Prometheus, Demo]]:
    with closing(PrometheusExporter("127.0.0.1", 0, health=GovernorHealth, tick_ns=250 * NS_PER_MS)) as exporter:
        target = exporter.url.removeprefix("http://").removesuffix("/metrics")
        with prometheus(target, tmp_path, [RULES]) as running:
            yield running, Demo(exporter, running)


def asked(panel: Panel) -> list[str]:
    queries = [query for query, _ in panel.queries]
    for name, value in IN_GRAFANA.items():
        queries = [query.replace(name, value) for query in queries]
    assert not [query for query in queries if "$" in query]
    return queries


def unanswered(server: Prometheus, panels: list[Panel]) -> list[str]:
    return [f"{panel.title}: {query}" for panel in panels for query in asked(panel) if not server.series(query)]


def test_every_panel_is_answered_and_every_rule_judged(server: tuple[Prometheus, Demo]) -> None:
    running, demo = server
    for scrape in range(SCRAPES):
        last = (scrape + 1) * STEPS_A_SCRAPE
        demo.trained(scrape * STEPS_A_SCRAPE + 1, last)
        demo.scraped("costgov_run_step", str(last))
    assert unanswered(running, [panel for panel in PANELS if panel.title not in HALT_PANELS]) == []
    causes = running.series("sum by (cause) (increase(costgov_run_time_seconds_total[2m])) > 0")
    assert {"productive", "data_starvation"} <= {one["metric"]["cause"] for one in causes}

    demo.world.play(OperatorHalt(MonoNs(demo.world.mono), "llama", "enough", uid=0))
    demo.scraped('costgov_halt_stage{stage="asked"}', "1")
    assert unanswered(running, [panel for panel in PANELS if panel.title in HALT_PANELS]) == []

    assert len(running.series("costgov_gpu_busy_ratio")) == GPUS
    running.await_value('ALERTS{alertname="CostgovGpuLost",alertstate="firing"}', "1")
    running.await_value('ALERTS{alertname="CostgovTokensDear",alertstate="pending"}', "1")
    rules = [one for group in running.ask("rules")["groups"] for one in group["rules"]]
    assert len(rules) == RULES.read_text().count("expr:")
    assert [one for one in rules if one["health"] != "ok"] == []
    told = running.ask("alerts")["alerts"]
    assert {"CostgovTokensDear", "CostgovSpendRateOverPlan", "CostgovGpuHeldDown"} <= {
        one["labels"]["alertname"] for one in told
    }
    for one in told:
        assert not re.search("error expanding|<no value>", str(one["annotations"])), one
