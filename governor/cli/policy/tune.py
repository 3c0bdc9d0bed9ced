"""`costgov policy tune`: limits with a margin, from a user's own healthy logs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli.common import ExitCode, Failed, complain, exits, json_option, print_json, show_line
from governor.cli.policy.played import load_each
from governor.cli.policy.replay import log_options
from governor.core.base.units import NS_PER_HOUR, NS_PER_S, format_duration
from governor.replay.logs import STDIN, logs
from governor.replay.one_log import Fields, Terms
from governor.replay.readers.text import TextOptions
from governor.replay.workers import WorkerEnded, Workers, cores
from governor.text.screen import Screen, screen_of
from governor.text.table import Head, plain, render_rows

if TYPE_CHECKING:
    from governor.core.base.policy import Policy
    from governor.replay.play import ReplayVerdict
    from governor.replay.tune import Tuned


_HEADS: Final = (
    Head("rule"), Head("key"), Head("here"), Head("worst healthy"), Head("suggested"), Head("how near", may_wrap=True),
)  # fmt: skip


class _Played:
    """Replays logs, and records once what each log contained and what could not be read. A refused one is left out."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.records: dict[str, int] = {}
        self.ns: dict[str, int] = {}
        self.problems: dict[str, str] = {}

    def play(self, logs: Sequence[str], policy: Policy) -> Iterator[tuple[str, Sequence[ReplayVerdict]]]:
        for played in self._workers.play([Path(log) for log in logs], policies=(policy,)):
            log = str(played.path)
            if played.problem is not None:
                self.problems.setdefault(log, played.problem)
            if not played.is_evidence:
                continue  # What it shows is no healthy case.
            self.records[log] = played.records
            self.ns[log] = int(played.t * NS_PER_S) if played.t is not None else 0
            yield log, played.verdicts


@click.command(short_help="Suggest limits from your own healthy logs.", epilog=exits())
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, readable=False), metavar="LOG...")
@click.option("--policy", "file", type=click.Path(path_type=Path, readable=False), metavar="FILE",
              help="Policy whose rules are tuned. Default: the packaged default policy.")  # fmt: skip
@click.option("--margin", type=click.FloatRange(1.0, 16.0), default=2.0, show_default=True, metavar="TIMES",
              help="How many times the worst healthy case a limit should be away from it.")  # fmt: skip
