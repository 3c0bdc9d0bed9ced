"""`costgov cost export`: the ledger as FOCUS rows, and the check of any such file."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from governor.cli.common import ExitCode, Failed, config_option, exits
from governor.cli.cost.charges import (
    Scope,
    Unread,
    charges_in,
    scope_of,
    scope_options,
    state_dir_of,
    tell_unknown,
)
from governor.core.money.reports.cost import exact_usd

if TYPE_CHECKING:
    from governor.core.money.reports.focus import Issuer

PROBLEMS_SHOWN: Final = 20  # A systematic error is in every row of a file.


@click.command(short_help="Write the ledger as FOCUS rows; check such a file.", epilog=exits(ExitCode.UNKNOWN))
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
            unread.end()  # Inside the block, so that an empty result creates no file.
    if file != "-":
        click.echo(f"{file}: {_rows(rows)} of FOCUS {VERSION}, ${exact_usd(usd_micros)}")
    unread.end()
    tell_unknown(state_dir, scope, unread)


@contextmanager
def _opened(file: str) -> Iterator[TextIO]:
    """Standard output, or a file that gets its name only when it is complete."""
    if file == "-":
        yield sys.stdout
        return
    from governor.wire.named_file import opened_to_write

    part = f"{file}.part"
    try:
        with open(opened_to_write(part), "w", encoding="utf-8", newline="") as stream:
            yield stream
        os.replace(part, file)
    except OSError as error:
        raise Failed(f"{file}: cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):  # It is gone already after a success.
            os.unlink(part)


def _check(path: str) -> None:
    from governor.core.money.reports.focus import VERSION
    from governor.core.money.reports.focus_rules import check_header, check_row
    from governor.wire.csv_table import TableError, opened_csv
    from governor.wire.named_file import opened_file

    found = rows = 0
    try:
        with opened_file(path) as stream, opened_csv(stream, path) as table:
            for one in check_header(table.columns):
                found += _show_problem(f"{path}: {one.column}: {one.text}", found)
            for number, cells in table.rows():
                rows += 1
                for one in check_row({name: cell or None for name, cell in cells.items()}):
                    found += _show_problem(f"{path}:{number}: {one.column}: {one.text}", found)
    except TableError as error:
        raise Failed(str(error)) from error
    except OSError as error:
        raise Failed(f"{path}: cannot be read: {error.strerror}") from error
    if found:
        rest = ", the first of them above" if found > PROBLEMS_SHOWN else ""
        raise Failed(f"{path}: {found} problem{'s' if found > 1 else ''} in {_rows(rows)}{rest}")
    click.echo(f"{path}: {_rows(rows)}, as FOCUS {VERSION} requires as far as a file can show it")


def _show_problem(line: str, shown: int) -> int:
    if shown < PROBLEMS_SHOWN:
        click.echo(line)
    return 1


def _rows(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
