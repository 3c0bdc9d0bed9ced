"""What is charged beside the time that passes: a launch, an uploaded checkpoint, and what a new price changes.

Anybody's run says what it has launched and saved, and node, day, stages and labels have budgets that end other runs
too. So no word is charged as it is. A checkpoint is looked at first, and the smaller of what was said and what is there
is charged. All that a run pays so is at most a multiple of what its time has cost, which is measured.
"""

from __future__ import annotations

import hashlib
from typing import Final

from governor.core.base.shares import user_of
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.managed_run import ManagedRun, Unweighed
from governor.core.engine.metering import charge_until, meter, note_unpriced, rate_of
from governor.core.engine.node import RUNS_PER_UID_MAX, Node, payer_of
from governor.core.engine.node_journal import boot_of, persist
from governor.core.engine.spent.marks import note_money, note_waiting
from governor.core.events.checkpoints import CheckpointWeighed
from governor.core.events.effects import Alarm, Effect, Record, WeighCheckpoint
from governor.core.events.inputs import Ack, Tick
from governor.core.events.machine import PriceRead
from governor.core.money.charges import UNALLOCATED, Line, Unit
from governor.core.money.lines import PriceRise, compute_line

# Five times the state of a model of a trillion parameters; more is a hostile frame.
CHECKPOINT_BYTES_MAX: Final = 10**14
# Each rank reports each checkpoint. After a lost connection, a rank reports again all that its outbox of 16 holds.
CHECKPOINTS_REMEMBERED_MAX: Final = 16
# What a run's checkpoints cost at most, as a multiple of what its time has cost. A terabyte every ten minutes, at
# $0.09/GB on a node of $98/h, is five times.
SEEN_TIMES_MAX: Final = 10
# Of those that cannot be seen, on another machine's disk or in a container's: no more than its time.
UNSEEN_TIMES_MAX: Final = 1
# A user's launches are charged at once, and checkpoints looked at, while they are no more than its runs here may be.
AT_ONCE_MAX: Final = RUNS_PER_UID_MAX
# After that one a minute: what is launched again sooner has trained nothing.
LAUNCH_EVERY_NS: Final = NS_PER_MINUTE
# After that one in so long: a look takes up to half a second of the service's processor time. Others are unseen.
LOOK_EVERY_NS: Final = 5 * NS_PER_S


def charge_launch(node: Node, managed: ManagedRun, at: MonoNs) -> None:
    """Charge what each attempt of a run costs. The hello is applied first: the charge bears its stage and labels."""
    lines = node.facts.lines.per_launch if not node.pays_nothing(managed) else ()
    if not lines:
        return
    if not _is_believed(node, managed) and not _keeps_pace(node, managed, node.launches_until, LAUNCH_EVERY_NS, at):
        return
    amount = sum(_charge_one_off(node, managed, line, 1, at) for line in lines)
    if amount:
        managed.history.split.launch(amount, managed.run.stage)


def _is_believed(node: Node, managed: ManagedRun) -> bool:
    """Whether its user launched the command of `costgov run`, and so spends nobody else's money."""
    return node.command is not None and managed.run.uid == node.command.uid


def _keeps_pace(node: Node, managed: ManagedRun, until: dict[int, MonoNs], every_ns: int, at: MonoNs) -> bool:
    """Count one more of something that anybody can say, unless the run's user has said too many of it."""
    user = user_of(node.uid_ranges, managed.run.uid)
    then = max(until.get(user, at), at) + every_ns
    if then - at > AT_ONCE_MAX * every_ns:
        return False
    for one in [one for one, moment in until.items() if moment <= at]:
        del until[one]
    until[user] = MonoNs(then)
    return True


# --- checkpoints --------------------------------------------------------------------------------------------------


