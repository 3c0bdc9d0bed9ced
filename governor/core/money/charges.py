"""Charges: the rows that the ledger is made of. Each says who pays how much of what, at whose price, from when to when.

Amounts are exact: the charges of a line add up to its price over the time metered, to the micro-dollar, however often
it was read (docs/adr/0009). Wall times label; lengths come from CLOCK_BOOTTIME, so a clock that is set changes no sum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_US, DurationNs, UsdMicros, WallNs
from governor.core.money.group_totals import GroupSpend, RunSpend

UNALLOCATED: Final = ""  # Nobody's: not a valid run name.
# A command that attaches a week after it was started is the longest that its first hours can be put on its account.
# With three lines by time, two days: what is older stays nobody's.
UNALLOCATED_MAX: Final = 168
# Full hours at which one stretch is cut: a month. What was asleep or unmetered for longer is one charge from there on:
# a year of hours would be 6 MB in one commit.
CUTS_MAX: Final = 31 * 24


class LineKind(Enum):
    COMPUTE = "compute"
    STORAGE = "storage"  # Disks: billed whether the machine runs or not.
    EGRESS = "egress"  # Checkpoints that leave the region.
    FIXED = "fixed"  # A licence, a support fee, a fee per launch.


class Unit(Enum):
    """What a price is for. Quantities are whole base units: nanoseconds, GB-nanoseconds, bytes, pieces."""

    HOUR = "hour"
    GB_MONTH = "GB-month"  # Of 730 hours, as providers count a disk's month.
    GB = "GB"  # 10^9 bytes, as providers bill traffic.
    PIECE = "piece"

    @property
    def base_units(self) -> int:
        """How many of them the price is for."""
        return _BASE_UNITS[self]


HOURS_PER_MONTH: Final = 730
_BASE_UNITS: Final = {
    Unit.HOUR: NS_PER_HOUR,
    Unit.GB_MONTH: HOURS_PER_MONTH * NS_PER_HOUR,
    Unit.GB: 10**9,
    Unit.PIECE: 1,
}


@dataclass(frozen=True, slots=True)
class Line:
    """One priced thing. `as_of` is the day (ISO 8601) on which `source` said so."""

    kind: LineKind
    name: str  # "p5.48xlarge on-demand", "vol-0abc gp3 500 GB".
    unit: Unit
    price_usd_micros: int  # Per unit.
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class Payer:
    """Whose time it was, and what people group it by."""

    run: str = UNALLOCATED
    attempt: str = ""
    stage: str | None = None
    labels: tuple[tuple[str, str], ...] = ()  # Sorted.


UNALLOCATED_PAYER: Final = Payer()
# A charge of this name stands for others that a damaged journal has lost: of one moment, by the piece, without hours.
LOST: Final = "node (charges lost in a damaged journal)"


@dataclass(frozen=True, slots=True)
class Place:
    """What is billed, and where."""

    node: str
    cloud: str = "none"
    instance_id: str | None = None
    region: str | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """One row. `quantity` of a shared node is this payer's part of its time, so it may be less than `to - from`."""

    charge_id: str  # The same for every state of a growing charge, and for no other.
    place: Place
    payer: Payer
    line: Line
    from_wall: WallNs
    to_wall: WallNs
    quantity: int
    usd_micros: UsdMicros
    reconstructed: bool = False  # Charged on return: nobody metered while it passed.

    @property
    def quantity_units(self) -> float:
        """In the line's unit, for people."""
        return self.quantity / self.line.unit.base_units


def charge_row(charge: Charge) -> dict[str, Any]:
    """Return a charge as plain JSON, as the journal keeps it."""
    place, payer, line = charge.place, charge.payer, charge.line
    return {
        "charge_id": charge.charge_id,
        "node": place.node,
        "cloud": place.cloud,
        "instance_id": place.instance_id,
        "region": place.region,
        "run": payer.run,
        "attempt": payer.attempt,
        "stage": payer.stage,
        "labels": dict(payer.labels),
        "line": line.kind.value,
        "name": line.name,
        "unit": line.unit.value,
        "price_usd_micros": line.price_usd_micros,
        "price_source": line.source,
        "price_as_of": line.as_of,
        "from_wall_ns": charge.from_wall,
        "to_wall_ns": charge.to_wall,
        "quantity": charge.quantity,
        "usd_micros": charge.usd_micros,
        "reconstructed": charge.reconstructed,
    }


