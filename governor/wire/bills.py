"""Reads a provider's bill: FOCUS, AWS CUR, or plain CSV by a map of its columns. Errors are one line with the place."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from governor.core.base.units import month_of
from governor.core.money.reports.bill import Bill, BillKind, BillLine, short_resource
from governor.core.money.reports.bill_book import BillBook
from governor.wire.bill_forms import CUR, FOCUS, Form, gb_months_in, time_unit
from governor.wire.bill_map import CURRENCY, PLAIN, BillMap, plain_lines, ready_map
from governor.wire.csv_table import CsvTable, Row, TableError, half_unit, opened_csv

# Of the machines of the ledger, which are compared one by one: 35 machines' year of hours, about 150 MB. The rows of
# other resources are sums, however many there are.
LINES_MAX: Final = 300_000
PROGRESS_ROWS: Final = 250_000  # Three to eight seconds, measured.
FORMS: Final = {"focus": FOCUS, "cur": CUR}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of a bill is read, and how. `ours`: the resources of the ledger, whose rows are kept one by one."""

    form: str = "auto"  # "focus", "cur", "plain".
    columns: BillMap | None = None  # Of a plain CSV.
    resources: Collection[str] = ()  # Only these; empty: all.
    ours: Collection[str] | None = None  # None: keep all rows.
    machines: Collection[
        str
    ] = ()  # Those of `ours` that are no disk: rows of a bill that names none are the only one's.
    names: Mapping[str, str] = field(default_factory=dict)  # Of a resource in the bill: its name in the ledger.
    since: int | None = None
    until: int | None = None
    lines_max: int = LINES_MAX
    progress: Callable[[int], None] | None = None


EVERYTHING: Final = Wanted()


def read_bill(
    stream: io.RawIOBase,
    file: str,
    wanted: Wanted = EVERYTHING,
    *,
    remembered: Callable[[list[str]], BillMap | None] | None = None,
) -> Bill:
    """Read a bill. Raises `TableError`, one line.

    `remembered`: the map that was given before for a file with these columns.
    """
    with opened_csv(stream, file) as table:
        if "x_ChargeId" in table.columns:
            text = "this is an export of costgov's own ledger, not a provider's bill"
            raise TableError(file, text, column="x_ChargeId")
        columns = None if remembered is None else remembered(table.columns)
        if wanted.columns is not None:
            columns = wanted.columns
        elif wanted.form not in ("auto", PLAIN):
            columns = None
        elif columns is None:
            columns = ready_map(table.columns)
        book = BillBook(wanted.ours, wanted.since, wanted.until)
        if columns is not None:
            lines, name = plain_lines(table, columns, wanted.resources, wanted.machines), columns.name
        else:
            form = _form_of(table, wanted.form)
            lines, name = _lines(table, form, frozenset(map(short_resource, wanted.resources))), form.name
        for count, (number, line) in enumerate(lines, 1):
            if book.kept == wanted.lines_max:
                text = f"more than {wanted.lines_max:,} rows of machines of the ledger: take a part by --resource"
                raise TableError(file, text, row=number)
            renamed = wanted.names.get(line.resource)
            book.enter(line if renamed is None else replace(line, resource=renamed))
            if wanted.progress is not None and count % PROGRESS_ROWS == 0:
                wanted.progress(count)
    if not book.rows:
        raise TableError(file, f"no row is about {', '.join(sorted(wanted.resources))}")
    return book.bill(name)


def _lines(table: CsvTable, form: Form, wanted: frozenset[str]) -> Iterator[tuple[int, BillLine]]:
    names = _named(form, table)
    places = [(ours, table.columns.index(theirs)) for ours, theirs in names.items()]
    of_resource = table.columns.index(names[form.resource])
    seen: set[int] = set()
    for number, cells in table.lists():
        # First of all: a large bill has few rows of one machine.
        if wanted and short_resource(cells[of_resource]) not in wanted:
            continue
        row = Row(table.file, number, names, {ours: cells[at].strip() for ours, at in places})
        if form.identity is not None:
            _once(row, form.identity, cells, seen)
        yield number, _line(row, form)


