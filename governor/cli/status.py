"""`costgov status` and `costgov doctor`: the current state, and the checks before a run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli.common import (
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
    show_drawn,
    show_line,
    show_text,
    sockets,
    tell_left_out,
    told_of,
)
from governor.text.screen import FILE, screen_of, shown_lines, styled
from governor.text.table import plain
from governor.wire import control_client
from governor.wire.control_client import Answer, nobody

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from governor.app.doctor import Check

KNOWN_SHOWN_MAX: Final = 5
WATCH_PERIOD_S: Final = 1.0  # About the time of a step. A shorter period only flickers.
_METERED: Final = frozenset({"spend_usd", "wasted_usd", "wasted_usd_by_cause"})  # Without a price their 0 is unknown.


@click.command(
    short_help="Show every run, or one: progress, dollars, findings.",
    epilog=exits(ExitCode.NO_GOVERNOR, ExitCode.DENIED, ExitCode.UNKNOWN),
)
@click.argument("run", required=False)
@click.option(
    "--watch", is_flag=True, help="Refresh every second until Ctrl-C; one line per run where there is no terminal."
)
@control_option
@json_option
def status(run: str | None, watch: bool, control: str | None, as_json: bool) -> None:
    """Show every run: progress, dollars, $ per 1M tokens, runway, what rules say, and what a halt would do.

    Every governor that answers is asked: the service, and each `costgov run`. With RUN, only what watches that one is
    shown; of a `costgov run` that is over, how it ended: exit code 0, or 3 if some of its processes still run or hold
    its launch.lock. Of a run that nobody knows it is 5 where a governor answers, and 3 where none does.

    \b
    costgov status --watch     again every second, until Ctrl-C
    costgov status llama       one run, also when its terminal has closed
    costgov status --json      the same for programs
    """
    if watch:
        _watch(control, as_json, run)
        return
    try:
        documents = _ask(control, run, set())
    except Failed as error:
        if control is not None or not _told_ended(run, error, as_json=as_json):
            raise
        return
    several = _several([run] if run is not None and control is None else [])
    held = _held(documents)
    if as_json:
        # A node usually has one governor. Others (`costgov run` beside a service) are a list under "beside".
        first, *beside = map(for_programs, documents)
        print_json({**first, "beside": beside, **several, **({"held_idle": held} if held else {})})
        return
    from governor.cli.status_table import render_status

    screen = screen_of(sys.stdout)
    unshown: list[Failed] = []
    for document in documents:
        try:
            with told_of("an answer of a governor"):
                show_drawn(render_status(_drawable(document, set()), screen))
        except Failed as error:
            unshown.append(error)
    for one in held:
        from governor.app.scheduler_jobs import held_text

        show_line(held_text(one), "bold yellow")
    _tell_several(several)
    if unshown:
        raise unshown[0]


def _held(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Allocations that are paid for while nobody trains in them. Most governors have no job to ask for."""
    if not any(row.get("job") for document in documents for row in document["runs"]):
        return []
    from governor.app.scheduler_jobs import held_idle
    from governor.cli.common import settings_from

    return held_idle(documents, lambda: settings_from(None))


def _ask(control: str | None, run: str | None, told: set[str]) -> list[Any]:
    """The status of every governor that answers, and watches `run` if one is named. Fails when none does.

    `told`: the lines about what cannot be shown, which are told once.
    """
    paths = sockets(control, run)
    answers = control_client.ask_each(paths, {"cmd": "status"})
    tell_left_out([one for one in answers if not told.issuperset(one.left_out)])
    told.update(line for one in answers for line in one.left_out)
    good = [answer.data for answer in answers if answer.ok]
    if not good:
        refuse(answers[0] if answers else Answer(False, error=nobody(paths), code="no_governor"))
    if run is None:
        return good
    of_run = [{**one, "runs": [each for each in one["runs"] if each["run"] == run]} for one in good]
    watching = [one for one in of_run if one["runs"]]
    if not watching:
        known = ", ".join([each["run"] for one in good for each in one["runs"]][:KNOWN_SHOWN_MAX]) or "none"
        raise Failed(f'no governor watches a run "{run}"; watched: {plain(known)}', ExitCode.UNKNOWN)
    return watching


def _told_ended(run: str | None, error: Failed, *, as_json: bool) -> bool:
    """Say how the run ended, from its journal. Where none was named, which ended last: its terminal may have closed.

    One that goes on without a governor is told, and fails.
    """
    from governor.cli.ended import ended_run, newest_ended, why_unreadable

    if run is None:
        if as_json:
            return False
        newest = newest_ended() if error.code is ExitCode.NO_GOVERNOR else None
        if newest is not None:
            remark(f"the last `costgov run` here: `costgov status {newest}` says how it ended")
        return False
    told = ended_run(run)
    if told is None:
        if (why := why_unreadable(run)) is not None:
            complain(plain(why))
        return False
    held = {"lock": str(told.lock)} if told.lock is not None else {}
    several = _several(one["run"] for one in told.runs)
    if as_json:
        print_json(for_programs({"governor": None, "runs": told.runs, "living": told.living}) | held | several)
    else:
        remark("no governor watches it any more; from its journal:")
        for line in told.lines:  # One with a command in it is there to be copied.
            click.echo(line) if "`" in line else show_text(line)
        _tell_several(several)
    if told.living or held:
        raise Failed(f"{plain(run)} runs without a governor", ExitCode.NO_GOVERNOR)
    return True


