"""Whose a run's name is, and what the journal knows of a name that memory has dropped (docs/adr/0025).

A name belongs to the first uid that uses it. Another uid's run of the same name is watched under a name of its own. A
name is free again once its run is gone and never did anything, or when somebody releases it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from governor.core.base.run_names import names_of, reserved_for
from governor.core.base.shares import NOBODY, Claim, user_of
from governor.core.base.units import MonoNs, UsdMicros
from governor.core.engine import alarms, launched_command
from governor.core.engine.managed_run import ManagedRun, RunHistory
from governor.core.engine.node import (
    PROTECTED,
    RUNS_MAX,
    SPENT_USD_MICROS,
    Node,
    make_past,
    manage,
    newest_of_most,
    owner_of,
    recall,
)
from governor.core.engine.node_journal import persist
from governor.core.engine.resume import managed_of, unreadable
from governor.core.events.effects import Alarm, Effect, RecallRun, Record
from governor.core.events.inputs import CommandLaunched, Hello
from governor.core.events.machine import RunRecalled, UidRangesSeen
from governor.core.events.operators import OperatorForget
from governor.core.events.streams import StreamOpened
from governor.core.money.budgets import TORN
from governor.core.runs.state import Trained


def named(node: Node, hello: Hello) -> tuple[Hello, list[Effect]] | RecallRun:
    """The hello under the name by which its run is watched here. An effect instead: the journal is asked first."""
    uid = hello.peer.uid
    name = hello.run
    hello = launched_command.as_known(node, hello)
    kept = _kept(node, hello)
    for name in (kept,) if kept is not None else names_of(hello.run, uid):
        if _must_recall(node, name):
            return RecallRun(name)
        if _may_use(node, name, hello):
            break
    if name == hello.run:
        return hello, []
    owner = owner_of(node, hello.run)
    if owner is None:
        owner = _reserved_for(node, hello.run, hello)
    whose = f"belongs to uid {owner}" if owner is not None else "was another user's when this one's began"
    if owner == uid:  # Of which one process is the command's, and one is not.
        whose = "is outside of the command" if launched_command.speaks_for_it(node, hello) else "is the command's"
    pays = "with a spend of its own" if launched_command.speaks_for_it(node, hello) else "and pays nothing"
    text = (
        f"run {hello.run} {whose}; the run of uid {uid} is watched as {name}, {pays} "
        f"(`costgov forget {hello.run}` releases a name whose run is gone)"
    )
    is_new = name not in node.runs
    return replace(hello, run=name), [Alarm("name_taken", name, text)] if is_new else []


def _kept(node: Node, hello: Hello) -> str | None:
    """The name under which the uid's run has trained or paid, where that was not the name that it says.

    Whoever has the said name may leave. With it, the run's next attempt would begin its ceiling anew. Beside a command
    nobody is asked to release a name, so there it is kept though the said one is nobody's.
    """
    uid, owner, known = hello.peer.uid, owner_of(node, hello.run), node.runs.get(hello.run)
    is_unattached = known is not None and known.is_unattached
    if is_unattached or owner == uid or (owner is None and not node.facts.exclusive):
        return None
    own = own_run(node, hello.run, uid)
    if own is None or is_idle_name(node, own) or not _may_use(node, own, hello):
        return None
    return own


def own_run(node: Node, name: str, uid: int) -> str | None:
    """The name under which the uid's run of this name is watched. None: it has none."""
    return next((own for own in names_of(name, uid) if owner_of(node, own) == uid), None)


def _reserved_for(node: Node, name: str, hello: Hello) -> int | None:
    """The uid whose own name this would be. A launched command and its ranks are called whatever their user likes."""
    is_commands = node.facts.exclusive and launched_command.speaks_for_it(node, hello)
    return None if is_commands or name in node.facts.streams else reserved_for(name)


