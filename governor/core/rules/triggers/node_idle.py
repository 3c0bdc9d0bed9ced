"""A live run whose GPUs do nothing at all."""

from __future__ import annotations

from typing import ClassVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import NS_PER_S, MonoNs, format_duration
from governor.core.rules.gpu_idle_since import GpuIdleTrigger
from governor.core.rules.trigger import Key
from governor.core.runs.state import Run


class NodeIdle(GpuIdleTrigger):
    """All GPUs of a live run have been idle for `after`, whatever phase it reports.

    `idle_stop` covers a node without a live run. This trigger covers a run that keeps the node from being idle and uses
    nothing: a notebook left open, a debugger at its prompt, data prepared on a machine with GPUs. Unlike in
    `gpu_starvation`, starting, evaluating and saving count: an hour without one kernel is still paid for.

    UNKNOWN without samples of its GPUs. A rank that is not known to be on any GPU has none that could be idle. Resets
    at each attempt.
    """

    KIND: ClassVar[str] = "node_idle"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # Real healthy runs never had all GPUs idle for more than one sample of 15 s. Their starts took up to 2.5 h.
        Key("after", "duration", "1h", "Fires when they have been idle for so long.", "10s"),
        Key("idle_frac", "frac", 0.01, "A GPU busy for no more than this part of the time is idle."),
    )
    MEANING: ClassVar[tuple[str, ...]] = (
        "all GPUs of the run, whatever it is doing, were busy for no more than {idle_frac} of the time for {after}",
    )

    def judge(self, at: MonoNs, run: Run) -> Finding:
        if not self._state.is_known(at):
            return unknown("no_gpu_samples")
        idle_ns = self._state.idle_ns(at)
        if idle_ns < self._after_ns:
            return QUIET
        return firing(
            "gpus_idle",
            f"all GPUs of the run have been idle for {format_duration(idle_ns)}",
            {"idle_s": round(idle_ns / NS_PER_S, 3), "after_s": self._after_ns / NS_PER_S},
        )