def _several(runs: Iterable[str]) -> dict[str, dict[str, int]]:
    """How many runs have the same name, of those that are shown. Where each has its own, there is nothing to say."""
    from governor.cli.ended import runs_named

    several = {run: number for run in runs if (number := runs_named(run)) > 1}
    return {"runs_of_name": several} if several else {}


def _tell_several(several: Mapping[str, Mapping[str, int]]) -> None:
    for run, number in several.get("runs_of_name", {}).items():
        name = plain(run)
        remark(f"{name}: one of {number} runs of this name; `costgov cost --run {name}` has all of them")


def _watch(control: str | None, as_json: bool, run: str | None) -> None:
    """Repeat until Ctrl-C. It waits for a governor that restarts. A governor that was never there is an error."""
    told: set[str] = set()
    documents: list[Any] | None = _ask(control, run, told)
    in_place = sys.stdout.isatty() and not as_json
    try:
        while True:
            if documents is None:
                complain("no governor answers; still asking" if run is None else f"nobody watches {run}; still asking")
            else:
                with told_of("an answer of a governor"):
                    _draw(documents, told) if in_place else _print_lines(documents, as_json)
            time.sleep(WATCH_PERIOD_S)
            try:
                documents = _ask(control, run, told)
            except Failed:
                documents = None
    except KeyboardInterrupt:
        return  # Ctrl-C is the normal way to leave.


def for_programs(document: Mapping[str, Any]) -> dict[str, Any]:
    """An answer with null for what a run has spent, where no price is known: on the socket that is the metered 0."""
    from governor.core.attribution.rows import without_money
    from governor.reports.terminal import is_spent_known

    runs = []
    for run in document["runs"]:
        if not is_spent_known(run):
            run = {**run, **dict.fromkeys(_METERED & run.keys())}
            if run.get("time") is not None:
                run["time"] = without_money(run["time"])
        runs.append(run)
    return {**document, "runs": runs}


def _drawable(document: Mapping[str, Any], told: set[str]) -> Mapping[str, Any]:
    """Without the runs that cannot be drawn, each with a line that is told once: a row that is strange hides no other.

    Where none can be, all are left: the whole answer is of another version then.
    """
    from governor.cli.status_table import render_status

    runs = []
    for run in document["runs"]:
        try:
            with told_of(f"run {plain(run['run'])}"):
                render_status({"governor": {"node": "-"}, "runs": [run]}, FILE)
        except Failed as error:
            line = f"{error.message}: left out"
            if line not in told:
                remark(line)
            told.add(line)
        else:
            runs.append(run)
    return {**document, "runs": runs} if runs else document


def _draw(documents: list[Any], told: set[str]) -> None:
    from governor.cli.status_table import render_status

    drawn = [_drawable(document, told) for document in documents]
    text = "\n".join(render_status(document, screen_of(sys.stdout)) for document in drawn)
    # Cursor home, then the text with each line cleared to its end, then clear everything below: no flicker, no
    # scrollback.
    click.echo("\x1b[H" + text.replace("\n", "\x1b[K\n") + "\x1b[J", nl=False)


def _print_lines(documents: list[Any], as_json: bool) -> None:
    from governor.cli.status_table import who
    from governor.reports.terminal import live_line

    for document in documents:
        if as_json:
            click.echo(json.dumps(for_programs(document), separators=(",", ":")))
            continue
        for run in document["runs"]:
            click.echo(f"{plain(run['run'])}  {live_line(run)}")
        if not document["runs"]:
            click.echo(f"{who(document['governor'])}: no run yet")
    sys.stdout.flush()


@click.command(short_help="Check what a halt will need, before it does.", epilog=exits())
@config_option
@control_option
@json_option
def doctor(config: Path | None, control: str | None, as_json: bool) -> None:
    """Check everything that a halt will need, before it does: nothing is changed, nothing is stopped.

    Run it as the user that the governor runs as; what it may do is part of what is checked. Exit code 1 when
    something would fail.
    """
    from governor.app.doctor import examine

    checks = examine(find_config(config), sockets(control))
    failed = any(check.level == "fail" for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": [check.document() for check in checks]})
    else:
        _print_checks(checks)
        counts = {level: sum(check.level == level for check in checks) for level in ("ok", "warn", "fail")}
        click.echo(f"{counts['ok']} ok, {counts['warn']} to know, {counts['fail']} that would fail")
    if failed:
        raise click.exceptions.Exit(ExitCode.FAILED)


_LEVELS: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_MARK_COLUMNS: Final = 4


def _print_checks(checks: Sequence[Check]) -> None:
    """Only the mark is coloured. A wrapped text is indented below itself."""
    screen = screen_of(sys.stdout)
    for check in checks:
        first, *rest = [line for told in check.lines() for line in shown_lines(told, screen, hang=_hang(told))]
        mark = styled(first[:_MARK_COLUMNS], _LEVELS[check.level], screen)
        for line in (mark + first[_MARK_COLUMNS:], *rest):
            click.echo(line)


def _hang(line: str) -> int:
    return 2 if line.startswith(" ") else 20
