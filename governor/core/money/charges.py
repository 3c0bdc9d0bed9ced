"""Charges: the rows of the ledger. Each row says who pays how much of what, at which price, from when to when.

Amounts are exact: the charges of a line add up to its price over the metered time, to the micro-dollar, however often
it was read (docs/adr/0009). Wall times are labels. Lengths come from CLOCK_BOOTTIME, so setting the clock changes no
sum.
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

UNALLOCATED: Final = ""  # Not a valid run name.
# The number of closed unallocated charges that hand_over() can move: one line's charges of a week, or three lines' of
# two days. Older ones stay unallocated.
UNALLOCATED_MAX: Final = 168
# Likewise of take_back(), per run: a command's own user speaks within its first hours, or not at all.
LENT_MAX: Final = 48
# At most a month of one stretch is cut at full hours. The rest (of a long sleep, say) is one charge: a year of hourly
# charges would be 6 MB in one commit.
CUTS_MAX: Final = 31 * 24


class LineKind(Enum):
    COMPUTE = "compute"
    STORAGE = "storage"  # Disks: billed whether the machine runs or not.
    EGRESS = "egress"  # Checkpoints that leave the region.
    FIXED = "fixed"  # A licence, a support fee, a fee per launch.


HOURS_PER_MONTH: Final = 730
_BASE_UNITS: Final = {
    "hour": NS_PER_HOUR,
    "GB-month": HOURS_PER_MONTH * NS_PER_HOUR,
    "GB": 10**9,
    "piece": 1,
}


class Unit(Enum):
    """What a price is for. Quantities are whole base units: nanoseconds, GB-nanoseconds, bytes, pieces."""

    HOUR = "hour"
    GB_MONTH = "GB-month"  # 730 hours, as providers count a disk's month.
    GB = "GB"  # 10^9 bytes, as providers bill traffic.
    PIECE = "piece"

    def __init__(self, name: str) -> None:
        self.base_units = _BASE_UNITS[name]  # The number of base units that the price is for.


@dataclass(frozen=True, slots=True)
class Line:
    """One priced thing. `as_of` is the day (ISO 8601) on which `source` stated the price."""

    kind: LineKind
    name: str  # "p5.48xlarge on-demand", "vol-0abc gp3 500 GB".
    unit: Unit
    price_usd_micros: int  # Per unit.
    source: str
    as_of: str
    price_kind: str = ""  # How it is paid for: "spot", "on-demand". Unknown of other lines and of older charges.


@dataclass(frozen=True, slots=True)
class Payer:
    """Who held the time, and what people group it by."""

    run: str = UNALLOCATED
    attempt: str = ""
    stage: str | None = None
    labels: tuple[tuple[str, str], ...] = ()  # Sorted.


UNALLOCATED_PAYER: Final = Payer()
# A charge of this name stands for charges that a damaged journal has lost. It covers one moment, is priced per piece
# and has no hours.
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
    """One row. On a shared node `quantity` is this payer's part of the time, so it may be less than `to - from`."""

    # All states of a growing charge share this id. No other charge has it.
    charge_id: str
    place: Place
    payer: Payer
    line: Line
    from_wall: WallNs
    to_wall: WallNs
    quantity: int
    usd_micros: UsdMicros
    reconstructed: bool = False  # Charged afterwards: nobody had metered it, its price was unknown, or it was lost.

    def grown(self, lasts: DurationNs, part: Part) -> Charge:
        """The charge with another piece. Its end moves by the elapsed time: a wall clock that was set changes nothing.

        Every tick makes one of each: written out, it takes half the time of replace().
        """
        return Charge(
            self.charge_id,
            self.place,
            self.payer,
            self.line,
            self.from_wall,
            WallNs(self.to_wall + lasts),
            self.quantity + part.quantity,
            UsdMicros(self.usd_micros + part.usd_micros),
            self.reconstructed,
        )


