"""What `costgov run` launched, before a rank of it has said hello: metered, shown, and held to the ceiling.

Its time is nobody's in the charges until it is handed over, once: to the first run that speaks, whatever its name is,
or to the run named after the command when that is halted or has ended. A JSONL stream speaks for the command only
under its name or with one of its processes: any other is a run beside it, whose log may be older than the command.
"""

from __future__ import annotations

from typing import Final

from governor.core import intake
from governor.core.effects import Alarm, Effect
from governor.core.events import CommandLaunched, StreamOpened
from governor.core.node import RUNS_MAX, Node, Tracked, track
from governor.core.units import NS_PER_S, DurationNs, MonoNs, UsdMicros, format_duration, format_usd

# Imports and the set-up of a small model are done by then. A large one only makes the line come before the hello.
ATTACH_EXPECTED_NS: Final = DurationNs(60 * NS_PER_S)


def on_launched(node: Node, event: CommandLaunched) -> list[Effect]:
    node.launched = event
    node.idle.command = event.run
    return []


def is_of_command(node: Node, event: StreamOpened) -> bool:
    """Whether the stream is the launched command's own; also when none was launched or somebody spoke for it."""
    launched = node.launched
    if launched is None or node.was_held:
        return True
    return event.run == launched.run or not set(event.processes).isdisjoint(launched.processes)


def watch(node: Node, at: MonoNs) -> list[Effect]:
    """At each tick, behind the meter: stand in for the command as long as nobody of it speaks."""
    launched = node.launched
    if launched is None:
        return []
    if node.was_held:
        node.launched = None  # Somebody speaks for it, or it has ended.
        return []
    tracked = node.runs.get(launched.run)
    if tracked is None or not tracked.is_unattached:
        if tracked is None and len(node.runs) >= RUNS_MAX and all(known.run.alive for known in node.runs.values()):
            return []
        _stand_in(node, launched)
    elif at - launched.at >= ATTACH_EXPECTED_NS and not tracked.unattached_alarmed:
        tracked.unattached_alarmed = True
        return [Alarm("nobody_attached", launched.run, _line(tracked, at - launched.at))]
    return []


def _stand_in(node: Node, launched: CommandLaunched) -> None:
    tracked = node.runs.get(launched.run)
    if tracked is None:
        tracked = track(node, launched.run, launched.uid, None, {}, launched.at)
    else:  # Of an earlier launch under this name: one budget, and a latch that was the old attempt's.
        tracked.incident = None
        tracked.book.new_attempt()
        tracked.run.uid = launched.uid
    intake.begin_attempt(tracked.run, "", launched.at)
    tracked.run.last_frame_at = None  # What an earlier launch said, or the journal: nothing is missed of this one.
    tracked.named = tracked.launchers = launched.processes
    tracked.command = launched.command
    tracked.is_unattached = True


def _line(tracked: Tracked, since: int) -> str:
    ceiling = tracked.policy.budget.ceiling_usd_micros
    shield = "nothing" if ceiling is None else f"only the ceiling {format_usd(ceiling)}"
    return (
        f"nobody has attached for {format_duration(since)}: {shield} protects this run, and no NaN, hang or checkpoint "
        "is seen; add `shim = trainer_shim.attach(engine)` to the training script"
    )


def spend(node: Node, tracked: Tracked) -> UsdMicros:
    """What the run has cost, with what is nobody's yet and would be its own."""
    unclaimed = node.charges.unclaimed_usd_micros() if tracked.is_unattached else 0
    return UsdMicros(node.ledger.spend(tracked.run.run) + unclaimed)
