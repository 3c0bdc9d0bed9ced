"""promtool plays series under the alert rules: each alert fires when it should, and not before or beside it."""

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
RUN = 'run="llama",stage="8b",node="gpu-17",cloud_instance="i-1",scheduler_job=""'
ALIVE = {f"costgov_run_alive{{{RUN}}}": "1x600"}
SECONDS = "costgov_run_time_seconds_total"
EXPECTED = {
    f"costgov_run_expected_usd_per_mtok{{{RUN}}}": "0.5x600",  # At 10,000 tokens a second: $18 an hour.
    f"costgov_run_expected_tokens_per_second{{{RUN}}}": "10000x600",
}


@dataclass(frozen=True)
class Case:
    """`fires`: minutes at which the alert is firing; `quiet`: at which it is not. A series has a value a minute."""

    alert: str
    series: dict[str, str]
    fires: tuple[int, ...] = ()
    quiet: tuple[int, ...] = ()


def of_run(metric: str, values: str, **labels: str) -> dict[str, str]:
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    base = RUN.replace('stage="8b",', "") if "stage" in labels else RUN
    return {f"{metric}{{{base}{more}}}": values}


def of_time(**seconds_a_minute: int) -> dict[str, str]:
    """Seconds of each minute by cause, for ten hours."""
    return {
        key: value
        for cause, seconds in seconds_a_minute.items()
        for key, value in of_run(SECONDS, f"0+{seconds}x600", cause=cause).items()
    }


def of_lag(late: int) -> dict[str, str]:
    """240 ticks a minute, `late` of which come within half a second and the others at once."""
    name = "costgov_loop_lag_seconds_bucket"
    upto = {"0.01": 240 - late, "0.25": 240 - late, "0.5": 240, "+Inf": 240}
    return {f'{name}{{instance="gpu-17:9477",le="{bound}"}}': f"0+{count}x600" for bound, count in upto.items()}


def of_gpu(metric: str, values: str, **labels: str) -> dict[str, str]:
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return {f'costgov_gpu_{metric}{{node="gpu-17",gpu="3",uuid="GPU-d"{more}}}': values}


def of_node(metric: str, values: str) -> dict[str, str]:
    return {f'costgov_node_{metric}{{node="gpu-17",cloud_instance="i-1"}}': values}


CHARGED = of_run("costgov_run_spend_rate_usd_per_hour", "20x600") | ALIVE

