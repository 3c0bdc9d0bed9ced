"""Shared by the money commands: the selection of charges, and reading them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from governor.cli.common import ExitCode, Failed, settings_from
from governor.core.base.units import DurationNs, format_duration, parse_duration, parse_utc, utc_text
from governor.core.money.charges import UNALLOCATED, Charge
from governor.core.money.expected import WindowRow
from governor.core.money.reports.cost import Sum, clip

if TYPE_CHECKING:
    from governor.adapters.journal.reader import ChargesUnreadable, Open, Unreadable

NOTHING_YET: Final = (
    "nothing charged yet in {state_dir}: start a governor that knows its price, for example "
    "`costgov run --price 22 -- CMD` (doctor says which price it knows)"
)
UNPRICED_TOLD_MAX: Final = 10  # --json has all.

Command = TypeVar("Command", bound=Callable[..., Any])


def _utc(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    try:
        return None if value is None else parse_utc(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _since(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A date, or how long ago."""
    try:
        ago = None if value is None else parse_duration(value)
    except ValueError:
        return _utc(ctx, param, value)
    return None if ago is None else time.time_ns() - ago


@dataclass(frozen=True, slots=True)
class Scope:
    """The selected charges: a time range (wall, end exclusive), and the runs (empty: all)."""

    since: int | None
    until: int | None
    runs: tuple[str, ...]

    def text(self) -> str:
        """The selection as the end of a sentence."""
        parts = [f"since {utc_text(self.since)}"] if self.since is not None else []
        parts += [f"until {utc_text(self.until)}"] if self.until is not None else []
        parts += [f"for run {', '.join(self.runs)}"] if self.runs else []
        return " ".join(parts)


def scope_options(command: Command) -> Command:
    """Adds --since, --until and --run as `since`, `until` and `runs`."""
    for option in (
        click.option("--run", "runs", multiple=True, metavar="RUN", help="Only this run. May be given several times."),
        time_options,
    ):
        command = option(command)
    return command


since_option: Final = click.option(
    "--since", callback=_since, metavar="DATE|AGO",
    help="From this UTC date or time on: 2026-11-01. Or how long ago: 30d, 12h.",
)  # fmt: skip


def time_options(command: Command) -> Command:
    """Adds --since and --until as wall time in nanoseconds."""
    for option in (
        click.option(
            "--until", callback=_utc, metavar="DATE", help="Up to this UTC date or time, itself not included."
        ),
        since_option,
    ):
        command = option(command)
    return command


def scope_of(since: int | None, until: int | None, runs: tuple[str, ...]) -> Scope:
    if since is not None and until is not None and until <= since:
        raise click.UsageError("--until must be later than --since")
    return Scope(since, until, runs)


def state_dir_of(config: Path | None) -> Path:
    return settings_from(config).paths.state_dir


class Unread:
    """The unreadable parts of the ledger. The rest is shown, and the end of the command counts what is missing."""

    SHOWN_MAX: Final = 20  # In the journal of a newer costgov it may be every row.

    def __init__(self, scope: Scope) -> None:
        self._runs = scope.runs
        self._lines: list[str] = []
        self._files: set[str] = set()
        self.count = 0

    def row(self, row: Unreadable) -> None:
        """The callback of reader.Unreadables."""
        if not self._runs or row.run in self._runs:
            self._add(f"{row.text()}; it is in no figure here")

    def file(self, path: str, error: ChargesUnreadable) -> None:
        if path in self._files:  # Some queries read each file more than once.
            return
        self._files.add(path)
        self._add(f"{error}; what could not be read of it is in no figure here")

    def _add(self, line: str) -> None:
        self.count += 1
        if self.count <= self.SHOWN_MAX:
            self._lines.append(line)

    def end(self) -> None:
        """Report what is missing, on stderr and by the exit code. Does nothing when nothing is missing."""
        if not self.count:
            return
        what = "1 part of the ledger is" if self.count == 1 else f"{self.count:,} parts of the ledger are"
        rest = ", the first of them above" if self.count > len(self._lines) else ""
        why = "the figures are too low; what a newer costgov wrote, that one reads"
        raise Failed("\n".join([*self._lines, f"{what} missing{rest}: {why}"]))


def charges_in(state_dir: Path, scope: Scope, unread: Unread) -> Iterator[Charge]:
    """Yield the charges of every journal below the state directory, cut to the scope."""
    from governor.adapters.journal.reader import read_charges

    for path in journals_in(state_dir):
        with noting_unreadable(unread, path):
            for charge in read_charges(path, scope.since, scope.until, unread.row):
                if not scope.runs or charge.payer.run in scope.runs:
                    yield _in_scope(charge, scope)


def sums_in(state_dir: Path, scope: Scope, by: str, unread: Unread) -> list[Sum]:
    """The charges added up as far as `by` allows, which is all that a table over a year needs."""
    return [one for path in journals_in(state_dir) for one in sums_of(path, scope, by, unread)]


