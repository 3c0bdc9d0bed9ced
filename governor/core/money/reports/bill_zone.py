"""The clock of a bill: by how much its times lie later than the ledger's, as those in local time do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from governor.core.base.units import NS_PER_DAY, NS_PER_HOUR, NS_PER_MINUTE, civil_of
from governor.core.money.charges import Charge, LineKind
from governor.core.money.reports.bill import Bill, BillKind, BillLine
from governor.core.money.reports.bill_fits import SHIFTED_HOURS_MIN, TAIL, TIE, Billed, DayFits, Fits
from governor.core.money.reports.bill_reading import hourly_prices, metered_hours

# Sundays of a month on which clocks change, in Europe, America, Australia or New Zealand. -1: the last one.
_CHANGE_WEEKS: Final[Mapping[int, tuple[int, ...]]] = {3: (2, -1), 4: (1,), 9: (-1,), 10: (1, -1), 11: (1,)}
# Hours that are billed of an hour that is there twice: both were used in part at least.
_TWICE_MIN: Final = 1.5
_BETTER_MIN: Final = 0.5
# Zones of the world lie within 14 hours of UTC.
SHIFT_HOURS_MAX: Final = 14
# The zones that lie no whole hours off, in minutes, some of them in summer alone: from the Marquesas to the Chathams.
PART_HOUR_ZONES: Final = (-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765, 825)


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


@dataclass(frozen=True, slots=True)
class Zone:
    """How a bill's times lie beside ours.

    `shift`: what it is best compared with; None: as it stands. `others`: the shifts with which it fits as well, so that
    nobody can tell. Shift(0): as it stands.
    """

    shift: Shift | None = None
    others: tuple[Shift, ...] = ()


def zone_of(bill: Bill, charges: Sequence[Charge]) -> Zone:
    """How the bill lies beside the ledger. `bill`: as read_as_ours() returns it.

    It is a shift if all machines fit better with it, and less has to be assumed: an outage may be longer than any
    shift. Hours of ours after the last one that is billed are no sign: the bill may not be final.
    """
    ours, prices = metered_hours(charges), hourly_prices(charges)
    lines = [line for line in bill.lines if line.kind is BillKind.COMPUTE and line.resource in ours]
    longest = max((line.to_wall - line.from_wall for line in lines), default=0)
    if longest > NS_PER_HOUR:
        days = _billed_days(lines, prices)
        return _zone(DayFits(days, charges, ours, _last(bill, NS_PER_DAY)), 0) if days else Zone()
    minute = _begin_alike(lines)
    theirs = _billed_hours(lines, prices, minute)
    if not theirs:
        return Zone()
    fits = Fits(theirs, charges, ours, _last(bill, NS_PER_HOUR, minute), minute)
    for as_known in (Fits(theirs, charges, ours, None, minute), fits):
        changed = _changed(bill, theirs, as_known, prices)
        if changed is not None:
            return Zone(changed)
    return _zone(fits, minute)


def _changed(bill: Bill, theirs: Billed, fits: Fits, prices: Mapping[str, Fraction]) -> Shift | None:
    """The shift over a change of clocks, where with a constant one hours are missing, or billed twice."""
    whole, part = fits.best(_shifts()), fits.best(PART_HOUR_ZONES)
    if fits.last is None and min(fits.total(whole), fits.total(part)) < 1:
        return None
    # Of a bill that is not final a change is less clear: in local time it is beside a shift that is clear without it.
    bests = (whole, part) if fits.last is None or whole else ()
    changes = [found for best in bests if (found := _change_of(bill, theirs, fits, best, prices))]
    return min(changes, key=lambda found: found[1])[0] if changes else None


def _last(bill: Bill, length: int, minute: int = 0) -> int:
    """The last hour or day that is billed of any machine, where hours begin at this minute."""
    ends = [line.to_wall for line in bill.lines if line.kind is BillKind.COMPUTE]
    ends += [span.until for span in bill.spans if span.kind is LineKind.COMPUTE]
    return (max(ends) - 1 - minute * NS_PER_MINUTE) // length


def _begin_alike(lines: Sequence[BillLine]) -> int:
    """The minute of the hour at which most rows begin: of our full hours in another zone it is that zone's."""
    begins = Counter(line.from_wall % NS_PER_HOUR // NS_PER_MINUTE for line in lines)
    [(minute, most)] = begins.most_common(1) or [(0, 0)]
    return minute if 2 * most > len(lines) else 0


def _as_shift(minutes: int) -> Shift:
    hours, rest = divmod(minutes, 60)
    return Shift(hours, minutes=rest)


def _zone(fits: Fits, minute: int) -> Zone:
    """`minute`: at which most rows begin."""

    def by_hours(shift: int) -> tuple[float, bool, bool, int]:
        return round(fits.total(shift), 3), bool(minute and shift % 60 != minute), bool(shift % 60), abs(shift)

    def by_assumptions(shift: int) -> tuple[int, tuple[float, bool, bool, int]]:
        return fits.assumed(shift), by_hours(shift)

    # In a zone of half hours full hours have a part at an edge, or begin at its minute.
    parts = [shift for shift in PART_HOUR_ZONES if shift % 60 == minute or not fits.has_full_hours_only]
    shifts = [shift for shift in (*_shifts(), *parts) if fits.fits_no_worse(shift)]
    best = min(shifts, key=by_assumptions)
    # Of a shift by another part of an hour only that part would be told.
    near = [shift for shift in shifts if shift == 0 or shift % 60 == best % 60]
    # Beside a shift the bill as it stands is told even where it needs a little more, and beside that a shift.
    most = fits.assumed(best)
    others = [shift for shift in near if fits.assumed(shift) <= most + (TAIL if 0 in (shift, best) else 0)]
    # Nobody can tell either where more has to be assumed with an equal begin, but no more hours do not fit.
    alike = [shift for shift in shifts if fits.begins_alike(shift)]
    others += sorted((shift for shift in alike if fits.total(shift) <= fits.total(best) + TIE), key=by_hours)[:1]
    others = sorted({*others} - {best}, key=abs)
    if best and fits.gained(best) < SHIFTED_HOURS_MIN:
        best, others = 0, [best, *(shift for shift in others if shift)]
    return Zone(_as_shift(best) if best else None, tuple(map(_as_shift, others)))


def _billed_days(lines: Iterable[BillLine], prices: Mapping[str, Fraction]) -> Billed:
    """Of a bill by the day, from midnight to midnight. Of another one nothing."""
    theirs: dict[str, dict[int, float]] = {}
    for line in lines:
        if line.from_wall % NS_PER_DAY or line.to_wall - line.from_wall != NS_PER_DAY:
            return {}
        days = theirs.setdefault(line.resource, {})
        at = line.from_wall // NS_PER_DAY
        days[at] = days.get(at, 0.0) + _hours_of(line, prices)
    return theirs


def _change_of(
    bill: Bill, theirs: Billed, fits: Fits, best: int, prices: Mapping[str, Fraction]
) -> tuple[Shift, float] | None:
    """The shift of a bill in local time over a change of clocks: an hour is there twice, or one within is missing.

    And what does not fit with it.

    With it all machines fit as well as without any, and together at least half an hour better than by a constant one.
    """
    hours = [hour for machine in theirs.values() for hour in machine]
    of_best, minutes = divmod(best, 60)
    for changes_at in _clock_changes(min(hours), max(hours)):
        is_twice = any(machine.get(changes_at - 1, 0.0) > _TWICE_MIN for machine in theirs.values())
        is_gap = not is_twice and all(changes_at not in machine for machine in theirs.values())
        for before in (of_best - 1, of_best, of_best + 1) if is_twice or is_gap else ():
            shift = Shift(before, changes_at, before + (1 if is_gap else -1))
            # A bill in UTC has double and missing hours of its own. Beside it is London's time, at its own hour alone.
            if 0 in (before, shift.then) and (before + shift.then != 1 or changes_at % 24 != 2 - shift.then):
                continue
            lines = (line for line in shift.taken_off(bill).lines if line.resource in theirs)
            moved = _billed_hours(lines, prices, fits.minute)
            found = fits.off_moved(moved, minutes, shift.then)
            better = all(after <= now + TIE for after, now in zip(found, fits.off(0), strict=True))
            # Of a bill that is not final the hour that is there twice is the only sign.
            margin = TIE if is_twice and fits.last is not None and 0 not in (before, shift.then) else -_BETTER_MIN
            if better and sum(found) < fits.total(best) + margin:
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


def _billed_hours(
    lines: Iterable[BillLine], prices: Mapping[str, Fraction], minute: int
) -> dict[str, dict[int, float]]:
    """Of each machine, by hours that begin at this minute of the clock: a part of one is within its own."""
    found: dict[str, dict[int, float]] = {}
    for line in lines:
        if line.kind is not BillKind.COMPUTE:
            continue
        machine = found.setdefault(line.resource, {})
        hours = _hours_of(line, prices)
        # A row that lies across two hours is no sign of a shift by whole ones.
        at, within = divmod(line.from_wall - minute * NS_PER_MINUTE, NS_PER_HOUR)
        after = within + line.to_wall - line.from_wall
        late = max(0, after - NS_PER_HOUR) / (line.to_wall - line.from_wall or 1)
        machine[at] = machine.get(at, 0.0) + hours * (1 - late)
        if late:
            machine[at + 1] = machine.get(at + 1, 0.0) + hours * late
    return found
