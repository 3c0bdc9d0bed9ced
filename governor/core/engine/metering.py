"""Money from the meter into the journal: elapsed time is split, charged, and persisted with the runs that pay."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Final

from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.node import Node, Rise, forget, payer_of, run_snapshot
from governor.core.engine.node_journal import boot_of, node_snapshot
from governor.core.engine.run_forecast import plan_of, tokens_goal
from governor.core.events.effects import Alarm, Effect, PersistRuns, Record
from governor.core.events.inputs import Ack, PriceRead, Step, Tick
from governor.core.money.charges import UNALLOCATED, Line
from governor.core.money.forecast import WindowRow, forecast, window_row
from governor.core.money.lines import compute_line
from governor.core.money.token_windows import TokenMeter
from governor.core.runs.life import LifeFact

# After a crash of the governor, at most this period's spend is reconstructed.
PERSIST_PERIOD_NS: Final = 10 * NS_PER_S
# So many closed windows do not wait for the period: a log that is read in one go closes thousands.
WINDOWS_UNKEPT_MAX: Final = 64
# Five times the state of a model of a trillion parameters; more is a hostile frame.
CHECKPOINT_BYTES_MAX: Final = 10**14
# Each rank reports each checkpoint. After a lost connection, a rank reports again all that its outbox of 16 holds.
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


# --- a gap: time in which no governor ran --------------------------------------------------------------------


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


def hand_over(node: Node, managed: ManagedRun, at: MonoNs) -> None:
    """Charge the command's waiting time to this run, which speaks for the command or halts or ends as its stand-in."""
    if managed.is_beside:
        return
    for other in [other for other in node.runs.values() if other.is_unattached]:
        if other is managed:
            other.run.move(LifeFact.SPOKEN_FOR, at)
        else:
            _make_way(node, other, managed, at)
    if not node.facts.exclusive or not node.account.spoken(managed.run.run):
        return
    if managed.history.meter is None:
        managed.history.paid_from = node.account.since
    node.ledger.hand_over(payer_of(managed))


def _make_way(node: Node, other: ManagedRun, managed: ManagedRun, at: MonoNs) -> None:
    """Replace the stand-in `other`. `managed` takes over its operator's hold, unless its own hold is longer."""
    own, its = managed.history, other.history
    if its.hold_until is not None and (own.hold_until is None or its.hold_until > own.hold_until):
        own.hold(its.hold_until, its.hold_reason)
    other.run.move(LifeFact.REPLACED, at)
    if other.run.run != node.account.run:
        forget(node, other)


def settle(node: Node, at: MonoNs) -> list[Effect]:
    """Charge to a name's budget what its earlier launch had cost when it ended together with its governor.

    The time since then stays uncharged: nobody knows who used the machine.
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
    """Charge the step's tokens to their window. A window that closes is persisted together with the meter."""
    run, spent, boot = managed.run, node.ledger.spend(managed.run.run), node.ledger.charged_to
    assert run.tokens_total is not None, "the caller looked"
    if step.attempt_step is not None:
        began, counted, newest = managed.money.metered
        # A process that attaches anew counts its attempt's steps from one again. Its absolute step goes on.
        if began == run.attempt_at and step.attempt_step <= counted and step.step <= newest:
            return  # Reported twice or late: counted already.
        managed.money.metered = run.attempt_at, step.attempt_step, step.step
    if managed.history.meter is None:
        managed.history.meter = TokenMeter(window_tokens=managed.policy.budget.window_tokens)
        # The first window has all spend before the first step, but no tokens that were trained before we saw the run.
        trained = max(0, run.tokens_total - (step.tokens or 0))
        managed.history.meter.begin(trained, managed.history.paid_before, managed.history.paid_from)
        # Persisted with the next tick. Otherwise a restarted governor would begin further on, with all of the spend.
        node.request_persist()
    then_tokens = managed.policy.budget.window_tokens
    window = managed.history.meter.add(run.tokens_total, step.tokens or 0, spent, boot, then_tokens)
    if window is None:
        return
    managed.money.windows.append(window)
    goal = tokens_goal(managed)
    # Lost tokens are trained again before there is progress. This takes and costs as much as the first time.
    managed.money.forecast = (
        forecast(tuple(managed.money.windows), goal - run.tokens_total) if goal is not None else None
    )
    is_unpriced = node.ledger.compute.metered is None
    row = window_row(WindowRow(run.stage, run.attempt, window, plan_of(managed), is_unpriced))
    node.windows_unkept.append(Record("window", run.run, None, row))