def sums_of(path: str, scope: Scope, by: str, unread: Unread) -> list[Sum]:
    """Those of one journal."""
    from governor.adapters.journal.sums import read_sums

    sums: list[Sum] = []
    with noting_unreadable(unread, path):  # What was read before an error stays.
        sums.extend(read_sums(path, by, scope.runs, scope.since, scope.until, unread.row))
    return sums


def unpriced_in(state_dir: Path, scope: Scope, unread: Unread) -> dict[str, DurationNs]:
    """By run of the scope, for how long no price was known of it. Without a charge beside that its spend is unknown."""
    from governor.adapters.journal.sums import read_unpriced

    found: dict[str, DurationNs] = {}
    for path in journals_in(state_dir):
        with noting_unreadable(unread, path):
            for run, unpriced_ns in read_unpriced(path, scope.since, scope.until).items():
                if not scope.runs or run in scope.runs:
                    # A run that goes on in another journal brings along what it had.
                    found[run] = max(DurationNs(unpriced_ns), found.get(run, DurationNs(0)))
    return dict(sorted(found.items()))


def unpriced_notes(unpriced: Mapping[str, DurationNs], charged: Collection[str]) -> list[str]:
    """A line of each run that had no price, or not always. `charged`: the runs that were charged something."""
    from governor.text.table import plain

    lines = [
        f"{plain(run)}: for {format_duration(unpriced_ns)} no price was known: "
        + ("more was spent on it than is here" if run in charged else "what it cost is unknown, and in no sum")
        for run, unpriced_ns in unpriced.items()
    ]
    more = len(lines) - UNPRICED_TOLD_MAX
    return lines if more <= 0 else [*lines[:UNPRICED_TOLD_MAX], f"and {more} more runs without a price"]


def runs_of_name(sums: Mapping[str, Sequence[Sum]]) -> dict[str, int]:
    """Of the sums of each journal, the last written first: how many runs have one name, where they are several."""
    from governor.core.money.reports.namesakes import Namesakes, counted

    parts = {(path, one.charge.payer.run): None for path in reversed([*sums]) for one in sums[path]}
    found = Counter(run for _, run in parts if run != UNALLOCATED)
    several = [part for part in parts if found[part[1]] > 1]
    if not several:
        return {}
    scope = Scope(None, None, tuple({run for _, run in several}))
    unread = Unread(scope)  # No figure of the ledger is missing where the state of its tokens is.
    meters = (
        ((path, one.run), one.meter.began_tokens, one.meter.progress_tokens)
        for path in dict.fromkeys(path for path, _ in several)
        for one in open_windows_of(path, scope, unread)
        if one.meter is not None
    )
    namesakes = Namesakes()
    namesakes.enter_all(meters)
    return counted(namesakes, several)


def tell_unknown(state_dir: Path, scope: Scope, unread: Unread) -> None:
    """Fail where a run that was asked for is in no journal, whenever: its name may be mistyped.

    One that is in the ledger and was charged nothing, or nothing in that time, is known.
    """
    if not scope.runs or unread.count:  # It may be in what cannot be read.
        return
    from governor.adapters.journal.reader import read_open
    from governor.text.table import plain

    known = {one.charge.payer.run for one in sums_in(state_dir, Scope(None, None, scope.runs), "run", unread)}
    for path in journals_in(state_dir):
        with noting_unreadable(unread, path):
            known.update(one.run for one in read_open(path, scope.runs, None, unread.row))
    missing = [run for run in scope.runs if run not in known]
    if missing and not unread.count:
        raise Failed(f"there is no run {', '.join(map(plain, missing))} in {state_dir}", ExitCode.UNKNOWN)


def windows_of(path: str, scope: Scope, unread: Unread) -> Iterator[tuple[str, WindowRow]]:
    """Yield (run, window) of a journal for each window that closed in the scope, in order within each run."""
    from governor.adapters.journal.reader import read_windows

    with noting_unreadable(unread, path):
        yield from read_windows(path, scope.runs, scope.since, scope.until, unread.row)


def open_windows_of(path: str, scope: Scope, unread: Unread) -> Iterator[Open]:
    """Yield each run's open window and what it has bought, from the journal's last word on it."""
    from governor.adapters.journal.reader import read_open

    with noting_unreadable(unread, path):
        for one in read_open(path, scope.runs, scope.since, unread.row):
            if any(known is not None for known in (one.meter, one.split, one.plan)):
                yield one


def journals_in(state_dir: Path) -> list[str]:
    """The paths of the journals, the last written first. Fails in one line when the directory cannot be read."""
    from governor.adapters.journal.reader import ChargesUnreadable, journal_paths

    try:
        return journal_paths(state_dir)
    except ChargesUnreadable as error:
        raise Failed(str(error)) from error


@contextmanager
def noting_unreadable(unread: Unread, path: str) -> Iterator[None]:
    # A journal may stay torn for good, when no `costgov run` uses its name again.
    from governor.adapters.journal.reader import ChargesUnreadable

    try:
        yield
    except ChargesUnreadable as error:
        unread.file(path, error)


def _in_scope(charge: Charge, scope: Scope) -> Charge:
    since = charge.from_wall if scope.since is None else scope.since
    until = charge.to_wall if scope.until is None else scope.until
    return clip(charge, since, until)
