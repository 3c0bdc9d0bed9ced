"""Reads CSV files with a header, and providers' bills. Each error is one line that names the file and the row."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import IO, Final

from governor.core.base.printable import printable
from governor.core.base.units import month_of, parse_utc
from governor.core.money.reports.bill import Bill, BillKind, BillLine, short_resource

GZIP_MAGIC: Final = b"\x1f\x8b"


class TableError(Exception):
    """The message is one line: file, row, column if known, what is wrong."""

    def __init__(self, file: str, text: str, *, row: int | None = None, column: str | None = None) -> None:
        place = f"{file}:{row}" if row is not None else file
        # A cell that is repeated may hold anything.
        super().__init__(printable(f"{place}: {column}: {text}" if column else f"{place}: {text}"))


@contextmanager
def opened_csv(stream: io.RawIOBase, file: str) -> Iterator[CsvTable]:
    """The table in a raw stream, which is closed with it: UTF-8 with or without a byte order mark, or gzip."""
    with io.BufferedReader(stream) as data:
        is_packed = data.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)  # A pipe cannot be rewound.
        plain = gzip.GzipFile(fileobj=data) if is_packed else data
        with io.TextIOWrapper(plain, encoding="utf-8-sig", newline="") as text:
            yield CsvTable(text, file)


class CsvTable:
    """`columns`, and `rows()`, which runs once. A row is the number of its last line and its cells by column."""

    def __init__(self, text: IO[str], file: str) -> None:
        """Read the header."""
        self.file = file
        self._reader = csv.reader(text, strict=True)
        first = next(self._read(), None)
        if first is None:
            raise TableError(file, "the file is empty")
        self.columns = [name.strip() for name in first[1]]
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise TableError(file, "this column stands there twice", row=1, column=name)

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the rows. Raises `TableError` at the first malformed row, and at the end if there was no row."""
        count = 0
        for number, cells in self._read():
            if len(cells) != len(self.columns):
                text = f"{len(cells)} cells under {len(self.columns)} columns"
                raise TableError(self.file, text, row=number)
            count += 1
            yield number, dict(zip(self.columns, cells, strict=True))
        if count == 0:
            raise TableError(self.file, "a header and no row")

    def _read(self) -> Iterator[tuple[int, list[str]]]:
        """Rows that are not blank. The reader decodes ahead, so a bad byte lies in the named row or soon after it."""
        try:
            for cells in self._reader:
                if cells:
                    yield self._reader.line_num, cells
        except UnicodeDecodeError as error:
            text = f"not UTF-8 (byte 0x{error.object[error.start]:02x}, in this row or soon after)"
            raise TableError(self.file, text, row=self._reader.line_num + 1) from None
        except csv.Error as error:
            raise TableError(self.file, str(error), row=self._reader.line_num) from None
        except (OSError, EOFError, zlib.error) as error:
            raise TableError(self.file, f"cannot be read: {error}") from None


# --- providers' bills: FOCUS rows, and AWS CUR rows of either generation ---------------------------------


# One month of 270 machines, hour by hour: ten seconds and 250 MB to compare, measured.
ROWS_MAX: Final = 200_000
# Dollars or units. A larger number is of another kind.
AMOUNT_MAX: Final = 10**15
NUMBER_CHARS_MAX: Final = 100  # Python writes out and reads no integer of more than 4,300 digits.
CURRENCY: Final = "USD"

_NUMBER: Final = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,2})?")
_HOURS: Final = ("hours", "hour", "hrs")
_COMPUTE_USAGE: Final = re.compile(r"(Box|Spot|Dedicated|Host)Usage")
_EGRESS_USAGE: Final = re.compile(r"DataTransfer|-Bytes")
_CUR_TYPES: Final = {
    "Tax": BillKind.TAX,
    "Credit": BillKind.CREDIT,
    "Refund": BillKind.REFUND,
    "Fee": BillKind.PURCHASE,
    "RIFee": BillKind.COMMITMENT,
    "SavingsPlanNegation": BillKind.COMMITMENT,
    "SavingsPlanRecurringFee": BillKind.COMMITMENT,
    "SavingsPlanUpfrontFee": BillKind.COMMITMENT,
}
_CUR_USAGE: Final = ("Usage", "DiscountedUsage", "SavingsPlanCoveredUsage")
_FOCUS_CATEGORIES: Final = {
    "Tax": BillKind.TAX,
    "Credit": BillKind.CREDIT,
    "Purchase": BillKind.PURCHASE,
    "Adjustment": BillKind.REFUND,
}


@dataclass(frozen=True, slots=True)
class _Form:
    """A kind of bill: its columns under our names, and how its rows are classified."""

    name: str
    required: tuple[str, ...]
    cost: str
    currency: str
    resource: str
    start: str
    end: str
    quantity: str
    unit: str
    period: tuple[str, str]
    # Columns that identify a row. Empty: all columns together identify it.
    identity: tuple[str, ...]
    kind: Callable[[Mapping[str, str]], BillKind]
    committed: Callable[[Mapping[str, str]], bool]


