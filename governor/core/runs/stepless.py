"""For how long no step has come of a run: its last speed is not the present one then, and people are told."""

from __future__ import annotations

from typing import Final

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.runs.state import Run

# A speed is of the present for so many steps, and for so long at least. Where no rank reports its steps one by one
# their rhythm is a guess.
SPEED_STEPS: Final = 3
SPEED_NS: Final = DurationNs(5 * NS_PER_S)
SPEED_OF_UNKNOWN_RHYTHM_NS: Final = DurationNs(60 * NS_PER_S)
# Imports and small models load without a hook for some seconds. A start that stands for longer is worth a look.
START_STILL_NS: Final = DurationNs(10 * NS_PER_S)


def stepless_ns(run: Run, at: MonoNs) -> int | None:
    """How long no step has come, if that is so long that the last step's speed is not the present one.

    Before the attempt's first step: since it began, if beats tell that no rank moves.
    """
    if not run.alive:
        return None
    if run.first_step_at is None and run.ranks:
        return _startless_ns(run, at)
    if run.step_at is None:
        return None
    median_s = run.step_times.median()
    step_ns = int((median_s or 0.0) * NS_PER_S)
    gap_ns = max(step_ns, run.step_gap_ns) if run.jsonl_only else step_ns
    floor_ns = SPEED_OF_UNKNOWN_RHYTHM_NS if run.jsonl_only or median_s is None else SPEED_NS
    since_ns = at - run.step_at
    return since_ns if since_ns > max(SPEED_STEPS * gap_ns, floor_ns) else None


def _startless_ns(run: Run, at: MonoNs) -> int | None:
    beating = [rank for rank in run.connected_ranks() if not rank.said_bye and rank.beat_at is not None]
    moved_at = max((rank.progress_at for rank in beating), default=at)
    return max(0, at - run.attempt_at) if at - moved_at > START_STILL_NS else None
