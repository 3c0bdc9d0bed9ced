"""Plain CSV bills, by a map of their columns: which one is the date, the amount, the hours, the resource."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice
from typing import Final

from governor.core.base.units import (
    NS_PER_DAY,
    NS_PER_HOUR,
    NS_PER_MS,
    NS_PER_S,
    day_of,
    is_whole,
    month_of,
    names_other_money,
    read_amount,
)
from governor.core.money.prices import GPUS_MAX
from governor.core.money.reports.bill import BillKind, BillLine, short_resource
from governor.wire.bill_forms import TimeUnit, gb_months_in, is_time_of_a_part, time_unit
from governor.wire.csv_table import CsvTable, Row, TableError, checked, half_unit, moment_of, number_of

PLAIN: Final = "plain"
CURRENCY: Final = "USD"
# What a map names: columns, or (unit, per and currency) a word.
FIELDS: Final = ("date", "amount", "hours", "resource", "end", "unit", "kind", "per", "currency")
_NEEDED: Final = ("date", "amount")
PERIODS: Final = ("hour", "day", "month")
# Rows that are read ahead: whether all begin at midnight or at a full hour says what they are about.
_AHEAD: Final = 1_000
# A row may bill an hour twice. One with more is about a longer time than its date says.
_CLOCKS_MAX: Final = 3
_HOURS: Final = TimeUnit(Fraction(1), of_a_gpu=False, is_assumed=True)
_MONTH_NS_MAX: Final = 31 * NS_PER_DAY
_DATE_ONLY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EPOCH: Final = re.compile(r"[0-9]{10}(?:\.[0-9]{1,9})?|[0-9]{13}")
_NEGATIVE: Final = re.compile(r"\(\s*(.+?)\s*\)|[-−]\s*(.+)|([^-].*?)\s*[-−]")


def _says(whole: str, part: str | None = None) -> re.Pattern[str]:
    """One of the `whole` words, as in "sales_tax" and not in "syntax", or one of those that may be a `part` of one."""
    own = rf"(?<![a-z0-9])(?:{whole})(?![a-z0-9])"
    return re.compile(own if part is None else f"{part}|{own}", re.IGNORECASE)


# Before compute: a tax or a disk is often named with the machine that it is of.
_WORDS: Final = (
    (_says("tax(?:es)?|vat|gst|hst|qst|mwst|tva|iva"), BillKind.TAX),
    (
        _says(
            "(?:block|object)[ _-]?store|gb[ _-]?months?|fs|nfs|efs|ebs|s3",
            "storage|disk|volume|file ?system|snapshot|backup|bucket",
        ),
        BillKind.STORAGE,
    ),
    (_says("data[ _-]out|nat", "egress|bandwidth|transfer|traffic|upload|download|outbound"), BillKind.EGRESS),
    (re.compile(r"gpu|instance|compute|\bvm\b|\bpod\b|node|machine|server", re.IGNORECASE), BillKind.COMPUTE),
)
# Columns that state the currency, unasked: "Currency", "billing_currency", "CurrencyCode".
_CURRENCY: Final = re.compile(r".*currency([ _-]?code)?", re.IGNORECASE)
_DOLLARS: Final = re.compile(r"USD|(US ?)?\$|(US )?DOLLARS?", re.IGNORECASE)
_LESS: Final = ((re.compile("refund|correction", re.IGNORECASE), BillKind.REFUND),
                (re.compile("discount", re.IGNORECASE), BillKind.DISCOUNT))  # fmt: skip


@dataclass(frozen=True, slots=True)
class BillMap:
    """`columns`: the field -> its column in the file, or the word itself for `unit`, `per` and `currency`."""

    name: str
    columns: Mapping[str, str]


# Field names as the providers' own references have them, for rows that were written to CSV with these names:
# docs.runpod.io/api-reference/billing/GET/billing/pods and docs.vast.ai/api-reference/billing/search-invoices, read
# 2026-11-23. Nebius exports FOCUS 1.2, which needs no map. CoreWeave's FOCUS export has no amounts, and no columns of
# an export of Lambda's are published.
READY: Final = (
    BillMap(
        "RunPod billing records",
        {"date": "time", "amount": "amount", "hours": "timeBilledMs", "resource": "podId", "unit": "ms"},
    ),
    BillMap(
        "Vast charges",
        {"date": "timestamp", "amount": "amount", "hours": "quantity", "resource": "instance_id",
         "kind": "description"},
    ),
)  # fmt: skip


def ready_map(columns: Sequence[str]) -> BillMap | None:
    """The shipped map whose columns are all there."""
    for known in READY:
        if all(name in columns for field, name in known.columns.items() if field not in ("unit", "per", "currency")):
            return known
    return None


def bill_map(pairs: Sequence[str]) -> BillMap:
    """Read "date=Day", "amount=Cost ($)". ValueError says what is wrong."""
    columns: dict[str, str] = {}
    for pair in pairs:
        field, equals, name = pair.partition("=")
        if not equals or not name or field not in FIELDS:
            raise ValueError(f'"{pair}" is not FIELD=COLUMN with one of {", ".join(FIELDS)}')
        if field in columns:
            raise ValueError(f"{field}= is there twice")
        columns[field] = name
    lacks = [field for field in _NEEDED if field not in columns]
    if lacks:
        raise ValueError(f"a map needs {' and '.join(f'{field}=COLUMN' for field in lacks)}")
    if columns.get("per", PERIODS[0]) not in PERIODS:
        raise ValueError(f"per={columns['per']} is none of {', '.join(PERIODS)}")
    return BillMap("plain CSV", columns)


def plain_lines(
    table: CsvTable, by: BillMap, wanted: Collection[str], machines: Collection[str] = ()
) -> Iterator[tuple[int, BillLine]]:
    """The rows as lines of a bill. Without a column of resources all are of the one that is wanted.

    `machines`: of the ledger. Where none is wanted its only one is.
    """
    names = {field: name for field, name in by.columns.items() if not _is_word(field, name, table)}
    for name in names.values():
        if name not in table.columns:
            text = f"there is no such column, which the map names; {table.columns_text()}"
            raise TableError(table.file, text, row=1, column=name)
    unit = _named_unit(table, by, names)
    names |= _currencies(table, by, names)
    lone = "" if "resource" in names else _lone(table, wanted or machines)
    kept = frozenset(map(short_resource, wanted)) if "resource" in names else frozenset()
    places = [(field, table.columns.index(name)) for field, name in names.items()]
    rows = (
        (number, Row(table.file, number, names, {field: cells[at].strip() for field, at in places}))
        for number, cells in table.lists()
    )
    rows = ((number, row) for number, row in rows if not kept or short_resource(row.cells["resource"]) in kept)
    ahead = list(islice(rows, _AHEAD))
    per = by.columns.get("per") or _period_of(row for _, row in ahead)
    for number, row in chain(ahead, rows):
        yield number, _line(row, unit, per, lone)


def _lone(table: CsvTable, machines: Collection[str]) -> str:
    if len(machines) > 1:
        text = f"no column says which of {len(machines)} machines its rows are of: say one by --resource, or a column"
        raise TableError(table.file, f"{text} by resource=", row=1)
    return next(iter(machines), "")


def _is_word(field: str, name: str, table: CsvTable) -> bool:
    if field == "currency":
        return name not in table.columns
    return field == "per" or (field == "unit" and (time_unit(name) is not None or name not in table.columns))


def _currencies(table: CsvTable, by: BillMap, names: Mapping[str, str]) -> dict[str, str]:
    """The columns that state a row's currency, unless the map says it. TableError: all rows are in another one."""
    said = by.columns.get("currency")
    if said is not None:
        if "currency" not in names and not _DOLLARS.fullmatch(said):
            raise TableError(table.file, f"currency={said} is neither a column nor {CURRENCY}, as the ledger is", row=1)
        return {}
    amount = names["amount"]
    if names_other_money(amount):
        text = (
            f"it names another currency, and the ledger is in {CURRENCY}; if its amounts are, say currency={CURRENCY}"
        )
        raise TableError(table.file, text, row=1, column=amount)
    found = [name for name in table.columns if _CURRENCY.fullmatch(name) and name not in names.values()]
    return {f"currency {place}": name for place, name in enumerate(found)}


