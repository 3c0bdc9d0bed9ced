"""`costgov budget …`: ceilings of runs, stages, labels, days and the node, changed while they train."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import click

from governor.cli.common import (
    OF_THE_COMMANDS,
    ExitCode,
    Failed,
    Usd,
    ask,
    control_option,
    exits,
    json_option,
    print_json,
    refuse,
    show_line,
    sockets,
    tell_left_out,
    told_of,
)
from governor.core.base.units import (
    MICROS_PER_USD,
    NS_PER_S,
    UsdMicros,
    format_duration,
    format_usd,
    parse_count,
    utc_text,
)
from governor.core.money.budgets import ScopeKind, checked_ceiling, checked_fractions, parse_scope
from governor.wire import control_client
from governor.wire.control_client import Answer, nobody


class ScopeName(click.ParamType[str]):
    """A scope, or a run's bare name -> the full scope."""

    name = "scope"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return parse_scope(str(value), bare_run=True).text
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Ceiling(Usd):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> UsdMicros:
        try:
            return checked_ceiling(super().convert(value, param, ctx))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Tokens(click.ParamType[int]):
    """ "20B" -> 20_000_000_000."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            count = parse_count(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if count <= 0:
            self.fail(f'"{value}": 0 tokens are no training run', param, ctx)
        return count


@click.group(short_help="Ceilings by run, stage, label, day and node: set, clear, list.", epilog=OF_THE_COMMANDS)
def budget() -> None:
    """Ceilings of what this node spends: for a run, a stage, a label's value, the UTC day, or all of it.

    \b
    run:NAME         that run, over all of its attempts; a bare NAME is one
    stage:NAME       every run that says this stage
    label:KEY=VALUE  every run with this label
    day              everything on the node since 00:00 UTC, also what no run held
    node             everything on the node since its ledger began, likewise

    What counts is the ledger of the governor that is asked: its own node, from the ledger's beginning. Standing
    budgets belong into costgov.toml ([[budget]]); what is set here stands over them and over the policies, also after
    a restart, until it is cleared. A budget halts its live runs early enough that the halt itself is paid for.
    """


@budget.command(
    "set",
    short_help="Set a ceiling, from now on.",
    epilog=exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED, ExitCode.UNKNOWN, ExitCode.UNSURE),
)
@click.argument("scope", type=ScopeName())
@click.argument("usd", type=Ceiling())
@click.option("--reason", required=True, metavar="TEXT", help="Why: it stands in the audit, with your uid.")
@click.option("--tokens", type=Tokens(), metavar="N", help="Of a run: it is complete at so many tokens, such as 20B.")
@click.option(
    "--alert-at", "alert_at", type=float, multiple=True, metavar="FRACTION",
    help="Warn at this part of the ceiling; repeat it for more. Default: as the budget that it replaces; for a new one "
    "of several runs 0.5, 0.8 and 0.95.",
)  # fmt: skip
@control_option
@json_option
def set_budget(
    scope: str, usd: UsdMicros, reason: str, tokens: int | None, alert_at: tuple[float, ...], control: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Let SCOPE spend at most USD from now on, what it has spent already included.

    \b
    costgov budget set llama-7 400 --reason "two more days, agreed with finance"
    costgov budget set stage:stage2 1500 --reason "quarter's plan" --alert-at 0.9

    Refused with the numbers where it could not be held: an unknown price, a ceiling below the price of its own halt,
    or one (of dollars or of tokens) that would halt at once (`costgov halt` does that). Allowed to whoever may halt the
    run; for more than one run to root, the governor's own user and members of the socket's group. Exit code 5: no such
    run, stage or label.
    """
    if tokens is not None and parse_scope(scope).kind is not ScopeKind.RUN:
        raise click.UsageError("--tokens belongs to a run: SCOPE is run:NAME")
    try:
        fractions = checked_fractions(alert_at)
    except ValueError as error:
        raise click.UsageError(f"--alert-at: {error}") from error
    request = {"cmd": "budget_set", "scope": scope, "ceiling_usd_micros": usd, "reason": reason, "tokens": tokens}
    data = ask(control, {**request, "alert_at": list(fractions) if alert_at else None})
    if as_json:
        print_json(data)
        return
    was, now = data.get("before_usd"), data.get("ceiling_usd")
    _show(f"{scope}: ceiling {_usd(now)}{f' (was {_usd(was)})' if was is not None else ''}; {_spent(data)}")
    _show_covered_runs(data)


