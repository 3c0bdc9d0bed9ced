"""`costgov fleet halt`, `hold`, `release` and `orders`: what a person wants of all runs of a scope."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from governor.cli.act import HoldLength
from governor.cli.common import ExitCode, Failed, config_option, exits, json_option, print_json
from governor.cli.fleet.command import order_line
from governor.cli.fleet.common import done
from governor.core.base.units import NS_PER_S, parse_duration

_SHOWN: Final = 10


class Length(click.ParamType[int]):
    """ "2h" -> nanoseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    "halt", short_help="Halt all runs of a scope, and let none begin.", epilog=exits(ExitCode.UNKNOWN, ExitCode.UNSURE)
)  # fmt: skip
@click.argument("scope")
@click.option("--reason", required=True, metavar="TEXT", help="Why: it stands in each incident.")
@click.option("--for", "lasts", type=Length(), metavar="DURATION", help="Until then no run begins. Default: released.")
@click.option(
    "--checkpoint", type=click.Choice(["none"]), metavar="none",
    help="none: ask for no checkpoint and wait for none. The work since the last one is lost.",
)  # fmt: skip
@click.option("--wait", type=Length(), metavar="DURATION", help="Wait until all have ended, so long at most.")
@config_option
@json_option
def halt_fleet(
    scope: str, reason: str, lasts: int | None, checkpoint: str | None, wait: int | None, config: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Halt every run of SCOPE on all nodes, now: checkpoint, end its processes, end the spending, prove it.

    \b
    costgov fleet halt label:team=nlp --reason "the data are wrong"
    costgov fleet halt fleet --reason "the bill" --wait 15m

    SCOPE is fleet, stage:NAME, label:KEY=VALUE, node:NAME or run:NAME. Nothing asks again. The order stands until
    `costgov fleet release`: a run that begins meanwhile is halted, and `costgov run` starts none. Nodes are told within
    a second; one that is cut off from etcd is told when it is not any more. With --wait the exit code is 7 where
    something of it has not ended by then, or is not known. It is 5 where no node shows a run that it covers.
    """
    from governor.app import fleet_orders
    from governor.app.fleet_rows import Failure
    from governor.core.events.fleet_orders import Act
    from governor.text.table import plain

    order = _made(fleet_orders, Act.HALT, scope, reason, lasts, is_unsaved=checkpoint is not None)

    seen = _Progress()

    def act(store: Any) -> Any:
        given = fleet_orders.give(store, order)
        if isinstance(given, Failure):
            return given
        if wait:  # Who breaks the wait off must know that it stands.
            click.echo(plain(_stands(given)), err=as_json)
        left = fleet_orders.await_end(store, order, wait / NS_PER_S if wait else 0.0, seen)
        return {**given, **_left_document(left), "covered": seen.most}

    data = done(config, act)
    if as_json:
        print_json(data)
    else:
        _tell(data, waited=bool(wait))
    if data["left"] is not None and data["is_whole"] and not data["covered"]:
        raise click.exceptions.Exit(ExitCode.UNKNOWN)
    if wait and not data["is_over"]:
        raise click.exceptions.Exit(ExitCode.UNSURE)


def _left_document(left: Any) -> dict[str, Any]:
    """`left` null: etcd did not say."""
    if not hasattr(left, "parts"):
        return {"left": None, "is_whole": False, "is_over": False, "known": []}
    return {"left": left.parts, "is_whole": left.is_whole, "is_over": left.is_over, "known": left.known}


class _Progress:
    """A line on stderr whenever fewer, or more, are left. `most`: how many were seen at once."""

    def __init__(self) -> None:
        self._left: int | None = None
        self.most = 0

    def __call__(self, left: Any) -> None:
        count = len(left.parts)
        self.most = max(self.most, count)
        if self._left not in (None, count):
            click.echo(f"{_parts(count)} {'is' if count == 1 else 'are'} left", err=True)
        self._left = count


def _parts(count: int) -> str:
    return "1 part of a run" if count == 1 else f"{count} parts of runs"


def _tell(data: Mapping[str, Any], *, waited: bool) -> None:
    from governor.text.table import plain

    left = data["left"]
    if not waited:
        click.echo(plain(_stands(data)))
    if left is None:
        click.echo("What it covers is not known: etcd did not say. See `costgov fleet`.")
    elif not data["covered"]:
        click.echo(
            plain(f"no node shows a live run that it covers. Known are: {', '.join(data['known']) or 'no runs'}")
        )
    elif not left:
        click.echo("all of it that is shown has ended")
    else:
        one, several = ("has not ended", "have not ended") if waited else ("is covered", "are covered")
        click.echo(f"{_parts(len(left))} {one if len(left) == 1 else several}:")
        for part in left[:_SHOWN]:
            silent = ", its governor is SILENT" if part["silent"] else ""
            stage = f" {part['halt_stage']}" if part["halt_stage"] else ""
            click.echo(plain(f"  {part['run']} on {part['node']}: {part['state']}{stage}{silent}"))
        if len(left) > _SHOWN:
            click.echo(f"  and {len(left) - _SHOWN} more")
    if left is not None and not data["is_whole"]:
        click.echo("There may be more: a row cannot be read, or lacks labels of its run. See `costgov fleet --json`.")
    click.echo("Follow it with: costgov fleet")


def _stands(order: Mapping[str, Any]) -> str:
    return f"{order['id']}: stands from now on for {order['scope']}; end it with: costgov fleet release {order['id']}"


@click.command(
    "hold", short_help="Keep every rule from halting the runs of a scope.", epilog=exits(ExitCode.UNSURE)
)  # fmt: skip
@click.argument("scope")
@click.argument("duration", type=HoldLength())
@click.option("--reason", required=True, metavar="TEXT", help="Why: whoever looks at a run sees it.")
@config_option
@json_option
def hold_fleet(scope: str, duration: int, reason: str, config: Path | None, as_json: bool) -> None:
    """Keep every rule from halting a run of SCOPE for DURATION ("2h"; at most 7 days).

    As `costgov hold` on each of its nodes, ceilings and shared budgets included: money goes on being counted. Runs that
    begin meanwhile are held too. `costgov fleet release` ends it before its time. A halt that has begun goes on.
    """
    from governor.app import fleet_orders
    from governor.core.events.fleet_orders import Act

    if not duration:
        raise click.UsageError("a hold of the fleet is lifted by: costgov fleet release ID")
    order = _made(fleet_orders, Act.HOLD, scope, reason, duration)
    data = done(config, lambda store: fleet_orders.give(store, order))
    if as_json:
        print_json(data)
        return
    from governor.text.table import plain

    click.echo(plain(order_line(data)))
    click.echo(f"Lift it with: costgov fleet release {data['id']}")


@click.command("release", short_help="End an order.", epilog=exits(ExitCode.UNKNOWN, ExitCode.UNSURE))
@click.argument("order_id", metavar="ID")
@config_option
@json_option
def release_order(order_id: str, config: Path | None, as_json: bool) -> None:
    """End an order by its ID of `costgov fleet orders`.

    Behind a halt, runs may begin again; none is started. What a hold has held is judged by its rules again.
    """
    from governor.app import fleet_orders

    data = done(config, lambda store: fleet_orders.release(store, order_id))
    if as_json:
        print_json(data)
    else:
        click.echo(f"{order_id}: released")


@click.command("orders", short_help="Orders that stand.", epilog=exits())
@config_option
@json_option
def list_orders(config: Path | None, as_json: bool) -> None:
    """List the orders to the fleet.

    One whose time is over does nothing. It goes when another order is given an hour later.
    """
    from governor.app import fleet_orders

    data = done(config, fleet_orders.orders)
    if as_json:
        print_json(data)
        return
    from governor.text.table import plain

    for order in data["orders"]:
        click.echo(plain(order_line(order)))
    for key in data["unreadable"]:
        click.echo(plain(f"{key}: cannot be read, and orders nothing"))
    if not data["orders"] and not data["unreadable"]:
        click.echo("no order stands")


@click.command("forget", short_help="Take the rows of a governor away that is gone.", epilog=exits(ExitCode.UNKNOWN))
@click.argument("holder", metavar="HOLDER")
@config_option
@json_option
def forget_governor(holder: str, config: Path | None, as_json: bool) -> None:
    """Take away what a governor that is gone has said, by its holder of `costgov fleet --nodes --json`.

    For a machine that is gone for good. Its grants stay taken until `costgov fleet settle`, and its costs stay.
    """
    from governor.app import fleet_orders

    data = done(config, lambda store: fleet_orders.forget(store, holder))
    if as_json:
        print_json(data)
    else:
        from governor.text.table import plain

        click.echo(plain(f"{data['holder']}: forgotten"))


def _made(orders: Any, *order: Any, is_unsaved: bool = False) -> Any:
    try:
        return orders.new_order(*order, is_unsaved=is_unsaved)
    except ValueError as error:
        raise Failed(str(error), ExitCode.USAGE) from error
