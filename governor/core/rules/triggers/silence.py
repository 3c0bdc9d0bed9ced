"""A live run sends nothing, and a second source says that it computes nothing."""

from __future__ import annotations

from typing import ClassVar

from governor.core.base.findings import QUIET, Finding, firing, unknown
from governor.core.base.units import NS_PER_S, MonoNs, format_duration
from governor.core.rules.gpu_idle_since import GpuIdleTrigger
from governor.core.rules.trigger import FOREVER, Key
from governor.core.runs.intake import PAUSES
from governor.core.runs.state import Run


class Silence(GpuIdleTrigger):
    """No frame has come for `after` from a run whose processes live, and all of its GPUs have been idle for as long.

    A lost connection or a log that does not continue is missing data and no evidence: costgov reports `unwatched` after
    a minute and enforces only the budget. The GPU driver is the second source that makes it evidence: a run that sends
    and computes nothing for ten minutes is not training. `hang` judges connected ranks by their beats, and logs by
    their rhythm. This trigger judges the others, and may be quicker than the loosest limits of `hang`. Beats are
    frames: a rank that beats is not silent.

    UNKNOWN while the GPUs are not sampled or one of them works (the run trains on, unwatched), before the first frame,
    and while a log says that it starts, evaluates or saves (`hang` has limits for those). False alarms: a log that
    saves or prepares data for longer than `after` without such a mark. Resets at each attempt.
    """

    KIND: ClassVar[str] = "silence"
    KEYS: ClassVar[tuple[Key, ...]] = (
        # NCCL's own timeout: a rank that waited so long in a collective would end anyway.
        Key("after", "duration", "10m", "Fires after so long without a frame and without work on a GPU.", "10s"),
        Key("idle_frac", "frac", 0.01, "A GPU busy for no more than this part of the time does not work."),
    )
    MEANING: ClassVar[tuple[str, ...]] = (
        "nothing is heard of the run for {after}, its processes live, and none of its GPUs was busy for more than "
        "{idle_frac} of the time meanwhile",
    )

    def judge(self, at: MonoNs, run: Run) -> Finding:
        last_at = run.last_frame_at
        if last_at is None:
            return unknown("not_heard_yet")
        silent_ns = at - last_at
        if silent_ns < self._after_ns:
            return QUIET
        if run.jsonl_only and run.stream.phase in PAUSES:
            return unknown("paused")
        if not self._state.is_known(at):
            return unknown("no_second_source")
        idle_ns = self._state.idle_ns(at)
        if idle_ns < self._after_ns:
            return unknown("gpus_work")
        return firing(
            "silent_and_idle",
            f"nothing heard for {format_duration(silent_ns)}, and its GPUs idle for {format_duration(idle_ns)}",
            {
                "silent_s": round(silent_ns / NS_PER_S, 3),
                "idle_s": round(idle_ns / NS_PER_S, 3),
                "after_s": self._after_ns / NS_PER_S,
                "connected_ranks": len(run.connected_ranks()),
            },
        )

    def steady_until(self, at: MonoNs, run: Run) -> MonoNs:
        if run.last_frame_at is None:
            return FOREVER
        silent_at = MonoNs(run.last_frame_at + self._after_ns)
        return silent_at if at < silent_at else super().steady_until(at, run)
