"""`costgov cost --fleet`: what all nodes have charged, by the rows that their governors write to the fleet's etcd."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from governor.adapters.journal.reader import Unreadable
from governor.app import fleet_costs, fleet_rows
from governor.cli.common import ExitCode, Failed, print_json, settings_from
from governor.cli.cost.charges import Scope, Unread, unpriced_notes
from governor.cli.cost.tables import document, print_csv, print_table, seconds
from governor.core.base.units import NS_PER_DAY, DurationNs, date_text, utc_text
from governor.core.events.fleet_store import Kept
from governor.core.fleet.cost_rows import LABELS, NODES, STAGES, FleetTally, Found, found_in, names_in_key
from governor.core.money.reports.cost import LABEL, Group, tally_again
from governor.remote_ports import FleetStore
from governor.text.table import plain

NOTHING_YET = "no governor of this fleet has charged anything yet: each writes its rows a minute after its start"
KEY_CHARS_SHOWN = 200


def show_fleet(by: str, scope: Scope, config: Path | None, *, as_csv: bool, as_json: bool) -> None:
    if by == "line":
        raise click.UsageError("--by: a fleet's rows have no lines; `costgov cost --by line` on a node has them")
    days = _whole_days(scope)
    store = fleet_rows.opened(settings_from(config).fleet)
    if isinstance(store, fleet_rows.Failure):
        raise Failed(store.text)
    rows = _Rows(store, days)
    tally = FleetTally(time.time_ns() // NS_PER_DAY)
    try:
        tallied = tally.tallied(rows.found(days), days.runs)
        groups = tally_again(tallied, by)
        missing = _missing(rows, tally, days)
    except ValueError as error:
        raise click.UsageError(f"--by: {error}") from error
    finally:
        store.close()
    rows.note_ledgers(tally)
    unpriced = {run: DurationNs(ns) for run, ns in sorted(tally.unpriced_ns.items())}
    groups += [Group(run, is_priced=False) for run in unpriced if by == "run" and run not in tally.charged]
    as_of = tally.as_of()
    if as_json:
        told = {
            "runs_of_name": None,
            "unpriced_s": seconds(unpriced) or None,
            "nodes": len(tally.nodes),
            "as_of": None if as_of is None else utc_text(as_of),
            "left_out": dict(sorted(tally.left_out.items())) or None,
        }
        print_json({**document(groups, by, days, rows.unread.count), **told})
    elif as_csv:
        print_csv(groups, by)
    else:
        notes = [*_left_out(tally, by), *unpriced_notes(unpriced, tally.charged)]
        _show(groups, by, days, [*_whence(tally, as_of, days), *notes], is_whole=not rows.unread.count)
    rows.unread.end()
    if missing:
        raise Failed(f"there is no run {', '.join(map(plain, missing))} in this fleet", ExitCode.UNKNOWN)


def _whole_days(scope: Scope) -> Scope:
    """From the day in which `--since` is, up to the end of that in which `--until` is."""
    since = None if scope.since is None else scope.since - scope.since % NS_PER_DAY
    until = None if scope.until is None else scope.until + -scope.until % NS_PER_DAY
    return Scope(since, until, scope.runs)


@dataclass(slots=True)
class _Rows:
    store: FleetStore
    scope: Scope
    unread: Unread = field(init=False)

    def __post_init__(self) -> None:
        self.unread = Unread(self.scope)

    def kept(self, since: int | None, until: int | None) -> Iterator[Kept]:
        first = None if since is None else since // NS_PER_DAY
        last = None if until is None else until // NS_PER_DAY - 1
        try:
            yield from fleet_costs.cost_rows(self.store, first, last)
        except fleet_costs.RowsMissing as missing:
            if missing.reply is None:
                raise Failed(f"there are more than {fleet_costs.ROWS_MAX:,} rows: ask for fewer days") from None
            raise Failed(fleet_rows.failure_of(missing.reply).text) from None

    def found(self, scope: Scope) -> Iterator[Found]:
        for kept in self.kept(scope.since, scope.until):
            found = found_in(kept)
            if found is not None:
                yield found
                continue
            names = names_in_key(kept.key)
            self._note(f"row {plain(kept.key[:KEY_CHARS_SHOWN])}", names[2] if names is not None else "", "no cost row")

    def note_ledgers(self, tally: FleetTally) -> None:
        for (day, holder), count in tally.unread.items():
            name = f"the ledger of {plain(holder.node)} on {date_text(day * NS_PER_DAY)}"
            self._note(name, "", f"{count:,} of its rows")

    def _note(self, name: str, run: str, what: str) -> None:
        self.unread.row(Unreadable("etcd", name, run, None, None, what))


def _missing(rows: _Rows, tally: FleetTally, scope: Scope) -> list[str]:
    """Runs that were asked for and are in no row of any day: their names may be mistyped."""
    missing = set(scope.runs) - tally.charged - tally.unpriced_ns.keys()
    if missing and not rows.unread.count:
        for kept in rows.kept(None, None):
            names = names_in_key(kept.key)
            missing -= {names[2]} if names is not None else set()
    return [run for run in scope.runs if run in missing and not rows.unread.count]


def _show(groups: Sequence[Group], by: str, scope: Scope, notes: Sequence[str], *, is_whole: bool) -> None:
    if groups:
        print_table(groups, by, notes)
    elif is_whole:
        asked = scope.text()
        click.echo(f"nothing was charged {asked}" if asked else NOTHING_YET)


def _whence(tally: FleetTally, as_of: int | None, scope: Scope) -> list[str]:
    count = len(tally.nodes)
    days = [f"from {date_text(scope.since)} on"] if scope.since is not None else []
    days += [f"up to {date_text(scope.until)}, itself not included"] if scope.until is not None else []
    nodes = "1 node" if count == 1 else f"{count:,} nodes"
    age = [f"as of {utc_text(as_of)}"] if as_of is not None else []
    return ["; ".join([f"{nodes}, whole UTC days{' ' + ', '.join(days) if days else ''}", *age])]


def _left_out(tally: FleetTally, by: str) -> list[str]:
    """What did not fit into rows, where the table goes by it."""
    what = {"stage": STAGES, "node": NODES}.get(by, LABELS if by.startswith(LABEL) else "")
    count = tally.left_out.get(what, 0)
    rows = "1 row" if count == 1 else f"{count:,} rows"
    return [f"{rows} had no room for all {what}: see `costgov cost --by {plain(by)}` on the node"] if count else []
