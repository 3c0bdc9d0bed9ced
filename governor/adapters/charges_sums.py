"""A journal's charges added up as they are read: what `costgov cost` needs of a year of them, in a tenth of the time.

Charges that agree in what they are grouped by and in their line come as one; those that a bound of the asked time or
midnight cuts come by themselves, for the pure code to cut. `core.cost.tally` over `read_charges` says the same.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

from governor.adapters.charges_db import ChargesUnreadable, charge_in, has_charges, opened, window_of
from governor.core.charges import Charge, Line, LineKind, Payer, Place, Unit, labels_of
from governor.core.cost import LABEL, STAGE_OF_RUN, Sum
from governor.core.units import UsdMicros, WallNs
from governor.core.utc import NS_PER_DAY

# Each page is a transaction of its own, as in charges_db; this reader does nothing else in between: 20 ms.
PAGE_ROWS: Final = 20_000
_LINE: Final = ("line", "name", "unit", "price_usd_micros", "price_source", "price_as_of", "reconstructed")

# By rowid, which no growing charge changes: nothing here needs an order, and to sort 160,000 rows costs a third.
_PAGE: Final = """
SELECT rowid, json_extract(data, {paths}), CASE WHEN :is_daily THEN from_wall_ns / :day_ns ELSE 0 END,
       data ->> 'quantity', usd_micros,
       CASE WHEN from_wall_ns < :since OR to_wall_ns > :until OR (:is_daily AND
         (from_wall_ns < 0 OR to_wall_ns > (from_wall_ns / :day_ns + 1) * :day_ns)) THEN data END
FROM charges WHERE rowid > :after
AND from_wall_ns < :until AND (to_wall_ns > :since OR from_wall_ns >= :since)
ORDER BY rowid LIMIT :rows"""


def read_sums(
    path: str, by: str, runs: Collection[str] = (), since: int | None = None, until: int | None = None
) -> Iterator[Sum]:
    """Yield the charges that touch [since, until) of wall time and belong to these runs (none named: all), added up.

    None in a journal of a version without charges. Raises `ChargesUnreadable`.
    """
    fields = _fields(by, runs)
    paths = ", ".join(f"'$.{name}'" for name in (*_LINE, *fields))
    page = _PAGE.format(paths=paths)
    bounds = {**window_of(since, until), "is_daily": by == "day", "day_ns": NS_PER_DAY, "rows": PAGE_ROWS}
    sums: dict[tuple[bytes, int], list[int]] = {}
    try:
        with closing(opened(path)) as connection:
            connection.text_factory = bytes  # Decoded where they differ; and a name may hold what is no UTF-8.
            if not has_charges(connection):
                return
            for alike, day, quantity, micros, data in _rows(connection, page, bounds):
                if data is not None:
                    charge = charge_in(path, data)
                    if not runs or charge.payer.run in runs:
                        yield Sum(charge, 1)
                    continue
                if type(quantity) is not int:
                    raise ChargesUnreadable.of_charge(path, ValueError("its quantity is no whole number"))
                known = sums.get((alike, day))
                if known is None:
                    sums[alike, day] = [1, quantity, micros]
                else:
                    known[0] += 1
                    known[1] += quantity
                    known[2] += micros
    except sqlite3.Error as error:
        raise ChargesUnreadable.of(path, error) from error
    lines: dict[tuple[Any, ...], Line] = {}
    for (alike, day), (count, quantity, micros) in sums.items():
        try:
            cells = json.loads(alike.decode("utf-8", "surrogatepass"))
            payer, place = _whose(dict(zip(fields, cells[len(_LINE) :], strict=True)))
            line = _line(tuple(cells[: len(_LINE)]), lines)
        except (TypeError, ValueError, AttributeError) as error:
            raise ChargesUnreadable.of_charge(path, error) from None
        if not runs or payer.run in runs:
            at, reconstructed = WallNs(day * NS_PER_DAY), bool(cells[len(_LINE) - 1])
            yield Sum(Charge("", place, payer, line, at, at, quantity, UsdMicros(micros), reconstructed), count)


def _fields(by: str, runs: Collection[str]) -> list[str]:
    """Which fields of a charge's row say its group and whether it was asked for; midnight and the line do so alone."""
    if by == STAGE_OF_RUN:
        return ["stage", "run"]
    group = "labels" if by.startswith(LABEL) else by
    wanted = [group] if group in ("run", "stage", "node", "labels") else []
    return [*wanted, "run"] if runs and group != "run" else wanted


def _rows(connection: sqlite3.Connection, page: str, bounds: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
    after = -(2**63)
    while True:
        found = connection.execute(page, {**bounds, "after": after}).fetchall()
        for row in found:
            yield row[1:]
        if len(found) < PAGE_ROWS:
            return
        after = found[-1][0]


def _whose(fields: Mapping[str, Any]) -> tuple[Payer, Place]:
    labels = labels_of(fields["labels"]) if "labels" in fields else ()
    payer = Payer(run=fields.get("run", ""), stage=fields.get("stage"), labels=labels)
    return payer, Place(fields.get("node", ""))


def _line(cells: tuple[Any, ...], known: dict[tuple[Any, ...], Line]) -> Line:
    line = known.get(cells)
    if line is None:
        kind, name, unit, price, source, as_of, _ = cells
        line = known[cells] = Line(LineKind(kind), name, Unit(unit), int(price), source, as_of)
    return line
