"""The machine under a run as `costgov status --json` tells it: also which GPUs costgov takes for the run's."""

from __future__ import annotations

from typing import Any, Final

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.events.machine_events import GpuSample, HostMemory
from governor.core.runs.run_state import Run

STALE_NS: Final = DurationNs(60 * NS_PER_S)  # Older figures would be taken for now.


def machine_status(run: Run, at: MonoNs) -> dict[str, Any]:
    """None is unknown: nobody looks, or has looked lately; of GPUs also where nobody can tell which are the run's."""
    memory = [known for known in (run.group_memory, run.host_memory) if known is not None and at - known.at <= STALE_NS]
    tightest = min(memory, key=_left_frac, default=None)
    notice = run.spot_notice
    return {
        "gpus": _gpus(run.gpus) if run.gpus is not None and at - run.gpus.at <= STALE_NS else None,
        "memory_left_frac": _left_frac(tightest) if tightest is not None else None,
        "memory_of": (tightest.group or "machine") if tightest is not None else None,
        "taken_back": notice.action if notice is not None and at - notice.at <= STALE_NS else None,
    }


def _left_frac(memory: HostMemory) -> float:
    return memory.available_bytes / memory.total_bytes if memory.total_bytes > 0 else 1.0


def _gpus(sample: GpuSample) -> list[dict[str, Any]]:
    return [
        {
            "gpu": sample.uuids[place] if sample.uuids else str(place),
            "busy_frac": frac,
            "memory_used_bytes": sample.memory_used_bytes[place] if sample.memory_used_bytes else None,
        }
        for place, frac in enumerate(sample.busy_frac)
    ]