def _check_currency(row: Row) -> None:
    """Refuse a row in another currency. Of a column that no map names, what has digits is an amount or a rate."""
    for field, text in row.cells.items():
        if not field.startswith("currency") or not text or _DOLLARS.fullmatch(text):
            continue
        if field == "currency" or not any(is_whole(char) for char in text):
            more = "" if field == "currency" else ", or say by currency=COLUMN what the amounts are in"
            raise row.error(
                field, f'"{row.said(field)}": the ledger is in {CURRENCY}; take the bill in that currency{more}'
            )


def _named_unit(table: CsvTable, by: BillMap, names: Mapping[str, str]) -> TimeUnit | None:
    """The unit of all rows; None where a column has it. Without one the column's own name says it, or it is hours."""
    if "unit" in names:
        return None
    if "unit" in by.columns:
        found = time_unit(by.columns["unit"])
        if found is None:
            text = f"unit={by.columns['unit']} is neither a column nor a unit of time, as hours or gpu-hours"
            raise TableError(table.file, text, row=1)
        return found
    return time_unit(names.get("hours", "")) or _HOURS


def _period_of(rows: Iterator[Row]) -> str | None:
    """What a row is about: the day or the hour, where all of them begin with one. Else each lasts for its hours."""
    begins = [row.moment("date", _moment_of) for row in rows]
    for name, length in (("day", NS_PER_DAY), ("hour", NS_PER_HOUR)):
        if all(at % length == 0 for at in begins):
            return name
    return None


