"""The clock of a bill: by how much its times lie later than the ledger's, as those in local time do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, NS_PER_MINUTE, civil_of
from governor.core.money.charges import Charge
from governor.core.money.reports.bill import Bill, BillKind, BillLine
from governor.core.money.reports.bill_reading import Hours, hourly_prices, metered_hours

# Sundays of a month on which clocks change, in Europe, America, Australia or New Zealand. -1: the last one.
_CHANGE_WEEKS: Final[Mapping[int, tuple[int, ...]]] = {3: (2, -1), 4: (1,), 9: (-1,), 10: (1, -1), 11: (1,)}
# Hours that are billed of an hour that is there twice: both were used in part at least.
_TWICE_MIN: Final = 1.5
_BETTER_MIN: Final = 0.5
# Zones of the world lie within 14 hours of UTC.
SHIFT_HOURS_MAX: Final = 14
# The zones that lie no whole hours off, in minutes, some of them in summer alone: from the Marquesas to the Chathams.
_PART_HOUR_ZONES: Final = (-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765, 825)
# A start and an end that lie elsewhere: less is no shift.
_SHIFTED_HOURS_MIN: Final = 2.0
# By so many hours a quarter of an hour more or less fits worse, at a start and an end together.
_PART_HOUR_MIN: Final = 0.25
# Hours of a day that are equal: bills print them with two digits.
_EQUAL_HOURS: Final = 0.02
# Less is none: sums of fractions of hours.
_TIE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Shift:
    """By how many hours and minutes the times of a bill lie later than the ledger's, as those in local time do.

    "-3:30" is -4 hours and 30 minutes.
    `changes_at`: where clocks change between its first row and its last, when that is, in the bill's own times (its
    hour 0 is 1970-01-01T00:00); from then on `then` hours.
    """

    hours: int
    changes_at: int | None = None
    then: int = 0
    minutes: int = 0

    def offset_ns(self, hours: int) -> int:
        return hours * NS_PER_HOUR + self.minutes * NS_PER_MINUTE

    @property
    def twice(self) -> int | None:
        """The hour that is there twice, where clocks go back."""
        return self.changes_at - 1 if self.changes_at is not None and self.then < self.hours else None

    def taken_off(self, bill: Bill) -> Bill:
        """The bill in the ledger's time. Of the rows of an hour that is there twice, the first half is of the first."""
        if self.changes_at is None:
            return bill.moved(-self.offset_ns(self.hours))
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
            lines.append(line.moved(-self.offset_ns(self.then if is_late else self.hours)))
        since, until = bill.since - self.offset_ns(self.hours), bill.until - self.offset_ns(self.then)
        return replace(bill, lines=tuple(lines), since=since, until=until)


def _series(line: BillLine) -> str:
    return f"{line.kind.value} {line.resource}"


Billed = Mapping[str, Mapping[int, float]]  # Of each machine: the full hour -> the hours that are billed of it.


class _Fits:
    """The hours of each machine that do not fit where the bill lies so many minutes later than the ledger."""

    def __init__(self, theirs: Billed, charges: Sequence[Charge], ours: Hours) -> None:
        self._theirs, self._charges = theirs, charges
        self._by_minutes: dict[int, Hours] = {0: ours}
        self._off: dict[int, list[float]] = {}

    def ours(self, minutes: int) -> Hours:
        """By the hours of a clock that is ahead by these minutes of an hour."""
        if minutes not in self._by_minutes:
            self._by_minutes[minutes] = metered_hours(self._charges, minutes * NS_PER_MINUTE)
        return self._by_minutes[minutes]

    def off(self, shift: int) -> list[float]:
        if shift not in self._off:
            hours, minutes = divmod(shift, 60)
            ours = self.ours(minutes)
            self._off[shift] = [_off(self._theirs[name], ours[name], hours) for name in self._theirs]
        return self._off[shift]

    def edges(self, shift: int) -> tuple[int, int]:
        """How many stretches begin and how many end in the same hours on both sides."""
        hours, minutes = divmod(shift, 60)
        begins = ends = 0
        for name, machine in self._theirs.items():
            own = self.ours(minutes)[name].keys()
            billed = {at - hours for at, used in machine.items() if used}
            begins += sum(at - 1 not in own and at - 1 not in billed for at in own & billed)
            ends += sum(at + 1 not in own and at + 1 not in billed for at in own & billed)
        return begins, ends

    def total(self, shift: int) -> float:
        return sum(self.off(shift))

    def best(self, shifts: Iterable[int]) -> int:
        return min(shifts, key=lambda shift: (self.total(shift), abs(shift)))


