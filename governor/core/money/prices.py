"""The price that the machine's time is charged at: the amount, its source, its date, and which sources disagree.

Prices are of the whole machine, in micro-dollars per hour. An unknown price is `Chosen.quote is None`. It is never 0,
and nothing here prevents a halt. Days are counted from 1970-01-01 in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NewType

from governor.core.base.units import (
    MICROS_PER_USD,
    NS_PER_DAY,
    UsdMicros,
    WallNs,
    civil_of,
    date_text,
    day_number,
    format_usd,
)
from governor.core.money.charges import Line, LineKind, Unit

Day = NewType("Day", int)

# GPU list prices changed by a third and more within a year: AWS's p5 by -44 % in June 2025, Lambda's 8 x H100 by +33 %
# between two catalogues of 2025 and 2026. The limit is half a year.
STALE_AFTER_DAYS: Final = 180
# For a price per GPU that was rounded to cents and multiplied by eight: $1.29 is exact to 0.4 %.
TOLERANCE_PERCENT: Final = 1
TOLERANCE_USD_MICROS: Final = MICROS_PER_USD // 100  # A cent, where that is more than the percentage.
PRICE_USD_MICROS_MAX: Final = 10**6 * MICROS_PER_USD  # More than a million dollars an hour is a mistake in the unit.
# The most in one machine. A price that is too low by up to this factor may be the price of one GPU.
GPUS_MAX: Final = 16
# A machine's price moves by less at once: a spot price is at least a tenth of the on-demand one and at most that, and
# the price of one GPU in place of the machine's is GPUS_MAX times too low.
TIMES_AT_ONCE_MAX: Final = GPUS_MAX

_DATE: Final = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2}))?)?|([0-9]{4})-([0-9]{4})")


class PriceKind(Enum):
    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"
    # The internal charge for a machine that is not rented.
    INTERNAL = "internal"


class Origin(Enum):
    """The source of a price, in the order of trust."""

    MACHINE = "provider"  # The provider's answer for this very machine.
    CONFIG = "config"  # The user: costgov.toml or the command line.
    LIST = "list"  # The provider's public price list, read now.
    TABLE = "table"  # The table shipped with this program.
    # The price of the previous governor in this boot. Used while no source answers.
    LEFT = "journal"


_RANK: Final = {origin: rank for rank, origin in enumerate(Origin)}


@dataclass(frozen=True, slots=True)
class Quote:
    """One source's price. `as_of` is in the source's own form: "2026-11-21", "2025-06", "2025", "2025-2026"."""

    usd_micros_per_hour: UsdMicros
    source: str  # "EC2 spot price history", "costgov.toml".
    as_of: str
    kind: PriceKind
    basis: str  # What the price is for: "p5.48xlarge in us-east-1a".
    origin: Origin
    gpus: int | None = None  # Of the priced machine.
    since: WallNs | None = None  # When the price came into force, if the source states it.

    def __post_init__(self) -> None:
        span_of(self.as_of)  # Raises ValueError: dates are checked when they are read.

    @property
    def text(self) -> str:
        return f"{format_usd(self.usd_micros_per_hour)}/h ({self.source}, {self.as_of})"


@dataclass(frozen=True, slots=True)
class Machine:
    """What is priced, as far as known. `gpu` may be NVML's name."""

    provider: str  # "AWS", "Lambda": as in the built-in table, in any case.
    instance: str | None = None  # The provider's name of the type.
    gpu: str | None = None
    gpus: int | None = None
    kind: PriceKind | None = None  # None: unknown, and taken for on-demand.
    region: str | None = None

    @property
    def text(self) -> str:
        gpu = f"{self.gpus or '?'} x {self.gpu}" if self.gpu else "machine of unknown type"
        return f"{self.provider} {self.instance or gpu}" + (f" {self.kind.value}" if self.kind is not None else "")


@dataclass(frozen=True, slots=True)
class PriceAnswer:
    """A provider's answer about the machine's price. No quote and no problem: there was nothing to ask."""

    quote: Quote | None = None
    problem: str = ""  # One line, never with secrets: why there is no quote, and what to do.
    # This machine as the provider describes it. The built-in table is asked for its price.
    machine: Machine | None = None


class RemarkKind(Enum):
    """Why a person should know. The value is the alarm's name."""

    UNKNOWN = "price_unknown"
    STALE = "price_stale"
    CONTRADICTION = "price_contradiction"
    REFUSED = "price_refused"
    DOUBTED = "price_doubted"  # It is too far from all that was known: it counts once it is said again.
    UNANSWERED = "price_unanswered"  # A source that should know the price did not answer.
    # A list has another price than the user, who may have a better contract.
    LISTED = "price_listed"
    ASSUMED = "price_assumed"
    UNLISTED = "price_unlisted"


# Remarks that are shown without an alarm.
NOTES: Final = frozenset({RemarkKind.LISTED, RemarkKind.ASSUMED, RemarkKind.UNLISTED})