CASES = [
    Case("CostgovSpendRateOverPlan", of_run("costgov_run_spend_rate_usd_per_hour", "21x60 22x600") | EXPECTED,
         fires=(77,), quiet=(60, 70)),
    Case("CostgovSpendRateOverPlan", of_run("costgov_run_spend_rate_usd_per_hour", "99x600"), quiet=(500,)),
    Case("CostgovTokensDear", of_run("costgov_run_drift_ratio", "0.15x60 0.16x600"), fires=(92,), quiet=(60, 85)),
    Case("CostgovTokensDearAllIn", of_run("costgov_run_drift_all_in_ratio", "0.25x60 0.3x600"), (125,), (60, 115)),
    Case("CostgovCeilingSoon", of_run("costgov_run_ceiling_reached_in_seconds", "14400-60x60") | ALIVE, (1,), (0,)),
    Case("CostgovCeilingSoon", of_run("costgov_run_ceiling_reached_in_seconds", "60x60")
         | of_run("costgov_run_alive", "0x60"), quiet=(30,)),
    Case("CostgovCeilingNear", of_run("costgov_run_spend_usd_total", "90+1x9")
         | of_run("costgov_run_ceiling_usd", "100x9") | ALIVE, (1,), (0,)),
    Case("CostgovBudgetNear", {
        'costgov_budget_spend_usd{scope="day",node="gpu-17"}': "80+1x9",
        'costgov_budget_reserve_usd{scope="day",node="gpu-17"}': "10x9",
        'costgov_budget_ceiling_usd{scope="day",node="gpu-17"}': "100x9",
    }, (1,), (0,)),
    Case("CostgovPriceUnknown", ALIVE, (16,), (14,)),
    Case("CostgovPriceUnknown", ALIVE | of_run("costgov_run_spend_rate_usd_per_hour", "20x600"), quiet=(100,)),
    Case("CostgovHaltNeedsHuman", of_run("costgov_halt_stage", "0x3 1x9", stage="needs_human"), (5,), (2,)),
    Case("CostgovNodeStopNeedsHuman",
         {'costgov_node_stop_stage{node="gpu-17",stage="needs_human"}': "0x3 1x9"}, (5,), (2,)),
    Case("CostgovHaltTakesLong", of_run("costgov_halt_stage", "1x15 0x60", stage="saving")
         | of_run("costgov_halt_stage", "0x15 1x60", stage="termed")
         | of_run("costgov_halt_stage", "0x600", stage="halted"), (31,), (29,)),
    Case("CostgovHaltTakesLong", of_run("costgov_halt_stage", "0x600", stage="saving")
         | of_run("costgov_halt_stage", "1x600", stage="halted"), quiet=(100,)),
    Case("CostgovRunHalted", of_run("costgov_halt_stage", "0x3 1x9", stage="halted"), (5,), (2,)),
    Case("CostgovRunUnwatched", of_run("costgov_run_watched", "1x3 0x9"), (7,), (3, 5)),
    Case("CostgovLossUnseen", of_run("costgov_run_loss_unseen", "0x3 1x60"), (20,), (3, 17)),
    Case("CostgovLossNotANumber", of_run("costgov_run_loss", "2x3 NaNx60") | ALIVE, (6,), (3,)),
    Case("CostgovLossNotANumber", of_run("costgov_run_loss", "NaNx60")
         | of_run("costgov_run_alive", "0x60"), quiet=(30,)),
    Case("CostgovGoodputLow", of_time(productive=47, data_starvation=13) | ALIVE, (155,), (119, 145)),
    Case("CostgovGoodputLow", of_time(productive=49, data_starvation=11) | ALIVE, quiet=(500,)),
    Case("CostgovCauseLarge", of_time(productive=50, data_starvation=10) | ALIVE, (80,), (60, 70)),
    Case("CostgovCauseLarge", of_time(recompute=25, optimizer_offload=25, start_up=10) | ALIVE, quiet=(500,)),
    Case("CostgovCauseLarge", of_time(productive=52, data_starvation=8) | ALIVE, quiet=(500,)),
    Case("CostgovNodeIdle", {'costgov_node_idle_seconds{node="gpu-17"}': "0+60x60"}, (31,), (30,)),
    Case("CostgovUnattachedGpuProcesses",
         {'costgov_unattached_gpu_processes{node="gpu-17"}': "0x3 1x60"}, (20,), (3, 17)),
    Case("CostgovGpuLost", of_gpu("lost", "0x3 1x9"), (5,), (2,)),
    Case("CostgovGpuFatalXid", of_gpu("xid_errors_total", "0x9 1x60") | of_gpu("xid_last", "_x9 79x60"),
         (12,), (9, 40)),
    Case("CostgovGpuFatalXid", of_gpu("xid_errors_total", "0x9 1x60") | of_gpu("xid_last", "_x9 13x60"), quiet=(12,)),
    Case("CostgovGpuUncorrectedEcc", of_gpu("ecc_uncorrected_errors_total", "7x9 8x200"), (12, 60), (9, 90)),
    Case("CostgovGpuHeldDown", of_gpu("throttled", "0x30 1x60", reason="hw_thermal"), (50,), (30, 37)),
    Case("CostgovGpuHeldDown", of_gpu("throttled", " ".join(["0x2 1"] * 8), reason="sw_thermal"),
         quiet=(15, 20, 30)),
    Case("CostgovGpuIdleWhileCharged", of_gpu("busy_ratio", "0.9x30 0x90") | CHARGED, (67,), (30, 60)),
    Case("CostgovGpuIdleWhileCharged", of_gpu("busy_ratio", "0x19 0.5 0x19 0.5 0x19 0.5 0x19 0.5") | CHARGED,
         quiet=(60, 75)),
    Case("CostgovGpuIdleWhileCharged", of_gpu("busy_ratio", "0x90"), quiet=(80,)),
    Case("CostgovGpuMemoryFull", of_gpu("memory_used_bytes", "98x30 99x60") | of_gpu("memory_size_bytes", "100x90"),
         (47,), (30, 44)),
    Case("CostgovNodeMemoryFull",
         of_node("memory_available_bytes", "5x30 4x60") | of_node("memory_size_bytes", "100x90"), (37,), (30, 34)),
    Case("CostgovNodeSwaps", of_node("swap_used_bytes", "2000000000x30 2000000000+50000000x60"), (40,), (30,)),
    Case("CostgovNodeSwaps", of_node("swap_used_bytes", "0+50000000x15 800000000x60"), quiet=(10, 16, 40)),
    Case("CostgovNodeMemoryPressure", of_node("memory_pressure_seconds_total", "0+3x30 90+12x60"), (55,), (30,)),
    Case("CostgovNodeStoragePressure", of_node("io_pressure_seconds_total", "0+20x30 600+40x60"), (60,), (30, 45)),
    Case("CostgovNodeCpuPressure", of_node("cpu_pressure_seconds_total", "0+45x30 1350+55x60"), (60,), (30, 45)),
    Case("CostgovDown", {'up{job="costgov",instance="gpu-17:9477"}': "1x3 0x9"}, (7,), (3, 5)),
    Case("CostgovDown", {'up{job="other",instance="gpu-17:1"}': "0x9"}, quiet=(7,)),
    Case("CostgovLoopLate", of_lag(3), (30,), ()),
    Case("CostgovLoopLate", of_lag(1), quiet=(60,)),
    Case("CostgovJournalErrors", {'costgov_journal_errors_total{instance="a"}': "0x9 1x60"}, (12,), (9, 40)),
    Case("CostgovRecordingStopped", {'costgov_recording_lost_total{instance="a"}': "5x9 9x60"}, (12,), (9, 40)),
    Case("CostgovAlertsDropped", {'costgov_alerts_dropped_total{receiver="pager"}': "0x9 1x60"}, (12,), (9, 40)),
    Case("CostgovPoliciesNotLoaded", {'costgov_config_last_reload_successful{instance="a"}': "1x3 0x9"}, (5,), (2,)),
]  # fmt: skip