def _line(row: Row, unit: TimeUnit | None, per: str | None, lone: str) -> BillLine:
    _check_currency(row)
    usd = _amount(row)
    kind = _kind(row, usd)
    no_kind = kind is BillKind.OTHER and not row.cells.get("kind")
    in_unit = unit
    if in_unit is None and (in_unit := time_unit(row.cells["unit"])) is None and kind is BillKind.COMPUTE:
        kind, no_kind = BillKind.OTHER, _hides_a_machine(row.cells["unit"])
    hours = gpu_hours = None
    rounding = Fraction(0)
    if row.cells.get("hours") and kind in (BillKind.COMPUTE, BillKind.OTHER) and in_unit is not None:
        quantity = _quantity(row)
        quantity = quantity if in_unit.hours == 1 else quantity * in_unit.hours
        rounding = half_unit(row.cells["hours"]) * in_unit.hours
        hours, gpu_hours = (None, quantity) if in_unit.of_a_gpu else (quantity, None)
    start, end = _times(row, per, hours)
    most_ns = (end - start) * _CLOCKS_MAX
    # A head that names no unit may be that of GPU-hours. The other rows and the ledger tell.
    most_hours_ns = most_ns * GPUS_MAX if in_unit is not None and in_unit.is_assumed else most_ns
    if (hours and _lasts(hours) > most_hours_ns) or (gpu_hours and _lasts(gpu_hours) > most_ns * GPUS_MAX):
        text = f"{row.said('hours')} is more than a {per or 'row'} has"
        text += ": name its end by end=, or say per=month, or unit=gpu-hours"
        raise row.error("hours", text)
    resource = short_resource(row.cells.get("resource", "")) or lone
    gb_months = _gb_months(row) if kind is BillKind.STORAGE and unit is None else None
    open_end = per not in ("day", "month") and _end_of(row) is None
    is_assumed = in_unit is not None and in_unit.is_assumed
    return BillLine(
        resource, kind, start, end, *month_of(start), usd, hours, False, gpu_hours, no_kind, gb_months, open_end,
        is_assumed, rounding,
    )  # fmt: skip


