"""What the lines of a bill mean for machines of the ledger: their kind, their end, and hours of one GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, hour_of
from governor.core.money.charges import Charge, LineKind, Unit
from governor.core.money.prices import GPUS_MAX
from governor.core.money.reports.bill import Bill, BillKind, BillLine, short_resource
from governor.core.money.reports.cost import moved_period, slices
from governor.core.money.reports.focus import resource_id

# Of the ratio of GPU-hours to hours: what a start and an end within an hour are rounded by.
_RATIO_SLACK: Final = Fraction(1, 50)
# Of the ratio of prices: another price is not another number of GPUs.
_PRICE_SLACK: Final = Fraction(1, 500)
# An hour of the same machine that is more than this many times dearer or cheaper is another number of GPUs.
_PRICES_APART: Final = Fraction(3, 2)
# Half of the last digit of hours with two: bills round to it before they multiply by the GPUs.
_ROUNDED_BEFORE: Final = Fraction(1, 200)
# A row that has so many times its own hours is no row that is billed twice: they are of another kind.
_BEYOND: Final = Fraction(3, 2)

Hours = Mapping[str, Mapping[int, int]]  # Of each machine: the full hour -> nanoseconds of it.


def metered_hours(charges: Iterable[Charge], zone_ns: int = 0) -> Hours:
    """The metered compute of each machine, by the hour of a clock that is ahead of UTC by so much."""
    by_hours = moved_period(hour_of, zone_ns)
    hours: dict[str, Counter[int]] = {}
    for charge in charges:
        if charge.line.kind is LineKind.COMPUTE and charge.line.unit is Unit.HOUR:
            machine = hours.setdefault(short_resource(resource_id(charge)), Counter())
            for part in slices(charge, by_hours):
                machine[(part.from_wall + zone_ns) // NS_PER_HOUR] += part.quantity
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
    lines = _ended(lines)
    by_gpu: dict[str, list[BillLine]] = {resource: [] for resource in ours}
    by_hours: dict[str, list[BillLine]] = {resource: [] for resource in ours}
    for line in lines:
        if line.resource in ours and line.kind is BillKind.COMPUTE and (line.gpu_hours or line.hours):
            (by_gpu if line.gpu_hours else by_hours)[line.resource].append(line)
    counts = {name: gpus or _gpus(of_it, ours[name], prices.get(name)) for name, of_it in by_gpu.items()}
    parts = {name: _parts(of_it, ours[name], prices.get(name), gpus) for name, of_it in by_hours.items()}
    digits = {name: _rounding(by_gpu[name], counts[name]) for name in by_gpu}
    digits |= {name: _rounding(of_it, parts[name]) for name, of_it in by_hours.items() if not by_gpu[name]}
    lines = [_in_hours(_in_parts(line, parts.get(line.resource, 1)), counts.get(line.resource)) for line in lines]
    lines = [_rounded_by(line, digits.get(line.resource)) for line in lines]
    return replace(bill, lines=tuple(lines), parts=tuple((name, of_it) for name, of_it in parts.items() if of_it != 1))


def _ended(lines: Sequence[BillLine]) -> list[BillLine]:
    """Where only begins are told, a row ends where the next one like it begins.

    If for most of them that is much earlier than their hours say, the others are no longer than these are.
    """
    series: dict[tuple[str, BillKind], dict[int, int]] = {}  # Of each begin: the latest end.
    for line in lines:
        if line.is_end_assumed:
            ends = series.setdefault((line.resource, line.kind), {})
            ends[line.from_wall] = max(ends.get(line.from_wall, 0), line.to_wall)
    for ends in series.values():
        ordered = sorted(ends)
        cut = [after - at for at, after in pairwise(ordered) if ends[at] - at > _BEYOND * (after - at)]
        most = sorted(cut)[len(cut) // 2] if 2 * len(cut) > len(ordered) - 1 else None
        next_of = dict(pairwise(ordered))
        for at, end in ends.items():
            ends[at] = min(end, next_of.get(at, end), end if most is None else at + most)

    def ended(line: BillLine) -> BillLine:
        if not line.is_end_assumed:
            return line
        end = series[line.resource, line.kind][line.from_wall]
        return line if end >= line.to_wall else replace(line, to_wall=end)

    return [ended(line) for line in lines]


def _as_compute(line: BillLine) -> BillLine:
    """A machine without a line of compute is billed in another category: what is by time is its compute.

    So is what names no kind at all: a bill of dates, amounts and machines.
    """
    is_compute = line.hours is not None or line.gpu_hours is not None or line.names_no_kind
    return replace(line, kind=BillKind.COMPUTE) if line.kind is BillKind.OTHER and is_compute else line


def amounts_only(bill: Bill, ours: Hours) -> Mapping[str, bool]:
    """Our machines with rows of compute without hours, and whether these have GPU-hours of nobody knows how many GPUs.

    `bill`: as read_as_ours() returns it.
    """
    found: dict[str, bool] = {}
    for line in bill.lines:
        if line.kind is BillKind.COMPUTE and line.resource in ours and line.hours is None and line.usd:
            found[line.resource] = found.get(line.resource, False) or line.gpu_hours is not None
    return found


def _rounding(lines: Iterable[BillLine], gpus: int | None) -> Fraction | None:
    """By how much the hours of the machine are rounded, where its rows have them times its GPUs. None: as they stand.

    Hours may be rounded before they are multiplied: 5.36 are 8 times 0.67. Then all of them are multiples.
    """
    if gpus is None or gpus <= 1:
        return None
    found = [(line.gpu_hours or line.hours or Fraction(0), line.rounding) for line in lines]
    half = min((rounding for _, rounding in found if rounding), default=Fraction(0))
    if not half:
        return None
    if all(quantity % (2 * half * gpus) == 0 for quantity, _ in found):
        return half
    return half / gpus + (_ROUNDED_BEFORE if half > _ROUNDED_BEFORE else 0)


def _rounded_by(line: BillLine, rounding: Fraction | None) -> BillLine:
    if rounding is None or line.kind is not BillKind.COMPUTE or line.hours is None:
        return line
    return replace(line, rounding=rounding)


def _in_hours(line: BillLine, gpus: int | None) -> BillLine:
    if line.kind is not BillKind.COMPUTE or line.gpu_hours is None or gpus is None:
        return line
    return replace(line, hours=line.gpu_hours / gpus, gpu_hours=None)


def _in_parts(line: BillLine, parts: int) -> BillLine:
    if parts == 1 or line.kind is not BillKind.COMPUTE or line.hours is None:
        return line
    return replace(line, hours=line.hours / parts if parts else None)


def _parts(lines: Iterable[BillLine], metered: Mapping[int, int], price: Fraction | None, gpus: int | None) -> int:
    """How many of the hours are one of the machine, as most lines have it. 0: they are others, and nobody knows which.

    An hour that has eight at an equal price has hours of eight GPUs, whatever its head says.
    """
    every = list(lines)
    votes = Counter(_parts_of(line, metered, price, gpus) for line in every)
    [(found, most)] = votes.most_common(1) or [(1, 0)]
    if found and 2 * most > votes.total():
        return found
    if 2 * votes[1] >= votes.total():
        return 1
    by_rounding = _as_rounded([(line, line.hours) for line in every if line.hours], metered, price)
    return by_rounding if by_rounding and gpus in (None, by_rounding) else 0


def _parts_of(line: BillLine, metered: Mapping[int, int], price: Fraction | None, gpus: int | None) -> int:
    assert line.hours is not None, "only these lines are asked"
    ratio = price * line.hours / line.usd if price and line.usd > 0 else None
    is_beyond = line.hours > _BEYOND * Fraction(line.to_wall - line.from_wall, NS_PER_HOUR) > 0
    may_be_others = is_beyond or (ratio is not None and (line.is_unit_assumed or gpus is not None))
    if (ratio is not None and ratio <= _PRICES_APART) or not may_be_others:
        return 1
    by_price = None if ratio is None else _whole(ratio, _PRICE_SLACK)
    ns = _metered_in(line, metered)
    if is_beyond and _may_be_any(line, ns):
        return 0
    by_hours = _whole(line.hours * NS_PER_HOUR / ns, _RATIO_SLACK) if ns else None
    if by_hours == 1 and not is_beyond:
        return 1  # Another price.
    as_told = by_price is not None and by_price == gpus and (line.is_unit_assumed or by_hours == by_price)
    found = by_price or by_hours
    if as_told or (is_beyond and found and found > 1 and gpus in (None, found)):
        return found if found and not _contradicts(line, line.hours, found, price) else 0
    return 0 if is_beyond or line.is_unit_assumed else 1


def _may_be_any(line: BillLine, metered_ns: int) -> bool:
    """Whether more than one number of GPUs has hours that are printed as these are."""
    return 2 * line.rounding * NS_PER_HOUR > metered_ns > 0


def _metered_in(line: BillLine, metered: Mapping[int, int]) -> int:
    first, last = line.from_wall // NS_PER_HOUR, -(-line.to_wall // NS_PER_HOUR)
    if last - first < len(metered):
        return sum(metered.get(hour, 0) for hour in range(first, last))
    return sum(spent for hour, spent in metered.items() if first <= hour < last)


def _contradicts(line: BillLine, quantity: Fraction, parts: int, price: Fraction | None) -> bool:
    """Whether with so many parts the price would be another machine's."""
    told = line.usd * parts / quantity
    return bool(price and line.usd > 0 and not price / _PRICES_APART <= told <= price * _PRICES_APART)


