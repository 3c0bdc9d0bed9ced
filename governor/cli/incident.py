"""`costgov incident …`: past and present halts, from running governors and from the journals of ended ones."""

from __future__ import annotations

import glob
import json
import os
import sqlite3
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from governor.cli.common import (
    OF_REFUSAL,
    OF_THE_COMMANDS,
    ExitCode,
    Failed,
    complain,
    config_option,
    control_option,
    exits,
    find_config,
    json_option,
    print_json,
    refuse,
    remark,
    settings_from,
    show_drawn,
    show_line,
    sockets,
    tell_left_out,
    told_of,
)
from governor.core.base.units import NS_PER_S
from governor.core.engine.idle_state import NODE
from governor.text.screen import Styled, screen_of
from governor.text.table import plain
from governor.wire import control_client
from governor.wire.answer_shapes import INCIDENT, OF_RUN, is_shaped
from governor.wire.control_client import INCIDENTS_MAX, Snapshot, matching

JOURNAL_NAME: Final = "costgov.db"
# One for each name that `costgov run` ever had. The newest are read.
JOURNALS_MAX: Final = 1_000


@click.group(short_help="Halts, past and present: list, show.", epilog=OF_THE_COMMANDS)
def incident() -> None:
    """Halts, past and present: what was seen, what it cost, how to resume.

    Asks the running governors, and reads the journals that ended ones have left in the state directory.
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
    found = sorted(known_incidents(last, config, control), key=_age)[-last:]
    if as_json:
        print_json(found)
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
@config_option
@control_option
@json_option
def show(incident_id: str, markdown: bool, config: Path | None, control: str | None, as_json: bool) -> None:
    """Show one incident: its timeline with measured times, what was spent, and what nobody has observed.

    \b
    costgov incident show last                the newest
    costgov incident show last --markdown     its whole report
    """
    from governor.reports import incident as report

    if markdown and as_json:
        raise click.UsageError("--markdown and --json exclude one another")
    snapshot = _find(incident_id, known_incidents(INCIDENTS_MAX, config, control, incident_id))
    if not is_shaped(snapshot, INCIDENT) or not (snapshot["run"] == NODE or is_shaped(snapshot, OF_RUN)):
        raise Failed(f"incident {snapshot['incident_id']!r} is not whole: something that its report tells is missing")
    with told_of(f"incident {plain(snapshot['incident_id'])}"):
        if as_json:
            click.echo(report.incident_json(snapshot), nl=False)
        elif markdown:
            show_drawn(report.incident_markdown(snapshot))
        else:
            _show(snapshot)


def _show(snapshot: Snapshot) -> None:
    from governor.reports import incident as report

    head, *lines = report.summary(snapshot), *report.timeline_lines(snapshot, screen=screen_of(sys.stdout))[1:]
    unseen = report.not_observed(snapshot)
    show_line(plain(head), "bold")
    show_drawn("\n".join(["", *lines, ""]))
    for line in unseen:
        show_line(f"not observed  {plain(line)}", "yellow")


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


def _find(incident_id: str, found: list[Snapshot]) -> Snapshot:
    """By full id, by an unambiguous prefix of it, or the newest by "last"."""
    meant = matching(found, incident_id)
    if len(meant) == 1:
        return meant[0]
    if not meant:
        raise Failed(f'no incident "{incident_id}"; see `costgov incident list`', ExitCode.UNKNOWN)
    raise Failed(f'"{incident_id}" begins the ids of {len(meant)} incidents; give more of it', ExitCode.UNKNOWN)


def _age(snapshot: Mapping[str, Any]) -> tuple[int, str]:
    """The sort key: oldest first, and by id at the same instant, so that the order is stable."""
    return int(snapshot["opened_wall_ns"]), str(snapshot["incident_id"])


def known_incidents(last: int, config: Path | None, control: str | None, wanted: str | None = None) -> list[Snapshot]:
    """The incidents of every governor that answers, and of the journals of ended governors.

    A governor reports only its own halts. Those of an ended `costgov run` are only in its journal. For an incident in
    both, the governor's state is newer. With --control, only that socket is asked.
    """
    request = {"cmd": "incidents", "last": last} | ({} if wanted is None else {"of": wanted})
    answers = control_client.ask_each(sockets(control), request)
    tell_left_out(answers)
    live = [snapshot for answer in answers if answer.ok for snapshot in answer.data]
    is_answered = any(answer.ok for answer in answers)
    if control is not None:
        if not is_answered:
            refuse(answers[0] if answers else control_client.ask(control, {"cmd": "ping"}))
        return live
    for answer in answers:
        if not answer.ok:
            complain(answer.error)
    try:
        kept = _from_journals(settings_from(find_config(config)).paths.state_dir, last, is_answered=is_answered)
    except Failed as error:
        if not is_answered:
            # It is reported above. The code distinguishes denied from absent.
            if answers and error.code is ExitCode.NO_GOVERNOR:
                raise Failed(error.message, OF_REFUSAL.get(answers[0].code, error.code)) from error
            raise
        complain(error.message)
        kept = []
    told = {_key(snapshot) for snapshot in live}
    return [*live, *(snapshot for snapshot in kept if _key(snapshot) not in told)]


def _key(snapshot: Snapshot) -> tuple[Any, Any]:
    """Two journals may use the same incident numbers. Two halts of one name never open in the same nanosecond."""
    return snapshot["incident_id"], snapshot.get("opened_wall_ns")


def _from_journals(state_dir: Path, last: int, *, is_answered: bool) -> list[Snapshot]:
    """The incidents of every readable journal, and one line for each unreadable one.

    Fails when there is nothing else to show.
    """
    beside = glob.glob(f"{glob.escape(str(state_dir))}/runs/*/{JOURNAL_NAME}")
    known = [path for path in (str(state_dir / JOURNAL_NAME), *beside) if os.path.exists(path)]
    paths = sorted(known, key=os.path.getmtime, reverse=True)[:JOURNALS_MAX]
    if not paths and not is_answered:
        raise Failed(f"no governor answers, and there is no journal in {state_dir}", ExitCode.NO_GOVERNOR)
    if not is_answered:
        read = paths[0] if len(paths) == 1 else f"{len(paths)} journals below {state_dir}"
        remark(f"no governor answers; reading {read}")
    found: list[Snapshot] = []
    problems: list[str] = []
    for path in paths:
        try:
            found += _read_journal(path, last)
        except (sqlite3.Error, ValueError) as error:
            problems.append(f"{path}: cannot be read: {error}; read it as the governor's user or root")
    if problems and len(problems) == len(paths) and not is_answered:
        raise Failed("\n".join(problems))
    for problem in problems:
        complain(problem)
    return found


def _read_journal(path: str, last: int) -> list[Snapshot]:
    from governor.adapters.journal.db import JournalReader

    reader = JournalReader(path)
    try:
        return [json.loads(row["snapshot"]) for row in reader.incidents(last, only_open=False)]
    finally:
        reader.close()
