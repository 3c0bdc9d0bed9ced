"""Money from the meter into the journal: what passed is split, charged, and kept together with what it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Final

from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node, Rise, forget, payer_of, run_snapshot
from governor.core.engine.node_money import boot_of, node_snapshot
from governor.core.engine.run_forecast import plan_of, tokens_goal
from governor.core.events.effects import Alarm, Effect, PersistRuns, Record
from governor.core.events.inputs import Ack, PriceRead, Step, Tick
from governor.core.money.charges import UNALLOCATED, Line
from governor.core.money.forecast import WindowRow, forecast, window_row
from governor.core.money.lines import compute_line
from governor.core.money.token_windows import TokenMeter
from governor.core.runs.life import LifeFact, move

PERSIST_PERIOD_NS: Final = 10 * NS_PER_S  # At most so much spend is reconstructed after our own crash.
WINDOWS_UNKEPT_MAX: Final = 64  # Then they do not wait for it: a log that is read in one go closes thousands.
# Five times the state of a model of a trillion parameters; more is a hostile frame.
CHECKPOINT_BYTES_MAX: Final = 10**14
# Each rank tells of each checkpoint, and one that was cut off tells of all that its outbox of 16 has kept.
CHECKPOINTS_REMEMBERED_MAX: Final = 16


# --- time: charged at each tick ------------------------------------------------------------------------------


def meter(node: Node, tick: Tick, holders: Mapping[str, int]) -> None:
    """Charge the time since the last tick to those who hold the node."""
    _leave_out(node, holders)
    held = (node.runs[name] for name in holders if name != UNALLOCATED)
    if not node.account.is_held and any(not managed.is_beside for managed in held):
        node.account.held()
    _charge(node, tick.boot, tick.wall, holders)


def _charge(node: Node, boot: BootNs, wall: WallNs, holders: Mapping[str, int]) -> None:
    if node.ledger.charge(boot, WallNs(wall - boot), holders, node.payers()):
        node.metered_wall = wall


# --- a gap: what passed while nobody governed ----------------------------------------------------------------


class _Gap(Enum):
    """Who pays for it."""

    HOLDERS = "holders"  # Whoever held the node then, or nobody: before anybody new holds it.
    ALIVE = "alive"  # Another command is launched. Whoever is still alive at the first tick has held the node.
    UNCHARGED = "uncharged"  # The same, and nobody is alive: whose the machine was since, we do not know.


def _gap(node: Node, holders: Mapping[str, int]) -> _Gap:
    if not node.facts.exclusive or node.account.goes_on:
        return _Gap.HOLDERS
    return _Gap.ALIVE if holders else _Gap.UNCHARGED


def close_gap(node: Node, newcomer: ManagedRun | None) -> None:
    """Before anybody new holds the node: what passed while nobody governed is theirs who held it then.

    Ranks and logs are heard before the first tick. Whoever only speaks again waits for it: by then we know who of the
    others has ended meanwhile.
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
    """Charged to nobody, an uncharged gap would be handed over to the run that comes."""
    if node.ledger.returning and _gap(node, holders) is _Gap.UNCHARGED:
        node.ledger.pass_over(node.began)


# --- the command's time: see CommandAccount ------------------------------------------------------------------


def hand_over(node: Node, managed: ManagedRun, at: MonoNs) -> None:
    """This run speaks for the command, or is halted or has ended in its stead: what waits for it is its own."""
    if managed.is_beside:
        return
    for other in [other for other in node.runs.values() if other.is_unattached]:
        if other is managed:
            move(other.run, LifeFact.SPOKEN_FOR, at)
        else:
            _make_way(node, other, managed, at)
    if not node.facts.exclusive or not node.account.spoken(managed.run.run):
        return
    if managed.history.meter is None:
        managed.history.paid_from = node.account.since
    node.ledger.hand_over(payer_of(managed))


def _make_way(node: Node, other: ManagedRun, managed: ManagedRun, at: MonoNs) -> None:
    """It stood in for the command. What speaks now takes the operator's hold along, unless its own is the longer."""
    own, its = managed.history, other.history
    if its.hold_until is not None and (own.hold_until is None or its.hold_until > own.hold_until):
        own.hold(its.hold_until, its.hold_reason)
    move(other.run, LifeFact.REPLACED, at)
    if other.run.run != node.account.run:
        forget(node, other)


