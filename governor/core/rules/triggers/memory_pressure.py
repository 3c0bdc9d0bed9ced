"""Main memory or a GPU's is nearly used up: the next allocation may end the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.inputs import Event, Step
from governor.core.events.machine import HostMemory
from governor.core.rules.trigger import FOREVER, Key, Trigger
from governor.core.rules.trigger_state import UNKEPT
from governor.core.runs.state import RANKS_MAX, Run

STALE_NS: Final = DurationNs(60 * NS_PER_S)  # The daemon samples every few seconds.
STEPS_STALE_NS: Final = DurationNs(600 * NS_PER_S)  # A rank reports its memory with its steps, every few seconds.
GIB: Final = 2**30
_NO_FIGURES: Final = unknown("no_memory_figures")


@dataclass(slots=True)
class _State:
    # By rank: time of the report, and bytes. Not stored: the next figures come within seconds.
    allocated: dict[int, tuple[MonoNs, int]] = field(default_factory=dict, metadata=UNKEPT)


class MemoryPressure(Trigger):
    """What is left of main memory, or of the GPU memory of a rank, is below a part of the whole.

    *Main memory*: what the kernel reports as available (free, and caches that it can drop), of the machine, and of the
    control group of the run's processes if that has a limit: there the kernel's out-of-memory killer ends a rank
    without a message, and the others hang. *GPU memory*: tensors that are alive at the end of a step (the allocator's
    own count), against the size of the smallest GPU of the run. The driver's figure for used memory is no evidence:
    PyTorch keeps what it once allocated, and 99 % is usual. The rule's `for` says how long it must last.

    Misses: the peak inside a step, which is higher than its end; memory that fragments; an allocation that takes all
    that is left at once. UNKNOWN while neither is reported; one known value is enough. Resets at each attempt.
    """

    KIND: ClassVar[str] = "memory_pressure"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # earlyoom asks processes to end below 10 %; the kernel kills at 0. A node of 2 TB has 60 GB left at 3 %, and a
        # loader's worker takes 1 to 4 GB.
        Key("host_left_frac", "frac", 0.03, "Fires when less of main memory is available."),
        # Tensors at the end of a step must leave room for the next step's activations, or the run would have failed
        # before.
        Key("gpu_left_frac", "frac", 0.02, "Fires when less of a rank's GPU memory is free of live tensors."),
    )
    STEPPED: ClassVar[bool] = False
    LISTENS: ClassVar[frozenset[type]] = frozenset({Step})
    LIMITS: ClassVar[tuple[str, ...]] = ("host_left_frac", "gpu_left_frac")
    MEANING: ClassVar[tuple[str, ...]] = (
        "less than {host_left_frac} of main memory (of the machine, or of the run's control group) is available, or "
        "live tensors leave less than {gpu_left_frac} of a rank's GPU memory",
    )

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._host_left_frac: float = params["host_left_frac"]
        self._gpu_left_frac: float = params["gpu_left_frac"]
        self._state: _State = self._fresh()

    def _fresh(self) -> _State:
        return _State()

    def observe(self, event: Event, run: Run) -> bool:
        if not isinstance(event, Step) or event.mem_allocated_bytes is None:
            return False
        allocated = self._state.allocated
        if event.rank in allocated or len(allocated) < RANKS_MAX:
            allocated[event.rank] = event.at, event.mem_allocated_bytes
        # Every rank's step comes here, and nearly none is news: the whole rule is for those that are.
        return (run.gpus or run.host_memory or run.group_memory) is not None and self.judge(event.at, run).is_firing

    def judge(self, at: MonoNs, run: Run) -> Finding:
        known = False
        for memory in (run.group_memory, run.host_memory):
            if memory is None or at - memory.at > STALE_NS or memory.total_bytes <= 0:
                continue
            known = True
            if memory.available_bytes < self._host_left_frac * memory.total_bytes:
                return self._host_finding(memory)
        totals = [total for total in run.gpus.memory_total_bytes if total] if run.gpus is not None else []
        if totals:
            total_bytes = min(totals)
            for rank, (reported_at, allocated_bytes) in self._state.allocated.items():
                if at - reported_at > STEPS_STALE_NS:
                    continue
                known = True
                if total_bytes - allocated_bytes < self._gpu_left_frac * total_bytes:
                    return self._gpu_finding(rank, allocated_bytes, total_bytes)
        return QUIET if known else _NO_FIGURES

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        known_until = [memory.at + STALE_NS for memory in (run.group_memory, run.host_memory) if memory is not None]
        known_until += [reported_at + STEPS_STALE_NS for reported_at, _ in self._state.allocated.values()]
        return MonoNs(min((until for until in known_until if at <= until), default=FOREVER))

    def _host_finding(self, memory: HostMemory) -> Finding:
        whose = f"control group {memory.group}" if memory.group is not None else "the machine"
        return firing(
            "host_memory_low",
            f"{whose} has {memory.available_bytes / GIB:.1f} of {memory.total_bytes / GIB:.1f} GiB of memory left",
            {
                "available_bytes": memory.available_bytes,
                "total_bytes": memory.total_bytes,
                "group": memory.group,
                "host_left_frac": self._host_left_frac,
            },
        )

    def _gpu_finding(self, rank: int, allocated_bytes: int, total_bytes: int) -> Finding:
        return firing(
            "gpu_memory_low",
            f"rank {rank} holds {allocated_bytes / GIB:.1f} of {total_bytes / GIB:.1f} GiB of GPU memory in tensors",
            {
                "rank": rank,
                "allocated_bytes": allocated_bytes,
                "total_bytes": total_bytes,
                "gpu_left_frac": self._gpu_left_frac,
            },
        )