@log_options
@json_option
def tune(
    paths: tuple[Path, ...], file: Path | None, margin: float, fields: Fields, text_format: str | None,
    sequence_length: int | None, gpus: int | None, jobs: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Say how near the worst of your healthy logs came to each limit, and suggest limits that keep a margin from it.

    Give logs of runs that went well, as `policy replay` takes them. Each limit of each rule, and its `for`, is moved
    until a log would have been told of: that value is the worst healthy case. Limits with less than the margin come as
    TOML that can be put over the policy (NAME.d/tuned.toml); tighter ones that would keep it too come as comments: few
    logs show few of the things that healthy runs do. Exit code 1 when a log could not be read, or where no margin can
    be had.
    """
    from governor.replay.tune import lacking, tune

    loaded = load_each([file] if file is not None else [])
    if len(loaded) != 1:
        raise Failed(f"{file}: holds {len(loaded)} policies; name one file")
    if STDIN in paths:
        raise Failed("-: tune reads each log many times, standard input can be read once; name a file")
    below, closed = logs(paths)
    found = sorted(map(str, dict.fromkeys(below)))
    terms = Terms(loaded, fields=fields, text=TextOptions(text_format, sequence_length, gpus))
    with Workers(terms, cores() if jobs is None else jobs) as workers:
        played = _Played(workers)
        try:
            tuned = tune(loaded[0], found, played.play, margin)
        except WorkerEnded as error:
            raise Failed(str(error)) from error
    problems = [*closed, *played.problems.values()]
    for problem in problems:
        complain(plain(problem))
    if tuned and not played.records:
        lacks = "hold no record" if not problems else "could not be judged"
        raise Failed(f"these logs {lacks}: nothing is known of any limit")
    if as_json:
        print_json({
            "logs": len(played.records), "records": sum(played.records.values()), "margin": margin,
            "hours": sum(played.ns.values()) / NS_PER_HOUR, "limits": [_row(one) for one in tuned],
        })  # fmt: skip
    else:
        hours = format_duration(sum(played.ns.values()))
        counted = "1 healthy log" if len(played.records) == 1 else f"{len(played.records)} healthy logs"
        basis = f"{counted}, {hours}, {sum(played.records.values()):,} records; margin {margin:g} x"
        composed = ", ".join(rule.name for rule in loaded[0].rules if rule.members)
        note = [f"Several triggers must fire together, so their limits are left out: {composed}."] if composed else []
        none = f"No rule of policy {plain(loaded[0].name)} has a limit that could be moved."
        if tuned:
            click.echo(_table(tuned, screen_of(sys.stdout)), nl=False)
        for line in (*(_rest(tuned) if tuned else [none]), *note):
            show_line(line)
        if tuned:
            click.echo("\n".join(("", *snippet(tuned, basis))))  # Not wrapped: it is there to be copied.
    if problems or lacking(tuned):
        raise click.exceptions.Exit(ExitCode.FAILED)


def _row(one: Tuned) -> dict[str, Any]:
    from governor.replay.tune import in_toml

    return {
        "rule": one.rule,
        "key": one.key.name,
        "state": one.state.value,
        "here": in_toml(one.key, one.here),
        "worst": None if one.worst is None else in_toml(one.key, one.worst),
        "suggested": None if one.suggested is None else in_toml(one.key, one.suggested),
        "apart": one.apart,
        "log": None if one.verdict is None else one.verdict.log,
        "t": None if one.verdict is None else one.verdict.t,
    }


def _table(tuned: Sequence[Tuned], screen: Screen) -> str:
    """A row for each limit that a log came near to."""
    idle = _idle(tuned)
    rows = [(one.rule, *_cells(one)) for one in tuned if one not in idle]
    return render_rows(_HEADS, rows, total=False, screen=screen) if rows else ""


def _rest(tuned: Sequence[Tuned]) -> list[str]:
    """One line for all limits that are not in the table."""
    from governor.replay.tune import FAR

    names: dict[str, list[str]] = {}
    for one in _idle(tuned):
        names.setdefault(one.rule, []).append(one.key.name)
    said = "; ".join(f"{rule} {', '.join(keys)}" for rule, keys in names.items())
    return [f"Nothing within {FAR} x, or no such data in these logs: {said}."] if names else []


def _idle(tuned: Sequence[Tuned]) -> list[Tuned]:
    """The limits that no log came near to."""
    from governor.replay.tune import State, lacking

    hopeless = lacking(tuned)
    return [one for one in tuned if one.state is State.FAR or (one.state is State.ALWAYS and one.rule not in hopeless)]


def _cells(one: Tuned) -> tuple[str, str, str, str, str]:
    from governor.replay.tune import State, in_toml

    def shown(value: int | float | None) -> str:
        return "-" if value is None else str(in_toml(one.key, value))

    says = {
        State.FIRES: "WOULD HAVE TOLD OF A HEALTHY LOG",
        State.CLOSE: "closer than the margin",
        State.WIDE: "could be tighter",
        State.ALWAYS: "FIRES AT ANY VALUE: is this log healthy?",
    }[one.state]
    apart = "" if one.apart is None else f"{one.apart:.2g} x away; "
    where = f" ({where_of(one)})" if one.verdict is not None else ""
    return (one.key.name, shown(one.here), shown(one.worst), shown(one.suggested), f"{apart}{says}{where}")


def where_of(one: Tuned) -> str:
    assert one.verdict is not None
    at = "" if one.verdict.t is None else f" at {format_duration(int(one.verdict.t * NS_PER_S))}"
    return f"{plain(Path(one.verdict.log).name)}{at}"


def snippet(tuned: Sequence[Tuned], basis: str) -> list[str]:
    """TOML for a drop-in over the policy.

    Limits with too little margin are changed; those with more than enough are comments.
    """
    from governor.replay.tune import State, cure, lacking

    lines = []
    hopeless = lacking(tuned)
    for rule in dict.fromkeys(one.rule for one in tuned if one.suggested is not None):
        own = [one for one in tuned if one.rule == rule and one.suggested is not None]
        moved = [one for one in own if one.state is State.CLOSE or one is cure(own)]
        mark = "" if moved else "# "
        lines.extend(["", f"{mark}[[rule]]", f'{mark}name = "{rule}"'])
        lines.extend(_line(one, "" if one in moved else "or " if one.state is State.FIRES else "# ") for one in own)
    head = [f"# costgov policy tune: {basis}"]
    if hopeless:
        named = ", ".join(rule for rule in dict.fromkeys(one.rule for one in tuned) if rule in hopeless)
        head.append(f"# No limit has the margin, of: {named}.")
        head.append("# These logs are not healthy, or the rule is not for them.")
    elif all(line[:1] in ("", "#") for line in lines):
        head.append(
            "# No limit came closer than the margin.\n# What is commented out is tighter, and keeps it in these logs."
        )
    return [*head, *lines]


def _line(one: Tuned, mark: str) -> str:
    from governor.replay.tune import literal

    assert one.suggested is not None
    assert one.worst is not None
    start = f"# {mark}" if mark == "or " else mark
    before, worst = literal(one.key, one.here), literal(one.key, one.worst)
    return f"{start}{one.key.name} = {literal(one.key, one.suggested)}  # {before} before; worst healthy {worst}"
