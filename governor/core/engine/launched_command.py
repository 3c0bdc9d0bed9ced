"""The command that `costgov run` launched, while no run reports for it: metered, shown, and held to the ceiling.

No run reports for the command before its first rank has sent a hello. The same is true when the run that reported for
it has ended and the command goes on: a second training that never attaches, an evaluation, an upload.

Charges leave the command's time unallocated until it is handed over. The next run that reports for the command takes
it, under any name. When the command is halted or ends first, the stand-in takes it. The stand-in is the run that took
the time over last, in this launch or in the one before; if none has, the run named after the command. Its budget goes
on. A run takes the time over when it begins to report and no other run does.

A JSONL stream reports for the command under one of these names, with a process of the command, or, where nobody is
named as its writer, from its first line on. A stream whose named processes are others' is a run of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from governor.core.base.findings import Response
from governor.core.base.identity import ProcessId
from governor.core.base.policy import Mode
from governor.core.base.run_names import names_of
from governor.core.base.units import NS_PER_S, BootNs, DurationNs, MonoNs, UsdMicros, format_duration, format_usd
from governor.core.engine import alarms
from governor.core.engine.command.ceilings import count_untold, payer_before
from governor.core.engine.managed_run import ManagedRun, PreviousCommand
from governor.core.engine.node import RUNS_MAX, Node, manage, newest_of_most, owner_of
from governor.core.events.effects import Alarm, Effect
from governor.core.events.inputs import CommandLaunched, Hello, LauncherExited
from governor.core.events.streams import StreamOpened
from governor.core.halt.left_launch import NEVER_LOOKED, LeftLaunch, process_of, process_row
from governor.core.money.charges import charge_of, charge_row
from governor.core.runs import intake, speakers
from governor.core.runs.life import LifeFact

# A small model has done its imports and set-up by then. For a large model the alarm only comes before the hello.
ATTACH_EXPECTED_NS: Final = DurationNs(60 * NS_PER_S)


def on_launched(node: Node, event: CommandLaunched) -> list[Effect]:
    node.launched = node.command = event
    node.left = None
    node.idle.command = event.run
    count_untold(node, event)
    previous = node.previous_command
    if previous is not None and set(previous.processes) == set(event.processes):
        # The governor was restarted, not the command. What the command cost before counts towards its ceiling.
        node.previous_command = None
        node.account.restore(previous.account, previous.unallocated_since, has_own=previous.lent is None)
        node.account.pass_unpriced(previous.unpriced_ns)
        node.ledger.book.restore_lent(previous.lent or {})
        node.ledger.book.restore_unallocated(previous.unallocated, previous.unallocated_older_usd_micros)
    return watch(node, event.at)  # At once: a command may end before the first tick.


def on_launcher_exited(node: Node, _event: LauncherExited) -> list[Effect]:
    # A stand-in ends with the command's process. A run that reports for the command ends with its ranks.
    over(node)
    return []


def over(node: Node, stand_in: ManagedRun | None = None) -> None:
    """The command is over. Its processes were those of the run that stood in for it: nobody has those any more.

    What it has left is waited for, and was not announced perhaps. Until that is over too, the journal knows it.
    """
    if node.launched is not None:
        node.left = LeftLaunch.of_command(node.launched)
    node.launched = None
    if stand_in is not None:
        stand_in.launch.named = ()


# --- whose a run is ---------------------------------------------------------------------------------------------


def is_tied(
    run: str, launchers: Collection[ProcessId], name: str, processes: Collection[ProcessId], *, is_strangers: bool
) -> bool:
    """Whether a run is the command's: of its name, or with one of its processes among the run's launchers.

    The one rule, of runs and of their halts: a script may choose its own run name. No stranger's run is the command's.
    """
    return not is_strangers and (run == name or not set(launchers).isdisjoint(processes))


def is_its(managed: ManagedRun, name: str, processes: Collection[ProcessId]) -> bool:
    return is_tied(managed.run.run, managed.launch.launchers, name, processes, is_strangers=managed.is_strangers)


def is_reserved(node: Node, name: str) -> bool:
    """Whether only the command's own may have this name, also when the command has exited and its ranks go on."""
    command, managed = node.command, node.runs.get(name)
    if command is None:
        return False
    has_it = managed is not None and is_its(managed, command.run, command.processes)
    return has_it or name in (command.run, node.account.run)


# --- the log of a trainer that the command is, or has started ---------------------------------------------------


