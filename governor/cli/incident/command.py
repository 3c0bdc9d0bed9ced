"""`costgov incident …`: past and present halts, from running governors and from the journals of ended ones."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from governor.cli.common import (
    OF_THE_COMMANDS,
    ExitCode,
    Failed,
    LazyGroup,
    config_option,
    control_option,
    exits,
    find_config,
    json_option,
    print_json,
    settings_from,
    show_drawn,
    show_line,
    told_of,
    write_named,
)
from governor.cli.incident.known import age, find, known_incidents
from governor.core.base.units import NS_PER_S
from governor.core.engine.idle_state import NODE
from governor.text.screen import Styled, screen_of
from governor.text.table import plain
from governor.wire.answer_shapes import INCIDENT, OF_RUN, is_shaped
from governor.wire.control_client import INCIDENTS_MAX, Snapshot


@click.group(
    cls=LazyGroup,
    lazy={
        "mark": "governor.cli.incident.mark:mark",
        "marks": "governor.cli.incident.mark:marks",
        "rearm": "governor.cli.incident.mark:rearm",
        "rules": "governor.cli.incident.rules:rules",
    },
    short_help="Halts, past and present: list, show, mark, rules.",
    epilog=OF_THE_COMMANDS,
)
def incident() -> None:
    """Halts, past and present: what was seen, what it cost, how to resume, and whether it was right.

    Asks the running governors, and reads the journals that ended ones have left in the state directory.

    \b
    costgov incident show last                 what happened, in order
    costgov incident mark last --false         it was wrong: say so
    costgov incident rules                     how often each rule was right
    """


@incident.command(
    "list", short_help="List incidents, newest last.", epilog=exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED)
)
@click.option("--last", type=click.IntRange(1, INCIDENTS_MAX), default=20, show_default=True, help="At most so many.")
@config_option
@control_option
@json_option
def list_incidents(last: int, config: Path | None, control: str | None, as_json: bool) -> None:
    """List incidents, newest last.

    The id at the beginning of a line, or as much of it as no other has, is what `costgov incident show` takes.
    """
    found = sorted(known_incidents(last, config, control), key=age)[-last:]
    if as_json:
        from governor.text.incident_money import without_unknown_spend

        print_json([without_unknown_spend(snapshot) for snapshot in found])
        return
    if not found:
        click.echo("no incident: nothing has been halted")
        return
    from governor.text.table import Head, render_rows

    heads = [Head(title, may_wrap=title == "WHY") for title in _HEAD]
    with told_of("an incident"):
        rows = [row(snapshot) for snapshot in found]
    show_drawn(render_rows(heads, rows, total=False, screen=screen_of(sys.stdout)))


@incident.command(
    short_help="Show one incident: timeline, cost, resume, what is unseen.",
    epilog=exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED, ExitCode.UNKNOWN),
)
@click.argument("incident_id", metavar="ID|last")
@click.option("--markdown", is_flag=True, help="Print the full report as Markdown.")
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write one self-contained page with plots into FILE: it fetches nothing.",
)  # fmt: skip
@config_option
@control_option
@json_option
def show(
    incident_id: str, markdown: bool, html_file: Path | None, config: Path | None, control: str | None, as_json: bool
) -> None:
    """Show one incident: its timeline with measured times, what was spent, and what nobody has observed.

    The plot of what the rule judged comes from the run's recording, where there is one.

    \b
    costgov incident show last                the newest
    costgov incident show last --markdown     its whole report
    costgov incident show last --html i.html  its page, with plots
    """
    from governor.reports import incident as report

    if markdown and as_json:
        raise click.UsageError("--markdown and --json exclude one another")
    if html_file is not None and (markdown or as_json):
        raise click.UsageError("--html excludes --markdown and --json")
    snapshot = find(incident_id, known_incidents(INCIDENTS_MAX, config, control, incident_id))
    if not is_shaped(snapshot, INCIDENT) or not (snapshot["run"] == NODE or is_shaped(snapshot, OF_RUN)):
        raise Failed(f"incident {snapshot['incident_id']!r} is not whole: something that its report tells is missing")
    with told_of(f"incident {plain(snapshot['incident_id'])}"):
        if as_json:
            click.echo(report.incident_json(snapshot), nl=False)
        elif markdown:
            show_drawn(report.incident_markdown(snapshot))
        elif html_file is not None:
            _write_page(snapshot, html_file, config)
        else:
            _show(snapshot, config)


def _write_page(snapshot: Snapshot, path: Path, config: Path | None) -> None:
    from governor.cli.incident.recorded import seen_before
    from governor.reports.incident.page import incident_page

    text = incident_page(snapshot, seen_before(snapshot, config, is_whole=True))
    write_named("--html", path, text, errors="replace")


def _show(snapshot: Snapshot, config: Path | None) -> None:
    from governor.cli.incident.recorded import seen_before
    from governor.reports import incident as report
    from governor.reports.incident.drawn import sketched
    from governor.text.failure_modes import modes_of

    head, *lines = report.summary(snapshot), *report.timeline_lines(snapshot, screen=screen_of(sys.stdout))[1:]
    unseen, modes = report.not_observed(snapshot), modes_of(snapshot)
    show_line(plain(head), "bold")
    show_drawn("\n".join(["", *lines, ""]))
    seen = seen_before(snapshot, config, is_whole=False)
    if seen is not None and (plot := sketched(seen)):
        click.echo()
        show_line(plot[0])
        show_drawn("\n".join([*plot[1:], "", ""]))
    if (now := _job_now(snapshot, config)) is not None:
        show_line(f"asked now     {now}")
    if (told := report.next_attempt(snapshot)) is not None:
        show_line(f"next attempt  {told}", "bold yellow")
    for line in unseen:
        show_line(f"not observed  {plain(line)}", "yellow")
    for mode in modes:
        show_line(f"failure mode  {mode.title}: {mode.place}")


def _job_now(snapshot: Snapshot, config: Path | None) -> str | None:
    """A governor inside of its job is ended with it: whoever reads the incident asks. Most have no job."""
    if not snapshot.get("job"):
        return None
    from governor.app.scheduler_jobs import job_now

    return job_now(snapshot, settings_from(find_config(config)))


# The style of a final state. Other states are in progress.
_STYLES: Final = {"HALTED": "green", "NEEDS_HUMAN": "bold red"}
_HEAD: Final = ("INCIDENT", "OPENED (UTC)", "RUN", "STEP", "WHY", "STAGE", "CHECKPOINT", "SPENT")


def row(snapshot: Snapshot) -> tuple[str, ...]:
    from governor.text.incident_money import spent_amount

    stage = plain(snapshot["halt_stage"])
    opened = datetime.fromtimestamp(snapshot["opened_wall_ns"] / NS_PER_S, UTC).strftime("%Y-%m-%d %H:%M:%S")
    checkpoint = snapshot.get("checkpoint") or {}
    saved = f"{checkpoint.get('kind')} by {checkpoint.get('verified_by')}" if checkpoint else "none"
    step = "-" if snapshot.get("step") is None else str(snapshot["step"])
    texts = (snapshot["incident_id"], opened, snapshot["run"], step, snapshot["reason"])
    return (*map(plain, texts), Styled(stage, _STYLES.get(stage, "yellow")), plain(saved), spent_amount(snapshot))
