"""`costgov fleet`: nodes and runs of all governors that share an etcd, as their rows show them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from governor.cli.common import ExitCode, LazyGroup, config_option, exits, json_option, print_json
from governor.cli.fleet.common import dollars, done, lasting
from governor.text.screen import Screen, Styled, screen_of

_TYPED: Final = click.core.ParameterSource.COMMANDLINE
_BUDGETS: Final = "governor.cli.fleet.budgets"
_ORDERS: Final = "governor.cli.fleet.orders"
_IS_LATE_S: Final = 120.0  # Rows are written once a minute.


@click.group(
    cls=LazyGroup,
    lazy={
        "list": f"{_BUDGETS}:list_budgets",
        "budget": f"{_BUDGETS}:set_budget",
        "settle": f"{_BUDGETS}:settle_grant",
        "correct": f"{_BUDGETS}:correct_scope",
        "halt": f"{_ORDERS}:halt_fleet",
        "hold": f"{_ORDERS}:hold_fleet",
        "release": f"{_ORDERS}:release_order",
        "orders": f"{_ORDERS}:list_orders",
        "forget": f"{_ORDERS}:forget_governor",
    },
    invoke_without_command=True,
    short_help="All nodes: runs, spend, health; orders and shared budgets.",
    epilog=exits(ExitCode.UNKNOWN, ExitCode.UNSURE),
)
@click.option("--nodes", "of_nodes", is_flag=True, help="A row for each node, in place of one for each run.")
@click.option("--all", "every", is_flag=True, help="Runs that have ended, too, as long as their nodes remember them.")
@config_option
@json_option
@click.pass_context
def fleet(ctx: click.Context, of_nodes: bool, every: bool, config: Path | None, as_json: bool) -> None:
    """Show every run of the fleet over all its nodes: state, spend, rate, and how long until a ceiling halts it.

    No governor is asked: each writes what it knows into the fleet's etcd ([fleet] in costgov.toml) once a minute, and
    at once when a run begins, halts or ends. This works on any machine that reaches etcd, also where none runs.

    \b
    RANKS    connected, of all
    LEFT     until a ceiling halts it
    SAID     how long ago its node wrote that, by this machine's clock

    A node is silent when its governor has not renewed its lease for 30 s. Its last words stay: its machine may be
    billed still.
    """
    if ctx.invoked_subcommand is not None:
        given = [name for name in ctx.params if ctx.get_parameter_source(name) is _TYPED]
        if given:
            raise click.UsageError(f"options of `fleet {ctx.invoked_subcommand}` stand behind it")
        return
    from governor.app.fleet_orders import now
    from governor.app.fleet_rows import Failure
    from governor.app.fleet_view import document, look

    def seen(store: Any) -> Any:
        found = look(store, now())
        return found if isinstance(found, Failure) else document(found)

    data = done(config, seen)
    if as_json:
        print_json(data)
        return
    click.echo(drawn(data, screen_of(sys.stdout), of_nodes=of_nodes, every=every), nl=False)


def drawn(data: Mapping[str, Any], screen: Screen, *, of_nodes: bool = False, every: bool = False) -> str:
    """The document for people."""
    runs = [run for run in data["runs"] if every or run["state"] != "finished"]
    table = _of_nodes(data["nodes"], screen) if of_nodes else _of_runs(runs, data["nodes"], screen)
    return "\n".join([*_summary(data), table])


def _summary(data: Mapping[str, Any]) -> list[str]:
    from governor.text.table import plain

    totals = data["totals"]
    silent = totals["nodes_silent"]
    lines = [
        f"{_many(totals['nodes'], 'node')}, {_many(totals['runs'], 'run')} alive, "
        f"{dollars(totals['rate_usd_per_hour'])}/h; what the nodes remember has cost {dollars(totals['spend_usd'])}"
    ]
    if silent:
        unseen = dollars(totals["rate_unseen_usd_per_hour"])
        lines.append(f"SILENT: {_many(silent, 'node')}, {unseen}/h at the last word, and perhaps now")
    for order in filter(lambda order: order["stands"], data["orders"]):
        lines.append(plain(f"ORDER {order_line(order)}"))
    if data["unreadable"]:
        lines.append(plain(f"{_many(len(data['unreadable']), 'unreadable row')}, such as {data['unreadable'][0]}"))
    return lines


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def order_line(order: Mapping[str, Any]) -> str:
    ends = f", {lasting(order['left_s'])} left" if order["left_s"] is not None else ""
    over = "" if order["stands"] else " (over)"
    return f"{order['id']}: {order['act']} {order['scope']}{ends}{over}, by {order['by']}: {order['reason']}"


def _of_runs(runs: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]], screen: Screen) -> str:
    from governor.text.table import Head, render_rows

    if not runs:
        return "no run is alive on any node\n" if nodes else _NOBODY
    heads = [Head("RUN", may_wrap=True), Head("STATE", may_wrap=True), *(Head(name, True) for name in _RUN_NUMBERS)]
    rows = [
        [
            run["run"],
            _state(run),
            str(len(run["nodes"])),
            f"{run['ranks']}/{run['world_size']}",
            dollars(run["spend_usd"]),
            dollars(run["rate_usd_per_hour"]),
            "-" if run["usd_per_mtok"] is None else dollars(run["usd_per_mtok"]),
            lasting(run["runway_s"]),
            lasting(run["said_s_ago"]),
        ]
        for run in runs
    ]
    return render_rows(heads, rows, total=False, screen=screen)


_RUN_NUMBERS: Final = ("NODES", "RANKS", "SPENT", "$/H", "$/1M", "LEFT", "SAID")
_NOBODY: Final = "no governor has written its row: a governor with this [fleet] does so when it starts\n"


def _state(run: Mapping[str, Any]) -> str:
    halt = f" {'/'.join(run['halt_stages'])}" if run["halt_stages"] and run["state"] == "halting" else ""
    silent = f", {len(run['nodes_silent'])} silent" if run["nodes_silent"] and run["alive"] else ""
    text = f"{run['state']}{halt}{silent}"
    return Styled(text, "red") if silent else text


def _of_nodes(nodes: Sequence[Mapping[str, Any]], screen: Screen) -> str:
    from governor.text.table import Head, render_rows

    if not nodes:
        return _NOBODY
    heads = [Head("NODE", may_wrap=True), Head("HEALTH", may_wrap=True), Head("MACHINE", may_wrap=True)]
    heads += [Head("RUNS", may_wrap=True), Head("IDLE", True), Head("$/H", True), Head("SAID", True)]
    rows = [
        [
            node["node"],
            _health(node),
            node["instance"] or node["cloud"],
            ", ".join(node["runs"]) or "-",
            lasting(node["idle_s"] or None),
            "-" if node["rate_usd_per_hour"] is None else dollars(node["rate_usd_per_hour"]),
            lasting(node["said_s_ago"]),
        ]
        for node in nodes
    ]
    return render_rows(heads, rows, total=False, screen=screen)


def _health(node: Mapping[str, Any]) -> str:
    if node["silent"]:
        return Styled("silent", "red")
    found = list(node["health"])
    found += ["observes"] if node["mode"] == "observe" else []
    found += [] if node["can_stop"] else ["cannot stop its machine"]
    found += [f"last row is {lasting(node['said_s_ago'])} old"] if node["said_s_ago"] > _IS_LATE_S else []
    return "; ".join(found) or "ok"
