"""`costgov plan compare`: several plans beside one another."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from governor.cli.cli_common import Failed, json_option, print_json
from governor.cli.cli_plan_common import PLAN_ERRORS, html_option, model_option, plan_options, values_of, write_page
from governor.cli.exit_codes import exits

PLANS_MAX = 20  # More rows than anybody compares by eye.


@click.command(short_help="Put several plans beside one another.", epilog=exits())
@click.argument("plans", nargs=-1, required=True, metavar="PLAN...")
@model_option
@plan_options
@html_option
@json_option
def compare(plans: tuple[str, ...], model: str | None, html: Path | None, as_json: bool, **options: str | None) -> None:
    """Compare plans in memory, speed, hours and dollars, and each of them under DDP, FSDP, FSDP2 and ZeRO-1 to 3.

    A PLAN is a file in TOML, or words: "4xa100 zero-3", "2xh100 fsdp2 micro-batch=8 price=2.4", "1xh100 tuned" (that is
    compiled). Options hold for every plan that does not say otherwise itself.
    """
    from governor.planner.plan_compare import comparison, comparison_document
    from governor.planner.plan_estimate import estimate
    from governor.planner.plan_keys import from_words

    if len(plans) > PLANS_MAX:
        raise Failed(f"{len(plans)} plans: at most {PLANS_MAX} stand beside one another")
    try:
        shared = values_of(model, options)
        estimates = []
        for text in plans:
            words = from_words(text)  # Names the plan itself where it refuses one.
            try:
                estimates.append(estimate({**shared, **words}))
            except PLAN_ERRORS as error:
                raise Failed(f'"{text}": {error}') from error
    except PLAN_ERRORS as error:
        raise Failed(str(error)) from error
    if as_json:
        print_json(comparison_document(estimates))
    else:
        sys.stdout.write(comparison(estimates, colour=sys.stdout.isatty()))
    if html is not None:
        from governor.planner.output.plan_page import page

        write_page(html, page(estimates))