def on_log(node: Node, managed: ManagedRun, event: StreamOpened) -> None:
    """Note whether an opened stream is a run of its own, the command's, or perhaps the command's from its first line.

    A run with ranks speaks by them. Without a command, or when a run reports for it, no stream is separate.
    """
    launched = node.launched
    was_taken = managed.follows_command and not managed.is_separate
    managed.follows_command = False
    managed.is_separate = managed.is_separate and bool(managed.run.ranks)  # Its ranks have said whose they are.
    if launched is not None and not managed.run.ranks:
        names = (launched.run,) if was_taken and event.processes else (launched.run, node.account.run)
        is_known = event.run in names or not set(event.processes).isdisjoint(launched.processes)
        managed.follows_command = is_known or event.of_command
        may_wait = event.of_command and not event.processes and not was_taken
        is_held = node.account.is_held and not was_taken
        managed.is_separate = not is_known and (may_wait or not (managed.follows_command or is_held))
    managed.launch.named, managed.launch.named_uids = event.processes, event.other_uids
    if managed.follows_command and not managed.is_separate:
        take(node, managed)
    elif was_taken:  # Its pidfile was written at last, and names another than the command.
        managed.launch.launchers, managed.launch.command = (), ()
        managed.launch.forget_places(is_over=True)


def take(node: Node, managed: ManagedRun) -> None:
    """Let a halt of this log's run end the command, and the command's end be the run's."""
    launched, managed.is_separate = node.launched, False
    assert launched is not None, "the caller looked"
    if not managed.launch.named:
        managed.launch.named = launched.processes
        speakers.set_uid(managed.run, launched.uid)
    managed.launch.launchers, managed.launch.command = launched.processes, launched.command
    managed.launch.learn(launched.marks, launched.cgroups)


def is_other_launch(node: Node, managed: ManagedRun) -> bool:
    """Whether an exit that the log's reader reports is of an earlier launch: the command itself is the log's writer."""
    is_writer = node.launched is not None and managed.launch.named == node.launched.processes
    return is_writer and managed.follows_command


def may_take(node: Node, managed: ManagedRun) -> bool:
    """Whether a line of its log makes this run the command's: no rank speaks for the command."""
    ranks_speak = any(t.run.alive and t.run.ranks and not t.is_separate for t in node.runs.values())
    is_back = managed.follows_command and managed.is_left and not managed.run.alive
    return (managed.awaits_line or is_back) and node.launched is not None and not ranks_speak


def speaks_for_it(node: Node, hello: Hello) -> bool:
    """Whether a rank may report for the launched command: its own user's, or one that the kernel ties to it.

    The command may have become another user (sudo). Whoever else says its name is not believed, also when the command
    has exited and its ranks go on. True without a command.
    """
    command = node.command
    return command is None or hello.peer.uid == command.uid or hello.of_command


def as_known(node: Node, hello: Hello) -> Hello:
    """A process that is a rank of the command's run already stays one, whatever could be seen of it this time.

    That run may be watched under another name than the rank says.
    """
    known = (node.runs.get(name) for name in names_of(hello.run, hello.peer.uid))
    is_known = any(managed is not None and not managed.is_separate and _is_rank(managed, hello) for managed in known)
    return replace(hello, of_command=True) if is_known else hello


def may_join(node: Node, name: str, hello: Hello) -> bool:
    """Whether a rank may be of the run of this name, by whose the run is: the command's, or a stranger's. None is both.

    The trainer's own user may have processes that the command did not start.
    """
    managed = node.runs.get(name)
    if speaks_for_it(node, hello):
        return managed is None or not (managed.is_strangers and managed.run.alive) or _is_only_rank(managed, hello)
    if managed is not None and managed.is_separate:
        return True
    return not (managed is not None and managed.run.alive) and not is_reserved(node, name)


def _is_rank(managed: ManagedRun, hello: Hello) -> bool:
    return any(rank.peer.process == hello.peer.process for rank in managed.run.ranks.values())


def _is_only_rank(managed: ManagedRun, hello: Hello) -> bool:
    return bool(managed.run.ranks) and all(r.peer.process == hello.peer.process for r in managed.run.ranks.values())


def on_rank(node: Node, managed: ManagedRun, hello: Hello, *, stood_in: bool) -> None:
    """A rank speaks for its run from now on: for the command too, or beside it. `stood_in`: the run did, until now."""
    managed.follows_command, managed.is_separate = False, not speaks_for_it(node, hello)
    if node.command is not None and not managed.is_separate:
        is_own = hello.peer.uid == node.command.uid
        node.ledger.book.runs.count_to(managed.run.run, None if is_own else node.command.run)
    if stood_in:
        managed.launch.named = ()
    if not managed.is_separate:  # What was taken for a stranger's is seen to be the command's.
        for other in (other for other in node.runs.values() if other.is_strangers):
            for connection in speakers.drop_process(other.run, hello.peer.process):
                node.connections.pop(connection, None)


