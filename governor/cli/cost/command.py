"""`costgov cost export`: the ledger as FOCUS rows, and the check of any such file."""

from __future__ import annotations

import csv
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from governor.cli.common import Failed, config_option, exits, json_option, print_json
from governor.cli.cost.charges import (
    NOTHING_YET,
    Scope,
    Unread,
    charges_in,
    scope_of,
    scope_options,
    state_dir_of,
    sums_in,
)
from governor.cli.cost.reconcile import reconcile
from governor.cli.cost.stages import stages
from governor.core.base.units import MICROS_PER_USD, NS_PER_HOUR, utc_text
from governor.core.money.charges import Unit
from governor.core.money.reports.cost import Group, decimal_text, exact_usd, sum_of, tally_sums, whole_cents
from governor.text.screen import screen_of

if TYPE_CHECKING:
    from governor.core.money.reports.focus import Issuer

PROBLEMS_SHOWN: Final = 20  # A file that is wrong in one way is wrong in every row.


@click.command(short_help="Write the ledger as FOCUS rows; check such a file.", epilog=exits())
@click.argument("file", default="-", metavar="FILE", type=click.Path(dir_okay=False))
@click.option("--focus", is_flag=True, help="Write CSV rows of FOCUS 1.4, dataset Cost and Usage.")
@click.option("--check", type=click.Path(dir_okay=False), metavar="FILE", help="Check a file of FOCUS rows instead.")
@click.option("--account", metavar="ID", help="BillingAccountId. Default: costgov, the account that is kept here.")
@click.option("--provider", metavar="NAME", help="Who sends the invoice, where the ledger names no cloud.")
@click.option("--billed", is_flag=True, help="Fill BilledCost too: for readers that look at nothing else.")
@scope_options
@config_option
def export(
    file: str, focus: bool, check: str | None, account: str | None, provider: str | None, billed: bool,
    since: int | None, until: int | None, runs: tuple[str, ...], config: Path | None,
) -> None:  # fmt: skip
    """Write the ledger in a form that other tools read: to FILE, or to standard output.

    FOCUS is the FinOps Open Cost and Usage Specification; the rows are those of its version 1.4. The amount stands in
    EffectiveCost, ContractedCost and ListCost. BilledCost is 0, because only who issues the invoice may state it, and
    a tool that loads the provider's rows too would count it twice; --billed fills it where that is not so.

    --check reads a file and names every row that breaks a rule, whoever wrote it.
    """
    from governor.core.money.reports.focus import Issuer

    if check is not None:
        if focus or file != "-":
            raise click.UsageError("--check stands alone")
        _check(check)
        return
    if not focus:
        raise click.UsageError("name a form: --focus")
    issuer = Issuer(provider=provider, billed=billed) if account is None else Issuer(account, provider, billed)
    _write(file, state_dir_of(config), scope_of(since, until, runs), issuer)


def _write(file: str, state_dir: Path, scope: Scope, issuer: Issuer) -> None:
    from governor.core.money.reports.focus import COLUMNS, VERSION, focus_rows

    rows, usd_micros = 0, 0
    unread = Unread(scope)
    with _opened(file) as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(COLUMNS)
        for charge in charges_in(state_dir, scope, unread):
            usd_micros += charge.usd_micros
            for row in focus_rows(charge, issuer):
                rows += 1
                out.writerow("" if row[name] is None else row[name] for name in COLUMNS)
        if not rows:
            unread.end()  # Within: a file of nothing does not appear.
    if file != "-":
        click.echo(f"{file}: {_rows(rows)} of FOCUS {VERSION}, ${exact_usd(usd_micros)}")
    unread.end()


