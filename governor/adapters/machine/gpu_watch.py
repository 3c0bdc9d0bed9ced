"""The node's accelerators: which ones the kernel lists, which processes compute on them, and how busy they are.

A missing driver is not a missing GPU, and an unannounced process is a tenant too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.engine.on_sources import HELD_BYTES_MIN
from governor.core.events.inputs import Event
from governor.core.events.machine import GpuProcessesSeen, GpuSample
from governor.core.halt.kill_set import ANCESTORS_MAX, descends
from governor.ports import GpuReading, Gpus, Processes

PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
# PCI classes: displays (only of vendors whose displays compute; servers have others for consoles) and processing
# accelerators.
DISPLAY: Final = "0x03"
ACCELERATOR: Final = "0x12"
COMPUTING_VENDORS: Final = frozenset({"0x10de", "0x1002"})  # NVIDIA, AMD.


def accelerators(devices: Path = PCI_DEVICES) -> list[str] | None:
    """The PCI addresses of accelerators. None if the kernel does not list its devices."""
    try:
        found = sorted(devices.iterdir())
        return [device.name for device in found if _computes(device)]
    except OSError:
        return None


def _computes(device: Path) -> bool:
    kind, vendor = ((device / name).read_text(encoding="ascii").strip() for name in ("class", "vendor"))
    return kind.startswith(ACCELERATOR) or (kind.startswith(DISPLAY) and vendor in COMPUTING_VENDORS)


# --- who computes on them and how busy they are, as events ----------------------------------------------

# A halt relies on a view of the GPU processes that is this recent.
LOOK_PERIOD_NS: Final = NS_PER_S
COUNT_PERIOD_NS: Final = 60 * NS_PER_S  # Devices change only with a reboot, or by hand.
UNLISTED: Final = "the kernel does not list the machine's devices"


@dataclass(slots=True)
class GpuWatch:
    """A source of the loop. It reports that no process computes only if the driver says so or there is no GPU.

    `command`: what `costgov run` launched. A process that computes below it belongs to it, even without a hello.
    """

    gpus: Gpus
    processes: Processes
    command: Callable[[], tuple[ProcessId, ...]] = tuple
    accelerators: Callable[[], Sequence[str] | None] = accelerators
    tell: Callable[[str | None], None] = lambda _: None  # Why figures that there were are gone; None: they are back.
    unread: str | None = None  # What was told.
    _has_read: bool = False
    _look_at: MonoNs = MonoNs(0)
    _count_at: MonoNs = MonoNs(0)
    _counted: int | None = None  # None also if the kernel does not list them.

    def poll(self, at: MonoNs) -> list[Event]:
        if at < self._look_at:
            return []
        self._look_at = MonoNs(at + LOOK_PERIOD_NS)
        readings = self.gpus.read()
        self._note(is_read=readings is not None)
        if readings is None:
            return [GpuProcessesSeen(at, frozenset(), problem=self._problem())]
        if any(reading.pids is None for reading in readings):
            problem = "the driver does not say who computes on its GPUs"
            return [GpuProcessesSeen(at, frozenset(), problem=problem), _sample(at, readings)]
        pids = frozenset(pid for reading in readings for pid in reading.pids or ())
        unnamed = sum(_is_held(reading) for reading in readings)
        # A visible process is a tenant, however many others stay hidden.
        hidden = self._hidden(at, len(readings))
        seen = GpuProcessesSeen(at, pids, unnamed, hidden, own=self._own(pids), is_read=self._counted is None)
        return [seen, _sample(at, readings)]

    def _note(self, *, is_read: bool) -> None:
        """Tell once that a sampler has died or hangs, and once that it is back. A node without a driver has none."""
        if is_read:
            self._has_read = True
            if self.unread is not None:
                self.unread = None
                self.tell(None)
        elif self._has_read and self.unread is None:
            self.unread = self._problem() or self.gpus.status
            self.tell(self.unread)

    def _hidden(self, at: MonoNs, shown: int) -> str | None:
        """Why processes may be hidden: a container with some of a machine's GPUs does not see the others' processes."""
        if at >= self._count_at:
            self._count_at = MonoNs(at + COUNT_PERIOD_NS)
            found = self.accelerators()
            self._counted = len(found) if found is not None else None
        if self._counted is None:
            return f"{UNLISTED}, of which the driver may show only some"
        return (
            f"the driver shows {shown} of the machine's {self._counted} accelerators" if shown < self._counted else None
        )

    def _problem(self) -> str | None:
        """Why the GPUs cannot be read, or None. An absent driver may leave GPUs and trainers behind."""
        if self.gpus.fileno() is not None:
            return self.gpus.status
        found = self.accelerators()
        if found is None:
            return f"{self.gpus.status}, and {UNLISTED}"
        return f"{self.gpus.status}, and the machine has accelerators ({', '.join(found[:4])})" if found else None

    def _own(self, pids: frozenset[int]) -> frozenset[int]:
        command = self.command()
        if not command or not pids:
            return frozenset()
        try:
            # Only their ancestors: a scan of all of /proc every second would cost too much.
            table = self._lines((*pids, *(process.pid for process in command)))
        except OSError:
            return frozenset()  # No descriptors: an unseen process is not ours.
        return frozenset(pid for pid in pids if pid in table and descends(table, table[pid].process, command))

    def _lines(self, pids: tuple[int, ...]) -> dict[int, ProcessFacts]:
        """These processes and their ancestors."""
        table: dict[int, ProcessFacts] = {}
        for pid in pids:
            above = pid
            for _ in range(ANCESTORS_MAX):
                facts = self.processes.facts(above) if above not in table else None
                if facts is None:
                    break  # Gone; or known already, with its ancestors.
                table[above] = facts
                above = facts.ppid
        return table


def _sample(at: MonoNs, readings: Sequence[GpuReading]) -> GpuSample:
    return GpuSample(
        at,
        None,
        tuple(reading.busy_frac for reading in readings),
        tuple(reading.uuid for reading in readings),
        tuple(reading.memory_used_bytes for reading in readings),
        tuple(reading.memory_total_bytes for reading in readings),
        tuple(None if reading.pids is None else frozenset(reading.pids) for reading in readings),
        tuple(reading.figures for reading in readings),
        tuple(reading.name for reading in readings),
    )


def _is_held(reading: GpuReading) -> bool:
    """Whether an unnamed process uses the GPU, or may: a container's MIG shows neither memory nor load."""
    if reading.pids:
        return False
    if reading.memory_used_bytes is None and reading.busy_frac is None:
        return True
    return (reading.memory_used_bytes or 0) >= HELD_BYTES_MIN or (reading.busy_frac or 0) > 0