def restore_stranger(node: Node, managed: ManagedRun, *, is_strangers: bool) -> None:
    """Know a stranger's run again, until it says hello. To a service that goes on with this journal all are equal."""
    managed.is_separate = is_strangers and node.facts.exclusive


def is_older(node: Node, hello: Hello) -> bool:
    """Whether a rank that says the launched command's name began before that command: it is of an earlier launch."""
    launched = node.launched
    if launched is None or hello.run != launched.run or not launched.processes:
        return False
    return 0 < hello.peer.process.start_ticks < min(process.start_ticks for process in launched.processes)


def watch(node: Node, at: MonoNs) -> list[Effect]:
    """At each tick, after metering: have a run stand in for the command as long as no run reports for it."""
    launched = node.launched
    if launched is None:
        return []
    standing = next((managed for managed in node.runs.values() if managed.is_unattached), None)
    if standing is None:
        return _stand_in(node, launched, at)
    if at - standing.stands_in_since >= ATTACH_EXPECTED_NS and not standing.reported.nobody_attached:
        standing.reported.nobody_attached = True
        return [Alarm("nobody_attached", standing.run.run, _line(node, standing, at))]
    return []


def _stand_in(node: Node, launched: CommandLaunched, at: MonoNs) -> list[Effect]:
    if any(_reports_for_command(managed) or _has_ended(managed, launched) for managed in node.runs.values()):
        return []
    displaced: list[Effect] = []
    heir = payer_before(node, launched.run) if node.account.run is None else None
    account = node.account.run
    managed = node.runs.get(account) if account is not None else None
    fact, is_known = LifeFact.COMMAND_GOES_ON, True
    if managed is None or managed.incident is not None or (managed.run.alive and managed.is_separate):
        name = heir or (account if account is not None and managed is None else launched.run)
        fact, is_known = LifeFact.COMMAND_BEGINS, name in node.runs
        managed, displaced = _named(node, launched, name, at)
        if managed is None:
            return []
    if managed.run.move(fact, at).begins:
        _begin(managed, launched.at, is_known=is_known)
    else:
        _go_on(managed)
    if heir is not None:
        node.account.inherit(heir)
    managed.is_separate = False  # It is the command now, and no run beside it.
    managed.stands_in_since = at if node.account.run_stands_in(node.ledger.charged_to) else launched.at
    speakers.stand_in(managed.run, launched.uid)
    managed.launch.named = managed.launch.launchers = launched.processes
    managed.launch.command = launched.command
    managed.launch.learn(launched.marks, launched.cgroups)
    managed.reported.nobody_attached = False
    return displaced


def _reports_for_command(managed: ManagedRun) -> bool:
    is_halted = managed.incident is not None and managed.incident.is_closed
    return managed.run.alive and not managed.is_separate and not is_halted


def _has_ended(managed: ManagedRun, launched: CommandLaunched) -> bool:
    """Whether a halt of this run has ended the command: it leaves one alone below which another run stands."""
    return managed.incident is not None and managed.incident.has_ended(launched.processes)


def _go_on(managed: ManagedRun) -> None:
    """Continue the attempt with the rest of the command. What it has trained stays; its ranks are gone."""
    managed.rules.new_attempt()  # The last steps are no evidence about what follows them.
    speakers.drop_ranks(managed.run)


def _named(
    node: Node, launched: CommandLaunched, name: str, at: MonoNs
) -> tuple[ManagedRun | None, list[Effect]]:  # fmt: skip
    """The run of this name, or a new one. None while there is no room for one more run, and no stranger's to give way.

    Nothing else holds a silent command to its ceiling.
    """
    managed, displaced = node.runs.get(name), list[Effect]()
    if managed is not None:
        return managed, displaced
    if len(node.runs) >= RUNS_MAX and all(known.run.alive for known in node.runs.values()):
        strangers = gives_way(node)
        if strangers is None:
            return None, displaced
        reason = f"{RUNS_MAX} runs are alive on this node: the newest of uid {strangers.run.uid} gives way to {name}"
        displaced = alarms.displace(node, strangers, reason, at)
    if owner_of(node, name) is None:
        node.ledger.book.runs.count_to(name, launched.run)  # Until a rank of its own user has the name.
    return manage(node, name, launched.uid, None, {}, launched.at), displaced


def gives_way(node: Node) -> ManagedRun | None:
    """The stranger's run that makes room for one of the command's. One whose halt may still end does so last of all."""
    strangers = [managed for managed in node.runs.values() if managed.is_strangers]
    stuck = [managed for managed in strangers if managed.incident is not None and managed.incident.is_stuck]
    found = newest_of_most(node, strangers) or newest_of_most(node, stuck, in_halts=True)
    return found or newest_of_most(node, strangers, in_halts=True)