def on_saved(node: Node, managed: ManagedRun, ack: Ack) -> list[Effect]:
    """Have a whole checkpoint looked at whose traffic is charged, once however often it is reported.

    That is persisted at once. A governor that comes after this one looks at it again.
    """
    # An ended run is not persisted any more. Of a stranger's words nothing is billed.
    lines = node.facts.lines.per_gb if managed.run.alive and not node.pays_nothing(managed) else ()
    size = ack.checkpoint.bytes if ack.checkpoint is not None else None
    if not lines or size is None or not 0 < size <= CHECKPOINT_BYTES_MAX:
        return []
    assert ack.checkpoint is not None
    money, path = managed.money, ack.checkpoint.path
    named = f"{managed.run.attempt}/{ack.incident_id}/{ack.step}/{path}"
    # Hashed, because a frame may be as long as 64 KiB.
    name = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    if name in money.checkpoints_reported:
        return []
    money.checkpoints_reported = (*money.checkpoints_reported, name)[-CHECKPOINTS_REMEMBERED_MAX:]
    gid = next((rank.peer.gid for rank in managed.run.ranks.values() if rank.connection == ack.connection), None)
    said = Unweighed(path, size, gid, ack.incident_id)
    has_place = len(money.unweighed) < CHECKPOINTS_REMEMBERED_MAX
    if not has_place or not _keeps_pace(node, managed, node.looks_until, LOOK_EVERY_NS, ack.at):
        crowd = CheckpointWeighed(ack.at, managed.run.run, name, None, "too many at once")
        alarms = _charge_checkpoint(node, managed, said, crowd)
        return [persist(node, ack.at), *alarms]
    money.unweighed[name] = said
    return [persist(node, ack.at), *(weigh_next(managed) if len(money.unweighed) == 1 else ())]


def weigh_next(managed: ManagedRun) -> list[WeighCheckpoint]:
    """Look at the oldest that nobody has looked at: one at a time, however many are reported."""
    run = managed.run
    waiting = list(managed.money.unweighed.items())[:1]
    return [WeighCheckpoint(run.run, name, one.path or "", run.uid, one.gid) for name, one in waiting]


def on_weighed(node: Node, managed: ManagedRun, seen: CheckpointWeighed) -> list[Effect]:
    """Charge the checkpoint by what was found, and look at the next."""
    said = managed.money.unweighed.pop(seen.name, None)
    if said is None:
        return []
    held, before = checkpoint_reserve(node, managed), managed.history.one_offs.checkpoints_usd_micros
    alarms = _charge_checkpoint(node, managed, said, seen)
    paid = managed.history.one_offs.checkpoints_usd_micros - before
    incident = managed.incident
    if paid > held and incident is not None and incident.incident_id == said.incident_id:
        incident.note(seen.at, node.wall(seen.at), "egress", usd_micros=paid, reserved_usd_micros=held)
    was_ended = () if managed.run.alive else (managed,)
    return [persist(node, seen.at, *was_ended), *alarms, *weigh_next(managed)]


def _charge_checkpoint(node: Node, managed: ManagedRun, said: Unweighed, seen: CheckpointWeighed) -> list[Alarm]:
    """Charge the smaller of what was said and what is there, within the bound. Tell once an attempt if that is less."""
    if node.pays_nothing(managed):
        return []
    there = said.bytes if seen.bytes is None else min(said.bytes, max(0, seen.bytes))
    size = min(there, _bytes_bound(node, managed, is_seen=seen.bytes is not None))
    managed.money.checkpoint_bytes_max = max(managed.money.checkpoint_bytes_max, size)
    if size:
        amount = sum(_charge_one_off(node, managed, line, size, seen.at) for line in node.facts.lines.per_gb)
        own = managed.history.one_offs
        own.checkpoints_usd_micros += amount
        own.unseen_usd_micros += amount if seen.bytes is None else 0
    attempt = managed.run.attempt, managed.run.attempt_at
    if size == there or managed.reported.capped == attempt:
        return []
    managed.reported.capped = attempt
    return [_capped(managed, said, seen, size)]


def _bytes_bound(node: Node, managed: ManagedRun, *, is_seen: bool) -> int:
    """What the run's time allows. Where the machine has no price it allows nothing: a budget would still end runs."""
    if _is_believed(node, managed):
        return CHECKPOINT_BYTES_MAX
    lines, own = node.facts.lines.per_gb, managed.history.one_offs
    price = sum(line.price_usd_micros for line in lines)
    of_time = max(0, node.ledger.spend(managed.run.run) - own.usd_micros)
    left = SEEN_TIMES_MAX * of_time - own.checkpoints_usd_micros
    if not is_seen:
        left = min(left, UNSEEN_TIMES_MAX * of_time - own.unseen_usd_micros)
    return max(0, left) * Unit.GB.base_units // max(1, price)


