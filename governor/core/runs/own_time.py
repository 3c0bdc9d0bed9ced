"""When a step ended: by its sender's clock where that can be believed, else when it was read.

Ranks send what is healthy four times a second (docs/adr/0011), and a log's lines wait in a buffer. What a step cost is
a question of its own time. What is decided goes by arrival.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, BootNs, MonoNs
from governor.core.events.inputs import Step
from governor.core.runs.state import RANKS_MAX, Rank

# The last step of each batch is read within a second of its time by its rank's clock. A clock that has never been so
# near to ours, or was once ahead of it, is that of another time namespace, or another machine's.
CLOCK_BEHIND_MAX_NS: Final = 5 * NS_PER_S
# A stopped governor finds the frames of minutes. No step is believed to be older: its tokens would be free.
AGE_MAX_NS: Final = 10 * NS_PER_MINUTE


def of_frame(rank: Rank, step: Step, attempt_at: MonoNs) -> MonoNs:
    """When a rank's step ended: after its attempt began, and before it was read."""
    ended = step.ended
    if ended is None:
        return step.at
    age_ns = step.at - ended
    if age_ns < rank.clock_behind_ns:
        rank.clock_behind_ns = age_ns
    if not _is_believed(age_ns, rank.clock_behind_ns):
        return step.at
    return ended if ended >= attempt_at else min(attempt_at, step.at)


def _is_believed(age_ns: int, behind_ns: int) -> bool:
    """`behind_ns`: the least age of that clock's frames so far."""
    return 0 <= behind_ns <= CLOCK_BEHIND_MAX_NS and age_ns <= AGE_MAX_NS


@dataclass(slots=True)
class _Clock:
    behind_ns: int = 2**63
    last: MonoNs = MonoNs(0)


@dataclass(slots=True)
class StepEnds:
    """When steps ended, of frames that are read back without a `Rank`: for whatever shows a step at its time.

    The same belief as in `of_frame`. A rank's steps never go back, and none ended after it was read.
    """

    _clocks: dict[int, _Clock] = field(default_factory=dict)

    def begin(self, rank: int) -> None:
        """Its next frame is of another process, whose clock has yet to show what it is."""
        if (clock := self._clocks.get(rank)) is not None:
            clock.behind_ns = 2**63

    def of(self, rank: int, told: int | None, at: MonoNs) -> MonoNs:
        """`told`: by the rank's own clock; None: it has not said. `at`: when the governor read it."""
        clock = self._clocks.get(rank)
        if clock is None:
            if len(self._clocks) >= RANKS_MAX:
                return at
            clock = self._clocks[rank] = _Clock()
        ended = at
        if told is not None:
            clock.behind_ns = min(clock.behind_ns, at - told)
            ended = MonoNs(told) if _is_believed(at - told, clock.behind_ns) else at
        clock.last = min(at, max(clock.last, ended))
        return clock.last


def of_line(step: Step, since: BootNs, now: BootNs, wall_offset_ns: int) -> BootNs | None:
    """When a line was written, by the boot clock, which a suspended machine does not stop as it does ours.

    One whose time is not between the line before (`since`) and its arrival (`now`) has none. `wall_offset_ns`: wall
    minus boot clock.
    """
    if step.written is None:
        return None
    written = BootNs(step.written - wall_offset_ns)
    return written if since <= written < now else None
