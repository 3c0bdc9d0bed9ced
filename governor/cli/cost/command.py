"""`costgov cost`: spend by run, stage, day, node, label or line."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

import click

from governor.cli.common import ExitCode, LazyGroup, config_option, exits, json_option, print_json
from governor.cli.cost.charges import (
    NOTHING_YET,
    Scope,
    Unread,
    journals_in,
    runs_of_name,
    scope_of,
    scope_options,
    state_dir_of,
    sums_of,
    tell_unknown,
    unpriced_in,
    unpriced_notes,
)
from governor.cli.cost.tables import document, print_csv, print_table, seconds
from governor.core.base.units import DurationNs
from governor.core.money.reports.cost import Group, tally_sums

_TYPED: Final = click.core.ParameterSource.COMMANDLINE  # $COSTGOV_CONFIG applies to every command.


@click.group(
    cls=LazyGroup,
    lazy={
        "export": "governor.cli.cost.export:export",
        "reconcile": "governor.cli.cost.reconcile:reconcile",
        "stages": "governor.cli.cost.stages:stages",
    },
    invoke_without_command=True,
    short_help="What was spent: by run, stage, day, node, label or line.",
    epilog=exits(ExitCode.UNKNOWN),
)
@click.option(
    "--by", default="run", show_default=True, metavar="run|stage|day|node|label:KEY|line", help="What to group it by."
)
@scope_options
@click.option("--fleet", "of_fleet", is_flag=True, help="What all nodes of the fleet have charged, as its etcd has it.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, for spreadsheets.")
@config_option
@json_option
@click.pass_context
def cost(
    ctx: click.Context, by: str, since: int | None, until: int | None, runs: tuple[str, ...], of_fleet: bool,
    as_csv: bool, config: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Show what was spent, from the ledger: charges of node time, with the price of that time and who said it.

    Always reads the journals of the state directory, beside a running governor too: what it has charged stands in
    them within ten seconds. Hours are those of the node: a run that holds 2 of 8 GPUs is charged a quarter of them.
    Amounts in the table add up to the cent; --json and --csv give exact dollars. What of the ledger cannot be read is
    named on stderr, with exit code 1; the rest is shown.

    --fleet adds up what every governor of the fleet has written to its etcd ([fleet] in costgov.toml), once a minute
    and at its end. It needs no governor and no journal here. It counts whole UTC days, and has no lines.
    """
    if ctx.invoked_subcommand is not None:
        given = [name for name in ctx.params if ctx.get_parameter_source(name) is _TYPED]
        if given:
            raise click.UsageError(f"options of `cost {ctx.invoked_subcommand}` stand behind it")
        return
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude one another")
    scope = scope_of(since, until, runs)
    if of_fleet:
        from governor.cli.cost.fleet import show_fleet

        show_fleet(by, scope, config, as_csv=as_csv, as_json=as_json)
        return
    state_dir = state_dir_of(config)
    unread = Unread(scope)
    with _uncollected():
        try:
            sums = {path: sums_of(path, scope, by, unread) for path in journals_in(state_dir)}
            groups = tally_sums(chain.from_iterable(sums.values()), by)
        except ValueError as error:
            raise click.UsageError(f"--by: {error}") from error
        several = runs_of_name(sums) if by == "run" or runs else {}
        charged = {one.charge.payer.run for own in sums.values() for one in own}
        unpriced = unpriced_in(state_dir, scope, unread)
        groups += [Group(run, is_priced=False) for run in unpriced if by == "run" and run not in charged]
        notes = _notes(several, unpriced, charged)
        if as_json:
            told = {"runs_of_name": several or None, "unpriced_s": seconds(unpriced) or None}
            print_json({**document(groups, by, scope, unread.count), **told})
        else:
            _show(groups, by, scope, unread, state_dir, notes, as_csv=as_csv)
    unread.end()
    tell_unknown(state_dir, scope, unread)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector.

    Tens of thousands of sums have no cycles, and the search for them takes a fifth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _show(
    groups: Sequence[Group], by: str, scope: Scope, unread: Unread, state_dir: Path, notes: Sequence[str], *,
    as_csv: bool,
) -> None:  # fmt: skip
    if as_csv:
        print_csv(groups, by)
    elif groups:
        print_table(groups, by, notes)
    elif notes:
        click.echo("\n".join(notes))
    elif not unread.count:
        asked = scope.text()
        click.echo(f"nothing was charged {asked}" if asked else NOTHING_YET.format(state_dir=state_dir))


def _notes(
    several: Mapping[str, int], unpriced: Mapping[str, DurationNs], charged: Collection[str]
) -> list[str]:  # fmt: skip
    from governor.text.table import plain

    together = [f"{plain(name)}: {count} runs of this name, together" for name, count in several.items()]
    return [*together, *unpriced_notes(unpriced, charged)]
