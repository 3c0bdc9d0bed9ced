"""`costgov plan levers`: what each single change to a plan would save."""

from __future__ import annotations

import sys

import click

from governor.cli.cli_common import Failed, json_option, print_json
from governor.cli.cli_plan_common import PLAN_ERRORS, model_argument, plan_options, values_of
from governor.cli.exit_codes import exits


@click.command(
    short_help="What each single change would save: loader, disk, saves, compile, micro-batch.", epilog=exits()
)
@model_argument
@plan_options
@json_option
def levers(model: str | None, as_json: bool, **options: str | None) -> None:
    """Show what single changes to a plan would save, in shares of its time and in dollars, and on what evidence.

    modelled: predicted for this very plan. rule of thumb: what others report. measured: what --data-wait or
    --tokens-per-s says of the run itself. Together they multiply: the loader's never beyond the wait for data, all of
    them never beyond the fastest plan that fits on the same GPUs.
    """
    from governor.planner.output.plan_document import lever_documents
    from governor.planner.output.plan_report import head, levers_table, notes_of
    from governor.planner.plan_estimate import estimate
    from governor.planner.plan_levers import levers_of

    try:
        one = estimate(values_of(model, options))
        single, both = levers_of(one)
    except PLAN_ERRORS as error:
        raise Failed(str(error)) from error
    if as_json:
        print_json(lever_documents(one, single, both))
        return
    table = levers_table(one, single, both, colour=sys.stdout.isatty())
    sys.stdout.write("\n".join([head(one), "", table, *notes_of(one)]) + "\n")
