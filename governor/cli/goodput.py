"""`costgov goodput`: what the time of any trainer's logs went to, without a change of its code."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli.common import (
    ExitCode,
    UsdPerHour,
    complain,
    exits,
    json_option,
    print_json,
    remark,
    show_drawn,
    show_line,
    tokens_options,
)
from governor.cli.policy.replay import map_option
from governor.reports.causes import advice_of, seconds, usd, words
from governor.reports.run.sections import RATE, Table, adding_up, per_hour, share
from governor.text.screen import screen_of
from governor.text.table import Head, plain, render_rows
from governor.wire import formats

if TYPE_CHECKING:
    from governor.core.attribution.rows import Whole
    from governor.core.base.units import UsdMicros
    from governor.replay.goodput import Fields, LogGoodput


SAID_MAX: Final = 16  # Lines about one log.


@click.command(short_help="What the time of any trainer's logs went to.", epilog=exits())
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False), metavar="LOG...")
@click.option(
    "--price",
    type=UsdPerHour(),
    metavar="USD",
    help="What the node costs an hour. Without: no dollars, but an export's own.",
)
@map_option
@click.option(
    "--format", "text_format", type=click.Choice(formats.NAMES), metavar="NAME",
    help=f"Whose text the logs are: {', '.join(formats.NAMES)}. Default: what their first steps tell.",
)  # fmt: skip
@tokens_options
@json_option
def goodput(
    paths: tuple[Path, ...], price: UsdMicros | None, fields: Fields, text_format: str | None,
    sequence_length: int | None, gpus: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Tell how much of each LOG's time trained, and what the rest went to, as the daemon would have counted it.

    A LOG is what `costgov policy replay` reads, with times: metrics JSONL or CSV, the text that a trainer prints,
    recorded frames (each also .gz or .xz), TensorBoard's event files, W&B's run-*.wandb, or a directory of them; - is
    standard input. A trainer_state.json of transformers has no times. Nothing has to be installed in the trainer.

    A log tells less than a trainer with costgov's two lines: where it has no parts of a step, what waits inside a step
    counts as productive, and the output says so. Seconds of the causes and productive ones add up to the log's time.
    An export of costgov has its run's own account: that is told, as `costgov report` does.
    Exit code 1 when a log could not be read, or has no time; the others are told all the same.

    \b
    costgov goodput train.log --price 22
    costgov goodput runs/ --json
    """
    from governor.cli.report.known import Progress
    from governor.exports.found import with_times
    from governor.replay.goodput import goodput_of
    from governor.replay.logs import logs
    from governor.replay.readers.text import TextOptions

    named, closed = logs(paths)
    found, left_out = with_times(named)
    for line in closed:
        complain(plain(line))
    for line in left_out:
        remark(plain(line))
    closed += left_out if not found else []
    told: list[LogGoodput] = []
    progress = Progress("logs", each=1, of="logs")
    text = TextOptions(text_format, sequence_length, gpus)
    for number, (path, account) in enumerate(found.items(), start=1):
        said: list[str] = []
        options = replace(text, tell=said.append)
        one = goodput_of(path, price, fields, options, account.causes, is_changed=account.is_changed)
        one = _without(one, account.untold)
        progress.clear()
        for line in (*said[:SAID_MAX], *([one.problem] if one.problem is not None else [])):
            complain(plain(line))
        told.append(one)
        progress.step(number)
    progress.clear()
    known = [one for one in told if one.is_told]
    if as_json:
        print_json(_document(told))
    elif known:
        _show(known)
    if closed or any(one.problem is not None for one in told):
        raise click.exceptions.Exit(ExitCode.FAILED)


def _without(log: LogGoodput, untold: tuple[str, ...]) -> LogGoodput:
    """What is told of a log of whose export this is gone."""
    if not untold:
        return log
    problem = log.problem or f"{log.path.parent}: does not tell {', nor '.join(untold)}; {log.path.name} is read"
    return replace(log, missing=(*untold, *log.missing), problem=problem)


def _document(told: Sequence[LogGoodput]) -> dict[str, Any]:
    rows = [
        {
            "log": str(one.path), "steps": one.steps, **_time(one.whole, is_priced=one.is_priced),
            "missing": list(one.missing), "problem": one.problem,
        }
        for one in told
    ]  # fmt: skip
    return {"logs": rows, "all": _time(_sum(told), is_priced=_are_priced(told))}


def _time(whole: Whole, *, is_priced: bool) -> dict[str, Any]:
    """For a program: dollars that nobody knows are null there."""
    from governor.core.attribution.rows import time_row, without_money

    return time_row(whole) if is_priced else without_money(time_row(whole))


def _are_priced(logs: Sequence[LogGoodput]) -> bool:
    """Whether each that has time has dollars."""
    return all(one.is_priced for one in [one for one in logs if one.is_told] or logs)