@budget.command(
    short_help="Take away a ceiling that was set live.",
    epilog=exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED, ExitCode.UNKNOWN, ExitCode.UNSURE),
)
@click.argument("scope", type=ScopeName())
@click.option("--reason", required=True, metavar="TEXT", help="Why: it stands in the audit, with your uid.")
@control_option
@json_option
def clear(scope: str, reason: str, control: str | None, as_json: bool) -> None:
    """Take away the ceiling that was set live for SCOPE; what costgov.toml or the run's policy says counts again.

    Refused where that would halt at once. Allowed as `budget set` is.
    """
    data = ask(control, {"cmd": "budget_clear", "scope": scope, "reason": reason})
    if as_json:
        print_json(data)
        return
    was, now = _usd(data.get("before_usd")), data.get("ceiling_usd")
    if now is None:
        _show(f"{scope}: cleared (was {was}); no ceiling of this scope is left")
        return
    _show(f"{scope}: cleared (was {was}); {_usd(now)} counts ({data.get('source') or 'source unknown'})")
    _show_covered_runs(data)


@budget.command(
    "list",
    short_help="Show every ceiling in force, and how much of it is used.",
    epilog=exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED),
)
@control_option
@json_option
def list_budgets(control: str | None, as_json: bool) -> None:
    """Show every ceiling in force, of each governor that answers: spent, reserved for its halt, when it is reached.

    SOURCE says where a ceiling stands; of one that was set live also when and why.
    """
    paths = sockets(control)
    answers = control_client.ask_each(paths, {"cmd": "status"})
    tell_left_out(answers)
    governors = [answer.data["governor"] for answer in answers if answer.ok]
    if not governors:
        refuse(answers[0] if answers else Answer(False, error=nobody(paths), code="no_governor"))
    if any(one.get("budgets") is None for one in governors):
        raise Failed("a governor that answers is older than this command and tells of no budgets: start it again")
    if as_json:
        print_json([{"node": one["node"], "run": one.get("run"), "budgets": one["budgets"]} for one in governors])
        return
    from governor.cli.status_table import who
    from governor.text.screen import screen_of
    from governor.text.table import Head, render_rows

    for governor in governors:
        with told_of("an answer of a governor"):
            _show(who(governor))
            rows = [_row(found) for found in governor["budgets"]]
        if not rows:
            _show("no ceiling is in force: set one with `costgov budget set SCOPE USD --reason …`")
            continue
        heads = [Head("SCOPE", may_wrap=True), Head("CEILING", True), Head("SPENT", True), Head("RESERVED", True),
                 Head("REACHED IN", True), Head("SOURCE", may_wrap=True)]  # fmt: skip
        note = "Spent: by this governor's own ledger, from its beginning; day: since 00:00 UTC."
        click.echo(render_rows(heads, rows, total=False, screen=screen_of(sys.stdout), notes=[note]), nl=False)


def _row(found: Mapping[str, Any]) -> list[str]:
    source = str(found["source"])
    if found["live"]:
        source += f", {utc_text(round(found['set_at_s'] * NS_PER_S))}: {found['reason']}"
    reached = found.get("reached_in_s")
    return [
        str(found["scope"]),
        _usd(found["ceiling_usd"]),
        _usd(found["spend_usd"]),
        _usd(found["reserve_usd"]),
        "-" if reached is None else format_duration(round(reached * NS_PER_S)),
        source,
    ]


def _spent(data: Mapping[str, Any]) -> str:
    return f"spent {_usd(data['spend_usd'])}, {_usd(data['reserve_usd'])} reserved for its halt"


def _show_covered_runs(data: Mapping[str, Any]) -> None:
    runs = ", ".join(data["runs"])
    if data["observe"]:
        _show("nothing is halted by it: this governor only observes")
    _show(f"live runs under it now: {runs}" if runs else "no live run is under it now")
    for note in data["notes"]:
        _show(note)


def _show(text: str) -> None:
    from governor.text.table import plain

    show_line(plain(text))


def _usd(amount: float | None) -> str:
    if amount is None or not math.isfinite(amount):
        return "-"
    return format_usd(round(amount * MICROS_PER_USD))
