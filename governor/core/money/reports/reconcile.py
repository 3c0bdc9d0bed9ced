"""The ledger against a provider's bill: every difference with its likely cause. They add up exactly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_DAY, NS_PER_HOUR, day_of, hour_of, month_of
from governor.core.money.charges import Charge, LineKind
from governor.core.money.reports.bill import Bill, BillLine, Difference, joined, short_resource
from governor.core.money.reports.bill_book import alone, taken
from governor.core.money.reports.bill_digits import printed_digits
from governor.core.money.reports.bill_reading import read_as_ours
from governor.core.money.reports.cells import Cells
from governor.core.money.reports.cost import Period, moved_period
from governor.core.money.reports.focus import resource_id

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


def reconcile(
    charges: Iterable[Charge], bill: Bill, since: int, until: int, *, gpus: int | None = None
) -> Reconciliation:
    """Compare both sides over [since, until). The charges are already cut to it; the bill is cut here."""
    own = list(charges)
    known = {(short_resource(resource_id(charge)), charge.line.kind) for charge in own}
    read = read_as_ours(bill, own, gpus)
    lines, parts = _taken(read, since, until, known)
    parts += bill.apart
    theirs = sum((line.usd for line in lines), sum((one.usd for one in parts), Fraction(0)))
    ours = Fraction(sum(charge.usd_micros for charge in own), MICROS_PER_USD)
    longest, ends = _reach(bill, lines, known)
    per = {kind: _name_of(longest.get(kind, 0)) for kind in LineKind}
    periods = {
        kind: _own_period(name, [line for line in lines if line.kind.metered_as is kind], known)
        for kind, name in per.items()
    }
    cells = Cells(periods, since, until, printed_digits(read.lines))
    for charge in own:
        cells.enter_ours(charge)
    for line in lines:
        if (line.resource, line.kind.metered_as) in known:
            cells.enter_theirs(line)
        else:
            parts.append(alone(line, known))
    # From its last period on a bill that ends early is not final.
    parts += cells.differences({kind: periods[kind](end - 1)[0] for kind, end in ends.items() if end < until})
    return Reconciliation(since, until, per[LineKind.COMPUTE], ours, theirs, tuple(joined(parts)))


def _taken(bill: Bill, since: int, until: int, known: _Known) -> tuple[list[BillLine], list[Difference]]:
    """The lines to compare by time, cut to it; and what stands apart from it."""
    lines: list[BillLine] = []
    apart: list[Difference] = []
    for line in bill.lines:
        part, difference = taken(line, since, until, known)
        lines += [part] if part is not None else []
        apart += [difference] if difference is not None else []
    return lines, apart


def _reach(bill: Bill, lines: Iterable[BillLine], known: _Known) -> tuple[dict[LineKind, int], dict[LineKind, int]]:
    """Of each kind of line: the longest row, of our own resources if there are any; and when the last one ends."""
    longest = {span.kind: span.longest_ns for span in bill.spans}
    ends = {span.kind: span.until for span in bill.spans}
    of_ours: dict[LineKind, int] = {}
    for line in lines:
        if (kind := line.kind.metered_as) is None:
            continue
        length = line.to_wall - line.from_wall
        sizes = of_ours if (line.resource, kind) in known else longest
        sizes[kind] = max(sizes.get(kind, 0), length)
        ends[kind] = max(ends.get(kind, line.to_wall), line.to_wall)
    return longest | of_ours, ends


def _own_period(name: str, lines: Iterable[BillLine], known: _Known) -> Period:
    """The bill's own hours, days or months, where all full ones begin at an equal time: at 18:30, as in India."""
    period, length = _PERIODS[name], NS_PER_HOUR if name == "hour" else NS_PER_DAY
    begins = {
        line.from_wall % length
        for line in lines
        if (line.resource, line.kind.metered_as) in known and line.to_wall - line.from_wall >= length
    }
    if len(begins) != 1:
        return period
    [late] = begins
    if name != "month":
        return moved_period(period, -late)
    of_months = {line.from_wall for line in lines if line.to_wall - line.from_wall > NS_PER_DAY}
    for zone_ns in (-late, length - late) if late else ():
        if all(period(at + zone_ns)[0] == at + zone_ns for at in of_months):
            return moved_period(period, zone_ns)
    return period


def _name_of(longest_ns: int) -> str:
    """The period of the bill's lines. Our charges end with the hour."""
    if longest_ns <= NS_PER_HOUR:
        return "hour"
    return "day" if longest_ns <= NS_PER_DAY else "month"