def _may_use(node: Node, name: str, hello: Hello) -> bool:
    uid, owner, known = hello.peer.uid, owner_of(node, name), node.runs.get(name)
    if not launched_command.may_join(node, name, hello):
        return False
    is_unattached = known is not None and known.is_unattached and launched_command.speaks_for_it(node, hello)
    if owner != uid and not is_unattached and _reserved_for(node, name, hello) not in (None, uid):
        return False
    if owner in (None, uid) or is_unattached:
        is_commands = node.facts.exclusive and launched_command.speaks_for_it(node, hello)
        return owner is not None or name not in node.facts.streams or is_commands
    if name in node.facts.streams or not is_idle_name(node, name):
        return False
    release(node, name)
    return True


def free_for_stream(node: Node, event: StreamOpened) -> None:
    """Release a stream's name that another uid's hello had taken before the stream was configured.

    Its ranks come again under a name of their own. Not while they are connected or halted.
    """
    managed = node.runs.get(event.run)
    if managed is None or managed.run.uid == event.uid or managed.is_unattached or node.facts.exclusive:
        return
    was_streams = managed.run.jsonl_only or managed.stream_position is not None
    if not (was_streams or managed.run.connected_ranks() or in_halt(managed)):
        release(node, event.run)


def free_for_command(node: Node, event: CommandLaunched) -> None:
    """Release the name of a launched command that a stranger's run has. Nothing of that run is the command's.

    Its halt goes on under a name of its own, as its ranks do when they come again.
    """
    managed = node.runs.get(event.run)
    if managed is None or not managed.is_strangers:
        return
    release(node, event.run)
    names = (name for name in names_of(event.run, managed.run.uid) if name != event.run)
    own = next((name for name in names if owner_of(node, name) is None), None)
    if own is None or not in_halt(managed):
        return
    assert managed.incident is not None, "it is in halt"
    managed.run.rename(own)
    managed.incident.rename(own)
    recall(node, managed)
    node.enter(managed.incident)
    node.request_persist()


def is_idle_name(node: Node, name: str) -> bool:
    """Whether nothing speaks for the name's owner: its processes are gone, and it neither trained nor was halted.

    Up to a dollar that these processes have cost stays counted to the name.
    """
    managed, past = node.runs.get(name), node.past.get(name)
    if managed is not None:
        return not managed.run.alive and _is_bare(node, name, managed.history, managed.run.trained())
    return past is not None and _is_bare(node, name, past.history, past.trained)


def _is_bare(node: Node, name: str, history: RunHistory, trained: Trained) -> bool:
    did = trained.step is not None or history.incidents_total or history.hold_until is not None
    return not did and node.ledger.spend(name) <= SPENT_USD_MICROS


def release(node: Node, name: str) -> UsdMicros:
    """Let the name belong to nobody. Returns what its runs have spent: that stays counted to the name."""
    node.runs.pop(name, None)
    node.past.pop(name, None)
    folded = node.ledger.make_past(name, Claim(NOBODY, PROTECTED))
    if folded is not None:
        node.past.pop(folded, None)
    return node.ledger.spend(name)


# --- room for one more run that lives -----------------------------------------------------------------------------


def has_room(node: Node, uid: int, *, of_command: bool = True) -> bool:
    is_full = len(node.runs) >= RUNS_MAX and all(t.run.alive for t in node.runs.values())
    return not is_full or _surplus(node, uid, of_command=of_command) is not None


def on_uid_ranges(node: Node, event: UidRangesSeen) -> list[Effect]:
    node.uid_ranges = event.ranges
    return []


def alive_of(node: Node, uid: int) -> int:
    """How many live runs the uid's user has: the one in whose range of uids it is."""
    user = user_of(node.uid_ranges, uid)
    return sum(t.run.alive and user_of(node.uid_ranges, t.run.uid) == user for t in node.runs.values())


def _surplus(node: Node, uid: int, *, of_command: bool) -> ManagedRun | None:
    """The live run that gives way to one of this uid: of who has most. Beside a command, strangers' alone do."""
    if node.facts.exclusive and of_command and (strangers := launched_command.gives_way(node)) is not None:
        return strangers
    runs = [t for t in node.runs.values() if of_command or t.is_strangers]
    held = Counter(user_of(node.uid_ranges, managed.run.uid) for managed in runs)
    if held[user_of(node.uid_ranges, uid)] + 1 >= max(held.values(), default=0):
        return None
    return newest_of_most(node, runs)