def shift_of(bill: Bill, charges: Sequence[Charge]) -> Shift | None:
    """By how much the bill lies later than the ledger; None where it does not. `bill`: as read_as_ours() returns it.

    It is a shift if all machines fit better with it, and what fits no longer is less than half of before, or more
    stretches begin and end alike: an outage may be longer than any shift.
    """
    ours, prices = metered_hours(charges), hourly_prices(charges)
    lines = [line for line in bill.lines if line.kind is BillKind.COMPUTE and line.resource in ours]
    longest = max((line.to_wall - line.from_wall for line in lines), default=0)
    if longest > NS_PER_HOUR:
        return _shift_of_days(lines, ours, prices, charges)
    theirs = _billed_hours(lines, prices)
    if not theirs:
        return None
    fits = _Fits(theirs, charges, ours)
    whole = fits.best(_shifts())
    if fits.total(whole) > _PART_HOUR_MIN:
        part = fits.best(_PART_HOUR_ZONES)
        bests = (whole, part) if min(fits.total(whole), fits.total(part)) >= 1 else ()
        changes = [found for best in bests if (found := _change_of(bill, theirs, fits, best, prices)) is not None]
        if changes:
            return min(changes, key=lambda found: found[1])[0]
        others = [*_shifts(), *(shift for shift in _PART_HOUR_ZONES if shift != part)]
        if of_zone := [shift for shift in _PART_HOUR_ZONES if shift % 60 == (_begin_alike(lines) or -1)]:
            alike = fits.best(of_zone)
            if fits.total(alike) <= min(fits.total(part), fits.total(whole)) + _TIE:
                part, others = alike, [shift for shift in of_zone if shift != alike] or [0]
        if _is_shift(fits, part, others, _PART_HOUR_MIN):
            return _as_shift(part)
    others = [shift for shift in _shifts() if shift != whole]
    return _as_shift(whole) if whole and _is_shift(fits, whole, others, _BETTER_MIN) else None


