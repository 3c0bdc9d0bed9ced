"""`costgov export`: a run's money, pace, loss, GPUs, causes, halts and alarms in the forms of other tools."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli.common import (
    ExitCode,
    Failed,
    complain,
    config_option,
    exits,
    json_option,
    print_json,
    remark,
    show_line,
)
from governor.cli.cost.charges import Scope, Unread, charges_in, journals_in, noting_unreadable
from governor.core.base.identity import RUN_NAME
from governor.core.base.units import utc_fine_text
from governor.core.money.reports.cost import exact_usd
from governor.reports.causes import seconds
from governor.text.table import plain

if TYPE_CHECKING:
    from governor.exports.form import Written
    from governor.exports.series import Causes, Item
    from governor.exports.source import Counted, History, Spend

FORMS: Final = ("jsonl", "mlflow", "tensorboard", "wandb")  # Those of exports.forms; a test compares them.
TOLD_EVERY_S: Final = 0.5


@click.command(short_help="Write a run's series and events for other tools.", epilog=exits(ExitCode.UNKNOWN))
@click.argument("run", metavar="RUN")
@click.argument("target", metavar="[DIR|URI]", required=False)
@click.option("--to", "form", type=click.Choice(FORMS), help="Which tool's form. DIR|URI says where to.")
@click.option("--jsonl", "jsonl", metavar="DIR", help="The same as --to jsonl DIR.")
@click.option("--every", type=click.IntRange(min=1), default=1, metavar="N", help="Only each Nth step. Default: all.")
@config_option
@json_option
def export(
    run: str, target: str | None, form: str | None, jsonl: str | None, every: int, config: Path | None, as_json: bool
) -> None:
    """Write what was recorded of RUN, and what the journal says of it, where people look at trainings.

    \b
    costgov export llama --jsonl logs         (files of JSON lines)
    costgov export llama --to tensorboard tb  (then tensorboard)
    costgov export llama --to wandb wb        (then wandb sync)
    costgov export llama --to mlflow http://mlflow:5000

    Series by step: loss, gradient norm, learning rate, loss scale, the step's time and its parts, tokens and steps a
    second, memory, what each GPU does, the spend, the price of a million tokens, and seconds and dollars by cause.
    Events: halts, what rules said, alarms, attempts and ends. Loss and times are those of this node's lowest rank. What
    is unknown is left out.

    It may be asked for at any time, also while the run trains, and again: the export before is replaced, and one of
    the same contents is left as it is. What is not an export of this run is never touched. Nothing is uploaded, except
    to the MLflow server that is named. W&B and MLflow need costgov[wandb] and costgov[mlflow].
    """
    form, target = _where(form, target, jsonl)
    if RUN_NAME.fullmatch(run) is None:
        raise Failed(f"there is no run {plain(run)[:80]}: no run has such a name", ExitCode.UNKNOWN)
    told = _export(run, form, target, every, config)
    if as_json:
        print_json(told.document())
    else:
        show_line(told.line())
    told.end()


def _where(form: str | None, target: str | None, jsonl: str | None) -> tuple[str, str]:
    if jsonl is not None:
        if form is not None or target is not None:
            raise click.UsageError("--jsonl DIR stands alone")
        form, target = "jsonl", jsonl
    if form is None:
        raise click.UsageError(f"name a form: --to {'|'.join(FORMS)}")
    if not target:
        raise click.UsageError(f"say where to: --to {form} {'DIR|URI' if form == 'mlflow' else 'DIR'}")
    return form, target


class _Told:
    """What was exported, and what is missing in it."""

    def __init__(self, run: str, form: str, unread: Unread) -> None:
        self.run = run
        self.form = form
        self.unread = unread
        self.faulty = 0
        self.problem: str | None = None
        self.recorded = True
        self.is_own_account: bool | None = None
        self.behind_s: float | None = None
        self.account: Causes | None = None  # The last point of the causes.
        self.unasked: str | None = None
        self.counted: Counted | None = None
        self.spend: Spend | None = None
        self.written: Written | None = None

    def summary(self) -> dict[str, Any]:
        """The figures of the whole. Part of what is exported."""
        assert self.counted is not None
        assert self.spend is not None
        counted = self.counted
        money = {"spend_usd": self.spend.total / 10**6} if self.spend.is_known else {}
        return {"points": counted.points, "gpu_samples": counted.gpu_samples, "events": counted.events, **money}

    def document(self) -> dict[str, Any]:
        assert self.written is not None
        assert self.counted is not None
        assert self.spend is not None
        return {
            "run": self.run,
            "to": self.form,
            "paths": list(self.written.paths),
            "unchanged": self.written.is_unchanged,
            "recorded": self.recorded,
            **self.summary(),
            "last_step": self.counted.last_step,
            "spend_usd": exact_usd(self.spend.total) if self.spend.is_known else None,
            "is_own_account": self.is_own_account,
            "account_behind_s": self.behind_s,
            "account_as_of": utc_fine_text(self.account.wall) if self.account is not None else None,
            "goes_on": self.account.goes_on if self.account is not None else None,
            "lines_unread": self.faulty,
            "problem": self.problem,
        }

    def line(self) -> str:
        of = self.document()
        spend = f", ${of['spend_usd']}" if of["spend_usd"] is not None else ", spend unknown"
        state = "unchanged since the export before" if of["unchanged"] else "written"
        counts = f"{of['points']:,} points, {of['gpu_samples']:,} GPU samples, {of['events']:,} events"
        return f"run {self.run}: {counts}{spend}; {state}: {', '.join(map(plain, of['paths']))}"

    def end(self) -> None:
        from governor.cli.report.account import how_far

        if not self.recorded:
            remark(f"run {self.run} has no recording: no series by step, but what the journal says")
        if self.behind_s is not None:
            remark(
                f"the journal's account of run {self.run} ends {seconds(self.behind_s)} before its recording: the "
                "causes are the recording's, without other tenants, hardware and what was before it"
            )
        if (account := self.account) is not None and account.goes_on:
            remark(how_far(self.run, account))
        if self.unasked is not None:
            remark(self.unasked)
        if self.faulty:
            remark(f"{self.faulty:,} lines of the recording could not be read and are in no figure here")
        if self.problem is not None:
            complain(f"{plain(self.problem)}; what could not be read of it is in no figure here")
        self.unread.end()
        if self.problem is not None:
            raise click.exceptions.Exit(ExitCode.FAILED)


def _export(run: str, form: str, target: str, every: int, config: Path | None) -> _Told:
    from governor.cli.report.account import account_of
    from governor.cli.report.known import places_of
    from governor.exports.form import ExportRefused, Of
    from governor.exports.forms import form as form_of
    from governor.exports.frames import Recording
    from governor.exports.source import Counted, Spend, joined

    paths = places_of(config, None)
    told = _Told(run, form, Unread(Scope(None, None, (run,))))
    directory = paths.recordings_dir / run
    told.recorded = os.path.lexists(directory)
    told.spend = Spend(charges_in(paths.state_dir, Scope(None, None, (run,)), told.unread))
    history = _history(paths.state_dir, run, told.unread)
    if not told.recorded and not history and not told.spend.is_known:
        told.unread.end()
        raise Failed(
            f"there is no run {run}: neither in {paths.recordings_dir} nor in {paths.state_dir}", ExitCode.UNKNOWN
        )
    recording = Recording(directory, run, told.spend.walk().at, lambda: account_of(run, paths))
    told.counted, progress = Counted(), _Progress()
    items: Iterable[Item] = recording.items() if told.recorded else ()
    try:
        with form_of(form).open(target, Of(run, progress.writing)) as into:
            for item in joined(_each(items, every), history, told.spend, told.counted):
                progress.reading(told.counted)
                into.put(item)
            told.faulty, told.problem = recording.faulty, recording.problem
            causes = recording.causes
            told.is_own_account, told.behind_s = causes.is_own, causes.behind_s
            told.account, told.unasked = causes.last, causes.unasked
            told.written = into.finish(told.summary())
    except ExportRefused as error:
        raise Failed(plain(str(error))) from error
    finally:
        progress.clear()
    return told


def _each(items: Iterable[Item], every: int) -> Iterable[Item]:
    """Each Nth point; all that is no point."""
    from governor.exports.series import Point

    if every == 1:
        return items
    return (item for item in items if not isinstance(item, Point) or (item.step or 0) % every == 0)


def _history(state_dir: Path, run: str, unread: Unread) -> list[Iterator[History]]:
    """The rows of each journal that knows the run. One that does not is closed at once."""
    found: list[Iterator[History]] = []
    for path in journals_in(state_dir):
        rows = _rows(path, run, unread)
        first = next(rows, None)
        if first is not None:
            found.append(chain((first,), rows))
    return found


def _rows(path: str, run: str, unread: Unread) -> Iterator[History]:
    from governor.adapters.journal.run_history import read_history

    with noting_unreadable(unread, path):
        yield from read_history(path, run, unread.row)


class _Progress:
    """One line on a terminal, now and then."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()
        self._due = time.monotonic() + TOLD_EVERY_S
        self._has_said = False

    def reading(self, counted: Counted) -> None:
        self._say("read", counted.points, None)

    def writing(self, done: int, of: int) -> None:
        self._say("written", done, of)

    def _say(self, what: str, done: int, of: int | None) -> None:
        if not self._is_shown or time.monotonic() < self._due:
            return
        self._due, self._has_said = time.monotonic() + TOLD_EVERY_S, True
        text = f"{what}: {done:,} points" if of is None else f"{what}: {done:,} of {of:,}"
        click.echo(f"\r\x1b[K{text}", err=True, nl=False)

    def clear(self) -> None:
        if self._has_said:
            click.echo("\r\x1b[K", err=True, nl=False)
