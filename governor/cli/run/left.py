"""What outlives a command when its `costgov run` ends: one look, of which are our exit code and all that is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from governor.adapters.command.child import Command, living
from governor.app.wiring import Governor
from governor.cli.run.own_runs import beside_halted, is_left_to_job, of_command, watched
from governor.cli.run.relaunch import COMMAND_CHARS_MAX, also, still_there
from governor.core.base.identity import Peer, ProcessFacts, ProcessId
from governor.core.base.run_names import names_of
from governor.core.base.secrets import command_text, redacted
from governor.core.base.units import format_usd
from governor.core.engine.alarms import PIDS_NAMED_MAX
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm, Effect
from governor.text.table import plain


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
    others = [*beside_halted(node), *(t for t in node.runs.values() if _is_left(t))]
    return [managed for managed in among(node) if managed.run.alive and managed not in others]


def _is_left(managed: ManagedRun) -> bool:
    incident = managed.incident
    return incident is not None and is_left_to_job(incident.halt.stage.name, incident.plan.stop.name)


def was_announced(governor: Governor) -> bool:
    return any(managed.was_announced for managed in of_command(governor.node))


def left_unwatched(governor: Governor, command: Command, below: Sequence[ProcessFacts] | None) -> list[str]:
    """Who still runs when it has ended, and whom nobody ends: its user's and its own that were refused, and namesakes.

    A trainer that a daemon has started for it (in a container) says its name, and nothing ties it to the command. Of
    other users' runs below a halted one (a sandbox) the first rank is named. `below`: what the command has left.
    """
    launched, refused = governor.node.command, governor.node.refusals
    uid = launched.uid if launched is not None else None
    own = {facts.process for facts in below or ()}
    left = [(process, told) for process, told in refused.items() if uid in (None, told.uid) or process in own]
    left = [(process, told) for process, told in left if still_there(governor, process) is not None]
    left.sort(key=lambda one: one[1].uid != uid)  # What another user has below the command pushes none of its own out.
    lines = [
        f"pid {process.pid} still runs, UNWATCHED: {plain(told.reason)}" for process, told in left[:PIDS_NAMED_MAX]
    ]
    lines += also([f"pid {process.pid}" for process, _ in left[PIDS_NAMED_MAX:]])
    untied = _untied_of_its_name(governor, launched.run) if launched is not None else []
    who = [f"pid {peer.process.pid} of uid {peer.uid}" for peer in untied]
    lines += [
        f"{one} still runs, UNWATCHED from now on: it said the command's name, and nothing ties it to the command"
        for one in who[:PIDS_NAMED_MAX]
    ]
    lines += also(who[PIDS_NAMED_MAX:])
    beside = [rank.peer for t in beside_halted(governor.node) for rank in list(t.run.ranks.values())[:1]]
    theirs = [f"pid {peer.process.pid} of uid {peer.uid}" for peer in beside]
    lines += [f"{one} still runs, UNWATCHED from now on: another user's run" for one in theirs[:PIDS_NAMED_MAX]]
    lines += also(theirs[PIDS_NAMED_MAX:])
    return lines + _perhaps_of_command(governor, command)


def _perhaps_of_command(governor: Governor, command: Command) -> list[str]:
    """Where other orphans than the command's come to us: those that live, of which nothing tells who started them."""
    try:
        table = governor.processes.table() if command.adoption is not None else {}
    except OSError:
        return []
    launched = governor.node.command
    uid = launched.uid if launched is not None else None
    found = command.adoption.unsure(table) if command.adoption is not None else ()
    orphans = sorted(found, key=lambda facts: facts.uid != uid)
    lines = [
        f"pid {facts.process.pid} still runs, left alone: an orphan that the command may have started, or another: "
        f"{command_text(redacted(facts.argv, governor.node.facts.redact_keys))[:COMMAND_CHARS_MAX]}"
        for facts in orphans[:PIDS_NAMED_MAX]
    ]
    rest = [f"pid {facts.process.pid} of uid {facts.uid}" for facts in orphans[PIDS_NAMED_MAX:]]
    return lines + also(rest, "left alone too")


def _untied_of_its_name(governor: Governor, name: str) -> list[Peer]:
    """The first rank of every run before the second of any."""
    strangers = [managed.run for managed in governor.node.runs.values() if managed.is_strangers]
    namesakes = [run for run in strangers if run.run in names_of(name, run.uid)]
    peers = [list(enumerate(rank.peer for rank in run.ranks.values())) for run in namesakes]
    among = sorted((one for run in peers for one in run), key=lambda one: one[0])
    return [peer for _, peer in among if still_there(governor, peer.process) is not None]
