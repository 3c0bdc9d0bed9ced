"""Ledger and bill side by side, in cells of (resource, kind of line, period).

In a cell with both sides the difference is split:

    theirs - ours = (their hours - our hours) x price + the rest, which is due to the price

So the parts sum to the difference of the two totals, whatever their causes are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, NS_PER_MINUTE, NS_PER_S, month_of
from governor.core.money.charges import LOST, Charge, LineKind, Unit
from governor.core.money.reports.bill import BillKind, BillLine, Cause, Difference, short_resource
from governor.core.money.reports.bill_digits import EXACT, Digits, paid_hours
from governor.core.money.reports.cost import Period, slices
from governor.core.money.reports.disk_use import NO_PRICE_USD, DiskUse, disk_parts, half_last_digit
from governor.core.money.reports.focus import resource_id

# Providers bill by the second with a minimum of a minute, from a moment that only they know.
GRANULARITY_HOURS: Final = Fraction(1, 60)
# A shorter gap in our time is a governor that started again. A machine that was stopped is away for longer.
GAP_NS: Final = 5 * NS_PER_MINUTE
# Some bills end a row a second early: 10:59:59. It is more than any rounding of a row's hours to three digits.
ROW_END_HOURS: Final = Fraction(NS_PER_S, NS_PER_HOUR)


@dataclass(slots=True)
class _Side:
    usd: Fraction = Fraction(0)
    hours: Fraction = Fraction(0)
    rows: int = 0
    lost_usd: Fraction = Fraction(0)  # Ours: charges whose time is no longer known.
    without_hours: bool = False
    in_whole_hours: bool = True  # Each of the rows.
    committed_usd: Fraction = Fraction(0)  # Theirs: the rows that a reservation or a plan pays for.
    committed_hours: Fraction = Fraction(0)
    committed_rows: int = 0
    gb_months: Fraction = Fraction(0)
    without_gb_months: bool = False
    rounding: Fraction = Fraction(0)  # Of their gb_months.
    hours_rounding: Fraction = Fraction(0)
    rounding_usd: Fraction = Fraction(0)
    rounding_squares: Fraction = Fraction(0)  # Of that of each row.
    prices: set[int] = field(default_factory=set)  # Ours, in micro-dollars.
    times: list[tuple[int, int]] = field(default_factory=list)  # Of each row; of ours, of disks alone.

    @property
    def price_usd(self) -> Fraction | None:
        """Per hour: the charged price if there is only one, else the average."""
        if len(self.prices) == 1:
            return Fraction(next(iter(self.prices)), MICROS_PER_USD)
        return self.usd / self.hours if self.hours and not self.without_hours else None

    @property
    def disk_price_usd(self) -> Fraction | None:
        """Per GB-month, likewise."""
        if len(self.prices) == 1:
            return Fraction(next(iter(self.prices)), MICROS_PER_USD)
        return self.usd / self.gb_months if self.gb_months else None

    @property
    def as_disk(self) -> DiskUse:
        hours = Fraction(sum(last - first for first, last in self.times), NS_PER_HOUR)
        return DiskUse(self.usd, self.gb_months, hours, self.covered_hours, self.rounding_usd)

    @property
    def covered_hours(self) -> Fraction:
        """The time that at least one of the rows is about."""
        total = 0
        end = 0
        for first, last in sorted(self.times):
            total += max(0, last - max(first, end))
            end = max(end, last)
        return Fraction(total, NS_PER_HOUR)


@dataclass(slots=True)
class _Cell:
    resource: str
    kind: LineKind
    from_wall: int
    to_wall: int
    ours: _Side = field(default_factory=_Side)
    theirs: _Side = field(default_factory=_Side)


class Cells:
    """The cells of a comparison over [since, until). `periods`: how long a cell of each kind of line is."""

    def __init__(
        self,
        periods: dict[LineKind, Period],
        since: int,
        until: int,
        digits: Mapping[tuple[str, LineKind], Digits],
    ) -> None:
        self._periods = periods
        self._digits = digits
        self._since, self._until = since, until
        self._cells: dict[tuple[str, LineKind, int], _Cell] = {}
        self._metered: dict[str, list[tuple[int, int]]] = {}  # Of each machine.

    def _cell(self, resource: str, kind: LineKind, at: int) -> _Cell:
        start, end = self._periods[kind](at)
        key = (resource, kind, start)
        known = self._cells.get(key)
        if known is None:
            known = self._cells[key] = _Cell(resource, kind, start, end)
        return known

    def enter_ours(self, charge: Charge) -> None:
        resource, kind = short_resource(resource_id(charge)), charge.line.kind
        if kind is LineKind.COMPUTE and charge.line.name != LOST:
            self._metered.setdefault(resource, []).append((charge.from_wall, charge.to_wall))
        for part in slices(charge, self._periods[kind]):
            side = self._cell(resource, kind, part.from_wall).ours
            if charge.line.name == LOST:
                side.lost_usd += Fraction(part.usd_micros, MICROS_PER_USD)
                continue
            side.rows += 1
            side.usd += Fraction(part.usd_micros, MICROS_PER_USD)
            if kind is LineKind.STORAGE:
                side.times.append((part.from_wall, part.to_wall))
            if charge.line.unit is Unit.GB_MONTH:
                side.gb_months += Fraction(part.quantity, Unit.GB_MONTH.base_units)
                side.prices.add(charge.line.price_usd_micros)
                side.without_hours = True
                continue
            side.without_gb_months = True
            if charge.line.unit is Unit.HOUR:
                side.hours += Fraction(part.quantity, NS_PER_HOUR)
                side.prices.add(charge.line.price_usd_micros)
            elif not (kind is LineKind.COMPUTE and charge.line.unit is Unit.PIECE):  # A PIECE corrects a late price.
                side.without_hours = True

    def enter_theirs(self, line: BillLine) -> None:
        kind = line.kind.metered_as
        assert kind is not None, "what is not metered has no cell"
        at, period = line.from_wall, self._periods[kind]
        rounding = Fraction(0) if line.gb_months is None else half_last_digit(line.gb_months)
        digits = self._digits.get((line.resource, kind), EXACT)
        while True:
            start, end = period(at)
            part = line.clip(start, end)
            assert part is not None, "a line touches the period that it begins in"
            side = self._cell(line.resource, kind, at).theirs
            side.rows += 1
            side.usd += part.usd
            side.hours_rounding += digits.hours
            side.rounding_usd += digits.usd
            side.rounding_squares += digits.usd**2
            if line.committed:
                side.committed_rows += 1
                side.committed_usd += part.usd
                side.committed_hours += part.hours or 0
            side.times.append((part.from_wall, part.to_wall))
            if part.gb_months is None:
                side.without_gb_months = True
            else:
                side.gb_months += part.gb_months
                side.rounding += rounding if part is line else rounding * part.gb_months / (line.gb_months or 1)
            if part.hours is None:
                side.without_hours = True
            else:
                side.hours += part.hours
                side.in_whole_hours &= part.hours.denominator == 1
            at = end
            if at >= line.to_wall:
                return

    def differences(self, open_ends: dict[LineKind, int]) -> Iterator[Difference]:
        """Yield the differences of the cells. `open_ends`: from when on the bill of a kind of line is not final."""
        order = sorted(self._cells.values(), key=lambda cell: (cell.resource, cell.kind.value, cell.from_wall))
        billed = {(cell.resource, cell.kind) for cell in order if cell.theirs.rows}
        whole_hours = _in_whole_hours(order)
        edges = self._edges()
        for cell in order:
            if cell.ours.lost_usd:
                yield _difference(Cause.LOST, cell, -cell.ours.lost_usd)
            if (cell.resource, cell.kind) not in billed:
                hours = None if cell.ours.without_hours else -cell.ours.hours
                yield _difference(Cause.UNKNOWN_TO_THEM, cell, -cell.ours.usd, hours=hours)
                continue
            is_final = cell.from_wall < open_ends.get(cell.kind, cell.to_wall)
            rounded_up = whole_hours and cell.ours.rows > 0 and not self._inside(cell)
            slack = GRANULARITY_HOURS * edges[cell.resource, cell.from_wall]
            _read_as_paid(cell)
            excess = self._excess(cell, slack, rounded_up=rounded_up)
            yield from _parts(cell, excess, slack, is_final=is_final, rounded_up=rounded_up)

    def _inside(self, cell: _Cell) -> bool:
        """Whether we metered right before and right after: then nothing began or ended here that could be rounded."""

        def metered(at: int) -> bool:
            beside = self._cells.get((cell.resource, cell.kind, self._periods[cell.kind](at)[0]))
            return beside is not None and beside.ours.rows > 0

        return metered(cell.from_wall - 1) and metered(cell.to_wall)

    def _edges(self) -> Counter[tuple[str, int]]:
        """How often our time of a machine begins or ends in a cell or within a minute of it: the larger of the two."""
        period = self._periods[LineKind.COMPUTE]
        begins: Counter[tuple[str, int]] = Counter()
        ends: Counter[tuple[str, int]] = Counter()
        for resource, times in self._metered.items():
            for first, last in stretches(times):
                for at, found, bound in ((first, begins, self._since), (last, ends, self._until)):
                    if at == bound:
                        continue  # Cut by what is compared: the machine went on.
                    beside = (at - NS_PER_MINUTE, at - 1, at, at + NS_PER_MINUTE)
                    found.update({(resource, period(one)[0]) for one in beside})
        return begins | ends

    def _excess(self, cell: _Cell, slack: Fraction, *, rounded_up: bool) -> Fraction:
        """The billed hours for which there is no time."""
        if cell.kind is not LineKind.COMPUTE or cell.theirs.without_hours:
            return Fraction(0)
        first, last = max(cell.from_wall, self._since), min(cell.to_wall, self._until)
        clock = Fraction(max(0, last - first), NS_PER_HOUR)
        covered = cell.theirs.covered_hours
        # Two rows of an hour in full hours are an hour twice.
        rounding = Fraction(0) if cell.theirs.in_whole_hours else cell.theirs.hours_rounding
        beyond = max(Fraction(0), cell.theirs.hours - clock)
        beyond = beyond if beyond > rounding else Fraction(0)
        if rounded_up or not covered:  # A row may be a moment that stands for an hour.
            return beyond
        over = cell.theirs.hours - covered
        return over if over > slack + cell.theirs.rows * ROW_END_HOURS + rounding else beyond


def stretches(times: Sequence[tuple[int, int]], gap_ns: int = GAP_NS) -> Iterator[tuple[int, int]]:
    """Begin and end of each stretch of time without a longer gap, in order."""
    begin = end = None
    for first, last in sorted(times):
        if begin is None or end is None:
            begin, end = first, last
        elif first - end > gap_ns:
            yield begin, end
            begin, end = first, last
        else:
            end = max(end, last)
    if begin is not None and end is not None:
        yield begin, end


def _read_as_paid(cell: _Cell) -> None:
    """Hours that are printed rounded are those of their amount, where our price makes it: 0.67 for 40 minutes."""
    ours, theirs = cell.ours, cell.theirs
    if cell.kind is not LineKind.COMPUTE or not (ours.rows and theirs.rows and ours.price_usd):
        return
    is_printed = not (theirs.without_hours or theirs.committed_rows or theirs.in_whole_hours)
    if is_printed and abs(theirs.hours - ours.hours) > theirs.hours_rounding:
        digits = Digits(theirs.hours_rounding, theirs.rounding_usd)
        theirs.hours = paid_hours(theirs.usd, theirs.hours, ours.price_usd, digits)


def _in_whole_hours(order: Sequence[_Cell]) -> bool:
    """Whether the bill has only whole hours, although we have parts of hours: it rounds up."""
    both = [cell for cell in order if cell.kind is LineKind.COMPUTE and cell.theirs.rows and cell.ours.rows]
    return bool(both) and all(not cell.theirs.without_hours and cell.theirs.in_whole_hours for cell in both)


def _parts(cell: _Cell, excess: Fraction, slack: Fraction, *, is_final: bool, rounded_up: bool) -> Iterator[Difference]:
    ours, theirs = cell.ours, cell.theirs
    whole = theirs.usd - ours.usd
    if ours.without_hours or theirs.without_hours:
        yield from _of_a_disk(cell, is_final=is_final) or (_of_amounts(cell, whole, is_final=is_final),)
        return
    hours = theirs.hours - ours.hours - excess
    price = ours.price_usd if ours.price_usd is not None else theirs.price_usd
    if price is not None and theirs.rows and (ours.rows or excess):
        of_excess, of_hours = excess * price, hours * price
    else:
        of_excess, of_hours = Fraction(0), whole if hours else Fraction(0)
    if of_excess:
        yield _difference(Cause.TOO_MANY_HOURS, cell, of_excess, hours=excess)
    if _are_equal_as_printed(cell, hours, of_hours, whole - of_excess):
        if abs(whole - of_excess) <= abs(of_hours):
            yield _of_amounts(cell, whole - of_excess, is_final=is_final)
            return
    elif of_hours:
        rounding = min(slack, theirs.rows * ROW_END_HOURS)
        cause = _cause_of_hours(hours, slack + rounding, is_final=is_final, rounded_up=rounded_up)
        yield _difference(cause, cell, of_hours, hours=hours)
        of_excess += of_hours
    yield from _of_prices(cell, whole - of_excess)


def _are_equal_as_printed(cell: _Cell, hours: Fraction, of_hours: Fraction, whole: Fraction) -> bool:
    """Whether the hours differ by their rounding alone, so that the amounts decide: as they stand they would cancel.

    Where the amount is that of the hours as printed, these are what is billed. Full hours are, too, unless the amounts
    are equal.
    """
    theirs = cell.theirs
    if not of_hours or abs(hours) > theirs.hours_rounding or theirs.committed_rows or not cell.ours.rows:
        return False
    if abs(whole) <= theirs.rounding_usd:
        return True
    of_price = whole - of_hours
    is_as_printed = abs(of_price) <= max(NO_PRICE_USD, theirs.rounding_usd)
    return not theirs.in_whole_hours and not is_as_printed and (of_price > 0) is not (of_hours > 0)


def _of_prices(cell: _Cell, of_price: Fraction) -> Iterator[Difference]:
    """Only what a reservation or a plan takes off its own rows is explained by it. One that is dearer is a price."""
    ours, theirs = cell.ours, cell.theirs
    of_plan = Fraction(0)
    if theirs.committed_rows and theirs.committed_rows == theirs.rows:
        of_plan = of_price
    elif theirs.committed_rows and ours.price_usd is not None:
        of_plan = theirs.committed_usd - theirs.committed_hours * ours.price_usd
    of_rest = of_price - of_plan
    if of_plan >= NO_PRICE_USD:
        their_price = theirs.committed_usd / theirs.committed_hours if theirs.committed_hours else None
        yield _of_a_price(cell, of_plan, their_price)
    elif of_plan <= -NO_PRICE_USD:
        yield _difference(Cause.NOT_METERED, cell, of_plan, what=BillKind.COMMITMENT.value)
    else:
        yield _difference(Cause.BELOW_A_CENT, cell, of_plan)
    if abs(of_rest) >= NO_PRICE_USD:
        hours = theirs.hours - theirs.committed_hours
        their_price = (theirs.usd - theirs.committed_usd) / hours if hours else None
        yield _of_a_price(cell, of_rest, their_price)
    else:
        yield _difference(Cause.BELOW_A_CENT, cell, of_rest)


def _of_a_price(cell: _Cell, usd: Fraction, their_price: Fraction | None) -> Difference:
    """An amount without any hours has no price that could differ."""
    cause = Cause.AMOUNT if their_price is None or cell.ours.price_usd is None else Cause.PRICE
    return _difference(cause, cell, usd, prices=(cell.ours.price_usd, their_price))


def _of_a_disk(cell: _Cell, *, is_final: bool) -> list[Difference]:
    """Compared by GB-months. Empty where a side has none."""
    ours, theirs = cell.ours, cell.theirs
    price = ours.disk_price_usd
    if not (ours.rows and theirs.rows) or ours.without_gb_months or theirs.without_gb_months or price is None:
        return []
    first, last = month_of(cell.from_wall)
    less = Cause.THEIRS_MISSING if is_final else Cause.NOT_FINAL
    parts = disk_parts(ours.as_disk, theirs.as_disk, price, theirs.rounding, (last - first) // NS_PER_HOUR, less)
    their_price = theirs.usd / theirs.gb_months if theirs.gb_months else None
    found = []
    for part in parts:
        prices = (price, their_price) if part.has_prices else (None, None)
        one = _difference(part.cause, cell, part.usd, hours=part.hours, prices=prices)
        one.per = Unit.GB_MONTH.value if part.has_prices else one.per
        one.gb_months = (ours.gb_months, theirs.gb_months) if part.has_quantities else None
        found.append(one)
    return found


def _of_amounts(cell: _Cell, whole: Fraction, *, is_final: bool) -> Difference:
    """If a side has no quantity, only its presence says more than the amount."""
    if not cell.theirs.rows:
        return _difference(Cause.THEIRS_MISSING if is_final else Cause.NOT_FINAL, cell, whole)
    if not cell.ours.rows:
        return _difference(Cause.OURS_MISSING, cell, whole)
    return _difference(Cause.BELOW_A_CENT if abs(whole) < NO_PRICE_USD else Cause.AMOUNT, cell, whole)


def _cause_of_hours(hours: Fraction, slack: Fraction, *, is_final: bool, rounded_up: bool) -> Cause:
    if abs(hours) <= slack or (rounded_up and 0 < hours < 1):
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
    one = Difference(cause, cell.resource, named, cell.from_wall, cell.to_wall, usd, hours, ours, theirs)
    if cause in (Cause.PRICE, Cause.AMOUNT) and abs(usd) <= cell.theirs.rounding_usd:
        one.rounding_squares = cell.theirs.rounding_squares
    return one