def read_bill(stream: io.RawIOBase, file: str, form: str = "auto", *, rows_max: int = ROWS_MAX) -> Bill:
    """Read a bill. `form` is "focus", "cur", or "auto" (by its columns). Raises `TableError`, one line."""
    with opened_csv(stream, file) as table:
        if "x_ChargeId" in table.columns:
            text = "this is an export of costgov's own ledger, not a provider's bill"
            raise TableError(file, text, column="x_ChargeId")
        found = _form_of(table, form)
        lines = tuple(_lines(table, found, rows_max))
    since, until = min(line.billed_from for line in lines), max(line.billed_to for line in lines)
    return Bill(found.name, lines, since, until)


def _lines(table: CsvTable, form: _Form, rows_max: int) -> Iterator[BillLine]:
    names = _named(form, table)
    seen: set[bytes] = set()
    for count, (number, cells) in enumerate(table.rows()):
        if count == rows_max:
            text = f"more than {rows_max:,} rows: keep those of the machines in question"
            raise TableError(table.file, text, row=number)
        row = _Row(table.file, number, names, cells)
        _once(row, form, seen)
        yield _line(row, form)


class _Row:
    """A row's cells under our names of the columns. A column that the file lacks is ""."""

    def __init__(self, file: str, number: int, names: Mapping[str, str], cells: Mapping[str, str]) -> None:
        self._file, self._number, self._names = file, number, names
        self.cells = {ours: cells[theirs].strip() for ours, theirs in names.items()}
        self.raw = cells

    def error(self, column: str, text: str) -> TableError:
        return TableError(self._file, text, row=self._number, column=self._names.get(column, column))

    def number(self, column: str) -> Fraction:
        text = self.cells[column]
        if len(text) > NUMBER_CHARS_MAX or not _NUMBER.fullmatch(text):
            raise self.error(column, f'"{text[:NUMBER_CHARS_MAX]}" is no number')
        number = Fraction(text)
        if abs(number) > AMOUNT_MAX:
            raise self.error(column, f"{text} is more than any bill has: is this another column's?")
        return number

    def moment(self, column: str) -> int:
        try:
            return parse_utc(self.cells[column])
        except ValueError as error:
            raise self.error(column, str(error)) from None


def _form_of(table: CsvTable, wanted: str) -> _Form:
    forms = {"focus": FOCUS, "cur": CUR}
    if wanted != "auto":
        return forms[wanted]
    known = {_snake(name) for name in table.columns}
    scores = {name: sum(_snake(column) in known for column in form.required) for name, form in forms.items()}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] == 0:
        raise TableError(table.file, "neither a FOCUS nor a CUR bill: no column of either", row=1)
    return forms[best]


def _named(form: _Form, table: CsvTable) -> dict[str, str]:
    """Our name of each column that is used -> its name in the file. CUR has two valid spellings."""
    by_name: dict[str, str] = {}
    for name in table.columns:
        by_name.setdefault(_snake(name), name)
    missing = [column for column in form.required if _snake(column) not in by_name]
    if missing:
        text = f"no bill in the form {form.name}: it lacks {', '.join(missing)}"
        raise TableError(table.file, text, row=1)
    return {column: by_name[_snake(column)] for column in (*form.required, *_OPTIONAL) if _snake(column) in by_name}


