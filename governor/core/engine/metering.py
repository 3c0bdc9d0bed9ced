"""Metering: elapsed time is charged to those who hold the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from governor.core.base.units import BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.launched_command import is_its
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node, make_past, payer_of
from governor.core.engine.node_journal import persist
from governor.core.engine.spent.marks import note_money, take_waiting
from governor.core.engine.spent.time import count_silence, count_time, on_verdict
from governor.core.events.effects import Effect
from governor.core.events.inputs import Tick
from governor.core.money.charges import UNALLOCATED
from governor.core.money.waste import Seen
from governor.core.runs.life import LifeFact

# --- time: charged at each tick ------------------------------------------------------------------------------


def meter(node: Node, tick: Tick, holders: Mapping[str, int]) -> None:
    """Charge the time since the last tick to those who hold the node."""
    if node.ledger.returning:  # A commit from before the gap is none to go on from: see metered_row().
        node.request_persist()
    _leave_out(node, holders)
    held = (node.runs[name] for name in holders if name != UNALLOCATED)
    if not node.account.is_held and any(not managed.is_separate for managed in held):
        node.account.node_held()
    _charge(node, tick.boot, tick.wall, holders)


def _charge(node: Node, boot: BootNs, wall: WallNs, holders: Mapping[str, int]) -> None:
    before = node.ledger.unpriced_ns
    if node.ledger.charge(boot, WallNs(wall - boot), holders, node.payers()):
        node.metered_wall = wall
    note_unpriced(node, before, holders)


def note_unpriced(node: Node, before_ns: int, holders: Mapping[str, int]) -> None:
    """Note with those who were to pay for it how much time has just passed without a price.

    It is less where a price that was read late reaches back. `before_ns`: the ledger's unpriced time before the charge.
    """
    passed_ns = node.ledger.unpriced_ns - before_ns
    if not passed_ns:
        return
    for name in holders or (UNALLOCATED,):
        noted = node.account if name == UNALLOCATED else node.runs[name].history
        noted.pass_unpriced(passed_ns)


def note_unheard(node: Node, tick: Tick, *, is_first: bool) -> None:
    """Note what was charged at once for time in which nobody listened, and whose steps behind it were heard."""
    away_ns = node.away_ns + tick.boot - node.began if is_first and node.away_ns else 0
    for managed in node.runs.values():
        run, awaited, meter = managed.run, managed.history.awaited, managed.history.meter
        if meter is not None and meter.metered_to is not None:
            log_read_at = run.step_at if run.jsonl_only else None
            awaited.hear(BootNs(meter.metered_to), log_read_at, is_fresh=managed.has_fresh_log)
        if awaited.until is not None:
            awaited.give_up(tick.at, run.attempt, run.attempt_at, run.step_at)
        attempt = run.attempt if run.alive and meter is not None else None
        awaited.tick(tick.boot, tick.at, away_ns, attempt, is_unbroken=tick.unbroken)


def charge_until(node: Node, at: MonoNs) -> None:
    """Charge the time since the last tick to those who hold the node, before one of them lets go of it.

    What was slept since then is left to the next tick. Before the first tick there is a gap, and who ended meanwhile
    pays nothing of it.
    """
    if node.boot_offset_ns is not None:
        _charge(node, BootNs(at + node.boot_offset_ns), node.wall(at), node.holders())


def rate_of(node: Node, managed: ManagedRun, holders: Mapping[str, int]) -> UsdMicros | None:
    """What an hour costs the run at present, or did when it last held the node. None: no price is known."""
    if managed.is_unattached:
        return node.ledger.rate(UNALLOCATED, {UNALLOCATED: 1, **holders})
    if managed.run.run in holders:
        return node.ledger.rate(managed.run.run, holders)
    return UsdMicros(0) if node.pays_nothing(managed) else managed.run.spend_rate_usd_micros_per_hour


def last_rate(node: Node, managed: ManagedRun) -> UsdMicros | None:
    """As of the last tick, or of now if there was none for this run yet."""
    known = managed.run.spend_rate_usd_micros_per_hour
    return known if known is not None else rate_of(node, managed, node.holders())


def count_split(node: Node, managed: ManagedRun, holders: Mapping[str, int] | None = None) -> None:
    """Count what the run's spend has bought since the last count. The ledger has charged all time until now.

    Of a command for which no run has ever reported the time alone is counted: nobody knows what it does.
    """
    run, split, meter, incident = managed.run, managed.history.split, managed.history.meter, managed.incident
    if not split.has_begun and run.last_frame_at is None:
        count_silence(node, managed, holders)
        return
    offset_ns, charged_to = node.boot_offset_ns, node.ledger.charged_to
    halting = incident if incident is not None and not incident.is_closed else None

    def spent_at(moment: MonoNs) -> int:
        if halting is not None and moment == halting.opened_at:
            return halting.spend_at_verdict_usd_micros  # As its report tells it: see charge_verdict().
        known, is_since_last = managed.money.marks.spent(moment)
        if not is_since_last:
            return known
        boot = charged_to if offset_ns is None else BootNs(moment + offset_ns)
        rate = rate_of(node, managed, node.holders() if holders is None else holders)
        return max(known, node.ledger.spend_at(run.run, boot, rate))

    has_let_go = not run.alive or (bool(run.ranks) and run.ended_well)
    split.count(
        Seen(
            spent_usd_micros=node.ledger.spend(run.run),
            spent_at=spent_at,
            stage=run.stage,
            attempt_at=run.attempt_at,
            first_step_at=run.first_step_ended_at,
            step_at=run.step_ended_at,
            halting_since=halting.opened_at if halting is not None else None,
            has_ended=has_let_go and halting is None,
            trained_tokens=meter.trained_tokens if meter is not None else 0,
            repeated_tokens=meter.wasted_tokens if meter is not None else 0,
            unpriced_ns=managed.history.unpriced_ns,
        )
    )
    count_time(node, managed, holders)


# --- a gap: time in which no governor ran --------------------------------------------------------------------


def charge_unstored(node: Node, since: BootNs, until: BootNs, since_wall: WallNs, holders: Mapping[str, int]) -> None:
    """Charge what the previous governor had metered and not persisted to those who held the node then.

    None of them need be back. What of a command's time no run had reported for goes to its name: see `settle`.
    """
    previous = node.previous_command
    if node.facts.exclusive and not holders and previous is None:
        return  # There was no command.
    if previous is not None and previous.is_unattached:
        holders = {**holders, UNALLOCATED: 1}
    node.ledger.resume_from(since)
    wall_of_boot, unpriced_before = WallNs(since_wall - since), node.ledger.unpriced_ns
    node.ledger.charge_unstored(until, wall_of_boot, holders, node.payers(), node.began)
    for name in holders.keys() & node.runs.keys():
        node.runs[name].history.split.pass_unstored(node.ledger.spend(name))
    note_unpriced(node, unpriced_before, holders)
    if node.facts.exclusive and previous is not None:
        charges = (*previous.unallocated, *node.ledger.set_unallocated_aside())
        unpriced_ns = previous.unpriced_ns + node.account.take_unpriced()
        node.previous_command = replace(previous, unallocated=charges, unpriced_ns=unpriced_ns)


class _Gap(Enum):
    """Who pays for it."""

    # The runs that held the node then, or nobody. They are charged before a new run holds it.
    HOLDERS = "holders"
    # Another command was launched. The runs still alive at the first tick held the node.
    ALIVE = "alive"
    # Another command was launched and no run is alive. We do not know who held the node.
    UNCHARGED = "uncharged"


def _gap(node: Node, holders: Mapping[str, int]) -> _Gap:
    if not node.facts.exclusive or node.account.goes_on:
        return _Gap.HOLDERS
    return _Gap.ALIVE if holders else _Gap.UNCHARGED


def close_gap(node: Node, newcomer: ManagedRun | None) -> None:
    """Charge the gap to the runs that held the node then, before a new run holds it.

    Ranks and logs are heard before the first tick. A live run that only speaks again leaves the gap to that tick: by
    then we know which other runs ended meanwhile.
    """
    is_known = newcomer is not None and newcomer.run.alive and not newcomer.is_unattached
    if is_known or not node.ledger.returning:
        return
    holders = node.holders()
    if _gap(node, holders) is _Gap.HOLDERS:
        _charge(node, node.began, node.began_wall, holders)
    else:
        _leave_out(node, holders)


def _leave_out(node: Node, holders: Mapping[str, int]) -> None:
    """Pass over an uncharged gap. As unallocated time it would be handed over to the next run."""
    if node.ledger.returning and _gap(node, holders) is _Gap.UNCHARGED:
        node.ledger.pass_over(node.began)


# --- the command's time: see CommandAccount ------------------------------------------------------------------


def hand_over(node: Node, managed: ManagedRun, at: MonoNs, *, begins: bool = False) -> None:
    """Charge the command's waiting time to this run, which reports for the command or halts or ends as its stand-in.

    `begins`: it begins to report.
    """
    if managed.is_separate:
        return
    for other in [other for other in node.runs.values() if other.is_unattached]:
        if other is managed:
            other.run.move(LifeFact.RUN_REPORTS, at)
        else:
            _make_way(node, other, managed, at)
    if not node.facts.exclusive:
        return
    before = node.account.run
    takes = node.account.run_reports(managed.run.run, follows=begins and _has_account_ended(node, managed))
    if node.launched is not None and (takes or (before is not None and before != node.account.run)):
        managed.history.take_over(node.launched.run, _turns(node, node.launched.run) + 1)
    if node.command is not None and managed.run.uid != node.command.uid and not node.account.has_own:
        node.ledger.book.lend(managed.run.run)
    if not takes:
        return
    if managed.history.meter is None:
        managed.history.begins_to_pay(node.account.since)
    if begins and managed.run.first_step_ended_at is None:  # Its log may go on, behind a restart of ours.
        managed.history.split.leave(node.ledger.spend(managed.run.run))
    unallocated = node.ledger.spend(UNALLOCATED)
    node.ledger.hand_over(payer_of(managed), node.command.run if node.command is not None else None)
    take_waiting(node, managed, at, unallocated)


def charge_verdict(node: Node, managed: ManagedRun, trigger: str, at: MonoNs) -> None:
    """Charge the run up to its verdict. What comes after that is the halt's: its waste is what it spends from here on.

    A stand-in that is halted before any run spoke has spent the unallocated time.
    """
    charge_until(node, at)
    hand_over(node, managed, at)
    note_money(node, managed, at)
    count_split(node, managed)
    on_verdict(managed, trigger, at)


def take_back(node: Node, managed: ManagedRun, at: MonoNs) -> list[Effect]:
    """Charge to the first run of the command's own user what other users' below the command were charged before it.

    The command may have become such a user (sudo), and nobody else pays for it then. It may also have a sandbox, that
    spoke first. What another script of its user announces is not the command's. Whenever a run of its own user comes
    while another user's has the command's account, the account is its own from then on.
    """
    command, account = node.command, node.account
    if command is None or managed.run.uid != command.uid or not managed.run.ranks:
        return []
    if managed.is_separate or not is_its(managed, command.run, command.processes):
        return []
    lenders = _taken_back(node, managed, at) if not account.has_own else []
    if account.run is not None and node.ledger.book.runs.part_of(account.run) is not None:
        account.run_reports(managed.run.run, follows=True)
        managed.history.take_over(command.run, _turns(node, command.run) + 1)
        return [persist(node, at, *lenders)]
    return [persist(node, at, *lenders)] if lenders else []


def _taken_back(node: Node, managed: ManagedRun, at: MonoNs) -> list[ManagedRun]:
    node.account.own_reports()
    charge_until(node, at)
    lenders = [node.runs[run] for run in node.ledger.take_back(payer_of(managed)) if run in node.runs]
    for lender in lenders:
        managed.history.pass_unpriced(lender.history.unpriced_ns)
        lender.give_back(node.ledger.charged_to, node.ledger.spend(lender.run.run))
        rate = rate_of(node, lender, node.holders())  # Else its steps until the next tick cost what it paid before.
        lender.run.set_money(node.ledger.spend(lender.run.run), rate, lender.run.reserve_usd_micros)
    if lenders and managed.history.meter is None:
        managed.history.begins_to_pay(min(managed.history.paid_from, node.account.since))
    if lenders:
        note_money(node, managed, at)
    return lenders


def _has_account_ended(node: Node, managed: ManagedRun) -> bool:
    """Whether the run that has the command's account is another than this one, and reports no more."""
    its = node.runs.get(node.account.run) if node.account.run is not None else None
    if node.account.run in (None, managed.run.run):
        return False
    return its is None or not its.run.alive or (its.incident is not None and its.incident.is_closed)


