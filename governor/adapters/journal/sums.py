"""A journal's charges, summed as they are read: `costgov cost` reads a year in a tenth of the time.

Charges with the same group and line become one sum. A charge that midnight or a bound of the requested time cuts is
yielded alone. It is cut to the requested time here, and at midnight by the pure code. `core.cost.tally` over
`read_charges` gives the same result.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from governor.adapters.journal.reader import (
    LONG_PAGE_ROWS,
    NOT_OURS,
    NUMBER_MIN,
    Unreadables,
    charge_in,
    has_table,
    paged,
    reading,
    refuse,
    shown,
    unreadable,
    waiting_in,
    window_of,
)
from governor.core.base.units import NS_PER_DAY, UsdMicros, WallNs
from governor.core.money.charges import UNALLOCATED, Charge, Line, LineKind, Payer, Place, Unit, labels_of
from governor.core.money.reports.cost import LABEL, PAYER_AND_NODE, STAGE_OF_RUN, Sum, clip

_LINE: Final = ("line", "name", "unit", "price_usd_micros", "price_source", "price_as_of", "reconstructed")

# By rowid, which does not change as a charge grows. No order is needed, and sorting 160,000 rows costs a third.
_WINDOW: Final = """
FROM charges WHERE rowid > :after
AND from_wall_ns < :until AND (to_wall_ns > :since OR from_wall_ns >= :since)
ORDER BY rowid LIMIT :rows"""
_PAGE: Final = """
SELECT rowid, data ->> 'quantity', usd_micros,
       CASE WHEN data ->> 'usd_micros' IS NOT usd_micros OR from_wall_ns < :since OR to_wall_ns > :until
         OR (run = '' AND charge_id IN (SELECT value FROM json_each(:waiting)))
         OR (:is_daily AND (from_wall_ns < 0 OR to_wall_ns > (from_wall_ns / :day_ns + 1) * :day_ns)) THEN data END,
       json_extract(data, {line}), CASE WHEN :is_daily THEN from_wall_ns / :day_ns ELSE 0 END {fields}"""
_EACH: Final = "SELECT rowid, 0, usd_micros, data"

_Like = tuple[Line, Payer, Place, bool]  # What the charges of one sum share.


def read_sums(
    path: str, by: str, runs: Collection[str] = (), since: int | None = None, until: int | None = None,
    unread: Unreadables = refuse,
) -> Iterator[Sum]:  # fmt: skip
    """Yield sums of the charges in [since, until) of wall time that belong to these runs (none named: all runs).

    Yields none for a journal from a version without charges. Calls `unread` for each row that is not a charge. Raises
    `ChargesUnreadable` if the file itself cannot be read; the error may come between two rows.
    """
    fields = _fields(by, runs)
    columns = "".join(f", json_extract(data, '$.{name}')" for name in fields)
    page = _PAGE.format(line=", ".join(f"'$.{name}'" for name in _LINE), fields=columns)
    bounds = {**window_of(since, until), "is_daily": by == "day", "day_ns": NS_PER_DAY}
    sums: dict[tuple[Any, ...], tuple[_Like, list[int]]] = {}
    alike = _Alike(fields)
    with reading(path) as connection:
        if not has_table(connection, "charges"):
            return
        waiting, begin = waiting_in(connection), {"after": NUMBER_MIN}
        asked: dict[str, int | str] = {**bounds, "waiting": json.dumps(sorted(waiting.charge_ids))}
        found = paged(connection, page + _WINDOW, asked, begin, LONG_PAGE_ROWS, each=_EACH + _WINDOW)
        for rowid, quantity, micros, data, *cells in found:
            if data is not None:
                charge = charge_in(path, connection, rowid, data, micros, unread)
                its = waiting.of(charge) if charge is not None else None
                if its is not None and (not runs or its.payer.run in runs):
                    yield Sum(clip(its, bounds["since"], bounds["until"]), 1)
                continue
            key = tuple(cells)
            known = sums.get(key)
            try:
                if type(quantity) is not int or type(micros) is not int:
                    raise ValueError("its quantity or amount is no whole number")
                if known is None:
                    known = sums[key] = alike.of(key), [0, 0, 0]
            except NOT_OURS as error:
                unread(unreadable(path, connection, rowid, error))
                continue
            figures = known[1]
            figures[0] += 1
            figures[1] += quantity
            figures[2] += micros
    for key, ((line, payer, place, reconstructed), (count, quantity, micros)) in sums.items():
        if not runs or payer.run in runs:
            at = WallNs(key[1] * NS_PER_DAY)
            yield Sum(Charge("", place, payer, line, at, at, quantity, UsdMicros(micros), reconstructed), count)


def _fields(by: str, runs: Collection[str]) -> list[str]:
    """The fields of a charge's row that decide its group and whether its run was requested.

    A stage and a label need the run: without one nobody has paid. Midnight and the line need no field.
    """
    if by == "stage" or by == STAGE_OF_RUN or by.startswith(LABEL):
        return ["labels" if by.startswith(LABEL) else "stage", "run"]
    if by == PAYER_AND_NODE:
        return ["node", "labels", "stage", "run"]
    wanted = [by] if by in ("run", "node") else []
    return [*wanted, "run"] if runs and by != "run" else wanted


class _Alike:
    """Decodes the rows of a sum. Thousands of sums share a line or a payer, so each is decoded once."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = fields
        self._lines: dict[bytes, tuple[Line, bool]] = {}
        self._whose: dict[tuple[Any, ...], tuple[Payer, Place]] = {}

    def of(self, key: tuple[Any, ...]) -> _Like:
        """Raises KeyError, TypeError, ValueError or AttributeError for a row that is not ours."""
        cells, _, *fields = key
        line = self._lines.get(cells)
        if line is None:
            line = self._lines[cells] = _line(json.loads(cells))
        names = tuple(fields)
        whose = self._whose.get(names)
        if whose is None:
            whose = self._whose[names] = _whose(dict(zip(self._fields, fields, strict=True)))
        return line[0], whose[0], whose[1], line[1]


