"""`costgov policy replay --recorded`: what policies would have saved of what was spent, by recordings and ledger."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from governor.cli.common import ExitCode, Failed, config_option, settings_from
from governor.cli.cost.charges import (
    Scope,
    Unread,
    charges_in,
    journals_in,
    noting_unreadable,
    since_option,
    unpriced_in,
)
from governor.cli.policy.bill_text import Told, bill_lines, bill_text
from governor.cli.policy.played import complain_plainly, load_each, note_unreachable_ceilings
from governor.core.base.identity import RUN_NAME
from governor.core.base.units import DurationNs, UsdMicros, utc_text
from governor.core.money.charges import UNALLOCATED
from governor.replay.bills import (
    NO_MARKS,
    Bill,
    Ending,
    Marks,
    RecordingFacts,
    RunBill,
    cut_off,
    ending_of,
    policy_halts,
)
from governor.replay.compare import LabelTally
from governor.replay.logs import Read, recording
from governor.replay.one_log import judge
from governor.replay.play import Replay
from governor.replay.stretches import Span, Stretches
from governor.text.screen import screen_of
from governor.wire.recorded import RecordedClock
from governor.wire.recording import number_of, segments

if TYPE_CHECKING:
    from governor.adapters.journal.run_ends import RunEnds
    from governor.core.base.policy import Policy
    from governor.replay.bills import PolicyHalts

_TYPED: Final = click.core.ParameterSource.COMMANDLINE  # $COSTGOV_CONFIG applies to every command.
# These are of logs that are named. `--price` is of ceilings.
_OF_LOGS: Final = ("paths", "run_on", "plot", "fields", "text_format", "sequence_length", "gpus", "jobs")
_OF_RECORDED: Final = ("since", "config")


def or_recorded(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --recorded, --since and --config. With the first of them, what was recorded is played instead of logs."""

    @click.option(
        "--recorded", is_flag=True,
        help="Play what this machine recorded, and join it with the ledger: the dollars that a halt would have saved.",
    )  # fmt: skip
    @since_option
    @config_option
    @wraps(command)
    def either(*, recorded: bool, since: int | None, config: Path | None, **given: Any) -> None:
        ctx = click.get_current_context()
        typed = [one for one in ctx.command.params if ctx.get_parameter_source(one.name or "") is _TYPED]
        foreign = [one.opts[0] for one in typed if one.name in (_OF_LOGS if recorded else _OF_RECORDED)]
        if foreign and recorded:
            named = ["LOG" if name == "paths" else name for name in foreign]
            raise click.UsageError(f"--recorded plays all recordings of this machine: leave out {', '.join(named)}")
        if foreign:
            raise click.UsageError(f"{foreign[0]} is for --recorded")
        if recorded:
            _show(since, config, given["policies"], given["price"], as_json=given["as_json"])
            return
        if not given["paths"]:
            [logs] = [one for one in ctx.command.params if one.name == "paths"]
            raise click.MissingParameter(ctx=ctx, param=logs)
        command(**given)

    return either


def _show(
    since: int | None, config: Path | None, policies: tuple[Path, ...], price: UsdMicros | None, *, as_json: bool
) -> None:
    loaded = note_unreachable_ceilings(load_each(policies), price)
    unread = Unread(Scope(since, None, ()))
    told, is_bad = gather(loaded, price, config, unread, since)
    if as_json:
        for line in bill_lines(told):
            click.echo(line)
    else:
        click.echo(bill_text(told, screen_of(sys.stdout)), nl=False)
    unread.end()
    if is_bad:
        raise click.exceptions.Exit(ExitCode.FAILED)


def gather(
    policies: Sequence[Policy], price: UsdMicros | None, config: Path | None, unread: Unread, since: int | None
) -> tuple[Told, bool]:
    """The bill of all recordings since then, and whether one could not be read. Fails in one line without recordings.

    The ledger is read last: what is charged while recordings are played is in it.
    """
    paths = settings_from(config).paths
    ends = _ends_in(paths.state_dir, unread)
    tallies = [LabelTally(policy.name, None) for policy in policies]
    played = _Recordings(ends, policies, price, since, time.time_ns(), _marks_in(paths.marks_dir))
    for directory in _recordings(paths.recordings_dir, since):
        played.add(directory, tallies)
    runs = _joined(played, paths.state_dir, Scope(since, None, ()), unread)
    return Told(since, policies, runs, tallies, unread.count), played.is_bad


def _ends_in(state_dir: Path, unread: Unread) -> RunEnds:
    from governor.adapters.journal.run_ends import RunEnds

    ends = RunEnds()
    for path in journals_in(state_dir):
        with noting_unreadable(unread, path):
            ends.read(path, unread.row)
    return ends