def _turns(node: Node, command: str) -> int:
    """How often a run that is known has taken the time of this command over."""
    histories = [*(managed.history for managed in node.runs.values()), *(past.history for past in node.past.values())]
    return max((history.turn for history in histories if history.command == command), default=0)


def _make_way(node: Node, other: ManagedRun, managed: ManagedRun, at: MonoNs) -> None:
    """Replace the stand-in `other`. `managed` takes over its operator's hold, unless its own hold is longer."""
    own, its = managed.history, other.history
    if its.hold_until is not None and (own.hold_until is None or its.hold_until > own.hold_until):
        own.hold(its.hold_until, its.hold_reason)
    own.pass_unpriced(its.unpriced_ns)
    run = managed.run
    if run.spend_rate_usd_micros_per_hour is None:  # A halt may come before the next tick.
        run.set_money(run.spend_usd_micros, other.run.spend_rate_usd_micros_per_hour, other.run.reserve_usd_micros)
    other.run.move(LifeFact.REPLACED, at)
    if other.run.run != node.account.run:
        make_past(node, other)


def settle(node: Node, at: MonoNs) -> list[Effect]:
    """Charge to a name's budget what its earlier launch had cost when it ended together with its governor.

    The time since then stays uncharged: nobody knows who used the machine.
    """
    previous, node.previous_command = node.previous_command, None
    if previous is None or previous.run is None or node.launched is None:
        return []
    # Also when another name is launched now: its own may be back only after many of those.
    names = [previous.account, previous.run]
    if previous.run == node.launched.run:
        names += [name for name, one in node.runs.items() if one.is_unattached]
    managed = next((node.runs[name] for name in names if name in node.runs), None)
    if managed is None:
        return []
    node.ledger.book.restore_unallocated(previous.unallocated, previous.unallocated_older_usd_micros)
    node.ledger.hand_over(payer_of(managed), previous.run)
    managed.history.pass_unpriced(previous.unpriced_ns)
    note_money(node, managed, at)
    return [persist(node, at, managed)]


def leave_attempts(node: Node, at: MonoNs) -> None:
    """Another command is launched than the journal knew: nobody saw how the attempts of its runs ended."""
    if not node.account.goes_on:
        for managed in node.runs.values():
            if managed.run.alive and managed.incident is None and not managed.is_separate:
                managed.history.split.leave(node.ledger.spend(managed.run.run), at)
