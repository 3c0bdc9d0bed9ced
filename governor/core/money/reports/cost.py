"""Sums of charges, by whatever people group them by. Every sum is one of integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from governor.core.base.units import MICROS_PER_USD, UsdMicros, WallNs, date_text, day_of
from governor.core.money.charges import UNALLOCATED, Charge, LineKind, Payer, Unit

MICROS_PER_CENT: Final = MICROS_PER_USD // 100
LABEL: Final = "label:"
NO_STAGE: Final = "(no stage)"
UNALLOCATED_ROW: Final = "(unallocated)"
STAGE_OF_RUN: Final = "stage of run"  # For money.reports.stage_table: by both.
PAYER_AND_NODE: Final = "payer and node"  # For the rows of a fleet: by all but the line.
RECONSTRUCTED: Final = "charged afterwards: no governor had metered it, its price was unknown, or its charges were lost"
GROUPINGS: Final = ("run", "stage", "day", "node", "line")  # And label:KEY.

Period = Callable[[int], tuple[int, int]]  # An instant -> start and end of its period.


@dataclass(slots=True)
class Group:
    """The charges that share a key. `node_ns` counts only compute: a disk beside it is no second machine."""

    key: str
    charges: int = 0
    node_ns: int = 0
    usd_micros: int = 0
    reconstructed_usd_micros: int = 0
    quantity: int = 0  # In base units of `unit`; useful only if the group is one line.
    unit: Unit | None = None
    price_min_usd_micros: int | None = None  # Of compute; of the line, if the group is one line.
    price_max_usd_micros: int | None = None
    is_priced: bool = True  # False: no price was known of its time, so nobody knows what it cost.
    sources: set[tuple[str, str]] = field(default_factory=set)  # The price's sources, each with its date.


@dataclass(frozen=True, slots=True)
class Sum:
    """Several charges as one: equal in their grouping and their line, with quantity and amount added up.

    A charge that is cut, at midnight or at a bound of the requested time, stays alone.
    """

    charge: Charge
    charges: int


def tally(charges: Iterable[Charge], by: str) -> list[Group]:
    """Group charges: days in their order, anything else by amount, largest first. ValueError on an unknown `by`."""
    return tally_sums((Sum(charge, 1) for charge in charges), by)


def tally_sums(sums: Iterable[Sum], by: str) -> list[Group]:
    """tally() of charges that were added up while they were read."""
    key_of = _key_of(by)
    groups: dict[str, Group] = {}
    for one in sums:
        for charge in slices(one.charge, day_of) if by == "day" else (one.charge,):
            key = key_of(charge)
            group = groups.get(key)
            if group is None:
                group = groups[key] = Group(key)
            _enter(group, charge, one.charges, one_line=by == "line")
    return _in_order(groups.values(), by)


@dataclass(frozen=True, slots=True)
class Tallied:
    """Charges that another ledger has tallied: one says whose they are, where, and on which day; then their figures."""

    like: Charge
    figures: Group


def tally_again(parts: Iterable[Tallied], by: str) -> list[Group]:
    """tally() of what other ledgers have tallied by day, payer and node. ValueError on a `by` that needs more."""
    if by == "line":
        raise ValueError("what was tallied before has no lines any more")
    key_of = _key_of(by)
    groups: dict[str, Group] = {}
    for part in parts:
        key = key_of(part.like)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(key)
        _add(group, part.figures)
        _add_prices(group, part.figures)
    return _in_order(groups.values(), by)


def _in_order(groups: Iterable[Group], by: str) -> list[Group]:
    if by == "day":
        return sorted(groups, key=lambda group: group.key)
    return sorted(groups, key=lambda group: (-group.usd_micros, group.key))


def sum_of(groups: Iterable[Group]) -> Group:
    """All groups as one."""
    parts = [*groups]
    total = Group("total", is_priced=not parts or any(group.is_priced for group in parts))
    for group in parts:
        _add(total, group)
    return total


def _add(group: Group, part: Group) -> None:
    group.charges += part.charges
    group.node_ns += part.node_ns
    group.usd_micros += part.usd_micros
    group.reconstructed_usd_micros += part.reconstructed_usd_micros


def _add_prices(group: Group, part: Group) -> None:
    lows = [price for price in (group.price_min_usd_micros, part.price_min_usd_micros) if price is not None]
    highs = [price for price in (group.price_max_usd_micros, part.price_max_usd_micros) if price is not None]
    group.price_min_usd_micros, group.price_max_usd_micros = min(lows, default=None), max(highs, default=None)
    group.unit = part.unit or group.unit
    group.sources |= part.sources


def _enter(group: Group, charge: Charge, count: int, *, one_line: bool) -> None:
    line = charge.line
    group.charges += count
    group.usd_micros += charge.usd_micros
    group.reconstructed_usd_micros += charge.usd_micros if charge.reconstructed else 0
    compute = line.kind is LineKind.COMPUTE
    group.node_ns += charge.quantity if compute and line.unit is Unit.HOUR else 0
    group.quantity += charge.quantity
    # The correction of a price that was read late is no price of an hour: it is a piece, or time at zero cost.
    if one_line or (compute and line.unit is Unit.HOUR and line.price_usd_micros):
        low, high, price = group.price_min_usd_micros, group.price_max_usd_micros, line.price_usd_micros
        group.unit = line.unit
        group.price_min_usd_micros = price if low is None else min(low, price)
        group.price_max_usd_micros = price if high is None else max(high, price)
        group.sources.add((line.source, line.as_of))


def _key_of(by: str) -> Callable[[Charge], str]:
    if by.startswith(LABEL) and len(by) > len(LABEL):
        name = by[len(LABEL) :]
        return _of_payer(lambda payer: dict(payer.labels).get(name) or f"(no {name})")
    known: dict[str, Callable[[Charge], str]] = {
        "run": _of_payer(lambda payer: payer.run),
        "stage": stage_of,
        "day": lambda charge: date_text(charge.from_wall),
        "node": lambda charge: charge.place.node,
        # With the unit: quantities of two units have no sum.
        "line": lambda charge: f"{charge.line.kind.value}: {charge.line.name}, per {charge.line.unit.value}",
    }
    if by not in known:
        raise ValueError(f'"{by}" is no way to group; take {", ".join(GROUPINGS)} or label:KEY')
    return known[by]


def _of_payer(name_of: Callable[[Payer], str]) -> Callable[[Charge], str]:
    """What nobody has paid for is one group in each of these: a run without a stage is somebody."""
    return lambda charge: UNALLOCATED_ROW if charge.payer.run == UNALLOCATED else name_of(charge.payer)


stage_of: Final = _of_payer(lambda payer: payer.stage or NO_STAGE)


def moved_period(period: Period, zone_ns: int) -> Period:
    """The same periods by a clock that is ahead by so much."""
    if not zone_ns:
        return period

    def moved(at: int) -> tuple[int, int]:
        start, end = period(at + zone_ns)
        return start - zone_ns, end - zone_ns

    return moved


def slices(charge: Charge, period: Period) -> Iterator[Charge]:
    """Cut a charge at the bounds of its periods. The parts add up to it exactly."""
    start, end = int(charge.from_wall), int(charge.to_wall)
    if end <= period(start)[1]:
        yield charge  # The usual case.
        return
    while start < end:
        bound = min(end, period(start)[1])
        yield clip(charge, start, bound)
        start = bound


def clip(charge: Charge, since: int, until: int) -> Charge:
    """The part of a charge between two instants. Adjoining parts add up, because each is a difference of two floors."""
    start, end = charge.from_wall, charge.to_wall
    first, last = max(start, since), min(end, until)
    if (first, last) == (start, end) or start == end:
        return charge
    length, before, after = end - start, first - start, last - start

    def part(amount: int) -> int:
        return amount * after // length - amount * before // length

    return replace(
        charge,
        from_wall=WallNs(first),
        to_wall=WallNs(last),
        quantity=part(charge.quantity),
        usd_micros=UsdMicros(part(charge.usd_micros)),
    )


def decimal_text(numerator: int, denominator: int, digits: int) -> str:
    """A ratio as a decimal number, rounded half away from zero, with exactly `digits` digits."""
    scaled = (2 * abs(numerator) * 10**digits + denominator) // (2 * denominator)
    whole, fraction = divmod(scaled, 10**digits)
    sign = "-" if numerator < 0 and scaled else ""
    return f"{sign}{whole}.{fraction:0{digits}}" if digits else f"{sign}{whole}"


def exact_usd(micros: int) -> str:
    """Exact dollars: "12.340000"."""
    return decimal_text(micros, MICROS_PER_USD, 6)


def whole_cents(micros: Sequence[int]) -> list[int]:
    """Amounts in cents that add up to the cents of their sum. Each is off by less than a cent."""
    target = (2 * sum(micros) + MICROS_PER_CENT) // (2 * MICROS_PER_CENT)
    whole = [amount // MICROS_PER_CENT for amount in micros]
    return _rounded_up(whole, [amount % MICROS_PER_CENT for amount in micros], target)


def rounded_together(amounts: Sequence[Fraction], target: int) -> list[int]:
    """Whole numbers that add up to `target`, which is within one of the sum. Each is off by less than one."""
    return _rounded_up([amount // 1 for amount in amounts], [amount % 1 for amount in amounts], target)


def _rounded_up(whole: list[int], remainders: Sequence[int] | Sequence[Fraction], target: int) -> list[int]:
    """Add one to the amounts with the largest remainders, until the sum is the target. Ties keep their order."""
    up = target - sum(whole)
    assert 0 <= up <= len(whole), "the target is not the rounded sum"
    for index in sorted(range(len(whole)), key=remainders.__getitem__, reverse=True)[:up]:
        whole[index] += 1
    return whole
