"""GPUs and the node as metrics: what is known, and nothing in place of what is not."""

from __future__ import annotations

from dataclasses import replace

from governor.adapters.exporters.prometheus_machine import MACHINE_METRICS
from governor.core.events.hardware import GpuFigures
from governor.core.events.machine import NodeUse
from governor.core.views.metrics import GovernorHealth, GpuMetrics, MachineMetrics, MetricsSnapshot

FIGURES = GpuFigures(
    640.5, 700.0, 61.0, 1755.0, 1980.0, 2619.0, 2619.0, 0x44, 3e9, 2e9, 9e9, 8e9, 5, 1, 2, (13, 79), is_mig=False
)
MACHINE = MachineMetrics(
    (GpuMetrics(0, "GPU-0", 0.97, 60, 80, 2, FIGURES), GpuMetrics(1, "GPU-1", figures=GpuFigures(is_lost=True))),
    NodeUse(2, 12.5, 1.5, 8, 16, 0, 100, 200, 300, 400, 0.25, 0.5, 0.75),
)


def shown(machine: MachineMetrics) -> dict[tuple[str, ...], float]:
    """By the metric's name without costgov_, then its labels behind the node's."""
    snapshot = MetricsSnapshot("gpu-17", health=replace(GovernorHealth(), machine=machine))
    return {
        (metric.name.removeprefix("costgov_"), *labels[1:]): value
        for metric in MACHINE_METRICS
        for labels, value in metric.samples(snapshot)
    }


def test_figures_are_in_base_units_and_throttling_is_by_reason() -> None:
    known = shown(MACHINE)
    assert known["gpu_sm_clock_hertz", "0", "GPU-0"] == 1.755e9
    assert known["gpu_throttled", "0", "GPU-0", "hw_thermal"] == 1
    assert known["gpu_throttled", "0", "GPU-0", "hw_power_brake"] == 0
    assert known["gpu_xid_last", "0", "GPU-0"] == 79
    assert known["node_io_pressure_seconds_total", ""] == 0.5


def test_of_a_lost_gpu_nothing_is_told_but_that_it_is_lost() -> None:
    assert {key[0]: value for key, value in shown(MACHINE).items() if key[1] == "1"} == {"gpu_lost": 1}


def test_what_is_unknown_has_no_sample() -> None:
    assert shown(MachineMetrics()) == {}
    assert shown(MachineMetrics(node=NodeUse())) == {}