@contextmanager
def _opened(file: str) -> Iterator[TextIO]:
    """Standard output, or a file that appears under its name when it is whole."""
    if file == "-":
        yield sys.stdout
        return
    part = f"{file}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="") as stream:
            yield stream
        os.replace(part, file)
    except OSError as error:
        raise Failed(f"{file}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):  # It is not there any more when all went well.
            os.unlink(part)


def _check(path: str) -> None:
    from governor.core.money.reports.focus import VERSION
    from governor.core.money.reports.focus_rules import check_header, check_row
    from governor.wire.bills import TableError, opened_csv

    found = rows = 0
    try:
        with open(path, "rb", buffering=0) as stream, opened_csv(stream, path) as table:
            for one in check_header(table.columns):
                found += _say(f"{path}: {one.column}: {one.text}", found)
            for number, cells in table.rows():
                rows += 1
                for one in check_row({name: cell or None for name, cell in cells.items()}):
                    found += _say(f"{path}:{number}: {one.column}: {one.text}", found)
    except TableError as error:
        raise Failed(str(error)) from error
    except OSError as error:
        raise Failed(f"{path}: cannot be read: {error.strerror}") from error
    if found:
        rest = ", the first of them above" if found > PROBLEMS_SHOWN else ""
        raise Failed(f"{path}: {found} problem{'s' if found > 1 else ''} in {_rows(rows)}{rest}")
    click.echo(f"{path}: {_rows(rows)}, as FOCUS {VERSION} requires as far as a file can show it")


def _say(line: str, shown: int) -> int:
    if shown < PROBLEMS_SHOWN:
        click.echo(line)
    return 1


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


# `costgov cost`: what was spent, by run, stage, day, node, label or line; the export; the bill's comparison.


SOURCES_SHOWN: Final = 2  # More would push the amounts off the screen; --json has them all.
_TYPED: Final = click.core.ParameterSource.COMMANDLINE  # $COSTGOV_CONFIG stands for every command.
_PER: Final = {Unit.HOUR: "/h", Unit.GB_MONTH: "/GB-month", Unit.GB: "/GB", Unit.PIECE: " each"}


@click.group(
    invoke_without_command=True, short_help="What was spent: by run, stage, day, node, label or line.", epilog=exits()
)
@click.option(
    "--by", default="run", show_default=True, metavar="run|stage|day|node|label:KEY|line", help="What to group it by."
)
@scope_options
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for spreadsheets.")
@config_option
@json_option
@click.pass_context
def cost(
    ctx: click.Context, by: str, since: int | None, until: int | None, runs: tuple[str, ...], as_csv: bool,
    config: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Show what was spent, from the ledger: charges of node time, with the price of that time and who said it.

    Always reads the journals of the state directory, beside a running governor too: what it has charged stands in
    them within ten seconds. Hours are those of the node: a run that holds 2 of 8 GPUs is charged a quarter of them.
    Amounts in the table add up to the cent; --json and --csv give exact dollars. What of the ledger cannot be read is
    named on stderr, with exit code 1; the rest is shown.
    """
    if ctx.invoked_subcommand is not None:
        given = [name for name in ctx.params if ctx.get_parameter_source(name) is _TYPED]
        if given:
            raise click.UsageError(f"options of `cost {ctx.invoked_subcommand}` stand behind it")
        return
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude one another")
    scope = scope_of(since, until, runs)
    state_dir = state_dir_of(config)
    unread = Unread(scope)
    with _uncollected():
        try:
            groups = tally_sums(sums_in(state_dir, scope, by, unread), by)
        except ValueError as error:
            raise click.UsageError(f"--by: {error}") from error
        _show(groups, by, scope, unread, state_dir, as_json=as_json, as_csv=as_csv)
    unread.end()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage in cycles: of tens of thousands of sums none is any, and to look takes a fifth."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _show(
    groups: Sequence[Group], by: str, scope: Scope, unread: Unread, state_dir: Path, *, as_json: bool, as_csv: bool
) -> None:
    if as_json:
        print_json(_document(groups, by, scope, unread.count))
    elif as_csv:
        _print_csv(groups)
    elif groups:
        _print_table(groups, by)
    elif not unread.count:
        asked = scope.text()
        click.echo(f"nothing was charged {asked}" if asked else NOTHING_YET.format(state_dir=state_dir))


cost.add_command(export)
cost.add_command(reconcile)
cost.add_command(stages)


# --- for people ---------------------------------------------------------------------------------------------


def _print_table(groups: Sequence[Group], by: str) -> None:
    from governor.text.table import Head, render_rows

    total = sum_of(groups)
    marked = total.reconstructed_usd_micros > 0
    of_lines = by == "line"
    heads = [Head(by.upper(), may_wrap=True), Head("QUANTITY" if of_lines else "HOURS", is_number=True)]
    heads += [Head("AMOUNT", is_number=True), Head("SHARE", is_number=True)]
    heads += [Head("RECONSTRUCTED", is_number=True)] if marked else []
    heads += [Head("PRICE"), Head("SOURCE", may_wrap=True)]
    cents = whole_cents([group.usd_micros for group in groups])
    rows = []
    for group, amount in zip([*groups, total], [*cents, sum(cents)], strict=True):
        quantity = _quantity(group) if of_lines else decimal_text(group.node_ns, NS_PER_HOUR, 2)
        row = [group.key, quantity, f"${_grouped(decimal_text(amount, 100, 2))}", _share(group, total)]
        if marked:
            part = group.reconstructed_usd_micros
            row.append(f"${_grouped(decimal_text(part, MICROS_PER_USD, 2))}" if part else "-")
        rows.append([*row, _prices(group), _sources(group)])
    notes = ["reconstructed: charged on the governor's return, nobody metered while it passed"] if marked else []
    click.echo(render_rows(heads, rows, total=True, screen=screen_of(sys.stdout), notes=notes), nl=False)


def _grouped(number: str) -> str:
    """1234567.89 as 1,234,567.89."""
    whole, _, digits = number.partition(".")
    return f"{int(whole):,}.{digits}"


def _share(group: Group, total: Group) -> str:
    return f"{decimal_text(100 * group.usd_micros, total.usd_micros, 1)}%" if total.usd_micros else "-"


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


@lru_cache(maxsize=4096)  # A year of spot prices; thousands of runs share a day's.
def _price(micros: int) -> str:
    """At least cents, and whatever more a price has."""
    whole, _, digits = exact_usd(micros).partition(".")
    return f"{whole}.{digits.rstrip('0').ljust(2, '0')}"


def _sources(group: Group) -> str:
    known = [f"{source} {day}".strip() for source, day in sorted(group.sources)]
    more = len(known) - SOURCES_SHOWN
    return ", ".join(known[:SOURCES_SHOWN]) + (f" and {more} more" if more > 0 else "")


# --- for programs -------------------------------------------------------------------------------------------


def _document(groups: Sequence[Group], by: str, scope: Scope, unreadable: int) -> dict[str, Any]:
    total = sum_of(groups)
    return {
        "by": by,
        "since": None if scope.since is None else utc_text(scope.since),
        "until": None if scope.until is None else utc_text(scope.until),
        "runs": list(scope.runs),
        "currency": "USD",
        "groups": [_record(group, total) for group in groups],
        "total": {name: value for name, value in _record(total, total).items() if name not in _OF_A_GROUP},
        "unreadable": unreadable,
    }


_OF_A_GROUP: Final = ("key", "share", "unit", "price_usd_min", "price_usd_max", "price_sources")


def _record(group: Group, total: Group) -> dict[str, Any]:
    """Amounts are decimal strings: a JSON number would be read as a float."""
    low, high = group.price_min_usd_micros, group.price_max_usd_micros
    return {
        "key": group.key,
        "hours": decimal_text(group.node_ns, NS_PER_HOUR, 6),
        "node_time_ns": group.node_ns,
        "usd": exact_usd(group.usd_micros),
        "share": decimal_text(group.usd_micros, total.usd_micros, 6) if total.usd_micros else None,
        "reconstructed_usd": exact_usd(group.reconstructed_usd_micros),
        "unit": None if group.unit is None else group.unit.value,
        "price_usd_min": None if low is None else exact_usd(low),
        "price_usd_max": None if high is None else exact_usd(high),
        "price_sources": [{"source": source, "as_of": day} for source, day in sorted(group.sources)],
        "charges": group.charges,
    }


def _print_csv(groups: Sequence[Group]) -> None:
    total = sum_of(groups)
    names = ["key", "hours", "usd", "share", "reconstructed_usd", "unit", "price_usd_min", "price_usd_max"]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([*names, "price_sources", "charges"])
    for group in groups:
        record = _record(group, total)
        sources = "; ".join(f"{source} {day}".strip() for source, day in sorted(group.sources))
        out.writerow([*("" if record[name] is None else record[name] for name in names), sources, group.charges])