def _snake(name: str) -> str:
    """Maps lineItem/UsageStartDate and line_item_usage_start_date to one name."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("/", "_").lower()


def _once(row: _Row, form: _Form, seen: set[bytes]) -> None:
    """Refuse a repeated row, which would be counted twice."""
    identity = [row.cells[name] for name in form.identity if row.cells.get(name)]
    text = "\x1f".join(identity if identity and len(identity) == len(form.identity) else row.raw.values())
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    if digest in seen:
        raise row.error(form.identity[0] if identity else "row", "this row is there twice")
    seen.add(digest)


def _line(row: _Row, form: _Form) -> BillLine:
    currency = row.cells.get(form.currency, "")
    if currency and currency != CURRENCY:
        raise row.error(form.currency, f'"{currency}": the ledger is in {CURRENCY}; take the bill in that currency')
    kind = form.kind(row.cells)
    usd = row.number(form.cost)
    quantity = row.number(form.quantity) if row.cells.get(form.quantity) else None
    for column, value in ((form.quantity, quantity), (form.cost, usd)):
        if value is not None and value < 0 and not kind.may_be_negative:
            raise row.error(column, f"{row.cells[column]} is negative, and the row is neither a credit nor a refund")
    start, end = row.moment(form.start), row.moment(form.end)
    if end < start:
        raise row.error(form.end, f"{row.cells[form.end]} is before {row.cells[form.start]}")
    unit = row.cells.get(form.unit, "").lower()
    hours = quantity if unit in _HOURS or (unit == "" and kind is BillKind.COMPUTE) else None
    resource = short_resource(row.cells[form.resource])
    billed_from, billed_to = _billing_period(row, form, start)
    return BillLine(resource, kind, start, end, billed_from, billed_to, usd, hours, form.committed(row.cells))


def _billing_period(row: _Row, form: _Form, start: int) -> tuple[int, int]:
    """The period in the row, else the month in which its charge begins."""
    first, last = form.period
    if not (row.cells.get(first) and row.cells.get(last)):
        return month_of(start)
    bounds = row.moment(first), row.moment(last)
    if bounds[0] >= bounds[1]:
        raise row.error(last, f"{row.cells[last]} is not later than {row.cells[first]}")
    return bounds


# --- FOCUS --------------------------------------------------------------------------------------------------


def _focus_kind(cells: Mapping[str, str]) -> BillKind:
    if cells.get("ChargeClass") == "Correction":
        return BillKind.REFUND
    commitment = bool(cells.get("CommitmentDiscountId"))
    if cells["ChargeCategory"] != "Usage":
        kind = _FOCUS_CATEGORIES.get(cells["ChargeCategory"], BillKind.OTHER)
        return BillKind.COMMITMENT if commitment and kind is BillKind.PURCHASE else kind
    if cells.get("CommitmentDiscountStatus") == "Unused":
        return BillKind.COMMITMENT
    unit = cells.get("PricingUnit", "").lower()
    category = cells.get("ServiceCategory", "")
    # Some providers file a machine's disks and traffic under compute. The unit distinguishes them.
    if short_resource(cells["ResourceId"]).startswith("vol-") or category == "Storage":
        return BillKind.STORAGE
    if category == "Networking" or (category == "Compute" and unit == "gb"):
        return BillKind.EGRESS
    return BillKind.COMPUTE if category == "Compute" and unit in ("", *_HOURS) else BillKind.OTHER


FOCUS: Final = _Form(
    name="FOCUS",
    required=(
        *("BilledCost", "BillingCurrency", "ChargeCategory", "ChargePeriodStart", "ChargePeriodEnd", "ResourceId"),
        "ServiceCategory",
    ),
    cost="BilledCost",
    currency="BillingCurrency",
    resource="ResourceId",
    start="ChargePeriodStart",
    end="ChargePeriodEnd",
    quantity="PricingQuantity",
    unit="PricingUnit",
    period=("BillingPeriodStart", "BillingPeriodEnd"),
    identity=(),
    kind=_focus_kind,
    committed=lambda cells: bool(cells.get("CommitmentDiscountId")) or cells.get("PricingCategory") == "Committed",
)

# --- AWS CUR ------------------------------------------------------------------------------------------------


def _cur_kind(cells: Mapping[str, str]) -> BillKind:
    line_type = cells["lineItem/LineItemType"]
    if line_type not in _CUR_USAGE:
        return _CUR_TYPES.get(line_type, BillKind.DISCOUNT if line_type.endswith("Discount") else BillKind.OTHER)
    usage, resource = cells.get("lineItem/UsageType", ""), short_resource(cells["lineItem/ResourceId"])
    if _COMPUTE_USAGE.search(usage):
        return BillKind.COMPUTE
    if "EBS:" in usage or resource.startswith("vol-"):
        return BillKind.STORAGE
    if _EGRESS_USAGE.search(usage):
        return BillKind.EGRESS
    by_hour = cells.get("pricing/unit", "").lower() in ("", *_HOURS)
    is_machine = resource.startswith("i-") or bool(cells.get("product/instanceType"))
    return BillKind.COMPUTE if not usage and by_hour and is_machine else BillKind.OTHER


CUR: Final = _Form(
    name="AWS CUR",
    required=(
        *("lineItem/LineItemType", "lineItem/UsageStartDate", "lineItem/UsageEndDate", "lineItem/UnblendedCost"),
        "lineItem/ResourceId",
    ),
    cost="lineItem/UnblendedCost",
    currency="lineItem/CurrencyCode",
    resource="lineItem/ResourceId",
    start="lineItem/UsageStartDate",
    end="lineItem/UsageEndDate",
    quantity="lineItem/UsageAmount",
    unit="pricing/unit",
    period=("bill/BillingPeriodStartDate", "bill/BillingPeriodEndDate"),
    identity=("identity/LineItemId", "identity/TimeInterval"),
    kind=_cur_kind,
    # A savings plan lists a covered hour at the full price and takes it off again in a separate row.
    committed=lambda cells: cells["lineItem/LineItemType"] == "DiscountedUsage",
)

_OPTIONAL: Final[Sequence[str]] = (
    *("BillingPeriodStart", "BillingPeriodEnd", "ChargeClass", "CommitmentDiscountId", "CommitmentDiscountStatus"),
    *("PricingCategory", "PricingQuantity", "PricingUnit"),
    *("bill/BillingPeriodStartDate", "bill/BillingPeriodEndDate", "identity/LineItemId", "identity/TimeInterval"),
    *("lineItem/CurrencyCode", "lineItem/UsageAmount", "lineItem/UsageType", "pricing/unit", "product/instanceType"),
)
