"""How well the hours of a bill fit ours, where its times lie so many minutes later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE
from governor.core.money.charges import Charge
from governor.core.money.reports.bill_reading import Hours, metered_hours

# What has to be assumed: a shift, each stretch of hours that one side lacks, and that the bill is not final yet.
TAIL: Final = 1
_STRETCH: Final = 2
_SHIFT: Final = 2
# A start and an end that lie elsewhere: less is no shift.
SHIFTED_HOURS_MIN: Final = 2.0
# Less in an hour or a day is what a start, an end or two digits are rounded by.
_ROUNDED_HOURS: Final = 0.2
# Less is none: sums of fractions of hours.
TIE: Final = 1e-6

Billed = Mapping[str, Mapping[int, float]]  # Of each machine: the full hour or day -> the hours that are billed of it.
Used = Mapping[int, float]


class Fits:
    """`last`: the last hour that is billed, by the bill's clock: what we have beyond may not be billed yet.

    None: the bill is final. `minute`: at which the hours of both sides begin, by the bill's clock.
    """

    _billed_max = 1.0  # An hour that is billed twice is no sign of a shift.
    _go_on_min = 0.0  # Hours that one of two must lack so that they are of one stretch.

    def __init__(
        self, theirs: Billed, charges: Sequence[Charge], ours: Hours, last: int | None, minute: int = 0
    ) -> None:
        self.last, self.minute = last, minute
        self._theirs, self._charges = theirs, charges
        self.has_full_hours_only = all(used == round(used) for machine in theirs.values() for used in machine.values())
        self._by_minutes: dict[int, Hours] = {0: ours}
        self._known: dict[int, tuple[list[float], int]] = {}

    def ours(self, minutes: int) -> Hours:
        """By the hours of a clock that is ahead by these minutes of an hour."""
        if minutes not in self._by_minutes:
            self._by_minutes[minutes] = metered_hours(self._charges, minutes * NS_PER_MINUTE)
        return self._by_minutes[minutes]

    def off(self, shift: int) -> list[float]:
        """The hours of each machine that do not fit, but for those after the bill."""
        return self._measured(shift)[0]

    def assumed(self, shift: int) -> int:
        """How much has to be assumed, so that the rest fits."""
        return self._measured(shift)[1]

    def total(self, shift: int) -> float:
        return sum(self.off(shift))

    def best(self, shifts: Sequence[int]) -> int:
        return min(shifts, key=lambda shift: (self.total(shift), abs(shift)))

    def fits_no_worse(self, shift: int) -> bool:
        """Whether each machine does."""
        return all(moved <= before + TIE for moved, before in zip(self.off(shift), self.off(0), strict=True))

    def gained(self, shift: int) -> float:
        """By how many hours it fits better, or would if the bill were final."""
        final = [sum(self._misfit(theirs, own, None) for theirs, own in self._pairs(at)) for at in (0, shift)]
        return max(self.total(0) - self.total(shift), final[0] - final[1])

    def begins_alike(self, shift: int) -> bool:
        """Whether each machine's first hour is the same one on both sides."""
        return all(min(theirs, default=0) == min(own, default=0) for theirs, own in self._pairs(shift))

    def off_moved(self, moved: Billed, minutes: int, later: int) -> list[float]:
        """The same of a bill that is moved to our time, at its end by so many hours, but for these minutes."""
        last = None if self.last is None else self.last - later
        hours, rest = divmod(minutes - self.minute, 60)
        own = self.ours(rest)
        return [self._misfit(moved[name], _in_hours(own[name], hours), last) for name in self._theirs]

    def _measured(self, shift: int) -> tuple[list[float], int]:
        if shift not in self._known:
            by_clock = not self.minute or (shift - self.minute) % 60 == 0
            found = [self._compared(theirs, own, by_clock=by_clock) for theirs, own in self._pairs(shift)]
            stretches, is_late = sum(count for _, count, _ in found), any(late for _, _, late in found)
            assumed = _SHIFT * bool(shift) + _STRETCH * stretches + TAIL * is_late
            self._known[shift] = [off for off, _, _ in found], assumed
        return self._known[shift]

    def _compared(self, theirs: Used, own: Used, *, by_clock: bool) -> tuple[float, int, bool]:
        """Of one machine: the hours that do not fit, in how many stretches, and whether some are not billed yet."""
        # Hours that begin at no clock's full hour begin with the machine.
        is_rounded_up = self.has_full_hours_only and (by_clock or own.get(min(own, default=0), 0.0) > 1 - TIE)
        off, stretches, is_late = 0.0, 0, False
        before, size = None, 0.0
        for at, less, late in self._differences(theirs, own, self.last):
            off += abs(less)
            if -1 < less < 0 < own.get(at, 0.0) and is_rounded_up and not (at - 1 in own and at + 1 in own):
                continue  # A begun hour, rounded up.
            is_late |= late > _ROUNDED_HOURS
            if abs(less) > _ROUNDED_HOURS:
                goes_on = before == at - 1 and less * size > 0 and max(abs(less), abs(size)) > self._go_on_min
                stretches += not goes_on
                before, size = at, less
        return off, stretches, is_late

    def _misfit(self, theirs: Used, own: Used, last: int | None) -> float:
        return sum(abs(less) for _, less, _ in self._differences(theirs, own, last))

    def _differences(self, theirs: Used, own: Used, last: int | None) -> Iterator[tuple[int, float, float]]:
        """In order: the hour, by how much ours is more, and what of ours is not billed yet."""
        for at in sorted(own.keys() | theirs.keys()):
            less = own.get(at, 0.0) - min(theirs.get(at, 0.0), self._billed_max)
            is_late = last is not None and at >= last and less > 0
            yield at, 0.0 if is_late else less, less if is_late else 0.0

    def _pairs(self, shift: int) -> Iterator[tuple[Used, Used]]:
        """Of each machine, both by the bill's clock."""
        hours, minutes = divmod(shift - self.minute, 60)
        for name, theirs in self._theirs.items():
            yield theirs, _in_hours(self.ours(minutes)[name], hours)


class DayFits(Fits):
    """By days from midnight to midnight."""

    _billed_max = 26.0
    _go_on_min = 23.5

    def _pairs(self, shift: int) -> Iterator[tuple[Used, Used]]:
        for theirs, own in super()._pairs(shift):
            days: dict[int, float] = {}
            for hour, spent in own.items():
                days[hour // 24] = days.get(hour // 24, 0.0) + spent
            yield theirs, days


def _in_hours(own: Mapping[int, int], later: int = 0) -> Used:
    return {at + later: spent / NS_PER_HOUR for at, spent in own.items()}
