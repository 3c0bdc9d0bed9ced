"""Which runs are the command's: all that `costgov run` does about its command asks here.

Three kinds of runs come to its sockets. The command's own have its name, or a halt of them ends the command. Beside
them, a run of the same user (another script, a followed log of another trainer) is watched while it lives, and speaks
for itself alone. What another user announces is a stranger's: nothing waits for it, and it answers for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from governor.core.base.identity import ProcessId
from governor.core.base.units import MonoNs
from governor.core.engine.launched_command import is_its, is_tied
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.halt.incident import OTHER_USER
from governor.core.halt.left_launch import process_of
from governor.core.halt.state import HaltState, StopTarget


def watched(node: Node) -> list[ManagedRun]:
    """All but strangers' runs."""
    return [managed for managed in node.runs.values() if not managed.is_strangers]


def of_command(node: Node) -> list[ManagedRun]:
    """The command's own runs. Where no command was seen to start, all that is watched may be its own."""
    command = node.command
    if command is None:
        return watched(node)
    return [managed for managed in node.runs.values() if is_its(managed, command.run, command.processes)]


def beside_halted(node: Node) -> list[ManagedRun]:
    """Other users' live runs below a command whose own run was halted, to the end: nothing waits for these (a sandbox).

    Empty before that: the kernel ties them to the command, and a trainer may be one of them.
    """
    command = node.command
    named = node.runs.get(command.run) if command is not None else None
    if command is None or named is None or named.incident is None or not named.incident.is_closed or named.run.alive:
        return []
    uids = (command.uid, named.run.uid)
    return [t for t in watched(node) if t.run.alive and t is not named and t.run.uid not in uids]


def trains_on(node: Node, since: MonoNs) -> bool:
    """Whether a run of the command trains that is not halted: one has made a step since then, or has a rank now.

    Not the stand-in, by which a command without any rank is metered.
    """
    going = (managed.run for managed in of_command(node) if managed.incident is None or not managed.incident.is_closed)
    return any((run.step_at or MonoNs(0)) > since or (run.alive and run.connected_ranks()) for run in going)


def whose(node: Node | None, run: str | None) -> str:
    """What a line about a run says behind its name where that is not the command's. Empty for its own, and for none."""
    managed = node.runs.get(run) if node is not None and run is not None else None
    if node is None or managed is None or managed.follows_command or run in {own.run.run for own in of_command(node)}:
        return ""
    return f" of uid {managed.run.uid}, beside the command"


def is_halt_of_command(snapshot: Mapping[str, Any], name: str, processes: Collection[ProcessId]) -> bool:
    """Whether this halt is of a run of the command."""
    launchers = [process_of(row) for row in snapshot["launchers"]]
    return is_tied(snapshot["run"], launchers, name, processes, is_strangers=bool(snapshot.get("strangers")))


def ends_it(snapshot: Mapping[str, Any], processes: Collection[ProcessId]) -> bool:
    """Whether this halt ends the command's process: it leaves one alone below which another run stands."""
    left = {process_of(row) for row in snapshot.get("targets", ()) if row.get("left")}
    ended = {process_of(row) for row in (*snapshot.get("rank_processes", ()), *snapshot["launchers"])}
    return not (set(processes) - left).isdisjoint(ended)


def may_end(snapshot: Mapping[str, Any], processes: Collection[ProcessId]) -> bool:
    """Whether this halt leaves the command's process alone as another user's (`sudo`), which may end with it."""
    return any(row.get("left") == OTHER_USER and process_of(row) in processes for row in snapshot.get("targets", ()))


def is_of_earlier_launch(snapshot: Mapping[str, Any], processes: Collection[ProcessId], began_at: MonoNs) -> bool:
    """Whether this halt was decided before the command began, and ends nothing as young as the command.

    A rank of the new launch that says hello under a name whose halt goes on is ended by it, and the command too.
    """
    if int(snapshot["opened_mono_ns"]) >= began_at:
        return False
    ended = [process_of(row) for row in (*snapshot["rank_processes"], *snapshot["launchers"])]
    first = min((process.start_ticks for process in processes), default=None)
    return first is None or all(process.start_ticks < first for process in ended)


def is_left_to_job(stage: str, stop: str) -> bool:
    """Whether all that is left of a halt is the end of the job in which we are: nobody in it sees that.

    Whoever waits in it holds its nodes until the scheduler's own SIGKILL. `costgov incident show` asks for the end.
    """
    return stage == HaltState.VERIFYING.name and stop == StopTarget.JOB.name


def ended_by_halts(node: Node) -> set[ProcessId]:
    """The processes that open halts end: of the ranks, and of their launchers."""
    open_halts = [t for t in watched(node) if t.incident is not None and not t.incident.is_closed]
    found = {process for managed in open_halts for process in (*managed.processes(), *managed.launch.launchers)}
    for managed in open_halts:
        assert managed.incident is not None
        found.update((*managed.incident.rank_processes, *managed.incident.launchers))
    return found
