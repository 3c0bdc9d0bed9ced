"""What the lines of a bill mean for machines of the ledger: their kind, hours of one GPU, and hours of another zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, civil_of, hour_of
from governor.core.money.charges import Charge, LineKind, Unit
from governor.core.money.prices import GPUS_MAX
from governor.core.money.reports.bill import Bill, BillKind, BillLine, short_resource
from governor.core.money.reports.cost import slices
from governor.core.money.reports.focus import resource_id

# Sundays of a month on which clocks change, in Europe, America, Australia or New Zealand. -1: the last one.
_CHANGE_WEEKS: Final[Mapping[int, tuple[int, ...]]] = {3: (2, -1), 4: (1,), 9: (-1,), 10: (1, -1), 11: (1,)}
# Hours that are billed of an hour that is there twice: both were used in part at least.
_TWICE_MIN: Final = 1.5
_BETTER_MIN: Final = 0.5
# Zones of the world lie within 14 hours of UTC.
SHIFT_HOURS_MAX: Final = 14
# A start and an end that lie elsewhere: less is no shift.
_SHIFTED_HOURS_MIN: Final = 2.0
# Of the ratio of GPU-hours to hours: what a start and an end within an hour are rounded by.
_RATIO_SLACK: Final = Fraction(1, 50)
# Of the ratio of prices: another price is not another number of GPUs.
_PRICE_SLACK: Final = Fraction(1, 500)
# An hour of the same machine that is more than this many times dearer or cheaper is another number of GPUs.
_PRICES_APART: Final = Fraction(3, 2)

Hours = Mapping[str, Mapping[int, int]]  # Of each machine: the full hour -> nanoseconds of it.


def metered_hours(charges: Iterable[Charge]) -> Hours:
    """The metered compute of each machine, by the clock's hour."""
    hours: dict[str, Counter[int]] = {}
    for charge in charges:
        if charge.line.kind is LineKind.COMPUTE and charge.line.unit is Unit.HOUR:
            machine = hours.setdefault(short_resource(resource_id(charge)), Counter())
            for part in slices(charge, hour_of):
                machine[part.from_wall // NS_PER_HOUR] += part.quantity
    return hours


def hourly_prices(charges: Iterable[Charge]) -> Mapping[str, Fraction]:
    """What an hour of each machine has cost on average, in dollars."""
    sums: dict[str, tuple[int, int]] = {}
    for charge in charges:
        if charge.line.kind is LineKind.COMPUTE and charge.line.unit is Unit.HOUR:
            machine = short_resource(resource_id(charge))
            usd_micros, ns = sums.get(machine, (0, 0))
            sums[machine] = (usd_micros + charge.usd_micros, ns + charge.quantity)
    return {name: Fraction(usd * NS_PER_HOUR, MICROS_PER_USD * ns) for name, (usd, ns) in sums.items() if ns}


def read_as_ours(bill: Bill, charges: Sequence[Charge], gpus: int | None = None) -> Bill:
    """The bill with lines of our machines' time as hours of compute, whatever category and unit they are in.

    `gpus`: of the machine, where that is known. Else GPU-hours tell it: by their price beside ours, or by how many
    times the metered hours they are, where the price does not contradict that.
    """
    prices, ours = hourly_prices(charges), metered_hours(charges)
    machines = {line.resource for line in bill.lines if line.kind is BillKind.COMPUTE}
    lines = [
        _as_compute(line) if line.resource in ours and line.resource not in machines else line for line in bill.lines
    ]
    by_gpu: dict[str, list[BillLine]] = {resource: [] for resource in ours}
    for line in lines:
        if line.resource in by_gpu and line.kind is BillKind.COMPUTE and line.gpu_hours:
            by_gpu[line.resource].append(line)
    counts = {name: gpus or _gpus(of_it, ours[name], prices.get(name)) for name, of_it in by_gpu.items()}
    return replace(bill, lines=tuple(_in_hours(line, counts.get(line.resource)) for line in lines))


def _as_compute(line: BillLine) -> BillLine:
    """A machine without a line of compute is billed in another category: what is by time is its compute.

    So is what names no kind at all: a bill of dates, amounts and machines.
    """
    is_compute = line.hours is not None or line.gpu_hours is not None or line.names_no_kind
    return replace(line, kind=BillKind.COMPUTE) if line.kind is BillKind.OTHER and is_compute else line


def has_amounts_only(bill: Bill, ours: Hours) -> bool:
    """Whether a machine of ours has rows of compute without hours. `bill`: as read_as_ours() returns it."""
    return any(
        line.kind is BillKind.COMPUTE and line.resource in ours and line.hours is None and line.usd
        for line in bill.lines
    )


def _in_hours(line: BillLine, gpus: int | None) -> BillLine:
    if line.kind is not BillKind.COMPUTE or line.gpu_hours is None or gpus is None:
        return line
    return replace(line, hours=line.gpu_hours / gpus, gpu_hours=None)


def _gpus(lines: Iterable[BillLine], metered: Mapping[int, int], price: Fraction | None) -> int | None:
    """The whole number that most lines agree on; None where there is none, and the amounts are compared instead."""
    votes: Counter[int] = Counter()
    count = 0
    for line in lines:
        assert line.gpu_hours is not None, "only these lines are asked"
        count += 1
        votes.update(_gpus_of(line, line.gpu_hours, metered, price))
    [(found, most)] = votes.most_common(1) or [(0, 0)]
    return found if 2 * most > count else None


def _gpus_of(
    line: BillLine, gpu_hours: Fraction, metered: Mapping[int, int], price: Fraction | None
) -> tuple[int, ...]:
    if price and line.usd > 0 and (by_price := _whole(price * gpu_hours / line.usd, _PRICE_SLACK)):
        return (by_price,)
    first, last = line.from_wall // NS_PER_HOUR, -(-line.to_wall // NS_PER_HOUR)
    ns = sum(spent for hour, spent in metered.items() if first <= hour < last)
    by_hours = _whole(gpu_hours * NS_PER_HOUR / ns, _RATIO_SLACK) if ns else None
    if by_hours is None:
        return ()
    told = line.usd * by_hours / gpu_hours
    contradicts = price and line.usd > 0 and not price / _PRICES_APART <= told <= price * _PRICES_APART
    return () if contradicts else (by_hours,)


def _whole(ratio: Fraction, slack: Fraction) -> int | None:
    whole = round(ratio)
    return whole if 1 <= whole <= GPUS_MAX and abs(ratio - whole) <= slack * whole else None


@dataclass(frozen=True, slots=True)
class Shift:
    """By how many whole hours the times of a bill lie later than the ledger's, as those in local time do.

    `changes_at`: where clocks change between its first row and its last, when that is, in the bill's own times (its
    hour 0 is 1970-01-01T00:00); from then on `then` hours.
    """

    hours: int
    changes_at: int | None = None
    then: int = 0

    @property
    def twice(self) -> int | None:
        """The hour that is there twice, where clocks go back."""
        return self.changes_at - 1 if self.changes_at is not None and self.then < self.hours else None

    def taken_off(self, bill: Bill) -> Bill:
        """The bill in the ledger's time. Of the rows of an hour that is there twice, the first half is of the first."""
        if self.changes_at is None:
            return bill.moved(-self.hours * NS_PER_HOUR)
        left: Counter[str] = Counter()
        for line in bill.lines:
            left[_series(line)] += line.from_wall // NS_PER_HOUR == self.twice
        half = {name: count // 2 for name, count in left.items()}
        lines = []
        for line in bill.lines:
            hour = line.from_wall // NS_PER_HOUR
            is_late = hour >= self.changes_at
            if hour == self.twice:
                left[_series(line)] -= 1
                is_late = left[_series(line)] < half[_series(line)]
            lines.append(line.moved(-(self.then if is_late else self.hours) * NS_PER_HOUR))
        since, until = bill.since - self.hours * NS_PER_HOUR, bill.until - self.then * NS_PER_HOUR
        return replace(bill, lines=tuple(lines), since=since, until=until)


def _series(line: BillLine) -> str:
    return f"{line.kind.value} {line.resource}"


def shift_of(bill: Bill, ours: Hours) -> Shift | None:
    """By how much the bill lies later than the ledger; None where it does not.

    It is a shift if all machines fit better with it, and what fits no longer is less than half of before.
    """
    theirs = _billed_hours(bill.lines, ours)
    if not theirs:
        return None
    off = {shift: [_off(theirs[name], ours[name], shift) for name in theirs] for shift in _shifts()}
    now = off[0]
    ordered = sorted(_shifts(), key=lambda shift: (sum(off[shift]), abs(shift)))
    best, second = ordered[0], ordered[1]
    if sum(off[best]) >= 1 and (change := _change_of(bill, ours, theirs, best, off)) is not None:
        return change
    is_clear = sum(off[best]) < sum(off[second]) - 1
    fits = all(moved <= before for moved, before in zip(off[best], now, strict=True))
    less = sum(now) - sum(off[best])
    is_shift = best and is_clear and fits and less >= max(_SHIFTED_HOURS_MIN, sum(now) / 2)
    return Shift(best) if is_shift else None


def _change_of(
    bill: Bill, ours: Hours, theirs: Mapping[str, Mapping[int, float]], best: int, off: Mapping[int, Sequence[float]]
) -> Shift | None:
    """The shift of a bill in local time over a change of clocks: an hour is there twice, or one within is missing.

    With it all machines fit as well as without any, and together at least half an hour better than by a constant one.
    """
    hours = [hour for machine in theirs.values() for hour in machine]
    for changes_at in _clock_changes(min(hours), max(hours)):
        is_twice = any(machine.get(changes_at - 1, 0.0) > _TWICE_MIN for machine in theirs.values())
        is_gap = not is_twice and all(changes_at not in machine for machine in theirs.values())
        for before in (best - 1, best, best + 1) if is_twice or is_gap else ():
            shift = Shift(before, changes_at, before + (1 if is_gap else -1))
            # A bill in UTC has double and missing hours of its own. Beside it is London's time, at its own hour alone.
            if 0 in (before, shift.then) and (before + shift.then != 1 or changes_at % 24 != 2 - shift.then):
                continue
            moved = _billed_hours(shift.taken_off(bill).lines, ours)
            found = [_off(moved[name], ours[name], 0) for name in theirs]
            fits = all(after <= now for after, now in zip(found, off[0], strict=True))
            if fits and sum(found) < sum(off[best]) - _BETTER_MIN:
                return shift
    return None


def clocks_change_on(day: int) -> bool:
    """Whether somewhere clocks change on this day, as a number since 1970-01-01."""
    _, month, of_month = civil_of(day)
    weeks = _CHANGE_WEEKS.get(month, ())
    is_last = civil_of(day + 7)[1] != month
    return (day + 4) % 7 == 0 and (-(-of_month // 7) in weeks or (is_last and -1 in weeks))


def _clock_changes(first: int, last: int) -> Iterator[int]:
    """The hours within at which somewhere clocks change, by their own time: on some Sundays, from one to four."""
    for day in range(first // 24, last // 24 + 1):
        if clocks_change_on(day):
            yield from (24 * day + hour for hour in (1, 2, 3, 4) if first < 24 * day + hour < last)


def _shifts() -> Sequence[int]:
    return range(-SHIFT_HOURS_MAX, SHIFT_HOURS_MAX + 1)


def _billed_hours(lines: Iterable[BillLine], ours: Hours) -> dict[str, dict[int, float]]:
    """Of the machines that both sides have, by the clock's hour. Empty where the bill is coarser than hours."""
    hours: dict[str, dict[int, float]] = {}
    for line in lines:
        if line.kind is not BillKind.COMPUTE or line.resource not in ours or line.hours is None:
            continue
        if line.to_wall - line.from_wall > NS_PER_HOUR:
            return {}
        machine = hours.setdefault(line.resource, {})
        # A row that lies across two hours is no sign of a shift by whole ones.
        at, after = line.from_wall // NS_PER_HOUR, line.from_wall % NS_PER_HOUR + line.to_wall - line.from_wall
        late = max(0, after - NS_PER_HOUR) / (line.to_wall - line.from_wall or 1)
        machine[at] = machine.get(at, 0.0) + float(line.hours) * (1 - late)
        if late:
            machine[at + 1] = machine.get(at + 1, 0.0) + float(line.hours) * late
    return hours


def _off(theirs: Mapping[int, float], ours: Mapping[int, int], shift: int) -> float:
    """The hours that do not fit. An hour that is billed twice is no sign of a shift."""
    hours = ours.keys() | {at - shift for at in theirs}
    return sum(abs(min(theirs.get(at + shift, 0.0), 1.0) - ours.get(at, 0) / NS_PER_HOUR) for at in hours)
