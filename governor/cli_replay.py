"""`costgov policy replay`: what policies would have decided on logs that are already written."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from governor import policy_files
from governor.cli_common import Failed, UsdPerHour, json_option
from governor.core.policy import Policy
from governor.core.units import NS_PER_S, DurationNs, UsdMicros, format_duration, parse_duration
from governor.exit_codes import ExitCode
from governor.policy_includes import PolicyUnreadable
from governor.replay import Replay, Told
from governor.replay_input import LogUnreadable, logs, records
from governor.report_moments import plain
from governor.wire.policy_toml import load_policies
from trainer_shim.wire import worded

RUN_ON_MAX_NS: Final = 30 * 24 * 3600 * NS_PER_S  # As long as the longest pause that is believed.
TEXT_CHARS_MAX: Final = 300


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


@click.command(short_help="What policies would have done on recorded logs.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LOG...")
@click.option(
    "--policy", "policies", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Policy to replay; several are compared. Default: the packaged default policy.",
)  # fmt: skip
@click.option(
    "--run-on", type=Duration(), default=0, metavar="DURATION",
    help="Let the clock run on after the last record, as if the trainer were alive and silent.",
)  # fmt: skip
@click.option("--price", type=UsdPerHour(), metavar="USD", help="What the node costs an hour: for ceilings and sums.")
@json_option
def replay(
    paths: tuple[Path, ...], policies: tuple[Path, ...], run_on: DurationNs, price: UsdMicros | None, as_json: bool
) -> None:
    """Play recorded logs through the decisions of the daemon, on a clock that the logs drive, and tell what would halt.

    A LOG is a metrics JSONL file, recorded frames, or a Hugging Face trainer_state.json (each also .gz or .xz), or a
    directory of them. A first {"meta": …} line is skipped. Nothing is acted on: rules in observe mode are told as what
    they would do, with their mode, and a halt ends no log, so the first one is the one that counts. --json prints a
    line for each verdict and one for each log. Exit code 1 when a log or a line of one could not be read; the other
    logs are replayed all the same.
    """
    loaded = _load(policies)
    try:
        found = logs(paths)
    except LogUnreadable as error:
        raise Failed(str(error), ExitCode.FAILED) from error
    is_bad = False
    totals = _Totals()
    for path in found:
        played, problem = _play(path, loaded, price, run_on)
        if problem is not None:
            is_bad = True
            click.echo(f"costgov: {problem}", err=True)
        rows = verdict_rows(path, played, several=len(loaded) > 1)
        summary = summary_row(path, played)
        if as_json:
            for row in (*rows, summary):
                click.echo(json.dumps(worded(row), allow_nan=False))
        else:
            totals.add(path, played)
    if not as_json:
        totals.show()
    if is_bad:
        raise click.exceptions.Exit(ExitCode.FAILED)


def _load(paths: Sequence[Path]) -> tuple[Policy, ...]:
    """The policies of these files, each judged by itself: two of them may well be for the same runs."""
    loaded: list[Policy] = []
    for path in paths or (policy_files.PACKAGED_POLICY,):
        try:
            texts = policy_files.policy_texts([path])
        except PolicyUnreadable as error:
            raise Failed(str(error)) from error
        for text in texts:
            policies, problems = load_policies([text])
            if policies is None:
                raise Failed("\n".join(str(problem) for problem in problems))
            loaded += policies.policies
    if not loaded:
        raise Failed(f"{paths[0]}: holds no *.toml; name a policy file")
    return tuple(loaded)


def _play(
    path: Path, policies: Sequence[Policy], price: UsdMicros | None, run_on: DurationNs
) -> tuple[Replay, str | None]:
    """Replay one log. The problem is one line, of the first line that could not be read."""
    replay = Replay(policies, price)
    problem: str | None = None
    faulty = 0
    try:
        for number, record in records(path):
            fault = "; ".join(record) if isinstance(record, list) else replay.read(record)
            if fault is not None:
                faulty += 1
                problem = problem or f"{path}:{number}: {fault}; skipped"
    except LogUnreadable as error:
        problem = problem or str(error)
    if faulty > 1:
        problem = f"{problem}, as were {faulty - 1} more lines"
    replay.end(run_on)
    return replay, problem


def verdict_rows(path: Path, replay: Replay, *, several: bool) -> list[dict[str, Any]]:
    """One JSON object a verdict; with several policies each names its own."""
    return [
        {
            "log": str(path),
            **({"policy": told.policy} if several else {}),
            "rule": told.rule,
            "trigger": told.trigger,
            "response": told.response,
            "mode": told.mode,
            "step": told.step,
            "t": told.t,
            "reason": told.reason,
            "text": told.text,
            "evidence": dict(told.evidence),
        }
        for told in replay.told
    ]


def summary_row(path: Path, replay: Replay) -> dict[str, Any]:
    halts = _halts(replay)
    first = halts[0] if halts else None
    return {
        "log": str(path),
        "halts": len(halts),
        "halts_enforced": sum(told.mode == "enforce" for told in halts),
        "first_halt_step": first.step if first else None,
        "first_halt_t": first.t if first else None,
        "records": replay.records,
    }


def _halts(replay: Replay) -> list[Told]:
    return [told for told in replay.told if told.response == "halt"]


class _Totals:
    """What a person reads: each log in which something fired, then sums."""

    def __init__(self) -> None:
        self.logs = self.records = self.halted = self.halted_enforced = 0

    def add(self, path: Path, replay: Replay) -> None:
        self.logs += 1
        self.records += replay.records
        halts = _halts(replay)
        self.halted += bool(halts)
        self.halted_enforced += any(told.mode == "enforce" for told in halts)
        for told in replay.told:
            would = "" if told.mode == "enforce" else " (observe mode: would)"
            at = "no time" if told.t is None else format_duration(math.floor(told.t * NS_PER_S))
            click.echo(
                f"{plain(str(path))}: step {told.step}, {at}: rule {told.rule}{would}: {told.response}: "
                f"{plain(told.text)[:TEXT_CHARS_MAX]}"
            )

    def show(self) -> None:
        click.echo(
            f"{self.logs} logs, {self.records:,} records: {self.halted} would be halted, "
            f"{self.halted_enforced} of them by a rule that enforces"
        )
