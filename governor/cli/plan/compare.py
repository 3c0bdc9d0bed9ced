"""Further uses of a plan: `costgov plan compare`, `deepspeed` and `levers`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from governor.cli.common import Failed, exits, json_option, print_json, show_text
from governor.cli.plan.options import (
    PLAN_ERRORS,
    html_option,
    model_argument,
    model_option,
    plan_options,
    values_of,
    write_page,
)
from governor.text.screen import screen_of

PLANS_MAX = 20  # More rows are too many to compare.


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
    from governor.planner.compare import comparison, comparison_document
    from governor.planner.estimate import estimate
    from governor.planner.keys import from_words

    if len(plans) > PLANS_MAX:
        raise Failed(f"{len(plans)} plans: at most {PLANS_MAX} stand beside one another")
    try:
        shared = values_of(model, options)
        estimates = []
        for text in plans:
            words = from_words(text)  # Its error names the plan.
            try:
                estimates.append(estimate({**shared, **words}))
            except PLAN_ERRORS as error:
                raise Failed(f'"{text}": {error}') from error
    except PLAN_ERRORS as error:
        raise Failed(str(error)) from error
    if as_json:
        print_json(comparison_document(estimates))
    else:
        show_text(comparison(estimates, screen=screen_of(sys.stdout)))
    if html is not None:
        from governor.planner.output.page import page

        write_page(html, page(estimates))


# --- deepspeed: a plan as DeepSpeed's config


@click.command(short_help="Print a plan as DeepSpeed's JSON config.", epilog=exits())
@model_argument
@plan_options
@click.option("--nvme-path", metavar="DIR", help="Where offload to NVMe writes. Default: /local_nvme.")
def deepspeed(model: str | None, nvme_path: str | None, **options: str | None) -> None:
    """Print what deepspeed.initialize(config=...) takes: batch sizes, ZeRO, precision, offload, schedule.

    \b
    costgov plan deepspeed llama3-8b --tokens 100B --gpus 64 > ds_config.json

    What the JSON cannot say, and the model's code has to do, goes to stderr. What nobody states is chosen as in
    `costgov plan`. Exit code 1 where the plan does not fit into memory, or DeepSpeed does not train so.
    """
    from governor.planner.estimate import estimate
    from governor.planner.model.deepspeed_config import NVME_PATH, config_of
    from governor.planner.what_fits import refusal

    try:
        one = estimate(values_of(model, options))
        problem = refusal(one)
        if problem is not None:
            raise Failed(problem)
        if one.plan.asked.tokens is None:
            raise Failed("tokens: how many are to be trained? The learning rate's schedule ends with them")
        emitted = config_of(one.setup, one.plan.asked.tokens, nvme_path or NVME_PATH)
    except PLAN_ERRORS as error:
        raise Failed(str(error)) from error
    click.echo(json.dumps(emitted.config, indent=2))
    for note in (*(f"assumed: {what}" for what in one.plan.assumed), *emitted.notes):
        click.echo(f"# {note}", err=True)


# --- levers: what each single change to a plan would save


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
    from governor.planner.estimate import estimate
    from governor.planner.levers import levers_of
    from governor.planner.output.report import head, lever_documents, levers_table, notes_of

    try:
        one = estimate(values_of(model, options))
        single, both = levers_of(one)
    except PLAN_ERRORS as error:
        raise Failed(str(error)) from error
    if as_json:
        print_json(lever_documents(one, single, both))
        return
    table = levers_table(one, single, both, screen=screen_of(sys.stdout))
    show_text("\n".join([head(one), "", table, *notes_of(one)]) + "\n")
