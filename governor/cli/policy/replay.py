"""`costgov policy replay`: what policies would have decided on existing logs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from governor.cli.common import ExitCode, Failed, UsdPerHour, exits, json_option, tokens_options, write_named
from governor.cli.policy.played import complain_plainly, load_each, note_unreachable_ceilings, table
from governor.cli.policy.recorded import or_recorded
from governor.core.base.policy import Policy
from governor.core.base.units import NS_PER_S, DurationNs, UsdMicros, format_duration, parse_duration
from governor.replay.compare import LabelTally, halts
from governor.replay.logs import logs
from governor.replay.one_log import Fields, Played, Terms
from governor.replay.output import picture
from governor.replay.output.page import page
from governor.replay.readers.text import TextOptions
from governor.replay.workers import JOBS_MAX, WorkerEnded, Workers, cores
from governor.text.screen import Screen, Styled, screen_of, shown_lines
from governor.text.table import plain
from governor.wire import formats
from governor.wire.jsonl import field_map
from trainer_shim.wire import worded

RUN_ON_MAX_NS: Final = 30 * 24 * 3600 * NS_PER_S  # The longest pause that a replay accepts.
TEXT_CHARS_MAX: Final = 300
TOLD_FROM: Final = 16  # Fewer logs are played before anybody asks how far they are.
# 100 KB each. More make a page that no browser handles, and pictures that nobody views.
PLOTTED_MAX: Final = 100
PAGES: Final = (".html", ".htm")
PICTURE: Final = ".png"
_STYLES: Final = {"halt": "bold red"}  # For verdicts of enforcing rules.
_VERDICT_KEYS: Final = ("rule", "trigger", "response", "mode", "step", "t", "reason", "text")


class Duration(click.ParamType[DurationNs]):
    """ "90s", "3h" -> nanoseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DurationNs:
        if isinstance(value, int):
            return DurationNs(value)
        try:
            duration = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if duration > RUN_ON_MAX_NS:
            self.fail(f"{value} is longer than {format_duration(RUN_ON_MAX_NS)}", param, ctx)
        return duration


def _fields(ctx: click.Context, param: click.Parameter, pairs: Sequence[str]) -> Fields:
    """ "loss=my/loss" -> a field map, as for streams."""
    named: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, key = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} is not FIELD=NAME, as in loss=my/loss", ctx, param)
        named.setdefault(name, []).append(key)
    try:
        return field_map(named)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


map_option = click.option(
    "--map", "fields", multiple=True, callback=_fields, metavar="FIELD=NAME",
    help="Under which name the logs have a field of a step: loss=my/loss. May be repeated. Default: the usual names.",
)  # fmt: skip


