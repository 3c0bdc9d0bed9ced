"""Who computes on the node's GPUs, as events: also those that nobody announced are tenants of the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from governor.adapters.accelerators import accelerators
from governor.core.events import Event, GpuProcessesSeen
from governor.core.units import NS_PER_S, MonoNs
from governor.ports import GpuReading, Gpus

LOOK_PERIOD_NS: Final = 2 * NS_PER_S  # A halt that is decided now relies on who was there this recently.
# A driver keeps some of a GPU's memory for itself (below 1 GB), and a container does not see the processes of others.
HELD_BYTES_MIN: Final = 4_000_000_000


@dataclass(slots=True)
class GpuWatch:
    """A source of the loop. That nobody computes is said where the driver says so, or where there is no GPU."""

    gpus: Gpus
    accelerators: Callable[[], Sequence[str] | None] = accelerators
    _look_at: MonoNs = MonoNs(0)

    def poll(self, at: MonoNs) -> list[Event]:
        if at < self._look_at:
            return []
        self._look_at = MonoNs(at + LOOK_PERIOD_NS)
        readings = self.gpus.read()
        if readings is None:
            return [GpuProcessesSeen(at, frozenset(), problem=self._problem())]
        if any(reading.pids is None for reading in readings):
            return [GpuProcessesSeen(at, frozenset(), problem="the driver does not say who computes on its GPUs")]
        pids = frozenset(pid for reading in readings for pid in reading.pids or ())
        return [GpuProcessesSeen(at, pids, unnamed=sum(_is_held(reading) for reading in readings))]

    def _problem(self) -> str | None:
        """None where there is nothing to look at. A driver that is away may leave GPUs, and trainers, behind."""
        if self.gpus.fileno() is not None:
            return self.gpus.status
        found = self.accelerators()
        if found is None:
            return f"{self.gpus.status}, and the kernel does not list the machine's devices"
        return f"{self.gpus.status}, and the machine has accelerators ({', '.join(found[:4])})" if found else None


def _is_held(reading: GpuReading) -> bool:
    """Somebody uses it whom the driver does not name."""
    held = (reading.memory_used_bytes or 0) >= HELD_BYTES_MIN or (reading.busy_frac or 0) > 0
    return held and not reading.pids
