"""Halts beside the bill: what was billed for a machine after its provider had confirmed the end of billing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE
from governor.core.money.charges import Charge, LineKind
from governor.core.money.reports.bill import CENT_USD, Bill, BillKind, BillLine, short_resource
from governor.core.money.reports.cells import GRANULARITY_HOURS, stretches
from governor.core.money.reports.cost import clip
from governor.core.money.reports.focus import resource_id

VERIFIED: Final = "verified"  # The entry of a timeline: the provider said that billing has ended.
# A machine that was stopped and started is away for longer. A governor that started again leaves no gap in the ledger.
_OFF_NS: Final = NS_PER_MINUTE
_USED: Final = (BillKind.COMPUTE, BillKind.STORAGE, BillKind.EGRESS, BillKind.OTHER)


@dataclass(frozen=True, slots=True)
class Halted:
    """An incident, as far as a bill can contradict it."""

    incident_id: str
    run: str
    resource: str  # The machine: its instance's id, or else the node.
    opened_wall: int
    verified_wall: int | None  # None: nobody has confirmed the end of billing.


@dataclass(frozen=True, slots=True)
class BilledAfter:
    """What one kind of line has for the machine between the end of billing and its next start, or the bill's end."""

    kind: BillKind
    usd: Fraction
    hours: Fraction | None
    is_rounding: bool = False  # Up to a minute, or the rest of an hour where the bill has only full hours.

    @property
    def differs(self) -> bool:
        return self.usd >= CENT_USD and not self.is_rounding


@dataclass(frozen=True, slots=True)
class Audited:
    halted: Halted
    until_wall: int | None  # When the machine was on again; None: not as far as the bill goes.
    billed: tuple[BilledAfter, ...]

    @property
    def agrees(self) -> bool:
        return not any(one.differs for one in self.billed)


def halted_of(snapshot: Mapping[str, Any]) -> Halted:
    """Read an incident's snapshot. KeyError, TypeError or ValueError when it is none."""
    told = [int(entry["wall_ns"]) for entry in snapshot["timeline"] if entry["what"] == VERIFIED]
    machine = short_resource(str(snapshot.get("instance_id") or snapshot.get("node") or ""))
    opened = int(snapshot["opened_wall_ns"])
    return Halted(str(snapshot["incident_id"]), str(snapshot["run"]), machine, opened, min(told, default=None))


def audit(incidents: Iterable[Halted], bill: Bill, charges: Iterable[Charge]) -> list[Audited]:
    """Each incident of the bill's time beside the bill, in the order of their verdicts."""
    own: dict[str, list[Charge]] = {}
    for charge in charges:
        if charge.line.kind is LineKind.COMPUTE and charge.to_wall > charge.from_wall:
            own.setdefault(short_resource(resource_id(charge)), []).append(charge)
    lines: dict[str, list[BillLine]] = {}
    for line in bill.lines:
        lines.setdefault(line.resource, []).append(line)
    found = [one for one in incidents if bill.since <= (one.verified_wall or one.opened_wall) < bill.until]
    found.sort(key=lambda one: (one.opened_wall, one.incident_id))
    return [_audited(one, lines.get(one.resource, ()), own.get(one.resource, ())) for one in found]


def _audited(halted: Halted, lines: Sequence[BillLine], own: Sequence[Charge]) -> Audited:
    if halted.verified_wall is None:
        return Audited(halted, None, ())
    until = _on_again(halted.verified_wall, own)
    billed: list[BilledAfter] = []
    for kind in _USED:
        of_kind = [line for line in lines if line.kind is kind]
        parts = [part for part in _after(halted.verified_wall, until, of_kind, own) if part.usd]
        if not parts:
            continue
        usd = sum((part.usd for part in parts), Fraction(0))
        known = [part.hours for part in parts if part.hours is not None]
        hours = sum(known, Fraction(0)) if known else None
        in_full_hours = all(line.hours is not None and line.hours.denominator == 1 for line in of_kind)
        billed.append(BilledAfter(kind, usd, hours, _is_rounding(parts, in_full_hours=in_full_hours)))
    return Audited(halted, until, tuple(billed))


@dataclass(frozen=True, slots=True)
class _Part:
    """Of one row, what lies between the end of billing and the next start."""

    usd: Fraction
    hours: Fraction | None
    at_edge: bool  # The row has the one or the other in it.


def _on_again(verified: int, own: Sequence[Charge]) -> int | None:
    """When the machine was started again: the first of our time after a gap that is not before `verified`.

    Time that goes on without one contradicts the provider: the machine had never ended. A charge that was made
    afterwards begins at the machine's launch. Where no launch is known it goes on from our last moment: then it is the
    gap itself.
    """
    every = [(charge.from_wall, charge.to_wall) for charge in own]
    metered = [(charge.from_wall, charge.to_wall) for charge in own if not charge.reconstructed]
    begins = (first for times in (every, metered) for first, _ in stretches(times, _OFF_NS) if first > verified)
    return min(begins, default=None)


def _after(verified: int, until: int | None, lines: Iterable[BillLine], own: Sequence[Charge]) -> Iterator[_Part]:
    """Of a row at an edge the hours that we metered outside come off."""
    for line in lines:
        end = line.to_wall if until is None else until
        inside = line.clip(verified, end) if verified < end else None
        if inside is None:
            continue
        if inside is line or line.hours is None or line.kind is not BillKind.COMPUTE:
            yield _Part(inside.usd, inside.hours, inside is not line)
            continue
        metered = _metered(own, line.from_wall, verified) + _metered(own, end, line.to_wall)
        room = Fraction(inside.to_wall - inside.from_wall, NS_PER_HOUR)
        hours = min(max(Fraction(0), line.hours - metered), room)
        yield _Part(line.usd * hours / line.hours if line.hours else Fraction(0), hours, at_edge=True)


def _metered(own: Iterable[Charge], since: int, until: int) -> Fraction:
    inside = [clip(one, since, until) for one in own if one.from_wall < until and one.to_wall > since]
    return Fraction(sum(one.quantity for one in inside), NS_PER_HOUR)


def _is_rounding(parts: Sequence[_Part], *, in_full_hours: bool) -> bool:
    known = [part.hours for part in parts if part.hours is not None]
    if len(known) < len(parts):
        return False
    return sum(known) <= GRANULARITY_HOURS or (
        in_full_hours and all(part.at_edge and (part.hours or 0) < 1 for part in parts)
    )