def settle(node: Node, at: MonoNs) -> list[Effect]:
    """A launch under the name of one that ended together with its governor: what that had cost is the name's budget.

    Of what passed since, nobody knows whose it was: that stays uncharged.
    """
    left, node.left = node.left, None
    if left is None or node.launched is None or left.run != node.launched.run:
        return []
    managed = node.runs.get(left.account if left.account is not None else left.run)
    if managed is None:
        return []
    node.ledger.book.take_up_unallocated(left.nobodys, left.unallocated_older_usd_micros)
    node.ledger.hand_over(payer_of(managed))
    return [persist(node, at, managed)]


# --- tokens: the clock of money ------------------------------------------------------------------------------


def meter_tokens(node: Node, managed: ManagedRun, step: Step) -> None:
    """Charge the step's tokens to the window they belong to. One that it closes is kept together with its meter."""
    run, spent, boot = managed.run, node.ledger.spend(managed.run.run), node.ledger.charged_to
    assert run.tokens_total is not None, "the caller looked"
    if step.attempt_step is not None:
        began, counted, newest = managed.money.metered
        # A process that attaches anew counts its attempt's steps from one again, and trains on.
        if began == run.attempt_at and step.attempt_step <= counted and step.step <= newest:
            return  # Told twice, or late: what it trained is counted.
        managed.money.metered = run.attempt_at, step.attempt_step, step.step
    if managed.history.meter is None:
        managed.history.meter = TokenMeter(window_tokens=managed.policy.budget.window_tokens)
        # All that the run has spent before its first step is that window's; what it trained before we saw it is not.
        trained = max(0, run.tokens_total - (step.tokens or 0))
        managed.history.meter.begin(trained, managed.history.paid_before, managed.history.paid_from)
        node.request_persist()  # With the next tick: a governor after us would begin further on, with all of the money.
    then_tokens = managed.policy.budget.window_tokens
    window = managed.history.meter.add(run.tokens_total, step.tokens or 0, spent, boot, then_tokens)
    if window is None:
        return
    managed.money.windows.append(window)
    goal = tokens_goal(managed)
    # What was lost has to be trained again before there is progress; it takes and costs as long.
    managed.money.forecast = (
        forecast(tuple(managed.money.windows), goal - run.tokens_total) if goal is not None else None
    )
    is_unpriced = node.ledger.compute.metered is None
    row = window_row(WindowRow(run.stage, run.attempt, window, plan_of(managed), is_unpriced))
    node.windows_unkept.append(Record("window", run.run, None, row))


# --- into the journal ----------------------------------------------------------------------------------------


def persist_due(node: Node, at: MonoNs) -> list[PersistRuns]:
    """At the first tick, every ten seconds, and when a charge or many windows were closed."""
    many = node.ledger.unkept or len(node.windows_unkept) >= WINDOWS_UNKEPT_MAX
    due = node.persisted_at is None or many or at - node.persisted_at >= PERSIST_PERIOD_NS
    return [persist(node, at)] if due else []


def persist(node: Node, at: MonoNs, *ended: ManagedRun, durable: bool = False) -> PersistRuns:
    """Everything at this moment: `ended` are runs that are not alive any more and have changed since they were kept.

    So have those whom a charge or a window names that goes along: what is said of a run's money is in one commit.
    """
    node.persisted_at = at
    charges, records = node.ledger.take_charges(), tuple(node.windows_unkept)
    node.windows_unkept.clear()
    told = {charge.payer.run for charge in charges} | {record.run for record in records}
    runs = {
        name: run_snapshot(node, managed, at)
        for name, managed in node.runs.items()
        if managed.run.alive or name in told
    }
    runs |= {managed.run.run: run_snapshot(node, managed, at) for managed in ended}
    return PersistRuns({**runs, UNALLOCATED: node_snapshot(node)}, charges, records, durable)


# --- what a launch and a checkpoint add, at the moment at which they happen ----------------------------------


