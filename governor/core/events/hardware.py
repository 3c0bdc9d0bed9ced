"""What a driver tells of one GPU beside load and memory, in NVML's terms. Every figure is None where it is not told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from governor.core.base.units import NS_PER_S, DurationNs

# Older figures say nothing of now. The sampler looks every second; a recording has these figures every ten.
FIGURES_STALE_NS: Final = DurationNs(30 * NS_PER_S)
# Reasons for lower clocks (nvmlClocksEventReasons), by their bit. A power cap (0x4) or a clock that somebody set is the
# owner's own choice, and an idle GPU's clocks fall: these are no fault.
THROTTLES: Final[Mapping[int, str]] = {
    0x8: "hardware slowdown",
    0x20: "heat (by the driver)",
    0x40: "heat (by the hardware)",
    0x80: "power brake",
}
# XIDs after which NVIDIA's catalogue asks for a GPU reset or a restart of the machine at once: "Immediate Action"
# RESET_GPU or RESTART_BM, and 48 and 74, whose text says that a reset is needed to clear them. Left out: 155, which
# intended link-downs cause as well, and 156, which needs no further look. Most others are an application's own fault.
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (read 2026-11-29)
FATAL_XIDS: Final[Mapping[int, str]] = {
    46: "the GPU stopped processing",
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "memory remapping failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timed out",
    110: "security fault",
    119: "the GPU's own processor (GSP) does not answer",
    120: "the GPU's own processor (GSP) failed",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "the GPU does not initialise",
    158: "fatal timeout of the GPU",
}
XIDS_KEPT: Final = 8  # One fault brings a handful of them.
NUMBER_BOUND: Final = 2**63


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU. Rates are over the time since the sampler's last look, or as NVML measures them."""

    power_w: float | None = None
    power_limit_w: float | None = None  # The enforced one.
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    clock_reasons: int | None = None  # NVML's bits of now: why clocks are below their maximum.
    pcie_rx_bytes_per_s: float | None = None  # Seen from the GPU.
    pcie_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None  # Of all links.
    nvlink_tx_bytes_per_s: float | None = None
    # Since the driver was loaded: they begin anew when it is loaded again.
    ecc_corrected_total: int | None = None
    ecc_uncorrected_total: int | None = None
    xid_total: int | None = None  # Since the sampler began. None: the driver tells no events.
    xids: tuple[int, ...] = ()  # The last ones, newest last.
    is_mig: bool | None = None
    is_lost: bool = False  # "GPU is lost": it has fallen off the bus, and every other figure is absent.

    @property
    def throttles(self) -> tuple[str, ...]:
        """Why heat, power supply or the hardware itself hold the clocks down now."""
        return tuple(name for bit, name in THROTTLES.items() if (self.clock_reasons or 0) & bit)

    def told(self) -> dict[str, Any]:
        """The figures that are known, as JSON has them."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: value for name, value in known.items() if value is not None and value != () and name != "is_lost"
        } | ({"is_lost": True} if self.is_lost else {})


# What people call the figures, for a list of those that are absent.
NAMED: Final[Mapping[str, str]] = {
    "power_w": "power",
    "power_limit_w": "power limit",
    "temperature_c": "temperature",
    "sm_clock_mhz": "clocks",
    "clock_reasons": "throttling",
    "pcie_rx_bytes_per_s": "PCIe traffic",
    "nvlink_rx_bytes_per_s": "NVLink traffic",
    "ecc_uncorrected_total": "ECC errors",
    "xid_total": "XID errors",
}
# What a driver tells beyond these is a fault of its own, or a value that stands for none.
FIGURE_BOUNDS: Final[Mapping[str, float]] = {
    "power_w": 1e5,
    "power_limit_w": 1e5,
    "temperature_c": 250.0,
    "sm_clock_mhz": 1e5,
    "sm_clock_max_mhz": 1e5,
    "memory_clock_mhz": 1e5,
    "memory_clock_max_mhz": 1e5,
}
UNTOLD: Final = GpuFigures()
_COUNTS: Final = frozenset({"clock_reasons", "ecc_corrected_total", "ecc_uncorrected_total", "xid_total"})
_FLAGS: Final = frozenset({"is_mig", "is_lost"})
_NUMBERS: Final = frozenset(one.name for one in fields(GpuFigures)) - _COUNTS - _FLAGS - {"xids"}


def read_figures(told: object) -> GpuFigures | None:
    """What `told` wrote. None if it is not that; unknown keys are a newer writer's and are left out."""
    if not isinstance(told, dict):
        return None
    known: dict[str, Any] = {}
    for name, value in told.items():
        if value is None:
            continue
        if name in _NUMBERS:
            is_right = type(value) in (int, float) and 0 <= value < NUMBER_BOUND  # NaN fails too.
        elif name in _COUNTS:
            is_right = _is_count(value)
        elif name in _FLAGS:
            is_right = type(value) is bool
        elif name == "xids":
            is_right = isinstance(value, list | tuple) and len(value) <= XIDS_KEPT and all(map(_is_count, value))
            value = tuple(value) if is_right else ()
        else:
            continue
        if not is_right:
            return None
        known[name] = value
    return GpuFigures(**known)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < NUMBER_BOUND
