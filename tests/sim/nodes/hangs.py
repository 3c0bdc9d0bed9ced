"""What must hold where the ranks of all nodes are judged as those of one: a run that may stand still is left alone."""

from __future__ import annotations

from typing import Final

from governor.core.base.units import NS_PER_S
from governor.core.rules.stillness import FIRST_STEPS
from tests.sim.nodes.ranks import Pause
from tests.sim.nodes.stage import LOOSE_S, SILENT_S, TIGHT_S
from tests.sim.nodes.world import World

EXCUSED: Final = ("eval", "checkpoint", "compile", "data")
HEALTHY: Final = (*EXCUSED, "moves", "quiet")
HUNG: Final = ("step", "step", "step", "quiet", "eval", "data")
QUIET_S: Final = SILENT_S - 3  # A healthy rank is without a beat for no longer than its rule allows.
PAUSE_S: Final = LOOSE_S - 12  # And stands still no longer than this, with what its governor was away before it.
NOTICED_S: Final = 3.0  # A message, a tick, and the beats of what is seen.


def in_its_time(world: World, pause: Pause, *, is_calm: bool) -> str | None:
    """A run that stands still for ever is halted when the limit is over that holds for it, and not before."""
    if world.verdict is None:
        return None
    moved_s, verdict_s = world.ranks.moved_at / NS_PER_S, world.verdict[0] / NS_PER_S
    faults = world.faults
    # A governor that begins again, or goes on, has seen no rank move before.
    away = (*faults.governor_down, *faults.frozen, *faults.cut)
    seen_s = max((moved_s, *(until for *_, until in away)))
    earliest, latest = moved_s + TIGHT_S, seen_s + LOOSE_S + NOTICED_S
    if is_calm and pause.since > FIRST_STEPS + 2:
        limit_s = {"step": TIGHT_S, "quiet": SILENT_S}.get(pause.kind, LOOSE_S)
        earliest, latest = moved_s + limit_s, moved_s + limit_s + NOTICED_S
    if verdict_s < earliest - 1:  # A rank's last hook is seen at its next beat.
        return f"halted {verdict_s - moved_s:.1f} s after the last progress, before {earliest - moved_s:.1f} s"
    if verdict_s > latest:
        return f"halted {verdict_s - moved_s:.1f} s after the last progress, and not in {latest - moved_s:.1f} s"
    return None