def make_room(node: Node, uid: int, at: MonoNs, *, of_command: bool) -> list[Effect]:
    """Watch a run of the uid that has most no longer, if that alone makes room."""
    if len(node.runs) < RUNS_MAX or any(not t.run.alive for t in node.runs.values()):
        return []
    managed = _surplus(node, uid, of_command=of_command)
    assert managed is not None, "the caller has asked has_room()"
    its = managed.run.uid
    reason = f"{RUNS_MAX} runs are alive on this node, most of them of uid {its}: its newest gives way to uid {uid}"
    return alarms.displace(node, managed, reason, at)


def enter(
    node: Node, name: str, uid: int, stage: str | None, labels: Mapping[str, str], at: MonoNs,
    *, of_command: bool = True,
) -> tuple[ManagedRun, list[Effect]]:  # fmt: skip
    """Manage a run that is not managed. The caller has asked has_room()."""
    displaced = make_room(node, uid, at, of_command=of_command)
    return manage(node, name, uid, stage, labels, at), displaced


def in_halt(managed: ManagedRun) -> bool:
    return managed.incident is not None and not managed.incident.is_closed


def in_use(node: Node, name: str) -> bool:
    """Whether the name's run lives, or its halt is not over."""
    managed = node.runs.get(name)
    return managed is not None and (managed.run.alive or in_halt(managed))


def on_operator_forget(node: Node, event: OperatorForget) -> list[Effect]:
    """Release a name. Its money stays in the ledger, and its halts stay in the journal under their ids."""
    if in_use(node, event.run):
        return [Alarm("operator_forget", event.run, f"run {event.run} is alive: its name is not released")]
    owner, spend = owner_of(node, event.run), release(node, event.run)
    data = {"act": "forget", "uid": event.uid, "owner": owner, "spend_usd_micros": spend}
    kept = persist(node, event.at, durable=True)
    # As after a salvage: a restarted governor knows what the name has cost, and no owner.
    row = {"run": event.run, "salvaged": True, "spend_usd_micros": spend}
    audit = Record("operator", event.run, None, data, durable=True)
    return [replace(kept, runs={**kept.runs, event.run: row}), audit]


# --- names that memory has dropped ------------------------------------------------------------------------------


def _must_recall(node: Node, name: str) -> bool:
    is_known = name in node.runs or name in node.past or name in node.ledger.book.runs.past
    return node.has_dropped_names and not is_known and name not in node.not_recalled


def ask_first(node: Node, event: StreamOpened | CommandLaunched) -> list[Effect]:
    """Let the event wait for what the journal knows of its name. Nothing is returned if it need not wait."""
    if not _must_recall(node, event.run):
        return []
    node.waiting.setdefault(event.run, []).append(event)
    return [RecallRun(event.run)]


def on_recalled(node: Node, event: RunRecalled) -> list[Effect]:
    """Take up what the journal knows of a run. The hellos that wait for it come again after this."""
    name, snapshot = event.run, event.snapshot
    if name in node.runs or name in node.past:
        return []
    node.note_not_recalled(name)
    if not event.is_answered:
        text = f"the journal did not say what run {name} has spent before: its ceiling counts from now on"
        return [Alarm("run_not_recalled", name, text)]
    if snapshot is None:
        return []
    try:
        spend = UsdMicros(int(snapshot["spend_usd_micros"]))
        managed = None if snapshot.get("salvaged") else managed_of(node, snapshot, event.at)
    except TORN as error:
        return [unreadable("run", name, error)]
    node.ledger.unfold(name, spend)
    if managed is None:  # Only its charges are left.
        release(node, name)
    else:
        make_past(node, managed, Claim(managed.run.uid, PROTECTED))
    return []


def know_incidents(node: Node, incident_ids: Iterable[str]) -> None:
    """Give none of these ids again. They are of the journal and of the reports, whatever became of their runs."""
    end = f".{node.facts.node}"
    for incident_id in incident_ids:
        stem, _, number = incident_id.rpartition(".")
        if stem.endswith(end) and number.isdecimal():
            node.note_number(stem.removesuffix(end), int(number))
