"""`costgov halt`, `hold` and `forget`: operator actions on a run. The governor records each with its uid."""

from __future__ import annotations

from typing import Any

import click

from governor.cli.common import ExitCode, Failed, ask, control_option, exits, json_option, print_json, refuse, sockets
from governor.cli.ended import is_of_ended
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, format_duration, parse_duration
from governor.core.engine.idle_state import NODE
from governor.text.table import plain
from governor.wire import control_client

HOLD_MAX_NS = 7 * 24 * NS_PER_HOUR  # A governor refuses more: a forgotten hold is a missing watchdog.


class HoldLength(click.ParamType[int]):
    """ "2h" -> nanoseconds; "off" -> 0."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value == "off":
            return 0
        try:
            duration_ns = parse_duration(str(value))
        except ValueError as error:
            self.fail(f'{error}, or "off"', param, ctx)
        if not 0 < duration_ns <= HOLD_MAX_NS:
            self.fail(f'"{value}": a hold lasts more than 0 and at most 7 days', param, ctx)
        return duration_ns


@click.command(
    short_help="Halt a run now: save, end processes and spending, prove it.",
    epilog=exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED, ExitCode.UNKNOWN, ExitCode.UNSURE),
)
@click.argument("run")
@click.option("--reason", required=True, metavar="TEXT", help="Why: it stands in the incident and in the audit.")
@click.option(
    "--checkpoint", type=click.Choice(["none"]), metavar="none",
    help="none: ask for no checkpoint and wait for none. The work since the last one is lost.",
)  # fmt: skip
@control_option
@json_option
def halt(run: str, reason: str, checkpoint: str | None, control: str | None, as_json: bool) -> None:
    """Halt RUN now: checkpoint, end its processes, end the spending, prove it.

    Nothing asks again: the run's policy decides how it is saved and what is stopped. Allowed to root, to the
    governor's own user, to members of the socket's group, and to the owner of the run.

    A run that hangs reaches no step in which it could save, and a halt of it waits the policy's grace in vain.
    `--checkpoint none` ends it at once: what was trained since the last checkpoint is lost. It also hastens a halt that
    is waiting; a save that has begun is still waited for.
    """
    unsaved = {"checkpoint": checkpoint} if checkpoint is not None else {}
    data = ask(control, {"cmd": "halt", "run": run, "reason": reason, **unsaved})
    if as_json:
        print_json(data)
        return
    incident_id = data.get("incident_id") if isinstance(data, dict) else None
    if incident_id is None:
        click.echo(f"{run}: noted, but nothing was halted (the governor only observes, or the run has just ended)")
    else:
        click.echo(f"{run}: halting, incident {plain(incident_id)}")
        if wait_s := data.get("wait_s"):
            waits = format_duration(round(wait_s * NS_PER_S))
            told = f"A {plain(data.get('checkpoint', 'good'))} checkpoint is waited for, at most {waits}"
            hasten = f'not to wait: costgov halt {run} --checkpoint none --reason "…"'
            click.echo(f"{told}; {hasten}" if checkpoint is None else f"{told}: it is being saved already")
        elif checkpoint is not None and "wait_s" not in data:
            click.echo("This governor is older and knows no --checkpoint: it asks for a checkpoint first")
        click.echo(f"Follow it with: costgov incident show {plain(incident_id)}")


@click.command(
    short_help="Keep every rule from halting a run for a while.",
    epilog=exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED, ExitCode.UNKNOWN, ExitCode.UNSURE),
)
@click.argument("run")
@click.argument("duration", type=HoldLength())
@click.option("--reason", metavar="TEXT", help="Why. Required, except to lift a hold.")
@control_option
@json_option
def hold(run: str, duration: int, reason: str | None, control: str | None, as_json: bool) -> None:
    """Keep every rule from halting RUN for DURATION ("2h", "30m"; at most 7 days), or lift the hold ("off").
    With "@node" for RUN the node itself is kept: it is not stopped for being idle, and idle time begins anew after it.

    The operator's brake, over the ceiling too: rules go on judging, money goes on being counted, and the hold ends by
    itself. A halt that it held back follows then, if its reason still stands.
    A halt that has begun is not held back.
    """
    if duration and not (reason and reason.strip()):
        raise click.UsageError('Missing option --reason, for example --reason "evaluating by hand"')
    request = {"cmd": "hold", "run": run, "duration_ns": duration, "reason": reason or "lifted"}
    data = _hold_node(control, request) if run == NODE else ask(control, request)
    if as_json:
        print_json(data)
    elif run == NODE:
        lift = f"for {format_duration(duration)}; lift it with: costgov hold {NODE} off"
        click.echo(f"{NODE}: not stopped for being idle {lift}" if duration else f"{NODE}: the hold is lifted")
    elif duration:
        click.echo(f"{run}: no rule halts it for {format_duration(duration)}; lift it with: costgov hold {run} off")
    elif isinstance(data, dict) and data.get("held_still"):
        click.echo(plain(f"{run}: held still by {data['held_still']}; see costgov fleet orders"))
    else:
        click.echo(f"{run}: the hold is lifted; rules may halt it again")


def _hold_node(control: str | None, request: dict[str, Any]) -> Any:
    """Send the hold to every governor of the node, since each could stop it. A refusal by any of them fails."""
    answers = control_client.ask_each(sockets(control), request)
    if not answers:
        return ask(control, request)  # It reports where no governor was found.
    for answer in answers:
        if not answer.ok:
            refuse(answer)
    return answers[0].data


@click.command(
    short_help="Release the name of a run that is over.",
    epilog=exits(ExitCode.FAILED, ExitCode.NO_GOVERNOR, ExitCode.DENIED, ExitCode.UNKNOWN, ExitCode.UNSURE),
)
@click.argument("run")
@control_option
@json_option
def forget(run: str, control: str | None, as_json: bool) -> None:
    """Release the name of RUN, which is not alive, so that another user may have it.

    The next run of this name belongs to whoever starts it. No money is forgotten: the charges stay, and what was spent
    stays counted to the name. Where the next run shall have all of its ceiling, raise it (`costgov budget set`). Halts
    stay under their ids; a hold ends. Allowed to root, to the governor's own user, to members of the socket's group,
    and to the owner of the name.
    """
    try:
        data = ask(control, {"cmd": "forget", "run": run})
    except Failed as error:
        if error.code in (ExitCode.UNKNOWN, ExitCode.NO_GOVERNOR) and control is None and is_of_ended(run):
            text = f"{run} is the name of a `costgov run` that is over: nobody else can have it, and the next run of it"
            raise Failed(f"{text} goes on with its budget; another --name has one of its own", error.code) from error
        raise
    if as_json:
        print_json(data)
        return
    owner, spent = data["owner_uid"], float(data["spend_usd"])
    click.echo(f"{run}: the name no longer belongs to uid {owner}")
    if spent:
        click.echo(f"${spent:,.2f} that was spent under it stays in the ledger and counts against a ceiling of {run}")
