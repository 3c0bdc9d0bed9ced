"""What a run had spent when a step ended: its money is marked at each tick, and where it changes in between."""

from __future__ import annotations

from governor.core.base.units import BootNs, MonoNs
from governor.core.engine.command.payers import lends
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node
from governor.core.events.inputs import Step
from governor.core.money.charges import UNALLOCATED
from governor.core.money.spend_marks import Last, Mark, Worth
from governor.core.money.token_windows import TokenMeter
from governor.core.runs import own_time


def line_ended(node: Node, managed: ManagedRun, line: Step) -> MonoNs:
    """When a log's line was written, where it says that and nothing contradicts it."""
    meter, offset_ns, marks = managed.history.meter, node.boot_offset_ns, managed.money.marks
    if line.written is None or offset_ns is None or (meter is not None and meter.metered_to is None):
        return line.at
    paid_from = managed.history.paid_from if meter is None else BootNs(meter.metered_to or 0)
    # First lines may be of a time for which another run has paid.
    since = paid_from if meter is not None else min(paid_from, marks.boot_of(managed.run.attempt_at, offset_ns))
    written = own_time.of_line(line, since, BootNs(line.at + offset_ns), node.wall_offset_ns - offset_ns)
    if written is None:
        return line.at
    ended = marks.moment_of(written, offset_ns)
    return ended if written >= paid_from or marks.was_lent(ended) else line.at


def note_money(node: Node, managed: ManagedRun, at: MonoNs) -> None:
    """Note what the run has spent, for steps that end from now on: at each tick, and where it changes in between."""
    if node.boot_offset_ns is not None:
        managed.money.marks.note(_mark(node, managed, at, node.boot_offset_ns, _going_rate(node, managed)))


def note_waiting(node: Node, at: MonoNs) -> None:
    """Note what is unallocated, while a run stands in for the command. Lines of that time may be read later."""
    if node.boot_offset_ns is None or not any(managed.is_unattached for managed in node.runs.values()):
        return
    ledger, compute = node.ledger, node.ledger.compute
    rate = 0 if compute.credit > 0 else ledger.rate(UNALLOCATED, {UNALLOCATED: 1, **node.holders()}) or 0
    spent, is_priced = ledger.spend(UNALLOCATED), compute.metered is not None
    mark = Mark(at, node.boot_offset_ns, ledger.charged_to, spent, rate, is_priced, node.account.unpriced_ns)
    node.account.marks.note(mark)


def take_waiting(node: Node, managed: ManagedRun, at: MonoNs, unallocated_usd_micros: int) -> None:
    """What was unallocated (so much) is charged to this run now. A log's first line is older than its arrival."""
    unpriced_ns, spent = managed.history.unpriced_ns, node.ledger.spend(managed.run.run)
    managed.history.pass_unpriced(node.account.take_unpriced())
    managed.money.marks.take(node.account.marks, spent - unallocated_usd_micros, unpriced_ns)
    for other in node.runs.values():
        if other.awaits_line:  # It may have trained since, and this one pays for that.
            other.money.marks.lend(node.account.since)
    note_money(node, managed, at)  # Else its first step had spent none of that, and the second all.


def _going_rate(node: Node, managed: ManagedRun) -> int:
    """Never more than the next tick charges: a window that has closed gives nothing back."""
    is_over = managed.incident is not None and managed.incident.is_closed  # Its time is charged to nobody any more.
    is_free = node.ledger.compute.credit > 0  # The price fell sooner than we learned: time works that off.
    return 0 if is_over or is_free else managed.run.spend_rate_usd_micros_per_hour or 0


def _mark(node: Node, managed: ManagedRun, at: MonoNs, boot_offset_ns: int, rate: int) -> Mark:
    ledger = node.ledger
    is_priced = ledger.compute.metered is not None and not managed.is_strangers
    spent, unpriced_ns = ledger.spend(managed.run.run), managed.history.unpriced_ns
    return Mark(at, boot_offset_ns, ledger.charged_to, spent, rate, is_priced, unpriced_ns, lends(node, managed))


def worth_at(node: Node, managed: ManagedRun, meter: TokenMeter, at: MonoNs, ended: MonoNs) -> Worth:
    """The run's money when a step ended that is read now (`at`)."""
    marks, ledger, rate = managed.money.marks, node.ledger, _going_rate(node, managed)
    if node.boot_offset_ns is None:  # Before the first tick.
        mark = _mark(node, managed, at, ledger.charged_to - at, 0)
        return mark.at(at)
    if not marks.is_current(ledger.charged_to, ledger.spend(managed.run.run), rate):
        marks.note(_mark(node, managed, at, node.boot_offset_ns, rate))
    last = Last(BootNs(meter.metered_to), meter.step_usd_micros) if meter.metered_to is not None else None
    return marks.worth(ended, last, managed.run.attempt_at)
