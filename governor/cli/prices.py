"""`costgov prices`: the price of this machine and its source, and the built-in table."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from governor.cli.common import (
    Failed,
    config_option,
    exits,
    find_config,
    json_option,
    print_json,
    settings_from,
    show_line,
)
from governor.text.screen import screen_of

if TYPE_CHECKING:
    from governor.core.money.prices import Chosen, Day
    from governor.text.screen import Screen
    from governor.wire.price_table import PriceRow, PriceTable


@click.command(short_help="What this machine costs and who says so; the built-in price table.", epilog=exits())
@click.option("--provider", metavar="NAME", help='Only rows of this provider, for example "aws".')
@click.option("--instance", metavar="TEXT", help="Only rows whose instance type or GPU contains this text.")
@click.option(
    "--table", "only_table", is_flag=True, help="The table alone, without a request for this machine's price."
)
@config_option
@json_option
def prices(
    provider: str | None, instance: str | None, only_table: bool, config: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Show which price the governor would charge this machine's time at, and why; then the built-in price table.

    Believed first is what the provider says of this very machine, then node.price_usd_per_hour of costgov.toml, then
    the provider's public list, then the built-in table; [price] says who is asked. A price that nobody knows is
    unknown, never 0. Asking only reads, and takes some ten seconds at most.

    Of the table the newest row of a kind counts. Rows of the kinds index, range and serverless are never used. AGE is
    from the first day that a date can mean; "!" marks what is stale (older than half a year). The
    number behind a source is that of its address below the table.
    """
    from governor.core.base.units import NS_PER_DAY
    from governor.core.money.prices import STALE_AFTER_DAYS, Day
    from governor.text.table import plain
    from governor.wire.price_table import PriceTableError, built_in, select

    today = Day(time.time_ns() // NS_PER_DAY)
    try:
        table = built_in()
    except PriceTableError as error:
        raise Failed(str(error)) from error
    rows = list(select(table, provider, instance))
    if provider is not None and not any(select(table, provider, None)):
        raise click.BadParameter(_unknown(provider, table), param_hint="'--provider'")
    chosen = None if only_table else _chosen(config, today)
    if as_json:
        machine = chosen.document() if chosen is not None else None
        listed = [_document(row, today) for row in rows]
        stale = sum(row["stale"] for row in listed)
        head = {"compiled": table.compiled_text, "stale": stale, "stale_after_days": STALE_AFTER_DAYS}
        print_json({"this_machine": machine, "table": {**head, "rows": listed}})
        return
    if chosen is not None:
        _print_chosen(chosen)
    sys.stdout.write(_render(rows, table, today, screen_of(sys.stdout)))
    if not rows:
        of = f" of {provider}" if provider is not None else ""
        click.echo(f'no row{of} has "{plain(instance or "")}" in its instance type or GPU')


def _unknown(provider: str, table: PriceTable) -> str:
    """What to write in place of a provider that no row has."""
    import difflib

    from governor.text.table import plain

    known = sorted({row.provider for row in table.rows}, key=str.casefold)
    said = {name.casefold(): name for name in known}
    near = [said[name] for name in difflib.get_close_matches(provider.casefold(), said, 3)]
    meant = f"did you mean {' or '.join(near)}? The" if near else "the"
    return f'the table has no provider "{plain(provider)}"; {meant} providers: {", ".join(known)}'


def _chosen(config: Path | None, today: Day) -> Chosen:
    from governor.adapters.plugins import ConfigError
    from governor.app import pricing

    settings = settings_from(find_config(config))
    try:
        return pricing.price_of(settings, None, None, today, pricing.ask(pricing.load_source(settings)))
    except ConfigError as error:
        raise Failed(str(error)) from error


def _print_chosen(chosen: Chosen) -> None:
    from governor.text.table import plain

    show_line(f"this machine: {plain(chosen.text)}", "bold")
    for remark in chosen.remarks:
        show_line(f"  {'!' if remark.is_alarm else '-'} {plain(remark.line)}", "bold yellow" if remark.is_alarm else "")
    click.echo()


def _age(row: PriceRow, today: Day) -> tuple[int, bool]:
    """Its days, and whether it is stale."""
    from governor.core.money.prices import STALE_AFTER_DAYS, age_of

    age_days = age_of(row.date, today)
    return age_days, age_days > STALE_AFTER_DAYS


def _document(row: PriceRow, today: Day) -> dict[str, Any]:
    from governor.core.base.units import MICROS_PER_USD

    age_days, is_stale = _age(row, today)
    return {
        "provider": row.provider,
        "instance": row.instance or None,
        "gpu": row.gpu,
        "gpus": row.gpus,
        "usd_per_hour": row.usd_micros_per_hour / MICROS_PER_USD,
        "usd_micros_per_hour": row.usd_micros_per_hour,
        "kind": row.kind_text,
        "used": row.kind is not None,
        "date": row.date,
        "age_days": age_days,
        "stale": is_stale,
        "source": row.source,
        "url": row.url,
        "notes": row.notes,
    }


def _render(rows: Sequence[PriceRow], table: PriceTable, today: Day, screen: Screen) -> str:
    """The table and its addresses as text that ends with a newline. A row that is never used is dim."""
    from governor.core.base.units import format_usd
    from governor.core.money.prices import STALE_AFTER_DAYS
    from governor.text.screen import Styled
    from governor.text.table import Head, render_rows

    heads = (
        Head("PROVIDER"), Head("INSTANCE", may_wrap=True), Head("GPU", may_wrap=True), Head("GPUS", True),
        Head("$/H", True), Head("$/GPU-H", True), Head("KIND"), Head("DATE"), Head("AGE", True),
        Head("SOURCE", may_wrap=True),
    )  # fmt: skip
    addresses: dict[str, int] = {}
    shown, stale = [], 0
    for row in rows:
        age_days, is_stale = _age(row, today)
        stale += is_stale
        source = f"{row.source} [{addresses.setdefault(row.url, len(addresses) + 1)}]"
        cells = (
            row.provider, row.instance or "-", row.gpu, str(row.gpus), format_usd(row.usd_micros_per_hour),
            format_usd(row.usd_micros_per_hour // row.gpus), row.kind_text, row.date,
            f"{'! ' if is_stale else ''}{age_days} d", f"{source}; {row.notes}" if row.notes else source,
        )  # fmt: skip
        shown.append([Styled(cell, "dim" if row.kind is None else "") for cell in cells])
    told = f"\n{stale} stale (!): older than {STALE_AFTER_DAYS} days" if stale else ""
    title = f"built-in table, compiled {table.compiled_text}, {len(rows)} of {len(table.rows)} rows{told}\n"
    below = "".join(f"[{number}] {url}\n" for url, number in addresses.items())
    return title + render_rows(heads, shown, total=False, screen=screen) + below
