"""The metrics of the machine: each GPU as its driver shows it, and what the whole node uses. Unknown has no sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from governor.adapters.exporters.metric import Metric, Sample, clean, number
from governor.core.events.hardware import THROTTLES
from governor.core.events.machine import NodeUse
from governor.core.views.metrics import GpuMetrics, MetricsSnapshot

GPU_LABELS: Final = ("node", "gpu", "uuid")
NODE_LABELS: Final = ("node", "cloud_instance")
HERTZ_PER_MHZ: Final = 1e6
# As label values.
REASONS: Final = {0x8: "hw_slowdown", 0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake"}
assert REASONS.keys() == THROTTLES.keys()


def node_labels(snapshot: MetricsSnapshot) -> tuple[str, str]:
    """Of every series that is of no GPU: whoever collects many governors has nothing else to tell them apart by."""
    return clean(snapshot.node), clean(snapshot.cloud_instance)


def _gpu_labels(snapshot: MetricsSnapshot, gpu: GpuMetrics) -> tuple[str, ...]:
    return (clean(snapshot.node), str(gpu.index), clean(gpu.uuid))


def _gpu(name: str, meaning: str, pick: Callable[[GpuMetrics], float | None], kind: str = "gauge") -> Metric:
    def samples(snapshot: MetricsSnapshot) -> Iterable[Sample]:
        for gpu in snapshot.health.machine.gpus:
            value = pick(gpu)
            if value is not None:
                yield _gpu_labels(snapshot, gpu), number(value)

    return Metric(name, kind, GPU_LABELS, meaning, samples)


def _hertz(mhz: float | None) -> float | None:
    return None if mhz is None else mhz * HERTZ_PER_MHZ


def _throttles(snapshot: MetricsSnapshot) -> Iterable[Sample]:
    for gpu in snapshot.health.machine.gpus:
        bits = gpu.figures.clock_reasons
        for bit, reason in REASONS.items() if bits is not None else ():
            yield (*_gpu_labels(snapshot, gpu), reason), float(bool((bits or 0) & bit))


def _node(name: str, meaning: str, pick: Callable[[NodeUse], float | None], kind: str = "gauge") -> Metric:
    def samples(snapshot: MetricsSnapshot) -> Iterable[Sample]:
        use = snapshot.health.machine.node
        value = pick(use) if use is not None else None
        if value is not None:
            yield node_labels(snapshot), number(value)

    return Metric(name, kind, NODE_LABELS, meaning, samples)


MACHINE_METRICS: Final = (
    _gpu("costgov_gpu_busy_ratio", "Part of the last second in which any kernel ran, 0 to 1; not MFU. Absent with MIG.",
         lambda gpu: gpu.busy_frac),
    _gpu("costgov_gpu_memory_used_bytes", "Memory in use, the driver's own included.",
         lambda gpu: gpu.memory_used_bytes),
    _gpu("costgov_gpu_memory_size_bytes", "Memory of the GPU.", lambda gpu: gpu.memory_total_bytes),
    _gpu("costgov_gpu_processes", "Processes that compute on it, as the driver shows them.", lambda gpu: gpu.processes),
    _gpu("costgov_gpu_power_watts", "Power drawn.", lambda gpu: gpu.figures.power_w),
    _gpu("costgov_gpu_power_limit_watts", "The limit in force.", lambda gpu: gpu.figures.power_limit_w),
    _gpu("costgov_gpu_temperature_celsius", "Temperature of the GPU's die.", lambda gpu: gpu.figures.temperature_c),
    _gpu("costgov_gpu_sm_clock_hertz", "Clock of the multiprocessors now.",
         lambda gpu: _hertz(gpu.figures.sm_clock_mhz)),
    _gpu("costgov_gpu_sm_clock_max_hertz", "The highest clock of the multiprocessors.",
         lambda gpu: _hertz(gpu.figures.sm_clock_max_mhz)),
    _gpu("costgov_gpu_memory_clock_hertz", "Clock of the memory now.",
         lambda gpu: _hertz(gpu.figures.memory_clock_mhz)),
    _gpu("costgov_gpu_memory_clock_max_hertz", "The highest clock of the memory.",
         lambda gpu: _hertz(gpu.figures.memory_clock_max_mhz)),
    Metric("costgov_gpu_throttled", "gauge", (*GPU_LABELS, "reason"),
           "1 while heat, power supply or the hardware itself hold the clocks down, by reason; a power cap is none.",
           _throttles),
    _gpu("costgov_gpu_pcie_receive_bytes_per_second", "To the GPU over PCIe, since the last sample; where the driver "
         "counts no bytes, over 20 ms once in as many seconds as there are GPUs.",
         lambda gpu: gpu.figures.pcie_rx_bytes_per_s),
    _gpu("costgov_gpu_pcie_transmit_bytes_per_second", "From the GPU over PCIe, likewise.",
         lambda gpu: gpu.figures.pcie_tx_bytes_per_s),
    _gpu("costgov_gpu_nvlink_receive_bytes_per_second", "To the GPU over all its NVLinks, since the last sample.",
         lambda gpu: gpu.figures.nvlink_rx_bytes_per_s),
    _gpu("costgov_gpu_nvlink_transmit_bytes_per_second", "From the GPU over all its NVLinks, likewise.",
         lambda gpu: gpu.figures.nvlink_tx_bytes_per_s),
    _gpu("costgov_gpu_ecc_corrected_errors_total", "Corrected memory errors since the driver was loaded.",
         lambda gpu: gpu.figures.ecc_corrected_total, "counter"),
    _gpu("costgov_gpu_ecc_uncorrected_errors_total", "Uncorrected memory errors since the driver was loaded.",
         lambda gpu: gpu.figures.ecc_uncorrected_total, "counter"),
    _gpu("costgov_gpu_xid_errors_total", "XID errors since the GPU sampler began; absent where the driver tells none.",
         lambda gpu: gpu.figures.xid_total, "counter"),
    _gpu("costgov_gpu_xid_last", "Number of the last XID error; absent before the first.",
         lambda gpu: gpu.figures.xids[-1] if gpu.figures.xids else None),
    _gpu("costgov_gpu_lost", "1 if the driver says that the GPU is lost: it has fallen off the bus.",
         lambda gpu: gpu.figures.is_lost),
    _gpu("costgov_gpu_mig_enabled", "1 if the GPU is parted by MIG.", lambda gpu: gpu.figures.is_mig),
    _node("costgov_node_cpu_cores", "Cores of the node.", lambda use: use.cores),
    _node("costgov_node_cpu_busy_seconds_total", "Time in which cores worked, of all together.",
          lambda use: use.cpu_busy_s, "counter"),
    _node("costgov_node_cpu_iowait_seconds_total", "Time in which a core was idle while a task waited for storage.",
          lambda use: use.cpu_iowait_s, "counter"),
    _node("costgov_node_memory_available_bytes", "Memory that can be had without swapping.",
          lambda use: use.memory_available_bytes),
    _node("costgov_node_memory_size_bytes", "Main memory.", lambda use: use.memory_total_bytes),
    _node("costgov_node_swap_used_bytes", "Swap in use.", lambda use: use.swap_used_bytes),
    _node("costgov_node_disk_read_bytes_total", "Read from all disks.", lambda use: use.disk_read_bytes, "counter"),
    _node("costgov_node_disk_written_bytes_total", "Written to all disks.",
          lambda use: use.disk_written_bytes, "counter"),
    _node("costgov_node_network_receive_bytes_total", "Received by all network cards; the loopback is none.",
          lambda use: use.network_received_bytes, "counter"),
    _node("costgov_node_network_transmit_bytes_total", "Sent by all network cards; the loopback is none.",
          lambda use: use.network_sent_bytes, "counter"),
    _node("costgov_node_cpu_pressure_seconds_total", "Time in which some task waited for a core (PSI).",
          lambda use: use.cpu_pressure_s, "counter"),
    _node("costgov_node_io_pressure_seconds_total", "Time in which some task waited for storage (PSI).",
          lambda use: use.io_pressure_s, "counter"),
    _node("costgov_node_memory_pressure_seconds_total", "Time in which some task waited for memory (PSI).",
          lambda use: use.memory_pressure_s, "counter"),
)  # fmt: skip