def _begin_alike(lines: Sequence[BillLine]) -> int:
    """The minute of the hour at which most rows begin: of our full hours in another zone it is that zone's."""
    begins = Counter(line.from_wall % NS_PER_HOUR // NS_PER_MINUTE for line in lines)
    [(minute, most)] = begins.most_common(1) or [(0, 0)]
    return minute if 2 * most > len(lines) else 0


def _as_shift(minutes: int) -> Shift:
    hours, rest = divmod(minutes, 60)
    return Shift(hours, minutes=rest)


def _is_shift(fits: _Fits, shift: int, others: Iterable[int], margin: float) -> bool:
    is_clear = fits.total(shift) < fits.total(fits.best(others)) - margin
    better = all(moved <= before for moved, before in zip(fits.off(shift), fits.off(0), strict=True))
    less = fits.total(0) - fits.total(shift)
    most = less >= fits.total(0) / 2 or _more_edges(fits, shift)
    return is_clear and better and less >= _SHIFTED_HOURS_MIN and most


def _more_edges(fits: _Fits, shift: int) -> bool:
    """Whether a stretch begins and one ends as ours do, where none did: beside an outage longer than the shift."""
    before, after = fits.edges(0), fits.edges(shift)
    return all(now > then for now, then in zip(after, before, strict=True))


def _shift_of_days(
    lines: Iterable[BillLine], ours: Hours, prices: Mapping[str, Fraction], charges: Sequence[Charge]
) -> Shift | None:
    """Of a bill by the day, from midnight to midnight."""
    theirs: dict[str, dict[int, float]] = {}
    for line in lines:
        if line.from_wall % NS_PER_DAY or line.to_wall - line.from_wall != NS_PER_DAY:
            return None
        days = theirs.setdefault(line.resource, {})
        at = line.from_wall // NS_PER_DAY
        days[at] = days.get(at, 0.0) + _hours_of(line, prices)
    fits = _DayFits(theirs, charges, ours)
    if fits.total(0) < _SHIFTED_HOURS_MIN:
        return None
    shifts = [*_shifts(), *_PART_HOUR_ZONES]
    best = fits.best(shifts)
    others = [shift for shift in shifts if shift != best]
    return _as_shift(best) if best and _is_shift(fits, best, others, _PART_HOUR_MIN) else None


class _DayFits(_Fits):
    def off(self, shift: int) -> list[float]:
        if shift not in self._off:
            found = []
            for name, days in self._theirs.items():
                own = self._own_days(name, shift)
                found.append(sum(abs(days.get(day, 0.0) - own.get(day, 0.0)) for day in own.keys() | days.keys()))
            self._off[shift] = found
        return self._off[shift]

    def edges(self, shift: int) -> tuple[int, int]:
        """How many days of a begin and how many of an end have equal hours on both sides."""
        begins = ends = 0
        for name, days in self._theirs.items():
            own = self._own_days(name, shift)
            for day, used in days.items():
                if abs(own.get(day, 0.0) - used) < _EQUAL_HOURS and 0 < used < 24:
                    begins += all(side.get(day - 1, 0.0) < used < side.get(day + 1, 0.0) for side in (own, days))
                    ends += all(side.get(day - 1, 0.0) > used > side.get(day + 1, 0.0) for side in (own, days))
        return begins, ends

    def _own_days(self, name: str, shift: int) -> Mapping[int, float]:
        hours, minutes = divmod(shift, 60)
        own: dict[int, float] = {}
        for hour, spent in self.ours(minutes)[name].items():
            day = (hour + hours) // 24
            own[day] = own.get(day, 0.0) + spent / NS_PER_HOUR
        return own


def _change_of(
    bill: Bill, theirs: Billed, fits: _Fits, best: int, prices: Mapping[str, Fraction]
) -> tuple[Shift, float] | None:
    """The shift of a bill in local time over a change of clocks: an hour is there twice, or one within is missing.

    And what does not fit with it.

    With it all machines fit as well as without any, and together at least half an hour better than by a constant one.
    """
    hours = [hour for machine in theirs.values() for hour in machine]
    of_best, minutes = divmod(best, 60)
    ours = fits.ours(minutes)
    for changes_at in _clock_changes(min(hours), max(hours)):
        is_twice = any(machine.get(changes_at - 1, 0.0) > _TWICE_MIN for machine in theirs.values())
        is_gap = not is_twice and all(changes_at not in machine for machine in theirs.values())
        for before in (of_best - 1, of_best, of_best + 1) if is_twice or is_gap else ():
            shift = Shift(before, changes_at, before + (1 if is_gap else -1))
            # A bill in UTC has double and missing hours of its own. Beside it is London's time, at its own hour alone.
            if 0 in (before, shift.then) and (before + shift.then != 1 or changes_at % 24 != 2 - shift.then):
                continue
            lines = (line for line in shift.taken_off(bill).lines if line.resource in theirs)
            moved = _billed_hours(lines, prices)
            found = [_off(moved[name], ours[name], 0) for name in theirs]
            better = all(after <= now for after, now in zip(found, fits.off(0), strict=True))
            if better and sum(found) < fits.total(best) - _BETTER_MIN:
                return replace(shift, minutes=minutes), sum(found)
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
    """By whole hours, in minutes."""
    return range(-60 * SHIFT_HOURS_MAX, 60 * SHIFT_HOURS_MAX + 1, 60)


def _hours_of(line: BillLine, prices: Mapping[str, Fraction]) -> float:
    """Where the bill has only amounts, those that the amount is for by our price."""
    if line.hours is not None:
        return float(line.hours)
    price = prices.get(line.resource)
    return float(line.usd / price) if price else 0.0


def _billed_hours(lines: Iterable[BillLine], prices: Mapping[str, Fraction]) -> dict[str, dict[int, float]]:
    """Of each machine, by the clock's hour."""
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        if line.kind is not BillKind.COMPUTE:
            continue
        machine = found.setdefault(line.resource, {})
        hours = _hours_of(line, prices)
        # A row that lies across two hours is no sign of a shift by whole ones.
        at, after = line.from_wall // NS_PER_HOUR, line.from_wall % NS_PER_HOUR + line.to_wall - line.from_wall
        late = max(0, after - NS_PER_HOUR) / (line.to_wall - line.from_wall or 1)
        machine[at] = machine.get(at, 0.0) + hours * (1 - late)
        if late:
            machine[at + 1] = machine.get(at + 1, 0.0) + hours * late
    return found


def _off(theirs: Mapping[int, float], ours: Mapping[int, int], shift: int) -> float:
    """The hours that do not fit. An hour that is billed twice is no sign of a shift."""
    hours = ours.keys() | {at - shift for at in theirs}
    return sum(abs(min(theirs.get(at + shift, 0.0), 1.0) - ours.get(at, 0) / NS_PER_HOUR) for at in hours)
