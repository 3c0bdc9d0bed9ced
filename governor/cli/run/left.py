"""What outlives a command when its `costgov run` ends: one look, of which are our exit code and all that is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from governor.adapters.command.child import Command, living
from governor.app.wiring import Governor
from governor.cli.run.own_runs import beside_halted, of_command, watched
from governor.cli.run.relaunch import still_there
from governor.core.base.identity import ProcessFacts, ProcessId
from governor.core.base.units import format_usd
from governor.core.engine.alarms import PIDS_NAMED_MAX
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Effect


class Left(NamedTuple):
    """What outlives the command, by one look."""

    below: list[ProcessFacts] | None  # What it has started. None: that cannot be seen.
    beyond: list[ProcessFacts]  # Its other ranks.
    trains: bool  # One of all these is of a run that goes on.


def look_at_left(governor: Governor, command: Command) -> Left:
    below, ranks = living(governor.processes, command), ranks_of(governor)
    beyond = _ranks_beyond(governor, below or ())
    trains = bool(ranks) if below is None else any(facts.process in ranks for facts in below) or bool(beyond)
    return Left(below, beyond, trains)


def left_behind(governor: Governor, command: Command, name: str, seen: Left) -> list[Effect]:
    """The alarm for processes that outlive the command: they never sent hello, or we leave while they train.

    After our exit nothing watches them.
    """
    if command.poll() is None:
        return []
    below, beyond, trains = seen
    left = [*(below or ()), *beyond]
    if (below == [] and not beyond) or (was_announced(governor) and not trains):
        return []
    who = "what is left of the command" if below is None else f"{len(left)} process(es) outlive the command"
    named = ", ".join(str(facts.process.pid) for facts in left[:PIDS_NAMED_MAX])
    more = len(left) - PIDS_NAMED_MAX
    pids = f" (pid {named}{f' and {more} more' if more > 0 else ''})" if left else ""
    price = governor.node.ledger.price_usd_micros_per_hour
    cost = "the price of this machine is unknown" if price is None else f"this machine costs {format_usd(price)}/h"
    sids = dict.fromkeys(facts.sid for facts in (below or ()) if facts.sid) or {command.process.pid: None}
    ends = [f"`pkill -s {','.join(map(str, list(sids)[:PIDS_NAMED_MAX]))}`"] if below != [] else []
    # The session of a rank that something else has started is not the command's.
    ends += [f"`kill {' '.join(str(one.process.pid) for one in beyond[:PIDS_NAMED_MAX])}`"] if beyond else []
    what = " and train on" if trains else ", and no rank has sent a hello"
    remedy = "" if trains else ", or let the training script call trainer_shim.attach()"
    text = (
        f"UNWATCHED: {who}{pids}{what}: nothing meters or ends them from now on, and {cost}; "
        f"end them with {' and '.join(ends)}{remedy}"
    )
    return [Alarm("left_behind", name, text)]


def _ranks_beyond(governor: Governor, left: Sequence[ProcessFacts]) -> list[ProcessFacts]:
    """The command's ranks that live and are none of these: of the same name and user, in a container or in tmux."""
    known = {facts.process for facts in left}
    going = _going(governor.node, of_command)
    ranks = (process for managed in going for process in managed.processes() if process not in known)
    return [facts for process in ranks if (facts := still_there(governor, process)) is not None]


def ranks_of(governor: Governor) -> set[ProcessId]:
    """The launcher may exit before its ranks (`deepspeed` then exits with 0). They still train and still cost."""
    return {rank for managed in _going(governor.node, watched) for rank in managed.processes()}


def _going(node: Node, among: Callable[[Node], list[ManagedRun]]) -> list[ManagedRun]:
    """Those that live and are waited for."""
    others = beside_halted(node)
    return [managed for managed in among(node) if managed.run.alive and managed not in others]


def was_announced(governor: Governor) -> bool:
    return any(managed.was_announced for managed in of_command(governor.node))
