"""promtool plays series of many nodes: a recording rule adds up what is a node's share, and counts nothing twice."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.drills.prometheus_server import DEADLINE_S, NEEDS_PROMETHEUS
from tests.tidy.sources import ROOT

pytestmark = NEEDS_PROMETHEUS
RULES = ROOT / "deploy/prometheus/costgov.rules.yml"
AT_MINUTES = 90


def node(name: str) -> str:
    return f'job="costgov",instance="{name}:9477",node="{name}",cloud_instance="i-{name}"'


def of_run(metric: str, name: str, values: str, run: str = "llama", job: str = "slurm:7") -> dict[str, str]:
    labels = f'{node(name)},run="{run}",stage="8b",scheduler_job="{job}"'
    return {f"costgov_run_{metric}{{{labels}}}": values}


def info(name: str, fleet: str = "main") -> dict[str, str]:
    labels = f'{node(name)},fleet="{fleet}",cloud="aws",region="us-east-1",version="1"'
    return {f"costgov_node_info{{{labels}}}": "1+0x99"}


def of_node(metric: str, name: str, values: str) -> dict[str, str]:
    return {f"costgov_{metric}{{{node(name)}}}": values}


@dataclass(frozen=True)
class Case:
    """What the rule says of these series at the end: labels beside `job`, and the value."""

    rule: str
    series: dict[str, str]
    expected: dict[str, float]


LLAMA = 'run="llama",stage="8b"'
TWO_NODES = of_run("spend_usd_total", "a", "60+0x99") | of_run("spend_usd_total", "b", "40+0x99")
TOKENS = of_run("tokens_total", "a", "2000000+0x99") | of_run("tokens_total", "b", "1999000+0x99")
RATES = of_run("spend_rate_usd_per_hour", "a", "36+0x99") | of_run("spend_rate_usd_per_hour", "b", "36+0x99")
SPEEDS = of_run("tokens_per_second", "a", "10000+0x99") | of_run("tokens_per_second", "b", "10000+0x99")
TOLD = of_run("nodes_spend_usd", "a", "130+0x99") | of_run("nodes_spend_usd", "b", "129+0x99")
FLEETS = info("a") | info("b") | info("c", "other")
ALIVE = of_run("alive", "a", "1+0x99") | of_run("alive", "b", "1+0x99")

CASES = [
    Case("run_spend_usd:all_nodes", TWO_NODES, {LLAMA: 100}),
    # A third node has left, and its governor is not scraped any more.
    Case("run_spend_usd:all_nodes", TWO_NODES | TOLD, {LLAMA: 130}),
    Case("run_spend_usd:all_nodes", TWO_NODES | of_run("spend_usd_total", "c", "7+0x99", run="qwen"),
         {LLAMA: 100, 'run="qwen",stage="8b"': 7}),
    # An attempt is another job of the scheduler on one of its nodes.
    Case("run_spend_usd:all_nodes",
         of_run("spend_usd_total", "a", "60+0x99") | of_run("spend_usd_total", "b", "40+0x99", job="slurm:8"),
         {LLAMA: 100}),
    Case("run_spend_rate_usd_per_hour:all_nodes", RATES, {LLAMA: 72}),
    Case("run_alive_nodes:count", ALIVE | of_run("alive", "c", "0+0x99"), {LLAMA: 2}),
    Case("run_tokens:all_nodes", TOKENS | of_run("tokens_total", "a", "9000000+0x99", run="_other"), {LLAMA: 2e6}),
    Case("run_tokens_per_second:all_nodes", SPEEDS, {LLAMA: 10_000}),
    Case("run_usd_per_mtok_all_in:all_nodes", TWO_NODES | TOKENS, {LLAMA: 50}),
    Case("run_usd_per_mtok_all_in:all_nodes", TWO_NODES | TOKENS | of_run("unpriced_seconds", "a", "0+0x99"),
         {LLAMA: 50}),
    Case("run_usd_per_mtok_all_in:all_nodes", TWO_NODES | TOKENS | of_run("unpriced_seconds", "b", "5+0x99"), {}),
    Case("run_usd_per_mtok_all_in:all_nodes", TWO_NODES | of_run("tokens_total", "a", "0+0x99"), {}),
    Case("run_usd_per_mtok_now:all_nodes", RATES | SPEEDS, {LLAMA: 2}),  # $72 for 36 million tokens.
    Case("run_halts:all_nodes", of_run("incidents_total", "a", "3+0x99") | of_run("incidents_total", "b", "3+0x99"),
         {LLAMA: 3}),
    Case("node_halts:sum", of_run("incidents_total", "a", "3+0x99")
         | of_run("incidents_total", "a", "1+0x99", run="qwen") | of_run("incidents_total", "b", "3+0x99"),
         {node("a"): 4, node("b"): 3}),
    Case("node_spend_usd:sum", of_run("spend_usd_total", "a", "60+0x99")
         | of_run("spend_usd_total", "a", "6+0x99", run="_other") | of_node("unallocated_usd_total", "a", "4+0x99")
         | of_run("spend_usd_total", "b", "5+0x99") | of_node("unallocated_usd_total", "c", "9+0x99"),
         {node("a"): 70, node("b"): 5, node("c"): 9}),
    # $1 a minute. The governor is killed, and starts with a little less: increase() would say $170.
    Case("node_spend_usd:delta1h", of_run("spend_usd_total", "a", "100+1x70 169.5+1x40"), {node("a"): 58.5}),
    Case("node_spend_usd:delta1h", of_run("spend_usd_total", "a", "0+1x99")
         | of_node("unallocated_usd_total", "a", "0+0.5x99") | of_node("unallocated_usd_total", "b", "0+0.5x99"),
         {node("a"): 90, node("b"): 30}),
    Case("fleet_spend_usd:sum", FLEETS | TWO_NODES | of_run("spend_usd_total", "c", "7+0x99"),
         {'fleet="main"': 100, 'fleet="other"': 7}),
    Case("fleet_spend_usd:delta1h", FLEETS | of_run("spend_usd_total", "a", "0+1x99")
         | of_run("spend_usd_total", "b", "0+2x99"), {'fleet="main"': 180}),
    Case("fleet_price_usd_per_hour:sum", FLEETS | of_node("node_price_usd_per_hour", "a", "98+0x99")
         | of_node("node_price_usd_per_hour", "b", "2+0x99"), {'fleet="main"': 100}),
    Case("fleet_runs:count", FLEETS | ALIVE | of_run("alive", "b", "1+0x99", run="qwen")
         | of_run("alive", "b", "0+0x99", run="old") | of_run("alive", "a", "1+0x99", run="_other")
         | of_run("alive", "c", "1+0x99"), {'fleet="main"': 2, 'fleet="other"': 1}),
    Case("fleet_nodes:count", FLEETS, {'fleet="main"': 2, 'fleet="other"': 1}),
]  # fmt: skip


def told(labels: str) -> str:
    return labels if "job=" in labels else f'{labels},job="costgov"'


def recorded() -> set[str]:
    text = RULES.read_text().split("- name: costgov-fleet")[1].split("- name:")[0]
    return set(re.findall(r"- record: costgov:(\S+)", text))


def test_every_rule_is_played() -> None:
    assert {case.rule for case in CASES} == recorded()


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.rule}" for number, case in enumerate(CASES)])
def test_the_rule_counts_each_dollar_and_each_token_once(case: Case, tmp_path: Path) -> None:
    name = f"costgov:{case.rule}"
    samples = [{"labels": f"{name}{{{told(labels)}}}", "value": value} for labels, value in case.expected.items()]
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "promql_expr_test": [{"expr": name, "eval_time": f"{AT_MINUTES}m", "exp_samples": samples}],
    }
    played = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    file = tmp_path / "test.yml"
    file.write_text(json.dumps(played))  # JSON is YAML.
    found = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, timeout=DEADLINE_S)
    assert found.returncode == 0, found.stdout + found.stderr
