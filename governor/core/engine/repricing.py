"""A price that changes while the node runs: charged from its own time on, and recorded."""

from __future__ import annotations

from governor.core.base.units import NS_PER_S, BootNs, WallNs
from governor.core.engine.keeping import enter_splits, keep, meter
from governor.core.engine.node import Node, Rise
from governor.core.engine.node_money import boot_of
from governor.core.events.effects import Alarm, Effect, Record
from governor.core.events.events import PriceRead, Tick
from governor.core.money.lines import compute_line


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
    ledger.next_price = (to, since)
    splits = ledger.charge(boot, node.holders())
    enter_splits(node, splits, WallNs(read.wall - read.boot))
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
    return [*effects, Record("price", None, None, data, durable=True), keep(node, read.at)]