def _begin(managed: ManagedRun, at: MonoNs, *, is_known: bool) -> None:
    """Begin an attempt that has no rank yet. `is_known`: an earlier launch had this name, and its budget goes on."""
    managed.launch.forget_places(is_over=True)  # The command's own are learned at once.
    intake.begin_attempt(managed.run, "", at)
    if is_known:
        managed.drop_latch()
        managed.rules.new_attempt()


def _line(node: Node, managed: ManagedRun, at: MonoNs) -> str:
    since = format_duration(at - managed.stands_in_since)
    is_over = managed.run.run == node.account.run and managed.run.attempt
    ended = "the run has ended, its command goes on, and " if is_over else ""
    return (
        f"{ended}nobody has attached for {since}: {_shield(managed)}, and no NaN, hang or checkpoint "
        "is seen; add `shim = trainer_shim.attach(engine)` to the training script"
    )


def _shield(managed: ManagedRun) -> str:
    """What can end this command. A ceiling that is only observed ends nothing."""
    own = managed.policy.budget.ceiling_usd_micros
    budgets = [r for r in managed.policy.rules if r.trigger == "budget" and r.response is Response.HALT]
    halting = [rule for rule in budgets if rule.mode is Mode.ENFORCE]
    ceilings = [format_usd(own)] if own is not None and any(not r.params.get("caps_only") for r in halting) else []
    caps = [cap for cap in managed.run.caps if halting and cap.scope != f"run:{managed.run.run}"]
    ceilings += [f"{format_usd(cap.whole_usd_micros or cap.ceiling_usd_micros)} of {cap.scope}" for cap in caps]
    if ceilings:
        return f"only the ceiling {' and '.join(ceilings)} protects this run"
    observed = f" (the ceiling {format_usd(own)} is only observed)" if own is not None else ""
    return f"nothing protects this run{observed}"


# --- over our own crash -------------------------------------------------------------------------------------


def launched_row(node: Node) -> Mapping[str, Any] | None:
    """What a restarted governor must know of the command. Plain JSON: few charges, at most UNALLOCATED_MAX."""
    launched = node.launched or _waiting(node)
    if launched is None:
        return None
    charges, older = node.ledger.book.unallocated_charges()
    launch = LeftLaunch.of_command(launched)
    return {
        "run": launch.run,
        "uid": launch.uid,
        "processes": [process_row(process) for process in launch.processes],
        "mark": launch.mark,
        "cgroups": list(launch.cgroups),
        "account": node.account.run,
        "nobodys_since": node.account.since,
        "nobodys": [charge_row(charge) for charge in charges],
        "nobodys_older_usd_micros": older,
        **({"nobodys_unpriced_ns": waited_ns} if (waited_ns := node.account.unpriced_ns) else {}),
        "unattached": node.launched is None or any(managed.is_unattached for managed in node.runs.values()),
        **({} if node.account.has_own else {"lent": _lent_rows(node)}),
    }


def _waiting(node: Node) -> CommandLaunched | None:
    """A command that waits for what the journal knows of its name."""
    waiting = (event for events in node.waiting.values() for event in events)
    return next((event for event in waiting if isinstance(event, CommandLaunched)), None)


def _lent_rows(node: Node) -> Mapping[str, Any]:
    return {run: [charge_row(one) for one in charges] for run, charges in node.ledger.book.lent_charges().items()}


def launch_of(row: Mapping[str, Any]) -> LeftLaunch | None:
    """By what its processes are known beside the command's own. An older journal does not say."""
    row = {**row, **NEVER_LOOKED.row()}
    return LeftLaunch.of(row) if row.get("processes") and "mark" in row else None


def previous_command(row: Mapping[str, Any]) -> PreviousCommand:
    """Rebuild it. KeyError, TypeError or ValueError when the row is not one of ours."""
    account, run, lent = row["account"], row.get("run"), row.get("lent")  # An older journal has no name.
    return PreviousCommand(
        run=str(run) if run is not None else None,
        processes=tuple(process_of(process) for process in row["processes"]),
        account=str(account) if account is not None else None,
        unallocated_since=BootNs(int(row["nobodys_since"])),
        unallocated=tuple(charge_of(charge) for charge in row["nobodys"]),
        unallocated_older_usd_micros=UsdMicros(int(row["nobodys_older_usd_micros"])),
        is_unattached=bool(row.get("unattached")),  # An older journal does not say.
        launch=launch_of(row),
        unpriced_ns=int(row.get("nobodys_unpriced_ns", 0)),
        lent=None if lent is None else {str(name): tuple(map(charge_of, rows)) for name, rows in lent.items()},
    )