def _capped(managed: ManagedRun, said: Unweighed, seen: CheckpointWeighed, size: int) -> Alarm:
    run, gb, where = managed.run.run, Unit.GB.base_units, said.path or "it names no path"
    text = f"run {run} says that it has saved {said.bytes / gb:,.1f} GB, of which {size / gb:,.1f} GB are charged: "
    if seen.bytes is None:
        return Alarm("checkpoint_capped", run, text + f"nobody sees them from here ({seen.reason}): {where}")
    return Alarm("checkpoint_capped", run, text + f"what its time has cost bounds it: {where}")


def checkpoint_reserve(node: Node, managed: ManagedRun) -> UsdMicros:
    """What uploading a halt's checkpoint may cost, by the run's largest checkpoint so far. 0 before the first."""
    largest = managed.money.checkpoint_bytes_max
    if not largest or node.pays_nothing(managed):  # It may have paid before.
        return UsdMicros(0)
    size = min(largest, _bytes_bound(node, managed, is_seen=True))
    units = ((line.price_usd_micros * size, line.unit.base_units) for line in node.facts.lines.per_gb)
    return UsdMicros(sum(-(-amount // base_units) for amount, base_units in units))


def _charge_one_off(node: Node, managed: ManagedRun, line: Line, quantity: int, at: MonoNs) -> int:
    amount = node.ledger.charge_one_off(line, quantity, node.wall(at), payer_of(managed))
    managed.history.one_offs.usd_micros += amount
    note_money(node, managed, at)
    return amount


# --- a run that comes or goes between two ticks: what the others pay changes ----------------------------------------


def charge_before(node: Node, newcomer: str, at: MonoNs) -> None:
    """Charge the time until now to those who hold the node, before another run holds it too, or with more ranks.

    Runs that come after a tick at which nobody held it pay from that tick on. What another user's run below a command
    pays may end with the newcomer: see `take_back`.
    """
    others = [node.runs[name].run for name in node.holders() if name not in (newcomer, UNALLOCATED)]
    uid = node.command.uid if node.command is not None else None
    if any(run.spend_rate_usd_micros_per_hour is not None and uid in (None, run.uid) for run in others):
        charge_until(node, at)


def note_shares(node: Node, at: MonoNs) -> None:
    """Note what each run pays from now on. Else its steps until the next tick have the rate of before."""
    holders = node.holders()
    for name in holders.keys() & node.runs.keys():
        managed = node.runs[name]
        run, rate = managed.run, rate_of(node, managed, holders)
        if rate is not None:
            run.set_money(run.spend_usd_micros, rate, run.reserve_usd_micros)
        note_money(node, managed, at)
    note_waiting(node, at)


# --- a price that changes while the node runs ----------------------------------------------------------------


def on_price_read(node: Node, read: PriceRead) -> list[Effect]:
    """Charge up to now at the old price. The new price counts from the time at which it came into force."""
    effects: list[Effect] = [Alarm(name, None, text) for name, text in read.alarms]
    ledger = node.ledger
    to = compute_line(read.usd_micros_per_hour, read.source, read.as_of, read.kind)
    before = ledger.compute.metered
    assert to is not None, "a reading has a price"
    if before == to:
        return effects
    if ledger.next_price is not None:  # After an absence that no tick has charged yet.
        meter(node, Tick(read.at, read.boot, read.wall), node.holders())
    old = ledger.price_usd_micros_per_hour
    boot = BootNs(max(read.boot, ledger.charged_to))
    since = boot if read.since is None else boot_of(read.since, read.boot, read.wall)
    unpriced_before, holders = ledger.unpriced_ns, node.holders()
    if old is not None and to.line.price_usd_micros < old:  # Steps since the last tick may have cost that already.
        ledger.charge(boot, WallNs(read.wall - read.boot), holders, node.payers(), ends_others=False)
    ledger.set_next_price(to, since)
    splits = ledger.charge(boot, WallNs(read.wall - read.boot), holders, node.payers(), ends_others=False)
    note_unpriced(node, unpriced_before, holders)
    note_shares(node, read.at)
    if boot == read.boot:
        node.metered_wall = read.wall
    if old == to.line.price_usd_micros and before is not None and before.line.source == to.line.source:
        # The same price on a new day: only the day in its charges changes.
        return effects
    if old is not None and old < to.line.price_usd_micros:
        node.price_rise = PriceRise(read.at, old, read.usd_micros_per_hour)
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
