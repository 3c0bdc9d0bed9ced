"""What the ceiling of a launched command counts: one rule for all of its runs, in every launch of its name.

A run of the command's own user has its spend, and a ceiling that counts it. All else that the command costs counts to
the command's name: what other users' runs below it cost, whatever they are called (a sandbox, or what the command has
become by `gosu`), and what is charged to the name itself, for which no rank of its own user has reported. The ceiling
of every run of its own user counts that too. Of the others all have one ceiling, with the last of its own user's runs.

The ledger keeps the sum by the command's name (`RunSpend.count_to`), because those runs have new names in each launch.
"""

from __future__ import annotations

from governor.core.base.units import MonoNs, UsdMicros
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.inputs import CommandLaunched
from governor.core.money.budgets import Scope, ScopeKind
from governor.core.money.charges import UNALLOCATED


def spend(node: Node, managed: ManagedRun) -> UsdMicros:
    """What the run has cost, including the unallocated spend that would be handed over to it."""
    return UsdMicros(node.ledger.spend(managed.run.run) + unclaimed(node, managed))


def unclaimed(node: Node, managed: ManagedRun) -> UsdMicros:
    return node.ledger.book.unclaimed_usd_micros() if managed.is_unattached else UsdMicros(0)


def unallocated(node: Node) -> UsdMicros:
    """What nobody has paid for: what a run that stands in for the command has cost is that run's in every view."""
    its = sum(unclaimed(node, managed) for managed in node.runs.values())
    return UsdMicros(max(0, node.ledger.spend(UNALLOCATED) - its))


def counted(node: Node, name: str) -> UsdMicros:
    """What the ceiling of this run counts. Where nothing counts to a command's name, it is what the run has cost."""
    managed, command = node.runs.get(name), node.command
    own = spend(node, managed) if managed is not None else node.ledger.spend(name)
    if command is None or not _counts_others(node, name):
        return own
    waits = sum(unclaimed(node, one) for one in others(node, name) if one is not managed)
    return UsdMicros(own + node.ledger.book.runs.beside(name, command.run) + waits)


def others(node: Node, name: str) -> list[ManagedRun]:
    """The runs whose cost the ceiling of this run counts: those that count to the command's name, itself too."""
    return [one for one in node.runs.values() if _counts_to_name(node, one)] if _counts_others(node, name) else []


def by_run(node: Node) -> dict[str, str]:
    """By run of the command that pays or has paid: whose ceiling counts it. Empty while nothing counts to the name."""
    command = node.command
    if command is None:
        return {}
    its = {name: one for name, one in node.runs.items() if one.run.alive or node.ledger.spend(name)}
    its = {name: one for name, one in its.items() if not one.is_separate and not node.pays_nothing(one)}
    theirs = [name for name, one in its.items() if _counts_to_name(node, one)]
    if not theirs and not node.ledger.book.runs.of_command(command.run):
        return {}
    return {name: name for name in its} | dict.fromkeys(theirs, ceiling_run(node, command.run))


def ceiling_of(node: Node, managed: ManagedRun, whose: str) -> UsdMicros | None:
    """The amount of the ceiling that counts this run. What another user's run is given for itself is not the name's."""
    if managed.run.run == whose:
        return managed.policy.budget.ceiling_usd_micros
    budget = node.budgets.of(Scope(ScopeKind.RUN, whose))
    policy = node.policies.for_run(managed.run.labels, managed.run.stage)
    return budget.ceiling_usd_micros if budget is not None else policy.budget.ceiling_usd_micros


def ceiling_run(node: Node, command: str) -> str:
    """Whose ceiling is the name's: the last run of its own user to take over the command's time, else its namesake."""
    return payer_before(node, command) or command


def payer_before(node: Node, command: str) -> str | None:
    """The run of its own user that took over the time of this command last, in any launch: its budget goes on.

    An older journal does not say which was the last. None of several does then.
    """
    histories = {name: past.history for name, past in node.past.items()}
    histories |= {name: managed.history for name, managed in node.runs.items()}
    its = {name: history.turn for name, history in histories.items() if history.command == command}
    own = {name: turn for name, turn in its.items() if node.ledger.book.runs.part_of(name) is None}
    last = [name for name, turn in own.items() if turn == max(own.values())]
    return last[0] if len(last) == 1 else None


def count_untold(node: Node, launched: CommandLaunched) -> None:
    """What an older journal does not say: other users' runs that took over the time of the command count to it."""
    node.ledger.book.runs.mend_commands()
    known = [(name, one.run.uid, one.history) for name, one in node.runs.items()]
    known += [(name, one.uid, one.history) for name, one in node.past.items()]
    for name, uid, history in known:
        if history.command == launched.run and uid != launched.uid:
            node.ledger.book.runs.count_to(name, launched.run)


def _counts_others(node: Node, name: str) -> bool:
    """Whether the ceiling of this run is one of the command's: its own user's run, or the one that is the name's."""
    managed, command = node.runs.get(name), node.command
    if command is None or (managed is not None and managed.is_separate):
        return False
    is_own = managed is not None and node.ledger.book.runs.part_of(name) is None
    return is_own or name == ceiling_run(node, command.run)


def _counts_to_name(node: Node, managed: ManagedRun) -> bool:
    part = node.ledger.book.runs.part_of(managed.run.run)
    return part is not None and node.command is not None and part[0] == node.command.run and not managed.is_separate


def spent(node: Node, scope: Scope, at: MonoNs) -> UsdMicros:
    """By this node's ledger."""
    groups = node.ledger.groups
    match scope.kind:
        case ScopeKind.RUN:
            return counted(node, scope.name)
        case ScopeKind.DAY:
            return UsdMicros(groups.of_day(node.wall(at)))
        case ScopeKind.NODE:
            return UsdMicros(groups.node_usd_micros)
        case _:
            # A command's stand-in spends what the counters still have as unallocated.
            standing_in = [one for one in node.runs.values() if one.is_unattached and covers(scope, one)]
            rest = sum(unclaimed(node, managed) for managed in standing_in)
            return UsdMicros(groups.of_key(scope.text) + rest)


def covers(scope: Scope, managed: ManagedRun) -> bool:
    run = managed.run
    return scope.covers(run.run, run.stage, run.labels)
