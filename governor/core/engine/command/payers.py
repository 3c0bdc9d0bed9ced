"""Who pays for the launched command: one run does, however many logs it writes and whoever else reports below it."""

from __future__ import annotations

from collections.abc import Mapping

from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.money.charges import UNALLOCATED


def payer_for(node: Node, managed: ManagedRun, holders: Mapping[str, int]) -> str | None:
    """Who pays for the command in the place of this log's run, or of a stranger's, now or until its end."""
    if node.pays_nothing(managed):
        return _payer_of_command(node, holders) or managed.money.paid_by
    if managed.is_unattached or managed.run.run in holders or not managed.follows_command:
        return None
    its = (name for name in holders if name != UNALLOCATED and not node.runs[name].is_separate)
    return next(its, managed.money.paid_by)


def lends(node: Node, managed: ManagedRun) -> bool:
    """Whether another run pays in this one's place, as of the last tick or by now."""
    if managed.money.paid_by is not None:
        return True
    may_lend = managed.follows_command or node.pays_nothing(managed)  # No service has either: steps are many.
    return may_lend and payer_for(node, managed, node.holders()) is not None


def next_payer(node: Node, ended: ManagedRun) -> ManagedRun | None:
    """Which log of the command pays for it from now on, where the one that has its account has ended.

    That one stands in for what follows: what has been told of the ended log stays.
    """
    if node.account.run != ended.run.run or not ended.follows_command:
        return None
    its = [node.runs[name] for name in node.holders() if name != UNALLOCATED]
    return next((one for one in its if one.follows_command and not one.is_separate), None)


def may_leave(node: Node, managed: ManagedRun) -> bool:
    """Whether this log's run may end because its writer is gone, whom nobody saw: another log of the command goes on.

    Alone, the log is the command's to its end, whoever its pidfile names: perhaps a process that is not seen from here.
    """
    logs = [t for t in node.runs.values() if t.follows_command and t.run.alive and t.incident is None]
    logs = [t for t in logs if not t.is_separate and not t.is_unattached]
    is_named = node.launched is None or managed.launch.named != node.launched.processes
    return managed in logs and len(logs) > 1 and not is_named


def _payer_of_command(node: Node, holders: Mapping[str, int]) -> str | None:
    """The run that pays for the launched command, or stands in for it, or will: the command's name then."""
    its = (name for name in holders if name != UNALLOCATED and not node.runs[name].is_separate)
    stand_in = next((name for name, managed in node.runs.items() if managed.is_unattached), None)
    return next(its, stand_in or (node.command.run if node.command is not None else None))
