"""The node's own money in the journal: the state of its meters, and the time that no meter measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, BootNs, DurationNs, WallNs, format_duration
from governor.core.engine.launched_command import command_left, launched_row
from governor.core.engine.node import Node
from governor.core.money.charges import UNALLOCATED, Line
from governor.core.money.lines import LineMeter, price_of

# Only the wall clock measures an absence. Beyond a year it is more likely wrong than right.
ABSENCE_MAX_NS: Final = DurationNs(366 * 24 * NS_PER_HOUR)


def node_snapshot(node: Node) -> Mapping[str, Any]:
    """What a restarted governor must know of the node's meters. Plain JSON."""
    return {
        "run": UNALLOCATED,
        "boot_id": node.facts.boot_id,
        "boot_ns": node.ledger.charged_to,
        "wall_ns": node.metered_wall,
        **node.ledger.snapshot(),
        "budgets": node.budgets.snapshot(),
        "idle": node.idle.snapshot(),
        "launched": launched_row(node),
    }


def restore_node(node: Node, snapshot: Mapping[str, Any]) -> None:
    """Restore the node's own money. KeyError, TypeError or ValueError when the snapshot is not one of ours.

    The caller charges the time since: see Ledger.resume_from() and charge_absence().
    """
    same_boot = snapshot["boot_id"] == node.facts.boot_id
    launched = snapshot.get("launched")
    left = command_left(launched) if launched is not None else None
    node.ledger.restore(snapshot, same_boot=same_boot, in_force_from=_in_force_from(node))
    node.left = left
    node.unread = set()


def price_left(snapshot: Mapping[str, Any], boot_id: str) -> Line | None:
    """The machine's price when this journal was last written. None: it is of another boot, or unknown.

    KeyError, TypeError or ValueError when the snapshot is not one of ours.
    """
    metered = price_of(snapshot.get("price")) if snapshot["boot_id"] == boot_id else None
    return metered.line if metered is not None else None


def _in_force_from(node: Node) -> BootNs:
    """When the price known at start came into force, by this boot's clock. If this is unknown, our start."""
    since = node.facts.price_since_wall
    return node.began if since is None else boot_of(since, node.began, node.began_wall)


def boot_of(wall: WallNs, boot: BootNs, at_wall: WallNs) -> BootNs:
    """Convert `wall` to the boot clock by a moment that both clocks read. The result is not after that moment."""
    return BootNs(min(boot, boot - (at_wall - wall)))


def absences(
    node: Node, left_wall: WallNs | None, *, is_damaged: bool = False
) -> list[tuple[LineMeter, WallNs, DurationNs]]:
    """What was billed before this boot's first moment and is in no charge: which line, from when, for how long.

    `left_wall`: the journal's last moment, of any boot. Disks cost from then on. The machine costs from its launch, as
    the provider states it, or from `left_wall` if it was only rebooted. Under `costgov run` nothing of it is charged.
    `is_damaged`: the journal has lost this boot's moments. If no provider knows the launch, this boot's start is used.
    """
    if node.facts.exclusive:
        return []
    ledger, launched = node.ledger, node.facts.launched_at_wall
    if launched is None and is_damaged:
        launched = WallNs(node.began_wall - node.began)
    found: list[tuple[LineMeter, WallNs]] = []
    if launched is not None:
        found.append((ledger.compute, max(launched, left_wall or launched)))
    for meter in ledger.others:
        is_disk = meter.metered is not None and meter.metered.is_disk
        if is_disk and left_wall is not None:
            found.append((meter, left_wall))
        elif launched is not None:
            found.append((meter, max(launched, left_wall or launched)))
    lasted = [(meter, since, node.began_wall - since) for meter, since in found]
    # If the clock went back, the elapsed time is unknown.
    return [(meter, since, DurationNs(min(ns, ABSENCE_MAX_NS))) for meter, since, ns in lasted if ns > 0]


def absence_doubt(node: Node, left_wall: WallNs | None) -> str | None:
    """Why an absence is not charged in full, in one line. None if it is, or if nothing was billed meanwhile."""
    if node.facts.exclusive or left_wall is None or not any(metered.is_disk for metered in node.ledger.beside):
        return None
    away = node.began_wall - left_wall
    if away < 0:
        return (
            f"the wall clock is {format_duration(-away)} behind the last charge: what disks have cost while the "
            "machine was off is in no charge; set the clock, and compare with the bill"
        )
    if away > ABSENCE_MAX_NS:
        days = ABSENCE_MAX_NS // (24 * NS_PER_HOUR)
        return (
            f"the last charge is {format_duration(away)} old by the wall clock: of that, disks are charged for {days} "
            "days; check the clock, and compare with the bill"
        )
    return None
