"""`costgov plan …`: what a run will need and cost."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from governor.cli.common import OF_THE_COMMANDS, Failed, LazyGroup, complain, exits, json_option, print_json, show_text
from governor.cli.plan.options import (
    PLAN_ERRORS,
    html_option,
    model_argument,
    plan_options,
    values_of,
    write_page,
)
from governor.text.screen import screen_of


class _DefaultsToRun(LazyGroup):
    """`costgov plan MODEL …` means `costgov plan run MODEL …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.list_commands(ctx) and args[0] not in ctx.help_option_names:
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
    lazy={
        "compare": "governor.cli.plan.compare:compare",
        "deepspeed": "governor.cli.plan.compare:deepspeed",
        "levers": "governor.cli.plan.compare:levers",
        "precision": "governor.cli.plan.precision:precision",
        "search": "governor.cli.plan.search:search",
        "sparse": "governor.cli.plan.sparse:sparse",
        "stages": "governor.cli.plan.search:stages",
    },
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