def _form_of(table: CsvTable, wanted: str) -> Form:
    if wanted in FORMS:
        return FORMS[wanted]
    known = {_snake(name) for name in table.columns}
    scores = {name: sum(_snake(column) in known for column in form.required) for name, form in FORMS.items()}
    best = max(scores, key=lambda name: scores[name])
    if wanted == PLAIN or scores[best] == 0:
        text = "neither a FOCUS nor a CUR bill: say by --map which column is what: date=, amount=, hours=, resource="
        raise TableError(table.file, text, row=1)
    return FORMS[best]


def _named(form: Form, table: CsvTable) -> dict[str, str]:
    """Our name of each column that is used -> its name in the file. CUR has two valid spellings."""
    by_name: dict[str, str] = {}
    for name in table.columns:
        by_name.setdefault(_snake(name), name)
    missing = [column for column in form.required if _snake(column) not in by_name]
    if missing:
        text = f"no bill in the form {form.name}: it lacks {', '.join(missing)}"
        raise TableError(table.file, text, row=1)
    known = (*form.required, *form.optional)
    return {column: by_name[_snake(column)] for column in known if _snake(column) in by_name}


def _snake(name: str) -> str:
    """Maps lineItem/UsageStartDate and line_item_usage_start_date to one name."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("/", "_").lower()


def _once(row: Row, names: tuple[str, ...], cells: list[str], seen: set[int]) -> None:
    """Refuse a repeated row, which would be counted twice."""
    identity = [row.cells[name] for name in names if row.cells.get(name)]
    # 64 bits: among a million rows a false alarm has a chance of one in thirty million.
    digest = hash("\x1f".join(identity if len(identity) == len(names) else cells))
    if digest in seen:
        raise row.error(names[0] if identity else "row", "this row is there twice")
    seen.add(digest)


def _line(row: Row, form: Form) -> BillLine:
    currency = row.cells.get(form.currency, "")
    if currency and currency != CURRENCY:
        raise row.error(
            form.currency, f'"{row.said(form.currency)}": the ledger is in {CURRENCY}; take the bill in that currency'
        )
    kind = form.kind(row.cells)
    usd = row.number(form.cost)
    quantity = row.number(form.quantity) if row.cells.get(form.quantity) else None
    for column, value in ((form.quantity, quantity), (form.cost, usd)):
        if value is not None and value < 0 and not kind.may_be_negative:
            raise row.error(column, f"{row.said(column)} is negative, and the row is neither a credit nor a refund")
    start = row.moment(form.start)
    billed_from, billed_to = _billing_period(row, form, start)
    end = row.end(form.end)
    if end is None:
        end = max(start, billed_to)  # What has no end is billed until then.
    if end < start:
        raise row.error(form.end, f"{row.said(form.end)} is before {row.said(form.start)}")
    hours = gpu_hours = gb_months = None
    rounding = Fraction(0)
    if quantity is not None and kind is BillKind.STORAGE:
        in_gb_months = gb_months_in(row.cells.get(form.unit, ""))
        gb_months = None if in_gb_months is None else quantity * in_gb_months
    if quantity is not None and gb_months is None:
        name = row.cells.get(form.unit, "")
        unit = time_unit(name or ("hours" if kind is BillKind.COMPUTE else ""))
        if unit is not None:
            amount = quantity if unit.hours == 1 else quantity * unit.hours
            rounding = half_unit(row.cells[form.quantity]) * unit.hours
            hours, gpu_hours = (None, amount) if unit.of_a_gpu else (amount, None)
    resource = short_resource(row.cells[form.resource])
    committed = form.committed(row.cells)
    no_kind = kind is BillKind.OTHER and form.in_parts(row.cells)
    used = (hours, committed, gpu_hours, no_kind, gb_months)
    return BillLine(resource, kind, start, end, billed_from, billed_to, usd, *used, rounding=rounding)


def _billing_period(row: Row, form: Form, start: int) -> tuple[int, int]:
    """The period in the row, else the month in which its charge begins."""
    first, last = form.period
    if not (row.cells.get(first) and row.cells.get(last)) or (ends := row.end(last)) is None:
        return month_of(start)
    begins = row.moment(first)
    if begins >= ends:
        raise row.error(last, f"{row.said(last)} is not later than {row.said(first)}")
    return begins, ends