def log_options(command: Any) -> Any:
    """What logs are, and how many are played at once."""
    options = (
        map_option,
        click.option(
            "--format", "text_format", type=click.Choice(formats.NAMES), metavar="NAME",
            help=f"Whose text the logs are: {', '.join(formats.NAMES)}. Default: what their first steps tell.",
        ),
        tokens_options,
        click.option(
            "--jobs", type=click.IntRange(1, JOBS_MAX), metavar="N",
            help="Play so many logs at once. Default: one on each core. What comes out is the same.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command(short_help="What policies would have done on recorded logs.", epilog=exits())
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, readable=False), metavar="LOG...")
@click.option(
    "--policy", "policies", multiple=True, type=click.Path(path_type=Path, readable=False), metavar="FILE",
    help="Policy to replay; several are compared. Default: the packaged default policy.",
)  # fmt: skip
@click.option(
    "--run-on", type=Duration(), default=0, metavar="DURATION",
    help="Let the clock run on after the last record, as if the trainer were alive and silent.",
)  # fmt: skip
@click.option("--price", type=UsdPerHour(), metavar="USD", help="What the node costs an hour: for ceilings and sums.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.html|FILE.png",
    help=f"Draw the logs with their findings, at most {PLOTTED_MAX}: one page that fetches nothing, or a PNG of each.",
)  # fmt: skip
@log_options
@json_option
@or_recorded
def replay(
    paths: tuple[Path, ...], policies: tuple[Path, ...], run_on: DurationNs, price: UsdMicros | None,
    plot: Path | None, fields: Fields, text_format: str | None, sequence_length: int | None, gpus: int | None,
    jobs: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Play recorded logs through the decisions of the daemon, on a clock that the logs drive, and tell what would halt.

    A LOG is a metrics JSONL or CSV file, the text that a trainer prints (Megatron-LM, NeMo, torchtitan, Hugging Face
    and others), recorded frames, a Hugging Face trainer_state.json (each also .gz or .xz), a TensorBoard event file,
    W&B's local run-*.wandb, or a directory of them; - is JSONL or text on standard input. A first {"meta": …} line is
    skipped.
    Nothing is acted on: rules in observe mode are told as what they would do, with their mode, and a halt ends no log,
    so the first one is the one that counts. --json prints a line for each verdict and one for each log.

    At the end stands a table of the policies. Where the meta line has a label (role healthy or troubled, onset_t) it
    tells false halts and how late trouble was caught; with --price also dollars: SAVED from the halt to the log's end,
    WRONGLY CUT likewise of healthy runs. Exit code 1 when a log or a line of one could not be read; the other logs are
    replayed all the same.

    With --recorded no LOG is named: what this machine recorded is played, and joined with the ledger. It tells how each
    run ended, its dollars, and those after the first halt of each policy.
    """
    loaded = note_unreachable_ceilings(load_each(policies), price)
    found, closed = logs(paths)
    # A log may also be below a directory that is given. It counts once.
    found = [*dict.fromkeys(found)]
    for line in closed:
        complain_plainly(line)
    drawings = _Drawings(plot, found)
    text = TextOptions(text_format, sequence_length, gpus)
    terms = Terms(loaded, price, run_on, fields, text, is_drawn=plot is not None)
    tallies = [LabelTally(policy.name, price) for policy in loaded]
    is_bad = bool(closed)
    records_total = 0
    screen = screen_of(sys.stdout)
    progress = _Progress(len(found))
    for played in _each(found, terms, drawings, jobs):
        progress.clear()
        drawings.add(played)
        records_total += played.records
        tallies = [tally.plus(more) for tally, more in zip(tallies, played.tallies, strict=True)]
        is_bad = _tell(played, loaded, screen, as_json=as_json) or is_bad
        progress.step()
    progress.clear()
    if not as_json:
        click.echo(f"{len(found)} {'log' if len(found) == 1 else 'logs'}, {records_total:,} records")
        click.echo(table([tally.row() for tally in tallies], screen), nl=False)
    elif len(loaded) > 1:
        for tally in tallies:
            click.echo(_json({"comparison": tally.row()}))
    drawings.end()
    if is_bad:
        raise click.exceptions.Exit(ExitCode.FAILED)


class _Progress:
    """How many logs are played, on one line of a terminal that goes again. Nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total if total >= TOLD_FROM and sys.stderr.isatty() else 0
        self._done = 0

    def clear(self) -> None:
        if self._total and self._done:
            click.echo("\r\x1b[K", nl=False, err=True)

    def step(self) -> None:
        self._done += 1
        if self._total and self._done < self._total:
            click.echo(f"{self._done:,} of {self._total:,} logs", nl=False, err=True)


def _each(found: Sequence[Path], terms: Terms, drawings: _Drawings, jobs: int | None) -> Iterator[Played]:
    with Workers(terms, cores() if jobs is None else jobs) as workers:
        try:
            yield from workers.play(found, drawings.pictures)
        except WorkerEnded as error:
            raise Failed(str(error)) from error


def _tell(played: Played, policies: Sequence[Policy], screen: Screen, *, as_json: bool) -> bool:
    """Say what became of a log. Returns whether something of it could not be read."""
    for line in played.said:
        complain_plainly(line)
    if played.problem is not None:
        complain_plainly(played.problem)
    elif played.lacks is not None:
        complain_plainly(f"{played.path}: {played.lacks}")
    if as_json:
        for line in _json_lines(played, policies):
            click.echo(line)
    else:
        for verdict in _text_lines(played, policies):
            click.echo("\n".join(shown_lines(verdict, screen)))
    return played.problem is not None


class _Drawings:
    """One page of all logs, or a picture of each, written as soon as the log has been replayed."""

    def __init__(self, plot: Path | None, found: Sequence[Path]) -> None:
        self._plot = plot
        self._sections: list[str] = []
        self.pictures: dict[Path, Path] = {}  # Of each log its file.
        if plot is None:
            return
        if len(found) > PLOTTED_MAX:
            raise Failed(f"--plot: {len(found)} logs are more than the {PLOTTED_MAX} that one call draws; name fewer")
        if plot.suffix == PICTURE:
            if not picture.is_there():
                raise Failed(f"--plot: {picture.EXTRA}")
            self.pictures = _pictures(plot, found)
        elif plot.suffix not in PAGES:
            raise Failed(f"--plot: {plot}: name FILE.html or FILE.png")

    def add(self, played: Played) -> None:
        if played.undrawn is not None:
            raise Failed(f"--plot: {played.undrawn}")
        if played.section is not None:
            self._sections.append(played.section)

    def end(self) -> None:
        if self._plot is None or self.pictures:
            return
        write_named("--plot", self._plot, page(self._sections))


def _pictures(plot: Path, found: Sequence[Path]) -> dict[Path, Path]:
    """The file of each log's picture: FILE.png for one log, FILE-LOG.png for several, numbered if names repeat."""
    if len(set(found)) == 1:
        return {found[0]: plot}
    names: dict[Path, Path] = {}
    for log in dict.fromkeys(found):
        stem = log.name or "log"
        name = plot.with_name(f"{plot.stem}-{stem}{PICTURE}")
        number = 2
        while name in names.values():
            name = plot.with_name(f"{plot.stem}-{stem}-{number}{PICTURE}")
            number += 1
        names[log] = name
    return names


def _json(row: dict[str, Any]) -> str:
    return json.dumps(worded(row), allow_nan=False)


def _json_lines(played: Played, policies: Sequence[Policy]) -> Iterator[str]:
    several = len(policies) > 1
    for verdict in played.verdicts:
        named = {"policy": verdict.policy} if several else {}
        row = {name: getattr(verdict, name) for name in _VERDICT_KEYS}
        yield _json({"log": str(played.path), **named, **row, "evidence": dict(verdict.evidence)})
    for policy in policies:
        found = halts(played.verdicts, policy.name)
        row = {
            "log": str(played.path),
            **({"policy": policy.name} if several else {}),
            "halts": len(found),
            "halts_enforced": sum(verdict.mode == "enforce" for verdict in found),
            "first_halt_step": found[0].step if found else None,
            "first_halt_t": found[0].t if found else None,
            "records": played.records,
        }
        yield _json(row)


def _text_lines(played: Played, policies: Sequence[Policy]) -> Iterator[str]:
    for verdict in played.verdicts:
        whose = f"{plain(verdict.policy)}, " if len(policies) > 1 else ""
        response = verdict.response if verdict.mode == "enforce" else f"would {verdict.response} (observe mode)"
        at = "no time" if verdict.t is None else format_duration(math.floor(verdict.t * NS_PER_S))
        what = plain(verdict.text)[:TEXT_CHARS_MAX]
        style = _STYLES.get(verdict.response, "yellow") if verdict.mode == "enforce" else ""
        yield Styled(
            f"{plain(str(played.path))}: step {verdict.step}, {at}: {whose}{plain(verdict.rule)}: {response}: {what}",
            style,
        )
