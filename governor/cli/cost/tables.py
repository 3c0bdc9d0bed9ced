"""How `costgov cost` shows groups of charges: a table, a document, CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import click

from governor.cli.cost.charges import Scope
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, DurationNs, utc_text
from governor.core.money.charges import Unit
from governor.core.money.reports.cost import RECONSTRUCTED, Group, decimal_text, exact_usd, sum_of, whole_cents
from governor.text.screen import screen_of

SOURCES_SHOWN: Final = 2  # More would push the amounts off the screen. --json has all.
_PER: Final = {Unit.HOUR: "/h", Unit.GB_MONTH: "/GB-month", Unit.GB: "/GB", Unit.PIECE: " each"}


# --- for people


def print_table(groups: Sequence[Group], by: str, told: Sequence[str]) -> None:
    from governor.text.table import Head, render_rows

    total = sum_of(groups)
    marked = total.reconstructed_usd_micros > 0
    of_lines = by == "line"
    heads = [Head(by.upper(), may_wrap=True), Head("QUANTITY" if of_lines else "HOURS", is_number=True)]
    heads += [Head("AMOUNT", is_number=True), Head("SHARE", is_number=True)]
    heads += [Head("RECONSTRUCTED", is_number=True)] if marked else []
    heads += [Head("PRICE"), Head("SOURCE", may_wrap=True)]
    shown = [*groups, total]
    columns = [[group.key for group in shown]]
    columns += [[_quantity(one) if of_lines else _hours(one) for one in shown]]
    columns += [_amounts(groups), _shares(shown, total)]
    if marked:
        dollars = _dollars([group.reconstructed_usd_micros for group in groups])
        columns += [[text if one.reconstructed_usd_micros else "-" for one, text in zip(shown, dollars, strict=True)]]
    columns += [[_prices(group) for group in shown], [_sources(group) for group in shown]]
    rows = list(zip(*columns, strict=True))
    notes = [f"reconstructed: {RECONSTRUCTED}"] if marked else []
    notes += told
    click.echo(render_rows(heads, rows, total=True, screen=screen_of(sys.stdout), notes=notes), nl=False)


def _amounts(groups: Sequence[Group]) -> list[str]:
    """What nobody knows is a "-", and so is the sum where nothing else is there."""
    known = iter(_dollars([group.usd_micros for group in groups if group.is_priced]))
    texts = [next(known) if group.is_priced else "-" for group in groups]
    return [*texts, next(known) if sum_of(groups).is_priced else "-"]


def _dollars(micros: Sequence[int]) -> list[str]:
    """The rows of a column as $1,234.57, and the total to which they add up."""
    cents = whole_cents(micros)
    return [f"${cent // 100:,}.{cent % 100:02}" for cent in [*cents, sum(cents)]]


def _shares(groups: Sequence[Group], total: Group) -> list[str]:
    if not total.usd_micros:
        return ["-" for _ in groups]
    shares = (f"{decimal_text(100 * group.usd_micros, total.usd_micros, 1)}%" for group in groups)
    return [share if group.is_priced else "-" for share, group in zip(shares, groups, strict=True)]


def _hours(group: Group) -> str:
    return decimal_text(group.node_ns, NS_PER_HOUR, 2) if group.is_priced else "-"


def _quantity(group: Group) -> str:
    if group.unit is None:
        return ""
    number = decimal_text(group.quantity, group.unit.base_units, 0 if group.unit is Unit.PIECE else 2)
    return f"{number}{'' if group.unit is Unit.PIECE else ' ' + _PER[group.unit].lstrip('/')}"


def _prices(group: Group) -> str:
    low, high, unit = group.price_min_usd_micros, group.price_max_usd_micros, group.unit
    if low is None or high is None or unit is None:
        return ""
    return f"${_price(low)}{'' if low == high else '–' + _price(high)}{_PER[unit]}"


# For a year of spot prices. Thousands of runs share one day's prices.
@lru_cache(maxsize=4096)
def _price(micros: int) -> str:
    """At least cents, and all further digits of the price."""
    whole, _, digits = exact_usd(micros).partition(".")
    return f"{whole}.{digits.rstrip('0').ljust(2, '0')}"


def _sources(group: Group) -> str:
    known = [f"{source} {day}".strip() for source, day in sorted(group.sources)]
    more = len(known) - SOURCES_SHOWN
    return ", ".join(known[:SOURCES_SHOWN]) + (f" and {more} more" if more > 0 else "")


# --- for programs


def document(groups: Sequence[Group], by: str, scope: Scope, unreadable: int) -> dict[str, Any]:
    total = sum_of(groups)
    return {
        "by": by,
        "since": None if scope.since is None else utc_text(scope.since),
        "until": None if scope.until is None else utc_text(scope.until),
        "runs": list(scope.runs),
        "currency": "USD",
        "groups": [_record(group, total, by) for group in groups],
        "total": {name: value for name, value in _record(total, total, by).items() if name not in _OF_A_GROUP},
        "unreadable": unreadable,
    }


_OF_A_GROUP: Final = ("key", "share", "quantity", "unit", "price_usd_min", "price_usd_max", "price_sources")


def _record(group: Group, total: Group, by: str) -> dict[str, Any]:
    """Amounts are decimal strings: readers parse a JSON number as a float. `quantity`: of one line alone, in `unit`.

    `usd` is null of a run whose price nobody knew: no hour of it was charged.
    """
    of_line = group.unit if by == "line" else None
    low, high = group.price_min_usd_micros, group.price_max_usd_micros
    return {
        "key": group.key,
        "hours": decimal_text(group.node_ns, NS_PER_HOUR, 6),
        "node_time_ns": group.node_ns,
        "usd": exact_usd(group.usd_micros) if group.is_priced else None,
        "share": decimal_text(group.usd_micros, total.usd_micros, 6) if total.usd_micros and group.is_priced else None,
        "reconstructed_usd": exact_usd(group.reconstructed_usd_micros),
        "quantity": decimal_text(group.quantity, of_line.base_units, 6) if of_line is not None else None,
        "unit": None if group.unit is None else group.unit.value,
        "price_usd_min": None if low is None else exact_usd(low),
        "price_usd_max": None if high is None else exact_usd(high),
        "price_sources": [{"source": source, "as_of": day} for source, day in sorted(group.sources)],
        "charges": group.charges,
    }


def print_csv(groups: Sequence[Group], by: str) -> None:
    total = sum_of(groups)
    names = ["key", "hours", "usd", "share", "reconstructed_usd", "quantity", "unit", "price_usd_min"]
    names += ["price_usd_max"]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([*names, "price_sources", "charges"])
    for group in groups:
        record = _record(group, total, by)
        sources = "; ".join(f"{source} {day}".strip() for source, day in sorted(group.sources))
        out.writerow([*("" if record[name] is None else record[name] for name in names), sources, group.charges])


def seconds(unpriced: Mapping[str, DurationNs]) -> dict[str, str]:
    return {run: decimal_text(unpriced_ns, NS_PER_S, 6) for run, unpriced_ns in unpriced.items()}
