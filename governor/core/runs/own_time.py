"""When a step ended: by its sender's clock where that can be believed, else when it was read.

Ranks send what is healthy four times a second (docs/adr/0011), and a log's lines wait in a buffer. What a step cost is
a question of its own time. What is decided goes by arrival.
"""

from __future__ import annotations

from typing import Final

from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, BootNs, MonoNs
from governor.core.events.inputs import Step
from governor.core.runs.state import Rank

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
    if not 0 <= rank.clock_behind_ns <= CLOCK_BEHIND_MAX_NS or age_ns > AGE_MAX_NS:
        return step.at
    return ended if ended >= attempt_at else min(attempt_at, step.at)


def of_line(step: Step, since: BootNs, now: BootNs, wall_offset_ns: int) -> BootNs | None:
    """When a line was written, by the boot clock, which a suspended machine does not stop as it does ours.

    One whose time is not between the line before (`since`) and its arrival (`now`) has none. `wall_offset_ns`: wall
    minus boot clock.
    """
    if step.written is None:
        return None
    written = BootNs(step.written - wall_offset_ns)
    return written if since <= written < now else None