@dataclass(frozen=True, slots=True)
class Remark:
    kind: RemarkKind
    text: str  # One line.
    advice: str = ""
    quotes: tuple[Quote, ...] = ()  # The quotes concerned, the most trusted first.

    @property
    def is_alarm(self) -> bool:
        return self.kind not in NOTES

    @property
    def line(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


@dataclass(frozen=True, slots=True)
class Chosen:
    """The price in force, or None, and all remarks about it."""

    quote: Quote | None
    age_days: int | None  # Since the first day that `as_of` can mean; 0 for today.
    is_stale: bool
    remarks: tuple[Remark, ...]

    @property
    def usd_micros_per_hour(self) -> UsdMicros | None:
        return self.quote.usd_micros_per_hour if self.quote is not None else None

    @property
    def alarms(self) -> tuple[Remark, ...]:
        return tuple(remark for remark in self.remarks if remark.is_alarm)

    @property
    def text(self) -> str:
        """For people: price, kind, source, date, and what it is for."""
        if self.quote is None:
            return "unknown"
        quote, age = self.quote, ""
        if self.age_days:
            age = f", {self.age_days} day{'s' if self.age_days != 1 else ''} ago"
        basis = f": {quote.basis}" if quote.basis else ""
        price = f"{format_usd(quote.usd_micros_per_hour)}/h {quote.kind.value}"
        return f"{price} ({quote.source}, as of {quote.as_of}{age}){basis}"

    def line(self, name: str) -> Line | None:
        """The compute line that charges are made of; None while the price is unknown."""
        if self.quote is None:
            return None
        quote = self.quote
        price = quote.usd_micros_per_hour
        return Line(LineKind.COMPUTE, name, Unit.HOUR, price, quote.source, quote.as_of, quote.kind.value)

    def document(self) -> dict[str, Any]:
        """For programs: plain JSON."""
        return {
            "price": quote_document(self.quote) if self.quote is not None else None,
            "age_days": self.age_days,
            "stale": self.is_stale,
            "remarks": [
                {
                    "name": remark.kind.value,
                    "alarm": remark.is_alarm,
                    "text": remark.text,
                    "advice": remark.advice,
                    "prices": [quote_document(quote) for quote in remark.quotes],
                }
                for remark in self.remarks
            ],
        }


def quote_document(quote: Quote) -> dict[str, Any]:
    return {
        "usd_per_hour": quote.usd_micros_per_hour / MICROS_PER_USD,
        "usd_micros_per_hour": quote.usd_micros_per_hour,
        "source": quote.source,
        "as_of": quote.as_of,
        "kind": quote.kind.value,
        "basis": quote.basis,
        "origin": quote.origin.value,
    }


def choose(
    answers: Iterable[Quote],
    config: Quote | None,
    table: Quote | None,
    today: Day,
    *,
    left: Quote | None = None,
    in_force: Quote | None = None,
    said: int | None = None,
    stale_after_days: int = STALE_AFTER_DAYS,
    remarks: Iterable[Remark] = (),
) -> Chosen:
    """Choose the first usable price in the order of `Origin`; among equals the first given.

    `answers` are the provider's (MACHINE or LIST). `left` is used when no other is usable, and contradicts none.
    `remarks` come from the look-ups; they come first. `in_force`: what the provider said before. An answer that is far
    from that and from the user's price is doubted, and the others count; unless it was `said` before, in micro-dollars.
    Its first answer is never doubted: whoever typed a price too low would else pass his own limits.
    """
    given = [*answers, *(quote for quote in (config, table) if quote is not None)]
    told = [*remarks, *(remark for quote in given if (remark := _refusal(quote)) is not None)]
    usable = sorted((quote for quote in given if _refusal(quote) is None), key=lambda quote: _RANK[quote.origin])
    known = [quote for quote in (in_force, config) if quote is not None and _refusal(quote) is None] if in_force else []
    while usable and (doubt := _doubt(usable[0], known, said)) is not None:
        told.append(doubt)
        usable = usable[1:] or known[:1]
    if not usable and left is not None and _refusal(left) is None:
        usable = [left]
    if not usable:
        text = "the price of this machine is unknown: what it costs is not metered, and no ceiling can be held to"
        advice = "set node.price_usd_per_hour in costgov.toml, or pass --price"
        told.append(Remark(RemarkKind.UNKNOWN, text, advice))
        return Chosen(None, None, is_stale=False, remarks=tuple(told))
    best, *others = usable
    age_days, staleness = _age(best, today, stale_after_days)
    told += [] if staleness is None else [staleness]
    told += [remark for other in others if (remark := _disagreement(best, other)) is not None]
    return Chosen(best, age_days, is_stale=staleness is not None, remarks=tuple(told))


def _doubt(best: Quote, known: list[Quote], said: int | None) -> Remark | None:
    """Why a provider's answer does not count yet. None: it does, or nothing is known to compare it with."""
    price = best.usd_micros_per_hour
    is_new = best.origin in (Origin.MACHINE, Origin.LIST) and (said is None or not agree(price, said))
    if not (is_new and known) or not all(_is_far(price, quote.usd_micros_per_hour) for quote in known):
        return None
    text = (
        f"{best.text} differs from {known[0].text} more than {TIMES_AT_ONCE_MAX} times, as no price moves at once: it "
        "counts once it is said again, and the latter until then"
    )
    return Remark(RemarkKind.DOUBTED, text, quotes=(best, *known))


def _is_far(one: int, other: int) -> bool:
    return max(one, other) > TIMES_AT_ONCE_MAX * min(one, other) and not agree(one, other)


def _refusal(quote: Quote) -> Remark | None:
    price = quote.usd_micros_per_hour
    if 0 < price <= PRICE_USD_MICROS_MAX:
        return None
    why = "no machine is free" if price <= 0 else "no machine costs that much"
    text = f"{quote.source} ({quote.as_of}) has a price of {format_usd(price)}/h: not used, {why}"
    return Remark(RemarkKind.REFUSED, text, "correct it, or state node.price_usd_per_hour", (quote,))


def _age(quote: Quote, today: Day, stale_after_days: int) -> tuple[int, Remark | None]:
    if span_of(quote.as_of)[0] > today:
        text = f"the price of {quote.text} is of a day that has not come"
        return 0, Remark(RemarkKind.STALE, text, "correct its date or this machine's clock", (quote,))
    age_days = age_of(quote.as_of, today)
    if age_days <= stale_after_days:
        return age_days, None
    text = f"the price of {quote.text} is {age_days} days old: prices have changed by a third within a year"
    return age_days, Remark(RemarkKind.STALE, text, "state today's in node.price_usd_per_hour", (quote,))


def _disagreement(best: Quote, other: Quote) -> Remark | None:
    if agree(best.usd_micros_per_hour, other.usd_micros_per_hour):
        return None
    text = f"{best.text} counts, but {other.text} says otherwise"
    if other.origin in (Origin.LIST, Origin.TABLE):
        advice = "check node.price_usd_per_hour" if best.origin is Origin.CONFIG else ""
        gpus = _looks_like_one_of(best, other) if best.origin is Origin.CONFIG else None
        if gpus is not None:
            advice = f"is the former the price of one of {gpus} GPUs? It must be that of the whole machine"
        # Prices of different kinds do not contradict each other, and a list price is not this customer's price.
        return Remark(RemarkKind.LISTED, text, advice, (best, other)) if best.kind is other.kind or gpus else None
    advice = "correct node.price_usd_per_hour or remove it" if other.origin is Origin.CONFIG else ""
    if advice and _is_far(best.usd_micros_per_hour, other.usd_micros_per_hour):
        advice = 'one of the two is no price of this machine: if yours is right, set price.source = "none"'
    return Remark(RemarkKind.CONTRADICTION, text, advice, (best, other))


def _looks_like_one_of(stated: Quote, listed: Quote) -> int | None:
    """The number of GPUs that turns the stated price into the listed one, if there is one."""
    gpus = listed.gpus
    if gpus is None or not 1 < gpus <= GPUS_MAX:
        return None
    return gpus if agree(stated.usd_micros_per_hour * gpus, listed.usd_micros_per_hour) else None


def agree(one: int, other: int) -> bool:
    """Whether two prices are equal except for rounding."""
    return abs(one - other) <= max(TOLERANCE_USD_MICROS, max(one, other) * TOLERANCE_PERCENT // 100)


def span_of(as_of: str) -> tuple[Day, Day]:
    """First and last day that a source's date can mean. ValueError when it is not one of the forms above."""
    match = _DATE.fullmatch(as_of)
    if match is None:
        raise ValueError(f'"{as_of}" is not a date; write for example 2026-11-21, 2026-11, 2026 or 2025-2026')
    year, month, day, from_year, to_year = (int(part) if part else None for part in match.groups())
    if from_year is not None and to_year is not None:
        if from_year > to_year:
            raise ValueError(f'"{as_of}" ends before it begins')
        return _day(from_year, 1, 1), _day(to_year, 12, 31)
    assert year is not None, "the pattern has a year in each branch"
    if month is None:
        return _day(year, 1, 1), _day(year, 12, 31)
    first = _day(year, month, 1 if day is None else day)
    if civil_of(first) != (year, month, 1 if day is None else day):
        raise ValueError(f'"{as_of}" is not a day of the calendar')
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return first, first if day is not None else Day(_day(*following, 1) - 1)


def _day(year: int, month: int, day: int) -> Day:
    return Day(day_number(year, month, day))


def age_of(as_of: str, today: Day) -> int:
    """Days since the first day that the date can mean: "2025-2026" may have been read on 2025-01-01, and is as old."""
    return max(0, today - span_of(as_of)[0])


def day_text(day: Day) -> str:
    """The day as ISO 8601, the form of `Quote.as_of`."""
    return date_text(day * NS_PER_DAY)