def _whose(fields: Mapping[str, Any]) -> tuple[Payer, Place]:
    labels = labels_of(json.loads(_text(fields["labels"]))) if "labels" in fields else ()
    stage = fields.get("stage")
    payer = Payer(_text(fields.get("run", b"")), stage=None if stage is None else _text(stage), labels=labels)
    return payer, Place(_text(fields.get("node", b"")))


def _text(cell: bytes) -> str:
    """A cell's text. Raises UnicodeDecodeError (a ValueError), or AttributeError if the cell holds no text."""
    # JSON may hold half surrogates, and SQLite stores them unchanged.
    return cell.decode("utf-8", "surrogatepass")


def _line(cells: Sequence[Any]) -> tuple[Line, bool]:
    kind, name, unit, price, source, as_of, reconstructed = cells
    if type(price) is not int:
        raise ValueError("its price is no whole number")
    return Line(LineKind(kind), name, Unit(unit), price, source, as_of), bool(reconstructed)


# --- time that nobody charged for ----------------------------------------------------------------------------

# Of a run that is gone from the table nothing is known any more but its charges.
_UNPRICED: Final = """
SELECT known.run, json_extract(snapshot, '$.unpriced_ns') FROM
  (SELECT run, CASE WHEN json_valid(snapshot) THEN snapshot ELSE '{}' END AS snapshot FROM runs
   WHERE run <> '') AS known
WHERE json_extract(snapshot, '$.unpriced_ns') > 0
AND coalesce(json_extract(snapshot, '$.wall_ns'), :since) >= :since
AND coalesce((SELECT min(wall_ns) FROM journal WHERE journal.run = known.run), :since) < :until"""


def read_unpriced(path: str, since: int | None = None, until: int | None = None) -> dict[str, int]:
    """By run, for how many nanoseconds of its time no price was known: it is in the ledger with no charge, or too few.

    Of runs that were heard of in that wall time. Raises `ChargesUnreadable`.
    """
    with reading(path) as connection:
        if not has_table(connection, "journal"):
            return {}
        rows = connection.execute(_UNPRICED, window_of(since, until))
        return {shown(run): unpriced_ns for run, unpriced_ns in rows if type(unpriced_ns) is int}


# --- whose ledger it is --------------------------------------------------------------------------------------

_UIDS: Final = """
SELECT run, json_extract(snapshot, '$.uid') FROM runs
WHERE run IN (SELECT value FROM json_each(:runs)) AND json_valid(snapshot)"""


def read_uids(path: str, runs: Collection[str]) -> dict[str, int]:
    """By run, the user whose it is, as far as the journal knows. Raises `ChargesUnreadable`."""
    with reading(path) as connection:
        if not has_table(connection, "runs"):
            return {}
        rows = connection.execute(_UIDS, {"runs": json.dumps([*runs])})
        return {shown(run): uid for run, uid in rows if type(uid) is int}


def read_holder(path: str) -> tuple[str, ...] | None:
    """Who holds grants of a fleet by this ledger: node, boot and ledger. None: nobody yet, or that cannot be read.

    It is written together with the charges. Raises `ChargesUnreadable`.
    """
    with reading(path) as connection:
        if not has_table(connection, "runs"):
            return None
        row = connection.execute("SELECT snapshot FROM runs WHERE run = :node", {"node": UNALLOCATED}).fetchone()
    try:
        return tuple(str(part) for part in json.loads(row[0])["shared"]["holder"])
    except NOT_OURS:
        return None