def charge_launch(node: Node, managed: ManagedRun, at: MonoNs) -> None:
    """Charge what each attempt of a run costs. Behind its hello: its stage and labels stand in the charge."""
    for line in node.facts.lines.per_launch:
        _charge_one_off(node, managed, line, 1, at)


def charge_checkpoint(node: Node, managed: ManagedRun, ack: Ack) -> UsdMicros | None:
    """Charge the bytes of a checkpoint that is whole, once however often it is told.

    Returns what that came to, which is to be kept at once; None: nothing was charged.
    """
    lines = node.facts.lines.per_gb if managed.run.alive else ()  # What has ended is not kept any more.
    size = ack.checkpoint.get("bytes") if ack.checkpoint is not None else None
    if not lines or not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= CHECKPOINT_BYTES_MAX:
        return None
    assert ack.checkpoint is not None
    named = f"{managed.run.attempt}/{ack.incident_id}/{ack.step}/{ack.checkpoint.get('path')}"
    name = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:16]  # A frame may be as long as 64 KiB.
    if name in managed.money.checkpoints_charged:
        return None
    managed.money.checkpoints_charged = (*managed.money.checkpoints_charged, name)[-CHECKPOINTS_REMEMBERED_MAX:]
    managed.money.checkpoint_bytes_max = max(managed.money.checkpoint_bytes_max, size)
    return UsdMicros(sum(_charge_one_off(node, managed, line, size, ack.at) for line in lines))


def checkpoint_reserve(node: Node, managed: ManagedRun) -> UsdMicros:
    """What the checkpoint of a halt may cost to upload, by the largest that the run has saved. 0 before the first."""
    units = (
        (line.price_usd_micros * managed.money.checkpoint_bytes_max, line.unit.base_units)
        for line in node.facts.lines.per_gb
    )
    return UsdMicros(sum(-(-amount // base_units) for amount, base_units in units))


def _charge_one_off(node: Node, managed: ManagedRun, line: Line, quantity: int, at: MonoNs) -> int:
    return node.ledger.charge_one_off(line, quantity, node.wall(at), payer_of(managed))


# --- a price that changes while the node runs ----------------------------------------------------------------


def on_price_read(node: Node, read: PriceRead) -> list[Effect]:
    """Charge up to now at the old price; from the time at which it came into force the new one counts."""
    effects: list[Effect] = [Alarm(name, None, text) for name, text in read.alarms]
    ledger = node.ledger
    to = compute_line(read.usd_micros_per_hour, read.source, read.as_of)
    before = ledger.compute.metered
    assert to is not None, "a reading has a price"
    if before == to:
        return effects
    if ledger.next_price is not None:  # Back from an absence that no tick has charged yet.
        meter(node, Tick(read.at, read.boot, read.wall), node.holders())
    old = ledger.price_usd_micros_per_hour
    boot = BootNs(max(read.boot, ledger.charged_to))
    since = boot if read.since is None else boot_of(read.since, read.boot, read.wall)
    ledger.set_next_price(to, since)
    splits = ledger.charge(boot, WallNs(read.wall - read.boot), node.holders(), node.payers(), ends_others=False)
    if boot == read.boot:
        node.metered_wall = read.wall
    if old == to.line.price_usd_micros and before is not None and before.line.source == to.line.source:
        return effects  # Said anew today: its charges bear the day, and nothing has happened.
    if old is not None and old < to.line.price_usd_micros:
        node.price_rise = Rise(read.at, old, read.usd_micros_per_hour)
    made_up_for = sum(sum(split.amounts.values()) for split in splits if split.elapsed == 0)
    data = {
        "from_usd_micros_per_hour": old,
        "to_usd_micros_per_hour": to.line.price_usd_micros,
        "source": read.source,
        "as_of": read.as_of,
        "since_wall_ns": read.since,
        "late_s": round((boot - ledger.priced_from) / NS_PER_S, 3),
        "made_up_for_usd_micros": made_up_for,
        "credit": ledger.compute.credit,
    }
    # Kept at once: whoever comes after us knows the price of then, and when it began, and charges nothing twice.
    return [*effects, Record("price", None, None, data, durable=True), persist(node, read.at)]
