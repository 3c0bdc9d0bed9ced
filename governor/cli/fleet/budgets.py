"""`costgov fleet list`, `budget` and `settle`: budgets that machines share, and their grants, as etcd has them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from governor.cli.budget import Ceiling
from governor.cli.common import (
    ExitCode,
    Usd,
    config_option,
    exits,
    json_option,
    print_json,
)
from governor.cli.fleet.common import dollars, done
from governor.core.base.units import NS_PER_S, UsdMicros, utc_text


@click.command("list", short_help="Scopes with what is granted and spent, and the grants.", epilog=exits())
@config_option
@json_option
def list_budgets(config: Path | None, as_json: bool) -> None:
    """List every shared budget, and every grant: which node may spend how much of it, for which run.

    \b
    HELD     the sum of all grants that are held
    SETTLED  what runs have spent that gave their grants back
    ROOM     what may still be granted

    A grant's SPENT is what its governor said when it last changed the grant, as of SEEN.
    """
    from governor.app.fleet_rows import budgets

    data = done(config, budgets)
    if as_json:
        print_json(data)
        return
    from governor.text.screen import screen_of
    from governor.text.table import Head, render_rows

    screen = screen_of(sys.stdout)
    scopes = [_scope_cells(row) for row in data["scopes"]]
    if not scopes:
        click.echo("no budget is shared: the first governor whose costgov.toml has a [[fleet.budget]] makes its row")
        return
    heads = [Head("SCOPE", may_wrap=True), *(Head(name, True) for name in ("CEILING", "HELD", "SETTLED", "ROOM"))]
    click.echo(render_rows([*heads, Head("GRANTS", True)], scopes, total=False, screen=screen), nl=False)
    grants = [
        [row["node"], row["run"], row["scope"], dollars(row["granted_usd"]), dollars(row["spent_usd"]),
         utc_text(round(row["seen_s"] * NS_PER_S)), row["id"]]
        for row in data["grants"]
    ]  # fmt: skip
    if grants:
        heads = [Head("NODE", may_wrap=True), Head("RUN", may_wrap=True), Head("SCOPE", may_wrap=True),
                 Head("GRANTED", True), Head("SPENT", True), Head("SEEN"), Head("ID", may_wrap=True)]  # fmt: skip
        cut = ["More are held than are shown."] if data["is_cut"] else []
        click.echo(render_rows(heads, grants, total=False, screen=screen, notes=cut), nl=False)


@click.command(
    "budget", short_help="Set a shared ceiling, from now on.", epilog=exits(ExitCode.UNKNOWN, ExitCode.UNSURE)
)
@click.argument("scope")
@click.argument("usd", type=Ceiling())
@config_option
@json_option
def set_budget(scope: str, usd: UsdMicros, config: Path | None, as_json: bool) -> None:
    """Let all runs of SCOPE together spend at most USD, what they have spent already included.

    \b
    costgov fleet budget label:team=nlp 8000
    costgov fleet budget day 1200

    SCOPE stands as `costgov fleet list` shows it. Below what is granted already, nothing more is granted and each
    holder gives back what its run does not need for its halt. costgov.toml has no say once a scope has its row. A
    scope without a row gets one: what its grants hold counts, and what was settled before is not known.
    """
    from governor.app.fleet_rows import set_ceiling

    data = done(config, lambda store: set_ceiling(store, scope, usd))
    _show(data, as_json)


@click.command(
    "settle", short_help="End the grant of a machine that is gone.", epilog=exits(ExitCode.UNKNOWN, ExitCode.UNSURE)
)
@click.argument("grant_id", metavar="ID")
@click.option("--spent", type=Usd(), metavar="USD", help="What its run has spent. Default: all that it was granted.")
@config_option
@json_option
def settle_grant(grant_id: str, spent: UsdMicros | None, config: Path | None, as_json: bool) -> None:
    """End a grant by its ID of `costgov fleet list`, and give back what was not spent.

    A machine that is gone keeps its grants, because its bill may go on. Settle them once its provider shows that it
    is stopped. A governor that lives and has the grant halts its run then. Once is enough: a second time fails.
    """
    from governor.app.fleet_rows import settle_by_id

    data = done(config, lambda store: settle_by_id(store, grant_id, spent))
    _show(data, as_json)


def _show(data: Any, as_json: bool) -> None:
    if as_json:
        print_json(data)
        return
    from governor.text.table import plain

    if "ceiling_usd" not in data:
        click.echo(plain(f"{data['scope']}: done; {data.get('problem', 'its row is not there any more')}"))
        return
    click.echo(
        plain(
            f"{data['scope']}: ceiling {dollars(data['ceiling_usd'])}, held {dollars(data['held_usd'])}, settled "
            f"{dollars(data['settled_usd'])}, room {dollars(data['room_usd'])}"
        )
    )


def _scope_cells(row: Any) -> list[str]:
    if "problem" in row:
        return [f"{row['scope']}: {row['problem']}", "-", "-", "-", "-", "-"]
    amounts = (row["ceiling_usd"], row["held_usd"], row["settled_usd"], row["room_usd"])
    return [str(row["scope"]), *(dollars(amount) for amount in amounts), str(row["holders"])]