def _gpus(lines: Iterable[BillLine], metered: Mapping[int, int], price: Fraction | None) -> int | None:
    """The whole number that most lines agree on; None where there is none, and the amounts are compared instead."""
    quantities = [(line, line.gpu_hours) for line in lines if line.gpu_hours is not None]
    votes: Counter[int] = Counter()
    for line, quantity in quantities:
        votes.update(_gpus_of(line, quantity, metered, price))
    [(found, most)] = votes.most_common(1) or [(0, 0)]
    return found if 2 * most > len(quantities) else _as_rounded(quantities, metered, price)


def _as_rounded(
    quantities: Sequence[tuple[BillLine, Fraction]], metered: Mapping[int, int], price: Fraction | None
) -> int | None:
    """The only number of GPUs whose hours are what all rows say, as far as they are rounded: 5.4 for 8 times 0:40.

    Of each row the hours are those of its amount at our price, or those that are metered. None where two numbers are.
    """
    low, high, is_rounded = 1, GPUS_MAX, False
    for line, quantity in quantities:
        ns = _metered_in(line, metered)
        hours = line.usd / price if price and line.usd > 0 else Fraction(ns, NS_PER_HOUR)
        if not hours:
            return None
        # At most by so much: rounded itself, and before it was multiplied.
        before = min(line.rounding, _ROUNDED_BEFORE)
        slack = hours * _PRICE_SLACK
        low = max(low, ceil((quantity - line.rounding) / (hours + before + slack)))
        least = hours - before - slack
        high = min(high, floor((quantity + line.rounding) / least)) if least > 0 else high
        is_rounded |= line.rounding > 0
    return low if is_rounded and low == high else None


def _gpus_of(
    line: BillLine, gpu_hours: Fraction, metered: Mapping[int, int], price: Fraction | None
) -> tuple[int, ...]:
    ns = _metered_in(line, metered)
    if _may_be_any(line, ns):
        return ()
    if price and line.usd > 0 and (by_price := _whole(price * gpu_hours / line.usd, _PRICE_SLACK)):
        return (by_price,)
    by_hours = _whole(gpu_hours * NS_PER_HOUR / ns, _RATIO_SLACK) if ns else None
    return () if by_hours is None or _contradicts(line, gpu_hours, by_hours, price) else (by_hours,)


def _whole(ratio: Fraction, slack: Fraction) -> int | None:
    whole = round(ratio)
    return whole if 1 <= whole <= GPUS_MAX and abs(ratio - whole) <= slack * whole else None