def _sum(logs: Sequence[LogGoodput]) -> Whole:
    """Of all of them. It has dollars only if each has."""
    from governor.core.attribution.causes import Amount
    from governor.core.attribution.rows import Whole

    is_priced = _are_priced(logs)
    wholes = [one.whole for one in logs]
    by_cause: dict[Any, Amount] = {}
    for whole in wholes:
        for cause, amount in whole.by_cause.items():
            by_cause.setdefault(cause, Amount()).add(amount.ns, amount.usd_micros if is_priced else 0)
    weak = frozenset(cause for whole in wholes for cause in whole.weak)
    retold = frozenset(cause for whole in wholes for cause in whole.retold)
    return Whole(by_cause, sum(whole.steps for whole in wholes), {}, weak, retold=retold)


def _show(known: Sequence[LogGoodput]) -> None:
    from governor.core.attribution.rows import time_row

    is_priced = _are_priced(known)
    screen = screen_of(sys.stdout)
    if len(known) > 1:
        rows = [(str(one.path), time_row(one.whole)) for one in known]
        table = _logs_table(rows, is_priced=is_priced)
        show_drawn(render_rows(table.heads, table.rows, total=False, screen=screen) + "\n")
    else:
        show_line(plain(known[0].path), "bold")
    table = _causes_table(time_row(_sum(known)), is_priced=is_priced)
    show_drawn(render_rows(table.heads, table.rows, total=True, screen=screen))
    if is_priced:
        show_line(RATE)
    if not is_priced and any(one.is_priced for one in known):
        show_line("not told: dollars, as some of the logs have none; --price USD gives them", "yellow")
    said = [[*_unsure(one), *(f"not told: {line}" for line in one.missing)] for one in known]
    for line in dict.fromkeys(line for lines in said for line in lines):
        of = sum(line in lines for lines in said)
        show_line(plain(line) + (f" ({of} of {len(known)} logs)" if len(known) > 1 else ""), "yellow")


def _unsure(log: LogGoodput) -> list[str]:
    """A line for each cause that is a bound, or that was told in a weaker way: the table has its figure as any other.

    What is unknown says so by its name, and an export's account cannot tell how sure it is.
    """
    from governor.core.attribution.causes import Cause
    from governor.core.attribution.rows import time_row

    weak = {one.value for one in log.whole.weak}
    by_name = {one.value for one in (Cause.UNKNOWN, Cause.NOT_TOLD, *log.whole.retold)}
    causes = [one for one in time_row(log.whole)["causes"] if one["s"] > 0 and one["cause"] not in by_name]
    unsure = [one for one in causes if one["confidence"] == "low" or one["cause"] in weak]
    return [f"{one['confidence']} confidence: {words(one['cause'])}: {one['evidence']}" for one in unsure]


def _causes_table(time: Mapping[str, Any], *, is_priced: bool) -> Table:
    """Where time and dollars went; the rows add up to the last one. Without a price there are no dollars."""
    causes = [one for one in time["causes"] if one["s"] > 0]
    dollars = adding_up([time["productive_usd"], *(one["usd"] for one in causes)], time["usd"])
    heads = [Head("CAUSE"), Head("TIME", True), Head("SHARE", True)]
    rows = [["productive", seconds(time["productive_s"]), share(time["goodput"])]]
    rows += [[words(one["cause"]), seconds(one["s"]), share(one["share"])] for one in causes]
    if is_priced:
        heads += [Head("DOLLARS", True), Head("$/HOUR", True)]
        worth = ["", *(per_hour(one).removesuffix("/h") if one["usd"] else "" for one in causes)]
        rows = [[*row, paid, rate] for row, paid, rate in zip(rows, dollars[:-1], worth, strict=True)]
    heads.append(Head("NEXT STEP", may_wrap=True))
    steps = ["", *(advice_of(one) or "" for one in causes)]
    rows = [[*row, step] for row, step in zip(rows, steps, strict=True)]
    total = ["all", seconds(time["wall_s"]), share(1.0)]
    rows.append([*total, *([dollars[-1], ""] if is_priced else []), ""])
    return Table(heads, rows, total=True)


def _logs_table(rows: Sequence[tuple[str, Mapping[str, Any]]], *, is_priced: bool) -> Table:
    """A line for each log: its time, how much of it trained, and what most of the rest went to."""
    heads = [Head("LOG", may_wrap=True), Head("TIME", True), Head("GOODPUT", True)]
    heads += [Head("DOLLARS LOST", True)] if is_priced else []
    heads.append(Head("LARGEST LOSS"))
    cells = []
    for name, time in rows:
        first = max(time["causes"], key=lambda one: one["s"], default=None)
        largest = f"{words(first['cause'])} {share(first['share'])}" if first is not None and first["s"] > 0 else "-"
        lost = [usd(time["usd"] - time["productive_usd"])] if is_priced else []
        cells.append([name, seconds(time["wall_s"]), share(time["goodput"]), *lost, largest])
    return Table(heads, cells)