def _marks_in(marks_dir: Path) -> Marks:
    """Which halts people have marked right, and which false. Nobody's word counts where the file is damaged."""
    from governor.adapters.journal.halt_marks import FILE_NAME, HaltMarkFile, HaltMarksUnusable
    from governor.core.base.halt_marks import Said

    try:
        marks = HaltMarkFile(marks_dir / FILE_NAME).read().marks
    except HaltMarksUnusable as error:
        complain_plainly(str(error))
        return NO_MARKS
    return {key: mark.said is Said.RIGHT for key, mark in marks.items() if mark.said is not Said.CLEARED}


def _recordings(root: Path, since: int | None) -> list[Path]:
    """The recordings of which something was written in the window, by name. Fails in one line where there is none."""
    why = "runs are recorded from their first frame on, unless `record.enabled` is false in costgov.toml"
    try:
        found = sorted(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError as error:
        raise Failed(f"{root}: holds no recording; {why}") from error
    except OSError as error:
        raise Failed(f"{root}: {error.strerror}; read it as the governor's user or root") from error
    named = [root / name for name in found if RUN_NAME.fullmatch(name) is not None]
    within = [path for path in named if _written_ns(path) >= (since or 0)]
    if not within:
        when = f" since {utc_text(since)}" if since is not None and named else ""
        raise Failed(f"{root}: holds no recording{when}; {why}")
    return within


def _written_ns(directory: Path) -> int:
    """When its last segment was written. What cannot be looked at is told of when it is opened."""
    try:
        parts = segments(directory)
        return os.stat(parts[-1]).st_mtime_ns if parts else -1
    except OSError:
        return time.time_ns()


@dataclass
class _Recordings:
    """Plays recordings one by one, and keeps of each what the bill needs."""

    ends: RunEnds
    policies: Sequence[Policy]
    price: UsdMicros | None
    since: int | None
    now: int  # Wall time.
    marks: Marks
    is_bad: bool = False
    spans: dict[str, list[Span]] = field(default_factory=dict)
    facts: dict[str, RecordingFacts] = field(default_factory=dict)
    halts: dict[str, Mapping[str, PolicyHalts]] = field(default_factory=dict)

    def add(self, directory: Path, tallies: Sequence[LabelTally]) -> None:
        run = directory.name
        replay, stretches = Replay(self.policies, self.price), Stretches()
        problem = judge(directory, replay, _seen(directory, replay, stretches))
        whose = replay.meta.get("run")
        if problem is None and whose != run:
            problem = f"{directory}: is of run {str(whose)[:60]}; it is in no figure here"
        if problem is not None:
            self.is_bad = True
            complain_plainly(problem)
        spans = stretches.spans()
        if whose != run or not spans or spans[-1].until <= (self.since or 0):
            return
        self.spans[run], self.facts[run] = spans, _facts(directory, replay, stretches, problem)
        if replay.not_understood() is not None:
            return
        begun = self.since or 0
        self.halts[run] = {
            policy.name: policy_halts(replay, stretches, policy.name).reaching(begun) for policy in self.policies
        }
        role = self.ending(run).role
        for tally in tallies:
            tally.add(replay, sum(max(0, span.until - max(span.since, begun)) for span in spans), role)

    def ending(self, run: str) -> Ending:
        spans = self.spans.get(run)
        begun = max(self.since or 0, spans[0].since if spans else 0)
        return ending_of(self.ends.runs.get(run), self.ends.halts_of(run, begun), self.now, self.marks)


def _seen(directory: Path, replay: Replay, stretches: Stretches) -> Iterator[Read]:
    """The records, each of them shown to `stretches` after its replay."""
    clock = RecordedClock()
    for place, record in recording(directory, clock):
        yield place, record
        if isinstance(record, dict):
            stretches.see(record, replay.clock.now, clock.wall_ahead_ns)


def _facts(directory: Path, replay: Replay, stretches: Stretches, problem: str | None) -> RecordingFacts:
    first = number_of(segments(directory)[0].name)
    return RecordingFacts(
        records=replay.records,
        gaps=stretches.gaps,
        lines_lost=stretches.lines_lost,
        begins_late=first is not None and first > 1,
        ends_at_halt=stretches.ends_at_halt,
        is_cut=stretches.is_cut,
        clock_set_ns=stretches.clock_set_ns,
        problem=problem,
    )


def _joined(played: _Recordings, state_dir: Path, scope: Scope, unread: Unread) -> list[RunBill]:
    """The bill of each run that was charged or recorded, the largest first. One of them is of what no run pays for."""
    bills = {run: Bill(spans, cut_off(played.halts.get(run, {}))) for run, spans in played.spans.items()}
    for charge in charges_in(state_dir, scope, unread):
        bills.setdefault(charge.payer.run, Bill()).add(charge)
    unpriced = unpriced_in(state_dir, scope, unread)
    runs = [
        RunBill(
            run,
            played.ending(run) if run != UNALLOCATED else Ending("-"),
            bill,
            played.facts.get(run),
            played.halts.get(run, {}),
            unpriced.get(run, DurationNs(0)),
        )
        for run, bill in bills.items()
    ]
    return sorted(runs, key=lambda one: (-one.bill.total_usd_micros, one.run))
