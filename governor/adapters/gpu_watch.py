"""Who computes on the node's GPUs, as events: also those that nobody announced are tenants of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from governor.core.events import Event, GpuProcessesSeen
from governor.core.units import NS_PER_S, MonoNs
from governor.ports import Gpus

LOOK_PERIOD_NS: Final = 2 * NS_PER_S  # A halt that is decided now relies on who was there this recently.


@dataclass(slots=True)
class GpuWatch:
    """A source of the loop. Silent where there is no NVML: then nobody knows, and the engine is told nothing."""

    gpus: Gpus
    _look_at: MonoNs = MonoNs(0)

    def poll(self, at: MonoNs) -> list[Event]:
        if at < self._look_at:
            return []
        self._look_at = MonoNs(at + LOOK_PERIOD_NS)
        readings = self.gpus.read()
        if readings is None:
            return []
        return [GpuProcessesSeen(at, frozenset(pid for reading in readings for pid in reading.pids))]
