"""Who is seen to use the node, and whether enough is seen to conclude that nobody does."""

from __future__ import annotations

from typing import Final, NamedTuple

from governor.core.base.units import NS_PER_S, DurationNs, MonoNs
from governor.core.engine.node import Node
from governor.core.events.effects import Effect
from governor.core.events.machine import GovernorsSeen, GpuProcessesSeen

# Forty ticks. After a longer gap we slept, and somebody may have come unseen.
LOOK_GAP_NS: Final = DurationNs(10 * NS_PER_S)
REFUSED_NS: Final = DurationNs(90 * NS_PER_S)  # A rank that was refused asks again every 30 s.
GPUS_STALE_NS: Final = DurationNs(5 * NS_PER_S)  # Two missed looks.


class Occupant(NamedTuple):
    kind: str  # run | command | ranks | gpu | governor | hold
    text: str


def occupants(node: Node, at: MonoNs) -> list[Occupant]:
    """Everybody who is seen to use the node. An empty list proves nothing while `unseen` returns a reason."""
    idle = node.idle
    found = [Occupant("run", f"run {name}") for name in live(node)]
    if idle.command is not None:
        found.append(Occupant("command", f"the command of costgov run {idle.command}"))
    if node.ignored:
        found.append(Occupant("ranks", f"{len(node.ignored)} rank(s) that train unwatched"))
    if idle.refused_at is not None and at - idle.refused_at < REFUSED_NS:
        found.append(Occupant("ranks", "somebody whose hello was refused, and who trains unwatched"))
    if node.gpu_pids:
        found.append(Occupant("gpu", f"a GPU process (pid {', '.join(map(str, sorted(node.gpu_pids)[:4]))})"))
    if idle.gpus_unnamed:
        found.append(Occupant("gpu", f"somebody on {idle.gpus_unnamed} GPU(s) whom the driver does not name"))
    if idle.governors:
        found.append(Occupant("governor", f"another governor (pid {', '.join(map(str, idle.governors[:4]))})"))
    if idle.hold_until is not None and at < idle.hold_until:
        found.append(Occupant("hold", f"an operator's hold ({idle.hold_reason})"))
    return found


def live(node: Node) -> list[str]:
    """Runs that are alive, and runs whose halt is open: that halt decides what becomes of the machine."""
    return [
        name
        for name, managed in node.runs.items()
        if managed.run.alive or (managed.incident is not None and not managed.incident.is_closed)
    ]


def left_since(node: Node, since: MonoNs) -> bool:
    """Whether a run came and went between two ticks. It used the node, though no tick saw it alive."""
    return any(managed.run.ended_at is not None and managed.run.ended_at > since for managed in node.runs.values())


def unseen(node: Node, at: MonoNs) -> str | None:
    """Why it cannot be concluded that nobody is here; None if it can."""
    idle = node.idle
    if idle.gpus_problem is not None:
        return idle.gpus_problem
    if idle.gpus_at is None or at - idle.gpus_at > GPUS_STALE_NS:
        return "the GPUs have not been looked at for a while"
    return idle.governors_problem


def on_gpu_processes(node: Node, event: GpuProcessesSeen) -> list[Effect]:
    idle = node.idle
    idle.gpus_problem = event.problem
    if event.problem is None:
        idle.gpus_unnamed, idle.gpus_at = event.unnamed, event.at
    if event.problem is None or event.pids or event.is_read:
        # Otherwise the last seen processes remain: a halt's `stop = "auto"` relies on them.
        node.gpu_pids, node.gpu_pids_own = event.pids, event.own
    return []


def on_governors(node: Node, event: GovernorsSeen) -> list[Effect]:
    node.idle.governors_problem = event.problem
    if event.problem is None:
        node.idle.governors = event.pids
    return []