def test_promtool_finds_no_fault() -> None:
    found = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True, timeout=DEADLINE_S)
    assert found.returncode == 0, found.stderr
    assert "SUCCESS" in found.stdout


def test_every_alert_is_played_both_ways() -> None:
    named = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    assert {case.alert for case in CASES if case.fires} == named
    assert {case.alert for case in CASES if case.quiet} >= named - {"CostgovLoopLate"}


def _values(text: str) -> str:
    """`3x9 4x9` in promtool's words: a constant has `+0`, and a NaN cannot be repeated."""
    return " ".join(_nans(part) if "NaN" in part else re.sub("^([0-9.]+)x", r"\1+0x", part) for part in text.split())


def _nans(part: str) -> str:
    return " ".join(["NaN"] * (int(part.removeprefix("NaNx")) + 1))


def _test_of(case: Case) -> dict[str, Any]:
    asked = f'count by (alertname) (ALERTS{{alertname="{case.alert}",alertstate="firing"}})'
    firing = [{"labels": f'{{alertname="{case.alert}"}}', "value": 1}]
    moments = [(minute, firing) for minute in case.fires] + [(minute, []) for minute in case.quiet]
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": _values(text)} for name, text in case.series.items()],
        "promql_expr_test": [
            {"expr": asked, "eval_time": f"{minute}m", "exp_samples": samples} for minute, samples in moments
        ],
    }


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.alert}" for number, case in enumerate(CASES)])
def test_the_alert_fires_when_it_should(case: Case, tmp_path: Path) -> None:
    played = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [_test_of(case)]}
    file = tmp_path / "test.yml"
    file.write_text(json.dumps(played))  # JSON is YAML.
    found = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, timeout=DEADLINE_S)
    assert found.returncode == 0, found.stdout + found.stderr


def test_what_an_alert_says(tmp_path: Path) -> None:
    told = {
        "exp_labels": {
            "severity": "warning", "run": "llama", "stage": "8b", "node": "gpu-17", "cloud_instance": "i-1",
            "cause": "data_starvation",
        },
        "exp_annotations": {
            "summary": "20% of the last hour of run llama went to data_starvation",
            "description": "That part of its price bought no training.",
            "runbook": "docs/reference/failure_modes.md",
        },
    }  # fmt: skip
    series = of_time(productive=48, data_starvation=12) | ALIVE
    played = {
        "interval": "1m",
        "input_series": [{"series": name, "values": _values(text)} for name, text in series.items()],
        "alert_rule_test": [{"eval_time": "100m", "alertname": "CostgovCauseLarge", "exp_alerts": [told]}],
    }
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [played]}))
    found = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, timeout=DEADLINE_S)
    assert found.returncode == 0, found.stdout + found.stderr