# --- into the journal ----------------------------------------------------------------------------------------


def persist_due(node: Node, at: MonoNs) -> list[PersistRuns]:
    """Persist at the first tick, every ten seconds, and when a charge or many windows were closed."""
    many = node.ledger.unkept or len(node.windows_unkept) >= WINDOWS_UNKEPT_MAX
    due = node.persisted_at is None or many or at - node.persisted_at >= PERSIST_PERIOD_NS
    return [persist(node, at)] if due else []


def persist(node: Node, at: MonoNs, *ended: ManagedRun, durable: bool = False) -> PersistRuns:
    """Persist everything as of now. `ended`: runs that are no longer alive and changed since they were persisted.

    Runs that a charge or window of this commit names are included: one commit has all that concerns a run's money.
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
    """Charge what each attempt of a run costs. The hello is applied first: the charge bears its stage and labels."""
    for line in node.facts.lines.per_launch:
        _charge_one_off(node, managed, line, 1, at)


def charge_checkpoint(node: Node, managed: ManagedRun, ack: Ack) -> UsdMicros | None:
    """Charge the bytes of a whole checkpoint, once however often it is reported.

    Returns the amount, which the caller persists at once; None: nothing was charged.
    """
    lines = node.facts.lines.per_gb if managed.run.alive else ()  # An ended run is not persisted any more.
    size = ack.checkpoint.get("bytes") if ack.checkpoint is not None else None
    if not lines or not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= CHECKPOINT_BYTES_MAX:
        return None
    assert ack.checkpoint is not None
    named = f"{managed.run.attempt}/{ack.incident_id}/{ack.step}/{ack.checkpoint.get('path')}"
    # Hashed, because a frame may be as long as 64 KiB.
    name = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    if name in managed.money.checkpoints_charged:
        return None
    managed.money.checkpoints_charged = (*managed.money.checkpoints_charged, name)[-CHECKPOINTS_REMEMBERED_MAX:]
    managed.money.checkpoint_bytes_max = max(managed.money.checkpoint_bytes_max, size)
    return UsdMicros(sum(_charge_one_off(node, managed, line, size, ack.at) for line in lines))


def checkpoint_reserve(node: Node, managed: ManagedRun) -> UsdMicros:
    """What uploading a halt's checkpoint may cost, by the run's largest checkpoint so far. 0 before the first."""
    units = (
        (line.price_usd_micros * managed.money.checkpoint_bytes_max, line.unit.base_units)
        for line in node.facts.lines.per_gb
    )
    return UsdMicros(sum(-(-amount // base_units) for amount, base_units in units))


def _charge_one_off(node: Node, managed: ManagedRun, line: Line, quantity: int, at: MonoNs) -> int:
    return node.ledger.charge_one_off(line, quantity, node.wall(at), payer_of(managed))


# --- a price that changes while the node runs ----------------------------------------------------------------


def on_price_read(node: Node, read: PriceRead) -> list[Effect]:
    """Charge up to now at the old price. The new price counts from the time at which it came into force."""
    effects: list[Effect] = [Alarm(name, None, text) for name, text in read.alarms]
    ledger = node.ledger
    to = compute_line(read.usd_micros_per_hour, read.source, read.as_of)
    before = ledger.compute.metered
    assert to is not None, "a reading has a price"
    if before == to:
        return effects
    if ledger.next_price is not None:  # After an absence that no tick has charged yet.
        meter(node, Tick(read.at, read.boot, read.wall), node.holders())
    old = ledger.price_usd_micros_per_hour
    boot = BootNs(max(read.boot, ledger.charged_to))
    since = boot if read.since is None else boot_of(read.since, read.boot, read.wall)
    ledger.set_next_price(to, since)
    splits = ledger.charge(boot, WallNs(read.wall - read.boot), node.holders(), node.payers(), ends_others=False)
    if boot == read.boot:
        node.metered_wall = read.wall
    if old == to.line.price_usd_micros and before is not None and before.line.source == to.line.source:
        # The same price on a new day: only the day in its charges changes.
        return effects
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
    # Persisted at once: a restarted governor knows this price and when it began, and charges nothing twice.
    return [*effects, Record("price", None, None, data, durable=True), persist(node, read.at)]
