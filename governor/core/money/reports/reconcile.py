"""Compares the ledger with a provider's bill, in cells of (resource, kind of line, period)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_DAY, NS_PER_HOUR, day_of, hour_of, month_of
from governor.core.money.charges import LOST, Charge, LineKind, Unit
from governor.core.money.reports.bill import Bill, BillKind, BillLine, Cause, Difference, joined, short_resource
from governor.core.money.reports.cost import Period, slices
from governor.core.money.reports.focus import resource_id

# Providers bill by the second with a minimum of a minute, from a moment that only they know.
GRANULARITY_HOURS: Final = Fraction(1, 60)
# What rounding to micro-dollars loses in a cell. A smaller difference is no difference of price.
NO_PRICE_USD: Final = Fraction(1, 100_000)


@dataclass(slots=True)
class _Side:
    usd: Fraction = Fraction(0)
    hours: Fraction = Fraction(0)
    rows: int = 0
    lost_usd: Fraction = Fraction(0)  # Ours: charges whose time is no longer known.
    without_hours: bool = False
    committed: bool = False
    prices: set[int] = field(default_factory=set)  # Ours, in micro-dollars.

    @property
    def price_usd(self) -> Fraction | None:
        """Per hour: the charged price if there is only one, else the average."""
        if len(self.prices) == 1:
            return Fraction(next(iter(self.prices)), MICROS_PER_USD)
        return self.usd / self.hours if self.hours and not self.without_hours else None


@dataclass(slots=True)
class _Cell:
    resource: str
    kind: LineKind
    from_wall: int
    to_wall: int
    ours: _Side = field(default_factory=_Side)
    theirs: _Side = field(default_factory=_Side)


class Cells:
    """The cells of a comparison. `periods`: how long a cell of each kind of line is."""

    def __init__(self, periods: dict[LineKind, Period]) -> None:
        self._periods = periods
        self._cells: dict[tuple[str, LineKind, int], _Cell] = {}

    def _cell(self, resource: str, kind: LineKind, at: int) -> _Cell:
        start, end = self._periods[kind](at)
        return self._cells.setdefault((resource, kind, start), _Cell(resource, kind, start, end))

    def enter_ours(self, charge: Charge) -> None:
        resource, kind = short_resource(resource_id(charge)), charge.line.kind
        for part in slices(charge, self._periods[kind]):
            side = self._cell(resource, kind, part.from_wall).ours
            if charge.line.name == LOST:
                side.lost_usd += Fraction(part.usd_micros, MICROS_PER_USD)
                continue
            side.rows += 1
            side.usd += Fraction(part.usd_micros, MICROS_PER_USD)
            if charge.line.unit is Unit.HOUR:
                side.hours += Fraction(part.quantity, NS_PER_HOUR)
                side.prices.add(charge.line.price_usd_micros)
            elif not (kind is LineKind.COMPUTE and charge.line.unit is Unit.PIECE):  # A PIECE corrects a late price.
                side.without_hours = True

    def enter_theirs(self, line: BillLine) -> None:
        kind = line.kind.metered_as
        assert kind is not None, "what is not metered has no cell"
        at, period = line.from_wall, self._periods[kind]
        while True:
            start, end = period(at)
            part = line.clip(start, end)
            assert part is not None, "a line touches the period that it begins in"
            side = self._cell(line.resource, kind, at).theirs
            side.rows += 1
            side.usd += part.usd
            side.committed |= line.committed
            if part.hours is None:
                side.without_hours = True
            else:
                side.hours += part.hours
            at = end
            if at >= line.to_wall:
                return

    def differences(self, open_ends: dict[LineKind, int]) -> Iterator[Difference]:
        """Yield the differences of the cells. `open_ends`: from when on the bill of a kind of line is not final."""
        order = sorted(self._cells.values(), key=lambda cell: (cell.resource, cell.kind.value, cell.from_wall))
        billed = {(cell.resource, cell.kind) for cell in order if cell.theirs.rows}
        whole_hours = _in_whole_hours(order)
        for cell in order:
            if cell.ours.lost_usd:
                yield _difference(Cause.LOST, cell, -cell.ours.lost_usd)
            if (cell.resource, cell.kind) not in billed:
                hours = None if cell.ours.without_hours else -cell.ours.hours
                yield _difference(Cause.UNKNOWN_TO_THEM, cell, -cell.ours.usd, hours=hours)
                continue
            is_final = cell.from_wall < open_ends.get(cell.kind, cell.to_wall)
            at_edge = whole_hours and cell.ours.rows > 0 and not self._inside(cell)
            yield from _parts(cell, is_final=is_final, billed_by_the_hour=at_edge)

    def _inside(self, cell: _Cell) -> bool:
        """Whether we metered right before and right after: then nothing began or ended here that could be rounded."""

        def metered(at: int) -> bool:
            beside = self._cells.get((cell.resource, cell.kind, self._periods[cell.kind](at)[0]))
            return beside is not None and beside.ours.rows > 0

        return metered(cell.from_wall - 1) and metered(cell.to_wall)


def _in_whole_hours(order: Sequence[_Cell]) -> bool:
    """Whether the bill has only whole hours, although we have parts of hours: it rounds up."""
    both = [cell for cell in order if cell.kind is LineKind.COMPUTE and cell.theirs.rows and cell.ours.rows]
    return bool(both) and all(not cell.theirs.without_hours and cell.theirs.hours.denominator == 1 for cell in both)


def _parts(cell: _Cell, *, is_final: bool, billed_by_the_hour: bool) -> Iterator[Difference]:
    ours, theirs = cell.ours, cell.theirs
    whole = theirs.usd - ours.usd
    if ours.without_hours or theirs.without_hours:
        yield _of_amounts(cell, whole, is_final=is_final)
        return
    hours = theirs.hours - ours.hours
    price = ours.price_usd if ours.price_usd is not None else theirs.price_usd
    of_hours = hours * price if price is not None and ours.rows and theirs.rows else (whole if hours else Fraction(0))
    if of_hours:
        cause = _cause_of_hours(hours, is_final=is_final, billed_by_the_hour=billed_by_the_hour)
        yield _difference(cause, cell, of_hours, hours=hours)
    of_price = whole - of_hours
    if abs(of_price) < NO_PRICE_USD:
        yield _difference(Cause.BELOW_A_CENT, cell, of_price)
    elif theirs.committed:
        yield _difference(Cause.NOT_METERED, cell, of_price, what=BillKind.COMMITMENT.value)
    else:
        their_price = theirs.usd / theirs.hours if theirs.hours else None
        yield _difference(Cause.PRICE, cell, of_price, prices=(ours.price_usd, their_price))


def _of_amounts(cell: _Cell, whole: Fraction, *, is_final: bool) -> Difference:
    """If a side has no hours, only its presence says more than the amount."""
    if not cell.theirs.rows:
        return _difference(Cause.THEIRS_MISSING if is_final else Cause.NOT_FINAL, cell, whole)
    if not cell.ours.rows:
        return _difference(Cause.OURS_MISSING, cell, whole)
    return _difference(Cause.BELOW_A_CENT if abs(whole) < NO_PRICE_USD else Cause.PRICE, cell, whole)


def _cause_of_hours(hours: Fraction, *, is_final: bool, billed_by_the_hour: bool) -> Cause:
    if abs(hours) <= GRANULARITY_HOURS or (billed_by_the_hour and 0 < hours < 1):
        return Cause.GRANULARITY
    if hours > 0:
        return Cause.OURS_MISSING
    return Cause.THEIRS_MISSING if is_final else Cause.NOT_FINAL


def _difference(
    cause: Cause,
    cell: _Cell,
    usd: Fraction,
    *,
    what: str | None = None,
    hours: Fraction | None = None,
    prices: tuple[Fraction | None, Fraction | None] = (None, None),
) -> Difference:
    named = cell.kind.value if what is None else what
    ours, theirs = (None if price is None else (price, price) for price in prices)
    return Difference(cause, cell.resource, named, cell.from_wall, cell.to_wall, usd, hours, ours, theirs)


# The ledger against a provider's bill: every difference with its likely cause. The differences add up exactly.
#
# Both sides are laid into cells. In a cell with both sides the difference is split:
#
# theirs - ours = (their hours - our hours) x price + the rest, which is due to the price
#
# So the parts sum to the difference of the two totals, whatever their causes are.


_Known = set[tuple[str, LineKind]]  # The lines that our ledger has charges of.
_PERIODS: Final[dict[str, Period]] = {"hour": hour_of, "day": day_of, "month": month_of}


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """`differences` sum to `theirs_usd` minus `ours_usd`; the largest come first."""

    since: int
    until: int
    # "hour", "day", "month": the coarser of the two sides, for compute.
    per: str
    ours_usd: Fraction
    theirs_usd: Fraction
    differences: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        return all(difference.is_explained for difference in self.differences)


def reconcile(charges: Iterable[Charge], bill: Bill, since: int, until: int) -> Reconciliation:
    """Compare both sides over [since, until). The charges are already cut to it; the bill is cut here."""
    own = list(charges)
    known = {(short_resource(resource_id(charge)), charge.line.kind) for charge in own}
    lines, parts = _taken(bill, since, until, known)
    theirs = sum((line.usd for line in lines), sum((one.usd for one in parts), Fraction(0)))
    ours = Fraction(sum(charge.usd_micros for charge in own), MICROS_PER_USD)
    per = {kind: _coarser(lines, kind, known) for kind in LineKind}
    cells = Cells({kind: _PERIODS[name] for kind, name in per.items()})
    for charge in own:
        cells.enter_ours(charge)
    for line in lines:
        if (line.resource, line.kind.metered_as) in known:
            cells.enter_theirs(line)
        else:
            parts.append(_alone(line, known))
    parts += cells.differences(_open_ends(lines, per, until))
    return Reconciliation(since, until, per[LineKind.COMPUTE], ours, theirs, tuple(joined(parts)))


def _taken(bill: Bill, since: int, until: int, known: _Known) -> tuple[list[BillLine], list[Difference]]:
    """The lines to compare by time, cut to it; and the amounts of a billing period for another time of use."""
    lines: list[BillLine] = []
    apart: list[Difference] = []
    for line in bill.lines:
        as_a_whole = since <= line.billed_at < until
        if line.kind.metered_as is None:
            apart += [_alone(line, known)] if as_a_whole else []
            continue
        inside = line.clip(line.billed_from, line.billed_to)
        part = None if inside is None else inside.clip(since, until)
        lines += [part] if part is not None else []
        rest = line.usd - (Fraction(0) if inside is None else inside.usd)
        if as_a_whole and rest:
            bounds = (line.from_wall, line.to_wall)
            apart.append(Difference(Cause.OTHER_TIME, line.resource, line.kind.value, *bounds, rest))
    return lines, apart


def _coarser(lines: Sequence[BillLine], kind: LineKind, known: _Known) -> str:
    """The period of the bill's lines, of our own resources if there are any. Our charges end with the hour."""
    could_be = [line for line in lines if line.kind.metered_as is kind]
    of_ours = [line for line in could_be if (line.resource, kind) in known] or could_be
    longest = max((line.to_wall - line.from_wall for line in of_ours), default=0)
    if longest <= NS_PER_HOUR:
        return "hour"
    return "day" if longest <= NS_PER_DAY else "month"


def _open_ends(lines: Sequence[BillLine], per: dict[LineKind, str], until: int) -> dict[LineKind, int]:
    """From when on a bill that ends early is not final: from its last period."""
    ends: dict[LineKind, int] = {}
    for line in lines:
        if (kind := line.kind.metered_as) is not None:
            ends[kind] = max(ends.get(kind, line.to_wall), line.to_wall)
    return {kind: _PERIODS[per[kind]](end - 1)[0] for kind, end in ends.items() if end < until}


def _alone(line: BillLine, known: _Known) -> Difference:
    """The difference of a line alone: our ledger has nothing to compare it with."""
    is_machine = line.kind is BillKind.COMPUTE and line.resource != ""
    cause = Cause.UNKNOWN_TO_US if is_machine else Cause.NOT_METERED
    # What we do not meter is shown by kind, not by each of the thousand resources of an account.
    resource = line.resource if is_machine or (line.resource, LineKind.COMPUTE) in known else ""
    return Difference(cause, resource, line.kind.value, line.from_wall, line.to_wall, line.usd)
