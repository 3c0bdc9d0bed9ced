"""`costgov plan deepspeed`: a plan as the config that DeepSpeed takes."""

from __future__ import annotations

import json

import click

from governor.cli.cli_common import Failed
from governor.cli.cli_plan_common import PLAN_ERRORS, model_argument, plan_options, values_of
from governor.cli.exit_codes import exits


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
    from governor.planner.model.deepspeed_config import NVME_PATH, config_of
    from governor.planner.plan_estimate import estimate
    from governor.planner.plan_refusal import refusal

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
