"""The ledger against a provider's bill: every difference, with its likely cause. All of it adds up exactly.

Both sides are laid into cells of (resource, kind of line, period). In a cell that both know, the difference is parted:

    theirs - ours  =  (their hours - our hours) x price  +  what is left, which is the price

so that whatever the parts are called, they sum to what the two totals differ by.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR
from governor.core.base.utc import NS_PER_DAY, day_of, hour_of, month_of
from governor.core.money.charges import Charge, LineKind
from governor.core.money.reports.bill import Bill, BillKind, BillLine, short_resource
from governor.core.money.reports.cost import Period
from governor.core.money.reports.differences import Cause, Difference, joined
from governor.core.money.reports.focus import resource_id
from governor.core.money.reports.reconcile_cells import Cells

_Known = set[tuple[str, LineKind]]  # What our ledger has charges of.
_PERIODS: Final[dict[str, Period]] = {"hour": hour_of, "day": day_of, "month": month_of}


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """`differences` sum to `theirs_usd` minus `ours_usd`; the largest come first."""

    since: int
    until: int
    per: str  # "hour", "day", "month": the coarser of the two sides, for compute.
    ours_usd: Fraction
    theirs_usd: Fraction
    differences: tuple[Difference, ...]

    @property
    def agrees(self) -> bool:
        return all(difference.is_explained for difference in self.differences)


def reconcile(charges: Iterable[Charge], bill: Bill, since: int, until: int) -> Reconciliation:
    """Compare what both sides say of [since, until). The charges are cut to it already; the bill is cut here."""
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
    """The lines to compare by their time, cut to it; and what a billing period has as a whole, whenever it was used."""
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
    """Our charges end with the hour: the bill's lines decide, those of our own resources if there are any."""
    could_be = [line for line in lines if line.kind.metered_as is kind]
    of_ours = [line for line in could_be if (line.resource, kind) in known] or could_be
    longest = max((line.to_wall - line.from_wall for line in of_ours), default=0)
    if longest <= NS_PER_HOUR:
        return "hour"
    return "day" if longest <= NS_PER_DAY else "month"


def _open_ends(lines: Sequence[BillLine], per: dict[LineKind, str], until: int) -> dict[LineKind, int]:
    """From when on a bill that ends before its period does is not final: the last period that it has, and all after."""
    ends: dict[LineKind, int] = {}
    for line in lines:
        if (kind := line.kind.metered_as) is not None:
            ends[kind] = max(ends.get(kind, line.to_wall), line.to_wall)
    return {kind: _PERIODS[per[kind]](end - 1)[0] for kind, end in ends.items() if end < until}


def _alone(line: BillLine, known: _Known) -> Difference:
    """The difference that a line is by itself, because our ledger has nothing that it could be compared with."""
    is_machine = line.kind is BillKind.COMPUTE and line.resource != ""
    cause = Cause.UNKNOWN_TO_US if is_machine else Cause.NOT_METERED
    # Of what we do not meter the kind is told, not each of the thousand resources that an account has.
    resource = line.resource if is_machine or (line.resource, LineKind.COMPUTE) in known else ""
    return Difference(cause, resource, line.kind.value, line.from_wall, line.to_wall, line.usd)
