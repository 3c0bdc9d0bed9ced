"""`costgov plan compare`: several plans beside one another."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from governor.cli.common import OF_THE_COMMANDS, Failed, complain, exits, json_option, print_json, show_text
from governor.cli.plan.advice import precision, sparse
from governor.cli.plan.options import (
    PLAN_ERRORS,
    html_option,
    model_argument,
    model_option,
    plan_options,
    values_of,
    write_page,
)
from governor.cli.plan.search import search, stages
from governor.text.screen import screen_of

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
    from governor.planner.compare import comparison, comparison_document
    from governor.planner.estimate import estimate
    from governor.planner.keys import from_words

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
        show_text(comparison(estimates, screen=screen_of(sys.stdout)))
    if html is not None:
        from governor.planner.output.page import page

        write_page(html, page(estimates))


# `costgov plan deepspeed`: a plan as the config that DeepSpeed takes.


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


# `costgov plan levers`: what each single change to a plan would save.


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


# `costgov plan …`: what a run will need and cost, before a dollar is spent.


class _DefaultsToRun(click.Group):
    """`costgov plan MODEL …` is `costgov plan run MODEL …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        inner = click.Context(run, parent=ctx, info_name="run")
        offered = run.shell_complete(inner, incomplete) if incomplete.startswith("-") else _models(incomplete)
        return [*super().shell_complete(ctx, incomplete), *offered]


def _models(incomplete: str) -> list[CompletionItem]:
    from governor.planner.catalog import models

    return [CompletionItem(name) for name in models() if name.lower().startswith(incomplete.lower())]


@click.group(
    cls=_DefaultsToRun,
    short_help="What a run will need and cost: memory, hours, dollars; compare, search.",
    epilog=OF_THE_COMMANDS,
)
def plan() -> None:
    """Predict a training run: memory of a GPU, step time, hours and dollars, each with the interval that it is worth.

    \b
    One plan; `run` may be left out. The same from a file, drawn:
      costgov plan llama3-8b --tokens 100B --gpus 8 --provider lambda
      costgov plan my-plan.toml --html plan.html
    Several beside one another; what each single change would save:
      costgov plan compare --tokens 20B --model llama2-7b "1xh100" "2xh100 fsdp2"
      costgov plan levers llama3-8b --tokens 100B --provider lambda
    The best set-up; which model and how many tokens, at best:
      costgov plan search llama3-8b --tokens 100B --deadline 240 --budget 15000
      costgov plan search --budget 15000
    The same as DeepSpeed's config; one prediction a row of a table:
      costgov plan deepspeed llama3-8b --tokens 100B > ds_config.json
      costgov plan batch rows.csv --json
    What the four stages cost; whether sparse attention or NVFP4 would pay:
      costgov plan stages
      costgov plan sparse --model llama3-8b
      costgov plan precision --model llama3-8b --gpu B200

    docs/howto/planner.md says what the figures rest on, and how far they were off on published runs.
    """


@plan.command(short_help="Predict one plan.", epilog=exits())
@model_argument
@plan_options
@html_option
@json_option
def run(model: str | None, html: Path | None, as_json: bool, **options: str | None) -> None:
    """Predict what one plan needs and costs: memory by part, step time by part, tokens/s, MFU, hours, dollars.

    MODEL is an architecture of the catalogue, a plan in TOML (the options below are its keys) or a config.json of
    Hugging Face. What nobody states is chosen (the fastest that fits) or assumed, and said. Hours and dollars are given
    twice: of the steady state, and over the calendar with saves, failures, evaluations and what finished runs took
    beyond. Exit code 1 when it does not fit into memory; the last line then says what would.
    """
    from governor.planner.estimate import estimate
    from governor.planner.levers import levers_of
    from governor.planner.output.report import document, report
    from governor.planner.what_fits import refusal

    try:
        one = estimate(values_of(model, options))
        single, both = levers_of(one)
        problem = refusal(one)
    except PLAN_ERRORS as error:
        raise Failed(str(error)) from error
    if as_json:
        print_json({**document(one, single, both), "problem": problem})
    else:
        show_text(report(one, single, both, screen=screen_of(sys.stdout)))
    if html is not None:
        from governor.planner.output.page import page

        write_page(html, page([one]))
    if problem is not None:
        raise Failed(problem)


@plan.command(short_help="One prediction for each row of a CSV.", epilog=exits())
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.csv")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a row, for programs.")
def batch(file: Path, as_json: bool) -> None:
    """Predict each row of a table of set-ups: tokens/s of a GPU with an 80 % interval, memory, and whether it fits.

    Columns: row_id, model, params_b, layers, hidden, heads, kv_heads, ffn, vocab, n_experts, topk, moe_ffn, seq_len,
    gpu, gpus, precision, framework, micro_bs, grad_accum, global_batch_tokens, act_ckpt, attention, tp, pp, vp, cp, ep,
    dp, zero_stage, fsdp, offload, network, date, notes. Blank means unknown: what is then assumed stands in notes.
    Other columns, measured ones among them, are ignored. Every row has its line, in order: one that cannot be read has
    null figures and the reason in notes, and a line of stderr. GB are 1e9 bytes; reserved is what nvidia-smi shows.
    """
    from governor.planner.batch import NOT_PREDICTED, TableUnreadableError, as_table, predictions
    from governor.text.table import plain

    try:
        lines = []
        for line in predictions(file):
            lines.append(line)
            if as_json:
                click.echo(json.dumps(line, allow_nan=False))
            if line["notes"].startswith(NOT_PREDICTED):
                complain(plain(f"{file}: row {line['row_id']}: {line['notes']}"))
    except TableUnreadableError as error:
        raise Failed(str(error)) from error
    if not as_json:
        show_text(as_table(lines, screen=screen_of(sys.stdout)))


plan.add_command(compare)
plan.add_command(deepspeed)
plan.add_command(levers)
plan.add_command(precision)
plan.add_command(search)
plan.add_command(sparse)
plan.add_command(stages)
