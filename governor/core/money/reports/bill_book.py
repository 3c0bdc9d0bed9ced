"""Collects the lines of a bill as they are read: ours one by one, the other resources as one sum each.

The memory that a bill takes depends on how many resources it names and on the hours of our own machines, not on its
length.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from fractions import Fraction
from typing import Final

from governor.core.money.charges import LineKind
from governor.core.money.reports.bill import Bill, BillKind, BillLine, Cause, Difference, Key, Span

ALL_TIME: Final = (-(10**30), 10**30)
# About 60 MB. Of more resources the smallest become one sum when twice as many have come together.
SUMS_MAX: Final = 100_000
_USED: Final = (BillKind.COMPUTE, BillKind.STORAGE, BillKind.EGRESS, BillKind.OTHER)
Known = Container[tuple[str, LineKind]]  # The lines that our ledger has charges of.


def taken(line: BillLine, since: int, until: int, known: Known) -> tuple[BillLine | None, Difference | None]:
    """The part of a line to compare by its time; and what has none, or was used outside its billing period."""
    as_a_whole = since <= line.billed_at < until
    if line.kind.metered_as is None:
        return None, alone(line, known) if as_a_whole else None
    inside = line.clip(line.billed_from, line.billed_to)
    part = None if inside is None else inside.clip(since, until)
    if inside is line:
        return part, None  # The usual case.
    rest = line.usd - (Fraction(0) if inside is None else inside.usd)
    if not (as_a_whole and rest):
        return part, None
    apart = Difference(Cause.OTHER_TIME, line.resource, line.kind.value, line.from_wall, line.to_wall, rest)
    return part, apart


def alone(line: BillLine, known: Known) -> Difference:
    """The difference of a line that our ledger has nothing to compare with."""
    is_ours = (line.resource, LineKind.COMPUTE) in known
    if line.kind is BillKind.COMPUTE and line.resource:
        cause = Cause.UNKNOWN_TO_US
    elif line.kind in _USED:
        cause = Cause.RESOURCE_NOT_METERED
    else:
        cause = Cause.NOT_METERED
    # Taxes and credits are shown by kind: nobody looks at them by resource.
    resource = line.resource if is_ours or line.kind in _USED else ""
    return Difference(cause, resource, line.kind.value, line.from_wall, line.to_wall, line.usd)


class BillBook:
    """`ours`: the resources of the ledger; None: all lines are kept one by one."""

    def __init__(
        self,
        ours: Container[str] | None = None,
        since: int | None = None,
        until: int | None = None,
        *,
        sums_max: int = SUMS_MAX,
    ) -> None:
        self._sums_max = sums_max
        self._ours = ours
        self._since = ALL_TIME[0] if since is None else since
        self._until = ALL_TIME[1] if until is None else until
        self._lines: list[BillLine] = []
        self._sums: dict[Key, Difference] = {}
        self._rest: dict[Key, Difference] = {}  # What became of sums that were too many.
        self._spans: dict[LineKind, Span] = {}
        self._bounds = (ALL_TIME[1], ALL_TIME[0])
        self._rows = 0

    @property
    def kept(self) -> int:
        return len(self._lines)

    @property
    def rows(self) -> int:
        return self._rows

    def enter(self, line: BillLine) -> None:
        self._rows += 1
        first, last = self._bounds
        if line.billed_from < first or line.billed_to > last:
            self._bounds = (min(first, line.billed_from), max(last, line.billed_to))
        if self._ours is None or line.resource in self._ours:
            self._lines.append(line)
            return
        part, apart = taken(line, self._since, self._until, ())
        if part is not None:
            self._add(alone(part, ()))
            self._reach(part)
        if apart is not None:
            self._add(apart)

    def bill(self, form: str) -> Bill:
        """All that was entered. There must have been a line."""
        assert self._rows, "an empty bill has no period"
        apart = (*self._sums.values(), *self._rest.values())
        return Bill(form, tuple(self._lines), *self._bounds, self._rows, apart, tuple(self._spans.values()))

    def _add(self, one: Difference) -> None:
        known = self._sums.setdefault(one.key, one)
        if known is not one:
            known.join(one)
        elif len(self._sums) >= 2 * self._sums_max:
            self._drop_the_smallest()

    def _drop_the_smallest(self) -> None:
        # By their floats: which of two equal ones is named is of no matter, and fractions compare slowly.
        ordered = sorted(
            self._sums.values(), key=lambda one: abs(one.usd.numerator / one.usd.denominator), reverse=True
        )
        for one in ordered[self._sums_max :]:
            one.resource, one.resources = "", 1
            known = self._rest.setdefault(one.key, one)
            if known is not one:
                known.resources += 1
                known.join(one)
        self._sums = {one.key: one for one in ordered[: self._sums_max]}

    def _reach(self, part: BillLine) -> None:
        kind = part.kind.metered_as
        assert kind is not None, "a line to compare by its time is metered"
        length = part.to_wall - part.from_wall
        known = self._spans.setdefault(kind, Span(kind, length, part.to_wall))
        if length > known.longest_ns or part.to_wall > known.until:
            self._spans[kind] = replace(
                known, longest_ns=max(length, known.longest_ns), until=max(part.to_wall, known.until)
            )
