"""What is charged beside the time that passes: a launch, an uploaded checkpoint, and what a new price changes."""

from __future__ import annotations

import hashlib
from typing import Final

from governor.core.base.units import NS_PER_S, BootNs, MonoNs, UsdMicros, WallNs
from governor.core.engine.managed_run import ManagedRun
from governor.core.engine.metering import meter
from governor.core.engine.node import Node, payer_of
from governor.core.engine.node_journal import boot_of, persist
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.inputs import Ack, PriceRead, Tick
from governor.core.money.charges import Line
from governor.core.money.lines import PriceRise, compute_line

# Five times the state of a model of a trillion parameters; more is a hostile frame.
CHECKPOINT_BYTES_MAX: Final = 10**14
# Each rank reports each checkpoint. After a lost connection, a rank reports again all that its outbox of 16 holds.
CHECKPOINTS_REMEMBERED_MAX: Final = 16


def charge_launch(node: Node, managed: ManagedRun, at: MonoNs) -> None:
    """Charge what each attempt of a run costs. The hello is applied first: the charge bears its stage and labels."""
    lines = node.facts.lines.per_launch if not node.pays_nothing(managed) else ()
    amount = sum(_charge_one_off(node, managed, line, 1, at) for line in lines)
    if amount:
        managed.history.split.launch(amount, managed.run.stage)


def charge_checkpoint(node: Node, managed: ManagedRun, ack: Ack) -> UsdMicros | None:
    """Charge the bytes of a whole checkpoint, once however often it is reported.

    Returns the amount, which the caller persists at once; None: nothing was charged.
    """
    # An ended run is not persisted any more. Of a stranger's words nothing is billed.
    lines = node.facts.lines.per_gb if managed.run.alive and not node.pays_nothing(managed) else ()
    size = ack.checkpoint.bytes if ack.checkpoint is not None else None
    if not lines or size is None or not 0 < size <= CHECKPOINT_BYTES_MAX:
        return None
    assert ack.checkpoint is not None
    named = f"{managed.run.attempt}/{ack.incident_id}/{ack.step}/{ack.checkpoint.path}"
    # Hashed, because a frame may be as long as 64 KiB.
    name = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    if name in managed.money.checkpoints_charged:
        return None
    managed.money.checkpoints_charged = (*managed.money.checkpoints_charged, name)[-CHECKPOINTS_REMEMBERED_MAX:]
    managed.money.checkpoint_bytes_max = max(managed.money.checkpoint_bytes_max, size)
    return UsdMicros(sum(_charge_one_off(node, managed, line, size, ack.at) for line in lines))


def checkpoint_reserve(node: Node, managed: ManagedRun) -> UsdMicros:
    """What uploading a halt's checkpoint may cost, by the run's largest checkpoint so far. 0 before the first."""
    if node.pays_nothing(managed):  # It may have paid before.
        return UsdMicros(0)
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
    ledger.set_next_price(to, since)
    splits = ledger.charge(boot, WallNs(read.wall - read.boot), node.holders(), node.payers(), ends_others=False)
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
