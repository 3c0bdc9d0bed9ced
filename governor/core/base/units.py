"""Quantities and their text forms. Time is integer nanoseconds, money integer micro-dollars."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NewType

MonoNs = NewType("MonoNs", int)  # A point on CLOCK_MONOTONIC: for decisions.
BootNs = NewType("BootNs", int)  # A point on CLOCK_BOOTTIME (counts suspend): for charges.
WallNs = NewType("WallNs", int)  # A point on CLOCK_REALTIME: for labels, never for decisions.
DurationNs = NewType("DurationNs", int)
UsdMicros = NewType("UsdMicros", int)

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
NS_PER_MINUTE: Final = 60 * NS_PER_S
NS_PER_HOUR: Final = 3_600 * NS_PER_S
# The loop's grid: conditions on time are judged at its multiples.
TICK_NS: Final = 250 * NS_PER_MS
MICROS_PER_USD: Final = 1_000_000
_READS_AS_A_DOLLAR: Final = 999_950  # With four digits it would read $1.0000.
_SHOWN_BY_FOUR_DIGITS: Final = 100
AMOUNT_CHARS_MAX: Final = 40  # A longer text is no amount, and is not repeated whole.
MTOK: Final = 1_000_000  # A million tokens: the unit of training prices.
# What a frame or a log says beyond these is no count. A training run ends at some 10^14 tokens; 2^53 is what every
# reader of JSON has exactly, and sums of a thousand of them are below the 2^63 of the journal.
COUNT_MAX: Final = 2**53
TOKENS_OF_A_STEP_MAX: Final = 2**40  # Global batches end at some 10^8.

_DURATION_UNITS_NS: Final = {
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": NS_PER_MINUTE,
    "min": NS_PER_MINUTE,
    "h": NS_PER_HOUR,
    "d": 24 * NS_PER_HOUR,
}
_COUNT_UNITS: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)", re.ASCII)
# With its number and its unit as groups. The schema of a policy has it too.
COUNT: Final = r"([0-9]{1,3}(?:_[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?)\s*([kKMBT]?)"
# The number is its only group. The schema of a policy has it too, so it is as regular as JavaScript's.
AMOUNT: Final = (
    r"(?:(?:US)?\$)?\s*([1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)"
    r"\s*(?:USD|\$)?"
)
# Signs and codes of the currencies that a price list of GPUs may be in.
_OTHER_MONEY = re.compile(
    r"[€£¥₹₩₽]|[CA]\$|(?<![A-Za-z])(EUR|EUROS?|GBP|CNY|RMB|JPY|INR|KRW|CHF|SEK|NOK|DKK|PLN|CAD|AUD|NZD|SGD|HKD|TWD|BRL|ILS|AED)"
    r"(?![A-Za-z])"
)
# 31 years. Added to a clock reading, it still fits into an integer of the journal.
_DURATION_BOUND_NS: Final = 10**18


def parse_duration(text: str) -> DurationNs:
    """Read "250ms", "90s", "10m", "1h30m", "2 h", "1d". ValueError says what is accepted."""
    compact = re.sub(r"\s", "", text)
    parts = list(_DURATION.finditer(compact))
    if not parts or compact != "".join(part.group(0) for part in parts):
        raise ValueError(f'"{text[:40]}" is not a duration; write for example "90s", "10m", "1h30m"')
    total_ns = sum(float(part.group(1)) * _DURATION_UNITS_NS[part.group(2)] for part in parts)
    if total_ns >= _DURATION_BOUND_NS:
        raise ValueError(f'"{text[:40]}" is not a duration: it is below 30 years')
    return DurationNs(round(total_ns))


def parse_count(text: str) -> int:
    """Read a count such as "20B", "1.5M", "51200", "51_200". ValueError says what is accepted."""
    match = re.fullmatch(COUNT, text.strip())
    if match is None:
        raise ValueError(f'"{text[:40]}" is not a count; write for example "20B", "1.5M", "51200"')
    count = float(match.group(1).replace("_", "")) * _COUNT_UNITS[match.group(2)]
    if count >= 1e18:  # More than an integer of the journal holds.
        raise ValueError(f'"{text[:40]}" is not a count: it is below 10^18')
    return round(count)


def read_float(text: str) -> float:
    """float(), but for underscores ("1_0" is a slip) and the digits of other scripts. ValueError for no number."""
    if "_" in text or not text.isascii():
        raise ValueError(f'"{text[:40]}" is not a number')
    return float(text)


def is_whole(text: str) -> bool:
    """Whether it is digits alone, of ASCII: int() and isdecimal() know those of every script."""
    return text.isascii() and text.isdecimal()


def usd(amount: float | int | str) -> UsdMicros:
    """Convert dollars to micro-dollars; text as `read_amount` reads it. ValueError when negative or not a number."""
    # Compared before the conversion: a config file may have an integer that no float can hold.
    if (isinstance(amount, int) and amount >= 10**12) or not 0 <= (value := _plain(amount)) < 1e12:
        text = str(amount)[:AMOUNT_CHARS_MAX]  # More than a trillion is a typo.
        raise ValueError(f'"{text}" {why_no_amount(text)}')
    return UsdMicros(round(value * MICROS_PER_USD))


def _plain(amount: float | int | str) -> float:
    return float(read_amount(amount)) if isinstance(amount, str) else float(amount)


def read_amount(text: str) -> str:
    """Read dollars as a person writes them: "22.50", "$1,000", "300 USD". Returns the plain number.

    A comma stands only between groups of three digits: in most of Europe "12,50" is $12.50. ValueError says in one
    line what to write.
    """
    plain = text.strip()
    found = re.fullmatch(AMOUNT, plain) if len(plain) <= AMOUNT_CHARS_MAX else None
    if found is None:
        raise ValueError(f'"{text[:AMOUNT_CHARS_MAX]}" {why_no_amount(plain[:AMOUNT_CHARS_MAX])}')
    return found[1].replace(",", "")


def names_other_money(text: str) -> bool:
    """Whether it has the sign or the code of a currency that is not the dollar: "Cost (EUR)"."""
    return _OTHER_MONEY.search(text.upper()) is not None


def why_no_amount(text: str) -> str:
    """What to write instead, in one line that goes on behind the text."""
    if _OTHER_MONEY.search(text):
        return "is in another currency; all amounts are US dollars"
    if "," in text:
        return "is not an amount in dollars; write 12.50 with a point, and 1,250 with a comma before each three digits"
    if re.search(r"[0-9]\s*(\$|USD|dollars?)?\s*(/|(per|an?|each)\b|h(ou)?r?s?$)", text, re.IGNORECASE):
        return "is not an amount in dollars; leave the unit out, as in 22.50"
    if re.search(r"[0-9]\s*(¢|c|ct|cents?)$", text, re.IGNORECASE):
        return "is not an amount in dollars; write cents as 0.22"
    if re.search(r"[0-9]\s*(k|m|b|t|thousand|million|billion)\s*(\$|USD|dollars?)?$", text, re.IGNORECASE):
        return "is not an amount in dollars; write it out, as 10,000"
    if re.match(r"\(?-\s*\$?[0-9.]|\$\s*-", text):
        return "is not an amount in dollars; write it without a sign: none is below 0"
    return "is not an amount in dollars; write for example 300 or 22.50"


def is_spend_known(rate: float | None, spent: float) -> bool:
    """Whether what was spent is known, in whatever unit. Without a price nothing is metered: its 0 is unknown.

    Where a price was known before and is not now, what was spent by then is known.
    """
    return rate is not None or spent > 0


def format_usd(micros: int) -> str:
    """Return "$1,234.56", or more digits below a dollar: "$0.0421", "$0.000042". Only zero reads as zero."""
    sign, size = "-" if micros < 0 else "", abs(micros)
    digits = 2 if size >= _READS_AS_A_DOLLAR or not size else 4 if size >= _SHOWN_BY_FOUR_DIGITS else 6
    return f"{sign}${size / MICROS_PER_USD:,.{digits}f}"


def price_text(micros: int) -> str:
    """Return "$22.00", or as many digits as it has: "$21.999999". Two prices that differ read so."""
    cents = f"{micros // 10_000 / 100:,.2f}"
    return f"${cents}{micros % 10_000:04}".rstrip("0") if micros % 10_000 else f"${cents}"


def per_mtok_text(micros: int) -> str:
    """The price of a million tokens, to the micro-dollar: two of them may differ by less than a cent."""
    return f"${micros / MICROS_PER_USD:,.6f}"


def format_duration(duration_ns: int) -> str:
    """Return the two leading units: "1h 30m", "12.3s", "340ms"."""
    if duration_ns < NS_PER_S:
        return f"{duration_ns / NS_PER_MS:.0f}ms"
    if duration_ns < NS_PER_MINUTE:
        return f"{duration_ns / NS_PER_S:.1f}s"
    minutes, seconds = divmod(duration_ns // NS_PER_S, 60)
    if minutes < 60:
        return f"{minutes}m {seconds}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def accrue(usd_micros: int, quantity: int, carry: int, base_units: int = NS_PER_HOUR) -> tuple[int, int]:
    """Return the charge in micro-dollars and the carry (in micro-dollars times base units) for the next call.

    The price is per `base_units` of the quantity: by default per hour, in nanoseconds. Exact over any partition:
    without the carry, 10 Hz ticks lose 0.24 % of $2.49/h (measured).
    """
    assert usd_micros >= 0
    assert quantity >= 0
    assert 0 <= carry < base_units
    return divmod(usd_micros * quantity + carry, base_units)


# Wall time as calendar and as text: UTC, in integers. The core has no clock and no datetime.


NS_PER_DAY: Final = 24 * NS_PER_HOUR
# Days from 0000-03-01 to 1970-01-01. The 400-year eras below begin at the former.
DAYS_TO_1970: Final = 719_468
DAYS_PER_ERA: Final = 146_097

_UTC = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9})\d*)?)?)?\s?(?:Z|UTC|\+00:00|\+0000)?",
    re.ASCII,
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
    """ "2026-11-21": the day of this instant."""
    year, month, day = civil_of(wall // NS_PER_DAY)
    return f"{year:04}-{month:02}-{day:02}"


def utc_text(wall: int) -> str:
    """ "2026-11-21T20:09:14Z": whole seconds, rounded down."""
    seconds = wall % NS_PER_DAY // NS_PER_S
    return f"{date_text(wall)}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"


def utc_fine_text(wall: int) -> str:
    """ "2026-11-21T20:09:14.250000Z": micro-seconds, rounded down. Several steps end within one second."""
    return f"{utc_text(wall)[:-1]}.{wall % NS_PER_S // 1000:06}Z"


def parse_utc(text: str) -> WallNs:
    """Read a date, or a date and time, that is in UTC or names no zone. ValueError says what is accepted."""
    match = _UTC.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'"{text[:40]}" is not a UTC date; write for example "2026-11-21" or "2026-11-21T20:00:00Z"')
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    number = day_number(year, month, day)
    if civil_of(number) != (year, month, day) or hour > 23 or minute > 59 or second > 59:
        raise ValueError(f'"{text[:40]}" is not a date of the calendar')
    fraction = int((match.group(7) or "0").ljust(9, "0"))
    return WallNs(number * NS_PER_DAY + hour * NS_PER_HOUR + minute * NS_PER_MINUTE + second * NS_PER_S + fraction)


def hour_of(wall: int) -> tuple[int, int]:
    """Start and end of the hour of this instant; the functions below do the same for day and month."""
    start = wall - wall % NS_PER_HOUR
    return start, start + NS_PER_HOUR


def day_of(wall: int) -> tuple[int, int]:
    start = wall - wall % NS_PER_DAY
    return start, start + NS_PER_DAY


@lru_cache(maxsize=4_096)
def month_of(wall: int) -> tuple[int, int]:
    year, month, _ = civil_of(wall // NS_PER_DAY)
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return day_number(year, month, 1) * NS_PER_DAY, day_number(*following, 1) * NS_PER_DAY
