"""Wall time as calendar and as text: UTC, in integers. The core has no clock, so it has no datetime either."""

from __future__ import annotations

import re
from typing import Final

from governor.core.base.units import NS_PER_HOUR, NS_PER_MINUTE, NS_PER_S, WallNs

NS_PER_DAY: Final = 24 * NS_PER_HOUR
DAYS_TO_1970: Final = 719_468  # From 0000-03-01, where the reckoning below begins its 400-year eras.
DAYS_PER_ERA: Final = 146_097

_UTC = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9})\d*)?)?)?\s?(?:Z|UTC|\+00:00|\+0000)?"
)


def day_number(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01, in the Gregorian calendar (H. Hinnant's days_from_civil)."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * DAYS_PER_ERA + of_era * 365 + of_era // 4 - of_era // 100 + of_year - DAYS_TO_1970


def civil_of(number: int) -> tuple[int, int, int]:
    """Year, month and day of a day number: the inverse of `day_number`."""
    era, of_era = divmod(number + DAYS_TO_1970, DAYS_PER_ERA)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day


def date_text(wall: int) -> str:
    """ "2026-11-21": the day that this instant lies in."""
    year, month, day = civil_of(wall // NS_PER_DAY)
    return f"{year:04}-{month:02}-{day:02}"


def utc_text(wall: int) -> str:
    """ "2026-11-21T20:09:14Z": whole seconds, rounded down."""
    seconds = wall % NS_PER_DAY // NS_PER_S
    return f"{date_text(wall)}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"


def parse_utc(text: str) -> WallNs:
    """Read a date, or a date and time, that is in UTC or names no zone. ValueError says what is accepted."""
    match = _UTC.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'"{text}" is not a UTC date; write for example "2026-11-21" or "2026-11-21T20:00:00Z"')
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    number = day_number(year, month, day)
    if civil_of(number) != (year, month, day) or hour > 23 or minute > 59 or second > 59:
        raise ValueError(f'"{text}" is not a date of the calendar')
    fraction = int((match.group(7) or "0").ljust(9, "0"))
    return WallNs(number * NS_PER_DAY + hour * NS_PER_HOUR + minute * NS_PER_MINUTE + second * NS_PER_S + fraction)


def hour_of(wall: int) -> tuple[int, int]:
    """Start and end of the hour that this instant lies in; likewise below."""
    start = wall - wall % NS_PER_HOUR
    return start, start + NS_PER_HOUR


def day_of(wall: int) -> tuple[int, int]:
    start = wall - wall % NS_PER_DAY
    return start, start + NS_PER_DAY


def month_of(wall: int) -> tuple[int, int]:
    year, month, _ = civil_of(wall // NS_PER_DAY)
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return day_number(year, month, 1) * NS_PER_DAY, day_number(*following, 1) * NS_PER_DAY
