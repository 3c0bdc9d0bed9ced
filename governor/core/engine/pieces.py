"""What a launch and a checkpoint add to the bill: charged to their run at the moment at which they happen."""

from __future__ import annotations

import hashlib
from typing import Final

from governor.core.base.units import DurationNs, MonoNs, UsdMicros
from governor.core.engine.keeping import enter
from governor.core.engine.node import Node, Tracked, payer_of
from governor.core.events.events import Ack
from governor.core.money.charges import Line, Part

CHECKPOINT_BYTES_MAX = 10**14  # Five times the state of a model of a trillion parameters; more is a hostile frame.
# Each rank tells of each checkpoint, and one that was cut off tells of all that its outbox of 16 has kept.
CHECKPOINTS_REMEMBERED_MAX: Final = 16


def charge_launch(node: Node, tracked: Tracked, at: MonoNs) -> None:
    """Charge what each attempt of a run costs. Behind its hello: its stage and labels stand in the charge."""
    for line in node.facts.lines.per_launch:
        _charge(node, tracked, line, 1, at)


def charge_checkpoint(node: Node, tracked: Tracked, ack: Ack) -> UsdMicros | None:
    """Charge the bytes of a checkpoint that is whole, once however often it is told.

    Returns what that came to, which is to be kept at once; None: nothing was charged.
    """
    lines = node.facts.lines.per_gb if tracked.run.alive else ()  # What has ended is not kept any more.
    size = ack.checkpoint.get("bytes") if ack.checkpoint is not None else None
    if not lines or not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= CHECKPOINT_BYTES_MAX:
        return None
    assert ack.checkpoint is not None
    named = f"{tracked.run.attempt}/{ack.incident_id}/{ack.step}/{ack.checkpoint.get('path')}"
    name = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:16]  # A frame may be as long as 64 KiB.
    if name in tracked.checkpoints_charged:
        return None
    tracked.checkpoints_charged = (*tracked.checkpoints_charged, name)[-CHECKPOINTS_REMEMBERED_MAX:]
    tracked.checkpoint_bytes_max = max(tracked.checkpoint_bytes_max, size)
    return UsdMicros(sum(_charge(node, tracked, line, size, ack.at) for line in lines))


def checkpoint_reserve(node: Node, tracked: Tracked) -> UsdMicros:
    """What the checkpoint of a halt may cost to upload, by the largest that the run has saved. 0 before the first."""
    units = (
        (line.price_usd_micros * tracked.checkpoint_bytes_max, line.unit.base_units) for line in node.facts.lines.per_gb
    )
    return UsdMicros(sum(-(-amount // base_units) for amount, base_units in units))


def _charge(node: Node, tracked: Tracked, line: Line, quantity: int, at: MonoNs) -> int:
    run, price = tracked.run.run, line.price_usd_micros
    amount = node.ledger.charge_piece(line.name, price, quantity, line.unit.base_units, run)
    part = Part(payer_of(tracked), quantity, amount)
    enter(node, line, node.wall(at), DurationNs(0), [part])
    return amount
