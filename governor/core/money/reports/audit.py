"""Halts beside the bill: what was billed for a machine after its provider had confirmed the end of billing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, NS_PER_MINUTE
from governor.core.money.charges import Charge, LineKind
from governor.core.money.reports.bill import CENT_USD, Bill, BillKind, BillLine, short_resource
from governor.core.money.reports.cells import GRANULARITY_HOURS, stretches
from governor.core.money.reports.cost import clip
from governor.core.money.reports.focus import resource_id

VERIFIED: Final = "verified"  # The entry of a timeline: the provider said that billing has ended.
# A machine that was stopped and started is away for longer. A governor that started again leaves no gap in the ledger.
_OFF_NS: Final = NS_PER_MINUTE
_FOREVER: Final = 10**30
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
    """What one kind of line has for the machine between the end of billing and its next start, or the bill's end.

    `one_of`: the incidents after one of which it was billed, where rows reach over several. The first of them has the
    amount. The others have none, and differ as well: nobody can acquit them.
    """

    kind: BillKind
    usd: Fraction
    hours: Fraction | None
    is_rounding: bool = False  # Up to a minute, or the rest of an hour where the bill has only full hours.
    one_of: tuple[str, ...] = ()
    is_told_before: bool = False

    @property
    def differs(self) -> bool:
        return self.is_told_before or (self.usd >= CENT_USD and not self.is_rounding)


@dataclass(frozen=True, slots=True)
class Audited:
    halted: Halted
    until_wall: int | None  # When the machine was on again; None: not as far as the bill goes.
    billed: tuple[BilledAfter, ...]

    @property
    def agrees(self) -> bool | None:
        """None: nothing was compared, because nobody has confirmed the end of billing."""
        if self.halted.verified_wall is None:
            return None
        return not any(one.differs for one in self.billed)


def agreement(audited: Sequence[Audited]) -> bool | None:
    """Whether the bill agrees with all halts that can be compared. None: there is none of these."""
    compared = [one.agrees for one in audited if one.agrees is not None]
    return all(compared) if compared else None


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
    billed: dict[str, list[BilledAfter]] = {one.incident_id: [] for one in found}
    untils: dict[str, int | None] = {}
    for resource in {one.resource for one in found}:
        ended = [one for one in found if one.resource == resource and one.verified_wall is not None]
        metered = own.get(resource, ())
        untils |= {one.incident_id: _on_again(one.verified_wall or 0, metered) for one in ended}
        times = [(one.verified_wall or 0, untils[one.incident_id]) for one in ended]
        for kind in _USED:
            of_kind = [line for line in lines.get(resource, ()) if line.kind is kind]
            for after, parts in _by_halts(of_kind, times, metered).items():
                _tell(billed, [ended[index].incident_id for index in after], kind, parts, of_kind)
    return [Audited(one, untils.get(one.incident_id), tuple(billed[one.incident_id])) for one in found]


def _tell(
    billed: Mapping[str, list[BilledAfter]], ids: Sequence[str], kind: BillKind, parts: Sequence[_Part],
    of_kind: Sequence[BillLine],
) -> None:  # fmt: skip
    """Enter what was billed after one of these halts, once."""
    usd = sum((part.usd for part in parts), Fraction(0))
    known = [part.hours for part in parts if part.hours is not None]
    hours = sum(known, Fraction(0)) if known else None
    in_full_hours = all(line.hours is not None and line.hours.denominator == 1 for line in of_kind)
    is_rounding = _is_rounding(parts, len(ids), in_full_hours=in_full_hours)
    one_of = tuple(ids) if len(ids) > 1 else ()
    told = BilledAfter(kind, usd, hours, is_rounding, one_of)
    billed[ids[0]].append(told)
    for other in ids[1:] if told.differs else ():
        billed[other].append(BilledAfter(kind, Fraction(0), None, False, one_of, is_told_before=True))


@dataclass(frozen=True, slots=True)
class _Part:
    """Of one row, what lies between an end of billing and the next start."""

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


def _by_halts(
    lines: Iterable[BillLine], times: Sequence[tuple[int, int | None]], own: Sequence[Charge]
) -> dict[tuple[int, ...], list[_Part]]:
    """What of the rows lies after the halts, by the halts that a row reaches over. `times`: of each, the time off."""
    found: dict[tuple[int, ...], list[_Part]] = {}
    for line in lines:
        spans = {
            index: (verified, _FOREVER if until is None else until)
            for index, (verified, until) in enumerate(times)
            if verified < (_FOREVER if until is None else until)
        }
        after = tuple(index for index, span in spans.items() if line.clip(*span) is not None)
        part = _after(line, [*stretches([spans[index] for index in after], 0)], own) if after else None
        if part is not None and part.usd:
            found.setdefault(after, []).append(part)
    return found


def _after(line: BillLine, spans: Sequence[tuple[int, int]], own: Sequence[Charge]) -> _Part:
    """Of a row at an edge, what we metered outside comes off: its hours, or its dollars where the bill has no hours."""
    inside = [part for first, last in spans if (part := line.clip(first, last)) is not None]
    if inside[0] is line:
        return _Part(line.usd, line.hours, at_edge=False)
    usd = sum((part.usd for part in inside), Fraction(0))
    if line.kind is not BillKind.COMPUTE:
        known = [part.hours for part in inside if part.hours is not None]
        return _Part(usd, sum(known, Fraction(0)) if known else None, at_edge=True)
    outside = _metered(own, line.from_wall, line.to_wall)
    for part in inside:
        outside = outside.less(_metered(own, part.from_wall, part.to_wall))
    if line.hours is None:
        return _Part(max(Fraction(0), line.usd - outside.usd) if outside.usd else usd, None, at_edge=True)
    room = Fraction(sum(part.to_wall - part.from_wall for part in inside), NS_PER_HOUR)
    hours = min(max(Fraction(0), line.hours - outside.hours), room)
    return _Part(line.usd * hours / line.hours if line.hours else Fraction(0), hours, at_edge=True)


@dataclass(frozen=True, slots=True)
class _Metered:
    hours: Fraction
    usd: Fraction

    def less(self, other: _Metered) -> _Metered:
        return _Metered(self.hours - other.hours, self.usd - other.usd)


def _metered(own: Iterable[Charge], since: int, until: int) -> _Metered:
    inside = [clip(one, since, until) for one in own if one.from_wall < until and one.to_wall > since]
    usd = Fraction(sum(one.usd_micros for one in inside), MICROS_PER_USD)
    return _Metered(Fraction(sum(one.quantity for one in inside), NS_PER_HOUR), usd)


def _is_rounding(parts: Sequence[_Part], halts: int, *, in_full_hours: bool) -> bool:
    known = [part.hours for part in parts if part.hours is not None]
    if len(known) < len(parts):
        return False
    return sum(known) <= halts * GRANULARITY_HOURS or (
        in_full_hours and all(part.at_edge and (part.hours or 0) < 1 for part in parts)
    )
