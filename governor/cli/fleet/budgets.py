"""`costgov fleet list`, `budget`, `settle` and `correct`: budgets that machines share, and their grants, as in etcd."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
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
from governor.core.base.units import NS_PER_S, UsdMicros, WallNs, usd, utc_text
from governor.core.fleet.scopes import DAY, checked_row, short_id
from governor.core.money.budgets import checked_ceiling
from governor.text.screen import Screen


class Spent(Usd):
    """Dollars -> micro-dollars. Nothing may have been spent."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> UsdMicros:
        try:
            amount = UsdMicros(value if isinstance(value, int) else usd(str(value)))
            return checked_ceiling(amount) if amount else amount  # More is a typo, and no row can hold it.
        except ValueError as error:
            self.fail(str(error), param, ctx)


class RowName(click.ParamType[str]):
    """A scope as the store has it: `day` -> `day:2026-11-30`, today."""

    name = "scope"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return checked_row(str(value), WallNs(time.time_ns()))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("list", short_help="Scopes with what is granted and spent, and the grants.", epilog=exits())
@config_option
@json_option
def list_budgets(config: Path | None, as_json: bool) -> None:
    """List every shared budget, and every grant: which node may spend how much of it, for which run.

    \b
    HELD     the sum of all grants that are held
    SETTLED  what runs have spent that gave their grants back
    ROOM     what may still be granted

    A grant's SPENT is what its governor said when it last changed the grant, as of SEEN. Its ID is node, scope and run,
    or the whole one where two grants have these; --json has the whole one of each.
    """
    from governor.app.fleet_rows import budgets

    data = done(config, budgets)
    if as_json:
        print_json(data)
        return
    from governor.text.screen import screen_of

    click.echo(drawn(data, screen_of(sys.stdout)), nl=False)


def drawn(data: Mapping[str, Any], screen: Screen) -> str:
    """Scopes and grants for people. A grant whose scope has lost its row is shown, too."""
    from governor.text.table import Head, render_rows

    scopes = [_scope_cells(row) for row in data["scopes"]]
    text = "no scope has a row: the first governor whose costgov.toml has a [[fleet.budget]] makes it\n"
    if scopes:
        heads = [Head("SCOPE", may_wrap=True), *(Head(name, True) for name in ("CEILING", "HELD", "SETTLED", "ROOM"))]
        text = render_rows([*heads, Head("GRANTS", True)], scopes, total=False, screen=screen)
    called = Counter(short_id(row["id"]) for row in data["grants"])
    grants = [
        [row["node"], row["run"], row["scope"], dollars(row["granted_usd"]), dollars(row["spent_usd"]),
         utc_text(round(row["seen_s"] * NS_PER_S)), _called(row["id"], called)]
        for row in data["grants"]
    ]  # fmt: skip
    if grants:
        heads = [Head("NODE", may_wrap=True), Head("RUN", may_wrap=True), Head("SCOPE", may_wrap=True),
                 Head("GRANTED", True), Head("SPENT", True), Head("SEEN"), Head("ID", may_wrap=True)]  # fmt: skip
        cut = ["More are held than are shown."] if data["is_cut"] else []
        text += render_rows(heads, grants, total=False, screen=screen, notes=cut)
    return text


@click.command(
    "budget", short_help="Set a shared ceiling, from now on.", epilog=exits(ExitCode.UNKNOWN, ExitCode.UNSURE)
)
@click.argument("scope", type=RowName())
@click.argument("usd", type=Ceiling())
@click.option("--new", "is_new", is_flag=True, help="Make the row of a scope that has none.")
@config_option
@json_option
def set_budget(scope: str, usd: UsdMicros, is_new: bool, config: Path | None, as_json: bool) -> None:
    """Let all runs of SCOPE together spend at most USD, what they have spent already included.

    \b
    costgov fleet budget label:team=nlp 8000
    costgov fleet budget day 1200

    SCOPE stands as `costgov fleet list` shows it. `day` is today's row, by UTC. Each later day has a row of its own,
    and begins with the ceiling_usd of costgov.toml: change it there too.

    Below what is granted already, nothing more is granted and each holder gives back what its run does not need for its
    halt. costgov.toml has no say once a scope has its row. But each governor needs the table: one whose costgov.toml
    has no [[fleet.budget]] of a scope asks for no grant of it, and its runs spend freely. So a scope that has no row is
    refused, unless with --new. A row that was lost while there are grants of it is made anew: what they hold counts,
    and what was settled before is not known (`costgov fleet correct`).
    """
    from governor.app.fleet_rows import set_ceiling

    data = done(config, lambda store: set_ceiling(store, scope, usd, is_new=is_new))
    _show(data, as_json)
    if as_json:
        return
    table = DAY if scope.startswith(f"{DAY}:") else scope
    if table == DAY:
        click.echo("This day alone, by UTC. Each later one begins with ceiling_usd of costgov.toml.")
    if data.get("made"):
        told = f'Governors enforce it only where their costgov.toml has a [[fleet.budget]] with scope = "{table}".'
        click.echo(told)


@click.command(
    "settle", short_help="End the grant of a machine that is gone.", epilog=exits(ExitCode.UNKNOWN, ExitCode.UNSURE)
)
@click.argument("grant_id", metavar="ID")
@click.option("--spent", type=Spent(), metavar="USD", help="What its run has spent. Default: all that it was granted.")
@click.option("--force", "is_forced", is_flag=True, help="Also far above the grant, or while its governor speaks.")
@config_option
@json_option
def settle_grant(grant_id: str, spent: UsdMicros | None, is_forced: bool, config: Path | None, as_json: bool) -> None:
    """End a grant by its ID of `costgov fleet list`, and give back what was not spent.

    \b
    costgov fleet settle gpu-3/label:team=nlp/llama --spent 212.40

    A machine that is gone keeps its grants, because its bill may go on. Settle them once its provider shows that it
    is stopped. Once is enough: a second time fails. ID may be NODE/SCOPE/RUN where one grant has these.

    Refused are: less than its governor had counted; more than three times the grant and that; and a grant whose
    governor speaks, because that books its own spend, and halts its run once the grant is gone. --force does the last
    two. What was settled wrongly is set right by `costgov fleet correct`.
    """
    from governor.app.fleet_rows import settle_by_id

    data = done(config, lambda store: settle_by_id(store, grant_id, spent, is_forced=is_forced))
    _show(data, as_json)


@click.command(
    "correct", short_help="Say what was settled in a scope.", epilog=exits(ExitCode.UNKNOWN, ExitCode.UNSURE)
)
@click.argument("scope", type=RowName())
@click.option("--settled", type=Spent(), metavar="USD", required=True, help="What ended runs have spent, in all.")
@config_option
@json_option
def correct_scope(scope: str, settled: UsdMicros, config: Path | None, as_json: bool) -> None:
    """Set what SCOPE has settled: after a wrong `costgov fleet settle`, or for a row that was made anew.

    \b
    costgov fleet correct label:team=nlp --settled 310.25

    It replaces the SETTLED of `costgov fleet list`. What is held stays. `costgov cost --fleet` has what nodes have
    metered, and changes nothing here.
    """
    from governor.app.fleet_rows import correct_settled

    data = done(config, lambda store: correct_settled(store, scope, settled))
    _show(data, as_json)


def _called(grant_id: str, called: Counter[str]) -> str:
    short = short_id(grant_id)
    return short if called[short] == 1 else grant_id


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