def charge_row(charge: Charge) -> dict[str, Any]:
    """Return a charge as plain JSON, as the journal stores it."""
    place, payer, line = charge.place, charge.payer, charge.line
    row = {
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
    if line.price_kind:
        row["price_kind"] = line.price_kind
    return row


def charge_of(row: Mapping[str, Any]) -> Charge:
    """Rebuild a charge. KeyError or ValueError when the row is not a charge row."""
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
            row.get("price_kind", ""),
        ),
        from_wall=WallNs(_whole(row["from_wall_ns"])),
        to_wall=WallNs(_whole(row["to_wall_ns"])),
        quantity=_whole(row["quantity"]),
        usd_micros=UsdMicros(_whole(row["usd_micros"])),
        reconstructed=bool(row["reconstructed"]),
    )


def _whole(value: Any) -> int:
    # int() would read 1.5 as 1, and would raise OverflowError for 1e999. One damaged byte can turn 10999 into 1e999.
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
    """The charges that still grow: one per payer and line. Each closes at the full hour, or when it changes.

    Each new amount is entered here for its row, its run and its groups in the same call (docs/adr/0021).
    Charges are hourly because people and bills ask by the day and by the hour. A year of one run is 8,760 rows.
    """

    def __init__(self, place: Place, epoch: WallNs) -> None:
        """`epoch`: when this governor started. The node's name and the epoch make charge ids unique."""
        self._place = place
        self.runs = RunSpend()
        self.groups = GroupSpend()
        self._prefix = f"{place.node}/{epoch // NS_PER_US:x}"
        self._opened_total = 0
        self._open: dict[tuple[str, LineKind, str], Charge] = {}
        self._unallocated: deque[Charge] = deque(maxlen=UNALLOCATED_MAX)  # Closed; hand_over() may still move them.
        # The sum of charges that fell out of `_unallocated`: they stay unallocated.
        self._unallocated_older_usd_micros = 0
        self._lent: dict[str, deque[Charge]] = {}  # By run: its closed charges. take_back() may still move them.

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
        self._open[key] = known.grown(lasts, part)
        return closed

    def _opened(self, payer: Payer, line: Line, at: WallNs, reconstructed: bool) -> Charge:
        self._opened_total += 1
        charge_id = f"{self._prefix}/{self._opened_total}"
        return Charge(charge_id, self._place, payer, line, at, at, 0, UsdMicros(0), reconstructed)

    def open_charges(self) -> list[Charge]:
        """The charges that still grow, in their present state."""
        return list(self._open.values())

    def close_all_but(self, runs: Collection[str]) -> list[Charge]:
        """Close the charges of all other runs: they no longer hold any rank."""
        keys = [key for key in self._open if key[0] not in runs]
        return [self._close(key) for key in keys]

    def hand_over(self, to: Payer, command: str | None = None) -> list[Charge]:
        """Move the unallocated charges to the payer `to`, under the same ids; return those that are already closed.

        What is too old to move counts to the launched command whose time it was.
        """
        closed = list(self._unallocated)
        self._unallocated.clear()
        if command is not None:
            self.runs.count_sum_to(command, self._unallocated_older_usd_micros)
        self._unallocated_older_usd_micros = 0
        handed = self._move(closed, [key for key in self._open if key[0] == UNALLOCATED], to)
        if to.run in self._lent:
            self._lent[to.run] += handed
        return handed

    def _move(self, closed: Iterable[Charge], opened: Iterable[tuple[str, LineKind, str]], to: Payer) -> list[Charge]:
        handed = []
        for charge in closed:
            handed.append(self._moved(charge, to))
        for key in opened:
            charge = self._moved(self._open.pop(key), to)
            taken = (to.run, *key[1:])
            # The run already pays for this line: its own row continues, and the moved row is closed.
            if taken in self._open:
                handed.append(charge)
            else:
                self._open[taken] = charge
        return handed

    def _moved(self, charge: Charge, to: Payer) -> Charge:
        payer, amount = charge.payer, charge.usd_micros
        self.runs.move(payer.run, to.run, amount)
        if payer != UNALLOCATED_PAYER:
            self.groups.allot(payer.stage, payer.labels, -amount)
        self.groups.allot(to.stage, to.labels, amount)
        return replace(charge, payer=to)

    def lend(self, run: str) -> None:
        """Keep the charges of this run's time so that take_back() can move them."""
        self._lent.setdefault(run, deque(maxlen=LENT_MAX))

    def take_back(self, to: Payer) -> tuple[list[Charge], list[str]]:
        """Move the charges of time of all runs that were lent to. Returns the closed ones, and the runs."""
        lent, self._lent = self._lent, {}
        closed = [charge for charges in lent.values() for charge in charges]
        opened = [key for key, charge in self._open.items() if key[0] in lent and _is_of_time(charge)]
        return self._move(closed, opened, to), list(lent)

    def lent_charges(self) -> dict[str, list[Charge]]:
        """By run, what take_back() would move. Stored for the next governor."""
        standing = [charge for charge in self._open.values() if _is_of_time(charge)]
        return {run: [*kept, *(one for one in standing if one.payer.run == run)] for run, kept in self._lent.items()}

    def restore_lent(self, lent: Mapping[str, Iterable[Charge]]) -> None:
        """Go on with what the previous governor lent to runs, under the same ids."""
        self._lent = {run: deque(charges, LENT_MAX) for run, charges in lent.items()}

    def unallocated_charges(self) -> tuple[tuple[Charge, ...], UsdMicros]:
        """The charges that hand_over() would move, and the sum that is too old for it. Stored for the next governor."""
        standing = (charge for key, charge in self._open.items() if key[0] == UNALLOCATED)
        return (*self._unallocated, *standing), UsdMicros(self._unallocated_older_usd_micros)

    def set_unallocated_aside(self) -> tuple[list[Charge], list[Charge]]:
        """Take the unallocated charges out: hand_over() does not move them. Returns all, and those that this closed."""
        closed = [self._close(key) for key in [key for key in self._open if key[0] == UNALLOCATED]]
        taken = list(self._unallocated)
        self._unallocated.clear()
        return taken, closed

    def restore_unallocated(self, charges: Iterable[Charge], older_usd_micros: UsdMicros) -> None:
        """Take over the unallocated charges of the previous governor, under their ids: hand_over() moves them too."""
        for charge in charges:
            self._keep_unallocated(charge)
        self._unallocated_older_usd_micros += older_usd_micros

    def unclaimed_usd_micros(self) -> UsdMicros:
        """The unallocated spend since the start or the last hand_over(), with what is too old to move.

        It adds up rows: the counter of unallocated spend also holds what no run will ever take over.
        """
        recent, older = self.unallocated_charges()
        return UsdMicros(older + sum(charge.usd_micros for charge in recent))

    def _close(self, key: tuple[str, LineKind, str]) -> Charge:
        charge = self._open.pop(key)
        if charge.payer == UNALLOCATED_PAYER:
            self._keep_unallocated(charge)
        elif charge.payer.run in self._lent and _is_of_time(charge):
            self._lent[charge.payer.run].append(charge)
        return charge

    def _keep_unallocated(self, charge: Charge) -> None:
        if len(self._unallocated) == UNALLOCATED_MAX:
            self._unallocated_older_usd_micros += self._unallocated[0].usd_micros
        self._unallocated.append(charge)


def _is_of_time(charge: Charge) -> bool:
    """And not of a launch or a checkpoint, of which a run's own words tell."""
    return charge.line.unit in (Unit.HOUR, Unit.GB_MONTH)


def _goes_on(charge: Charge, line: Line, payer: Payer, from_wall: WallNs, reconstructed: bool) -> bool:
    return (
        (charge.line is line or charge.line == line)
        and charge.payer == payer
        and charge.reconstructed == reconstructed
        and charge.from_wall // NS_PER_HOUR == from_wall // NS_PER_HOUR
    )


def _by_the_hour(
    from_wall: WallNs, elapsed: DurationNs, parts: tuple[Part, ...]
) -> Iterator[tuple[WallNs, DurationNs, tuple[Part, ...]]]:
    """Cut the stretch at full hours of the wall clock. The pieces of each part add up to the part exactly."""
    first = NS_PER_HOUR - from_wall % NS_PER_HOUR
    if elapsed <= first:
        yield from_wall, elapsed, parts  # Nearly every tick ends here.
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