def _gb_months(row: Row) -> Fraction | None:
    """A disk's quantity, where the row's own unit says that it is one."""
    in_gb_months = gb_months_in(row.cells["unit"])
    return _quantity(row) * in_gb_months if in_gb_months is not None and row.cells.get("hours") else None


def _lasts(hours: Fraction) -> int:
    """In nanoseconds, rounded up."""
    return -(-hours.numerator * NS_PER_HOUR // hours.denominator)


def _hides_a_machine(unit: str) -> bool:
    """Whether it may be a machine's time. Of so many GB it would be a disk's."""
    return not unit or (is_time_of_a_part(unit) and not unit.lower().startswith("gb"))


def _amount(row: Row) -> Fraction:
    """Dollars as people write them. A minus or parentheses are a credit."""
    try:
        return _amount_of(row.cells["amount"])
    except ValueError as error:
        raise row.error("amount", str(error)) from None


@lru_cache(maxsize=65_536)  # Most rows are an hour's price.
def _amount_of(text: str) -> Fraction:
    found = _NEGATIVE.fullmatch(text.replace("$-", "-$"))
    size = checked(Fraction(read_amount(text if found is None else found[1] or found[2] or found[3])), text)
    return size if found is None else -size


def _kind(row: Row, usd: Fraction) -> BillKind:
    words = row.cells.get("kind", "")
    if usd.numerator < 0:
        return next((kind for word, kind in _LESS if word.search(words)), BillKind.CREDIT)
    for word, kind in _WORDS:
        if word.search(words):
            return kind
    if not words and row.cells.get("resource", "").startswith("vol-"):
        return BillKind.STORAGE
    return BillKind.OTHER if words or not row.cells.get("hours") else BillKind.COMPUTE


def _quantity(row: Row) -> Fraction:
    text = row.cells["hours"]
    try:
        quantity = number_of(read_amount(text) if "," in text else text)
    except ValueError as error:
        raise row.error("hours", str(error).replace(" in dollars", "")) from None
    if quantity < 0:
        raise row.error("hours", f"{row.said('hours')} is negative, and the row is neither a credit nor a refund")
    return quantity


def _end_of(row: Row) -> int | None:
    """None also for an end that never comes, as 9999-12-31."""
    return row.end("end", _moment_of) if row.cells.get("end") else None


def _times(row: Row, per: str | None, hours: Fraction | None) -> tuple[int, int]:
    start = row.moment("date", _moment_of)
    if (end := _end_of(row)) is not None:
        if end < start:
            raise row.error("end", f"{row.said('end')} is before {row.said('date')}")
        # "11-01 to 11-30" has the 30th in it; "11-01 to 11-02" and "11-01 to 12-01" are a day and a month.
        is_day = _DATE_ONLY.fullmatch(row.cells["end"]) is not None
        until = end == start or (end - start > NS_PER_DAY and month_of(end)[0] != end)
        return start, end + NS_PER_DAY if is_day and until else end
    if per == "month":
        return month_of(start)
    if per == "day":
        return day_of(start)
    lasts_ns = NS_PER_HOUR if hours is None else max(NS_PER_HOUR, _lasts(hours))
    if lasts_ns > _MONTH_NS_MAX:
        text = f"{row.said('hours')} is more than a month has: name the row's end by end=, or say per=month"
        raise row.error("hours", text)
    return start, start + (NS_PER_HOUR if per == "hour" and lasts_ns <= _CLOCKS_MAX * NS_PER_HOUR else lasts_ns)


@lru_cache(maxsize=65_536)
def _moment_of(text: str) -> int:
    """A time, or seconds or milliseconds since 1970. ValueError says what is wrong."""
    if _EPOCH.fullmatch(text):
        return round(Fraction(text) * NS_PER_S) if len(text.partition(".")[0]) == 10 else int(text) * NS_PER_MS
    return moment_of(text)
