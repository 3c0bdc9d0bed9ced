"""How long a log has said nothing, and how long it has paused before.

`hang` and `log_stalled` share this. They judge runs that are known by their log only, which shows nothing else than
that records come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.events.inputs import Tick
from governor.core.rules.trigger_state import ADDED, UNKEPT
from governor.core.runs.state import Run

# Ticks come every 250 ms. After a longer gap than this the governor itself did not run (suspend, frozen cgroup, swapped
# out). Frames may still wait unread, so silence in that gap is no evidence.
BLIND_AFTER_NS: Final = 5 * NS_PER_S
# The policy key that limits each phase which a mark in a log begins.
LIMIT_OF_MARK: Final[Mapping[str, str]] = {
    "init": "start_limit_without_beats",
    "compile": "start_limit_without_beats",
    "eval": "eval_limit",
    "checkpoint": "checkpoint_limit",
    "agree": "checkpoint_limit",
}


@dataclass(slots=True)
class Watch:
    """Since when the governor has looked without a gap. It begins anew after a restart, so it is never stored."""

    since: MonoNs = MonoNs(0)
    tick_at: MonoNs | None = None

    def see(self, tick: Tick) -> bool:
        """Note a tick; True when the governor did not run before it."""
        since_ns = tick.at - self.tick_at if self.tick_at is not None else BLIND_AFTER_NS
        self.tick_at = tick.at
        if since_ns < BLIND_AFTER_NS or tick.unbroken:
            return False
        self.since = tick.at
        return True


@dataclass(slots=True)
class LogPauses:
    """The pauses of a log that ended well; the base of a trigger's state."""

    log_pause_ns: int = field(default=0, metadata=ADDED)  # The longest.
    log_at: MonoNs | None = field(default=None, metadata=UNKEPT)  # The last record. None: a gap would not be its own.

    def see_record(self, at: MonoNs, run: Run) -> int | None:
        """Note a record; the pause before it, in ns, if it was the log's own.

        Records that arrive together, from a writer's buffer, are one arrival.
        """
        last, self.log_at = self.log_at, at
        if last is None or last == at or last < run.stream.back_at:
            return None
        gap_ns = at - last
        if gap_ns > self.log_pause_ns:
            self.log_pause_ns = gap_ns
        return gap_ns


def silent_since(run: Run, watching_since: MonoNs) -> MonoNs:
    """When the present silence of a log began: its last record or mark, or since when it could be seen."""
    since = run.step_at if run.step_at is not None else run.attempt_at
    return max(since, run.stream.phase_at, watching_since, run.stream.back_at)


def mark_limit_ns(run: Run, limits_ns: Mapping[str, int]) -> int:
    """The limit of the phase that the log's last mark began, by its policy key; 0 where none holds.

    A mark may lengthen a limit but never shorten it: only the log says what it began, and whether that ended.
    """
    key = LIMIT_OF_MARK.get(run.stream.phase)
    return 0 if key is None else limits_ns[key]