def charge_of(row: Mapping[str, Any]) -> Charge:
    """Rebuild a charge. KeyError or ValueError when the row is not one of ours."""
    return Charge(
        charge_id=row["charge_id"],
        place=Place(row["node"], row["cloud"], row["instance_id"], row["region"]),
        payer=Payer(row["run"], row["attempt"], row["stage"], labels_of(row["labels"])),
        line=Line(
            LineKind(row["line"]),
            row["name"],
            Unit(row["unit"]),
            _whole(row["price_usd_micros"]),
            row["price_source"],
            row["price_as_of"],
        ),
        from_wall=WallNs(_whole(row["from_wall_ns"])),
        to_wall=WallNs(_whole(row["to_wall_ns"])),
        quantity=_whole(row["quantity"]),
        usd_micros=UsdMicros(_whole(row["usd_micros"])),
        reconstructed=bool(row["reconstructed"]),
    )


def _whole(value: Any) -> int:
    # int() would take 1.5 for 1, and fail in its own way over 1e999: one byte of damage makes that of 10999.
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value


def labels_of(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


@dataclass(frozen=True, slots=True)
class Part:
    """One payer's part of a stretch of metered time."""

    payer: Payer
    quantity: int
    usd_micros: int


class ChargeBook:
    """The charges that still grow: one per payer and line, closed by the hour or when anything about them changes.

    The only place that adds amounts up: whatever a charge grows by is counted for its run and its groups in the same
    act (docs/adr/0021). An hour, because people and bills ask by the day and by the hour: a year of one run is 8,760
    rows.
    """

    def __init__(self, place: Place, epoch: WallNs) -> None:
        """`epoch`: when this governor started. With the node's name it keeps its charges' names from all others'."""
        self._place = place
        self.runs = RunSpend()
        self.groups = GroupSpend()
        self._prefix = f"{place.node}/{epoch // NS_PER_US:x}"
        self._opened_total = 0
        self._open: dict[tuple[str, LineKind, str], Charge] = {}
        self._nobodys: deque[Charge] = deque(maxlen=UNALLOCATED_MAX)  # Closed ones that hand_over() may still move.
        self._nobodys_older_usd_micros = 0  # Of those before: they stay nobody's.

    def add(
        self,
        line: Line,
        from_wall: WallNs,
        elapsed: DurationNs,
        parts: Iterable[Part],
        *,
        reconstructed: bool = False,
    ) -> list[Charge]:
        """Enter a stretch of time that began at `from_wall`, cut at full hours; return the charges that it closed."""
        closed: list[Charge] = []
        for at, lasts, pieces in _by_the_hour(from_wall, elapsed, tuple(parts)):
            for part in pieces:
                closed += self._enter(line, at, lasts, part, reconstructed)
        return closed

    def _enter(self, line: Line, at: WallNs, lasts: DurationNs, part: Part, reconstructed: bool) -> list[Charge]:
        key = (part.payer.run, line.kind, line.name)
        closed = []
        known = self._open.get(key)
        if known is None or not _goes_on(known, line, part.payer, at, reconstructed):
            if known is not None:
                closed.append(self._close(key))
            known = self._opened(part.payer, line, at, reconstructed)
        self.runs.enter(part.payer.run, part.usd_micros)
        self.groups.enter(at, lasts, part.payer.stage, part.payer.labels, part.usd_micros)
        # The label of the end is the start plus what passed: a stretched or folded wall clock changes no length.
        self._open[key] = replace(
            known,
            to_wall=WallNs(known.to_wall + lasts),
            quantity=known.quantity + part.quantity,
            usd_micros=UsdMicros(known.usd_micros + part.usd_micros),
        )
        return closed

    def _opened(self, payer: Payer, line: Line, at: WallNs, reconstructed: bool) -> Charge:
        self._opened_total += 1
        charge_id = f"{self._prefix}/{self._opened_total}"
        return Charge(charge_id, self._place, payer, line, at, at, 0, UsdMicros(0), reconstructed)

    def open_charges(self) -> list[Charge]:
        """Those that still grow, as they stand."""
        return list(self._open.values())

    def close_all_but(self, runs: Collection[str]) -> list[Charge]:
        """End the charges of everybody else: they hold nothing any more."""
        keys = [key for key in self._open if key[0] not in runs]
        return [self._close(key) for key in keys]

    def hand_over(self, to: Payer) -> list[Charge]:
        """Put what was nobody's so far on somebody's account, under the same names; return those already closed."""
        handed = [replace(charge, payer=to) for charge in self._nobodys]
        self._nobodys.clear()
        self._nobodys_older_usd_micros = 0
        amount: int = sum(charge.usd_micros for charge in handed)
        for key in [key for key in self._open if key[0] == UNALLOCATED]:
            charge = self._open.pop(key)
            amount += charge.usd_micros
            taken = (to.run, *key[1:])
            if taken in self._open:  # It paid beside nobody until now: its own row goes on, and this one is over.
                handed.append(replace(charge, payer=to))
            else:
                self._open[taken] = replace(charge, payer=to)
        self.runs.move(UNALLOCATED, to.run, amount)
        self.groups.allot(to.stage, to.labels, amount)
        return handed

    def nobodys(self) -> tuple[tuple[Charge, ...], UsdMicros]:
        """What hand_over() would move, as it stands, and what is too old for it: for a governor after us."""
        standing = (charge for key, charge in self._open.items() if key[0] == UNALLOCATED)
        return (*self._nobodys, *standing), UsdMicros(self._nobodys_older_usd_micros)

    def take_up_unallocated(self, charges: Iterable[Charge], older_usd_micros: UsdMicros) -> None:
        """Have hand_over() move, under their names, also those of the governor before us."""
        for charge in charges:
            self._keep_nobodys(charge)
        self._nobodys_older_usd_micros += older_usd_micros

    def unclaimed_usd_micros(self) -> UsdMicros:
        """What is nobody's since the start or the last hand_over(), also what is too old for it to move."""
        recent, older = self.nobodys()
        return UsdMicros(older + sum(charge.usd_micros for charge in recent))

    def _close(self, key: tuple[str, LineKind, str]) -> Charge:
        charge = self._open.pop(key)
        if charge.payer == UNALLOCATED_PAYER:
            self._keep_nobodys(charge)
        return charge

    def _keep_nobodys(self, charge: Charge) -> None:
        if len(self._nobodys) == UNALLOCATED_MAX:
            self._nobodys_older_usd_micros += self._nobodys[0].usd_micros
        self._nobodys.append(charge)


def _goes_on(charge: Charge, line: Line, payer: Payer, from_wall: WallNs, reconstructed: bool) -> bool:
    return (
        charge.line == line
        and charge.payer == payer
        and charge.reconstructed == reconstructed
        and charge.from_wall // NS_PER_HOUR == from_wall // NS_PER_HOUR
    )


def _by_the_hour(
    from_wall: WallNs, elapsed: DurationNs, parts: tuple[Part, ...]
) -> Iterator[tuple[WallNs, DurationNs, tuple[Part, ...]]]:
    """The stretch in pieces that end at full hours of the wall clock. Each part's pieces add up to it exactly."""
    first = NS_PER_HOUR - from_wall % NS_PER_HOUR
    if elapsed <= first:
        yield from_wall, elapsed, parts  # As nearly every tick.
        return
    ends = [*range(first, elapsed, NS_PER_HOUR)[:CUTS_MAX], elapsed]
    for begin, end in pairwise((0, *ends)):
        pieces = (
            Part(
                part.payer, _between(part.quantity, begin, end, elapsed), _between(part.usd_micros, begin, end, elapsed)
            )
            for part in parts
        )
        yield WallNs(from_wall + begin), DurationNs(end - begin), tuple(pieces)


def _between(amount: int, begin: int, end: int, elapsed: int) -> int:
    return amount * end // elapsed - amount * begin // elapsed
