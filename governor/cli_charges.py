"""What the commands about money share: which charges they are about, and where these are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from governor.cli_common import Failed, settings_from
from governor.core.charges import Charge
from governor.core.cost import Sum, clip
from governor.core.expected import WindowRow
from governor.core.token_windows import TokenMeter
from governor.core.utc import parse_utc, utc_text

NOTHING_YET: Final = (
    "nothing charged yet in {state_dir}: start a governor that knows its price, for example "
    "`costgov run --price 22 -- CMD` (doctor says which price it knows)"
)

Command = TypeVar("Command", bound=Callable[..., Any])


def _utc(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_utc(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@dataclass(frozen=True, slots=True)
class Scope:
    """Which charges: of what time (wall, the end not included), and of which runs (none named: of all)."""

    since: int | None
    until: int | None
    runs: tuple[str, ...]

    def text(self) -> str:
        """What was asked for, as the end of a sentence."""
        parts = [f"since {utc_text(self.since)}"] if self.since is not None else []
        parts += [f"until {utc_text(self.until)}"] if self.until is not None else []
        parts += [f"for run {', '.join(self.runs)}"] if self.runs else []
        return " ".join(parts)


def scope_options(command: Command) -> Command:
    """--since, --until and --run; the command takes them as `since`, `until` and `runs`."""
    for option in (
        click.option("--run", "runs", multiple=True, metavar="RUN", help="Only this run. May be given several times."),
        time_options,
    ):
        command = option(command)
    return command


def time_options(command: Command) -> Command:
    """--since and --until, as wall time in nanoseconds."""
    for option in (
        click.option(
            "--until", callback=_utc, metavar="DATE", help="Up to this UTC date or time, itself not included."
        ),
        click.option("--since", callback=_utc, metavar="DATE", help="From this UTC date or time on: 2026-11-01."),
    ):
        command = option(command)
    return command


def scope_of(since: int | None, until: int | None, runs: tuple[str, ...]) -> Scope:
    if since is not None and until is not None and until <= since:
        raise click.UsageError("--until must be later than --since")
    return Scope(since, until, runs)


def state_dir_of(config: Path | None) -> Path:
    return settings_from(config).paths.state_dir


def charges_in(state_dir: Path, scope: Scope) -> Iterator[Charge]:
    """Yield the charges of every journal below the state directory, cut to the scope. Fails in one line."""
    from governor.adapters.charges_db import ChargesUnreadable, journal_paths, read_charges

    try:
        for path in journal_paths(state_dir):
            for charge in read_charges(path, scope.since, scope.until):
                if not scope.runs or charge.payer.run in scope.runs:
                    yield _in_scope(charge, scope)
    except ChargesUnreadable as error:
        raise Failed(str(error)) from error


def sums_in(state_dir: Path, scope: Scope, by: str) -> Iterator[Sum]:
    """The same, added up as far as `by` allows: what a table needs of a year of them. Fails in one line."""
    from governor.adapters.charges_db import ChargesUnreadable, journal_paths
    from governor.adapters.charges_sums import read_sums

    try:
        for path in journal_paths(state_dir):
            for one in read_sums(path, by, scope.runs, scope.since, scope.until):
                yield one if one.charges > 1 else Sum(_in_scope(one.charge, scope), 1)
    except ChargesUnreadable as error:
        raise Failed(str(error)) from error


def windows_in(state_dir: Path, scope: Scope) -> Iterator[tuple[str, WindowRow]]:
    """Yield (run, window) of those that closed in the scope; of each run in their order. Fails in one line."""
    from governor.adapters.charges_db import ChargesUnreadable, journal_paths
    from governor.adapters.windows_db import read_windows

    try:
        # The journal written last comes last: a run that has windows in two of them went on in that one.
        for path in reversed(journal_paths(state_dir)):
            yield from read_windows(path, scope.runs, scope.since, scope.until)
    except ChargesUnreadable as error:
        raise Failed(str(error)) from error


def open_windows_in(state_dir: Path, scope: Scope) -> Iterator[tuple[str, str | None, TokenMeter]]:
    """Yield (run, stage, meter) of the windows that are open now, of each run in the journal written last."""
    from governor.adapters.charges_db import ChargesUnreadable, journal_paths
    from governor.adapters.windows_db import read_open

    seen: set[str] = set()
    try:
        for path in journal_paths(state_dir):
            for run, stage, meter in read_open(path, scope.runs, scope.since):
                if run not in seen:
                    seen.add(run)
                    yield run, stage, meter
    except ChargesUnreadable as error:
        raise Failed(str(error)) from error


def _in_scope(charge: Charge, scope: Scope) -> Charge:
    since = charge.from_wall if scope.since is None else scope.since
    until = charge.to_wall if scope.until is None else scope.until
    return clip(charge, since, until)
