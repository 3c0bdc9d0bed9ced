"""`costgov plan precision`: which matmuls of a model could run in NVFP4, FP8 or BF16, and the expected gain."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from governor.cli.common import Failed, exits, json_option, print_json, show_line, write_named
from governor.planner.catalog import UnknownNameError, gpu_named, shape_named
from governor.planner.model.precision_facts import ENGINES, PRECISION_LIMITS, RECIPE
from governor.planner.model.precision_plan import PrecisionPlan, advised, late_switch_tokens, precision_plan, recipe
from governor.planner.model.setup import Precision
from governor.planner.model.training_stages import stage_named
from governor.text.screen import screen_of
from governor.text.table import Head, render_rows

SEQ_LEN = 8192  # When neither the stage nor the user gives one.
HEADS = (Head("MATMULS"), Head("IN"), Head("OF THE STEP", True), Head("WHY"))


@click.command(short_help="Which matmuls could run in NVFP4 or FP8, and the gain.", epilog=exits())
@click.option("--model", default="stage4", show_default=True, metavar="NAME", help="Model or stage.")
@click.option("--gpu", "gpu_name", default="B200", show_default=True, metavar="NAME", help="GPU that is to train it.")
@click.option(
    "--precision",
    "wanted",
    type=click.Choice([one.value for one in Precision if one is not Precision.FP16]),
    help="Plan this one. Default: the lowest that the GPU has.",
)
@click.option("--seq-len", type=click.IntRange(1, 1 << 24), metavar="TOKENS", help="Default: the stage's, else 8192.")
@click.option(
    "--micro-batch",
    "micro_tokens",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Tokens of a micro-batch, over the GPUs among which experts are spread.",
)
@click.option("--keep-first", is_flag=True, help="Two of the blocks that stay in BF16 are the first ones.")
@click.option("--keep-attention", is_flag=True, help="Attention's projections stay in BF16.")
@click.option(
    "--recipe",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="Write what the model's builder needs.",
)
@json_option
def precision(
    model: str,
    gpu_name: str,
    wanted: str | None,
    seq_len: int | None,
    micro_tokens: int | None,
    keep_first: bool,
    keep_attention: bool,
    path: Path | None,
    as_json: bool,
) -> None:
    """Say which matmuls would run in which precision, by which recipe, what to gain, and what to fall back on.

    DeepSpeed has no NVFP4: it trains what the model's own layers (Transformer Engine's) compute in it. Speed-ups are
    ranges of published whole steps over BF16; where they lie on both sides of 1, it is not known to pay.
    """
    try:
        gpu, shape = gpu_named(gpu_name), shape_named(model)
    except UnknownNameError as error:
        raise Failed(str(error)) from error
    stage = stage_named(model)
    length = seq_len or (stage.seq_len if stage else SEQ_LEN)
    plan = precision_plan(
        shape,
        gpu,
        length,
        keep_first=keep_first,
        keep_attention_projections=keep_attention,
        tokens=micro_tokens,
        wanted=Precision(wanted) if wanted else None,
    )
    best = advised(shape, gpu, length, micro_tokens)
    written = recipe(plan, stage.tokens if stage else None)
    if path is not None:
        _write(path, written)
    if as_json:
        print_json({**asdict(plan), "seq_len": length, "advised": best.value, "recipe": written})
        return
    for line in _summary(plan, length, best, stage.tokens if stage else None):
        show_line(line)
    rows = [(one.name, one.precision.value, f"{100 * one.flops_share:.1f} %", one.why) for one in plan.groups]
    sys.stdout.write(render_rows(HEADS, rows, total=False, screen=screen_of(sys.stdout)))
    if plan.precision is Precision.NVFP4:
        show_line("Recipe:")
        for rule in RECIPE:
            show_line(f"  - {rule.name}: {rule.text} [{rule.source}]")
    click.echo("Limits:")
    for limit in PRECISION_LIMITS:
        show_line(f"  - {limit.name}: {limit.text} [{limit.source}]")


def _summary(plan: PrecisionPlan, seq_len: int, best: Precision, tokens: float | None) -> Iterator[str]:
    chain = ", then ".join(one.value for one in (plan.precision, *plan.fallbacks))
    yield f"{plan.model} on {plan.gpu}, sequences of {seq_len} tokens: {chain}"
    for note in plan.notes:
        yield f"  {note}"
    if plan.precision is Precision.BF16:
        return
    known = {True: "pays", False: "does not pay", None: "is not known to pay"}[plan.pays]
    speed = plan.speedup
    yield f"  {plan.precision.value} {known}: {speed.low:.2f} to {speed.high:.2f} x BF16, whole steps [{speed.source}]"
    yield f"  {100 * plan.low_share:.0f} % of the step's FLOPs are in it; at matmuls' best rate: {plan.ceiling:.2f} x"
    for objection in plan.objections:
        yield f"  against it: {objection}"
    why = "nothing lower is known to pay here" if best is Precision.BF16 else "the lowest that is known to pay here"
    yield f"  advised: {best.value}, {why}"
    if plan.bf16_blocks:
        yield f"  blocks in BF16: {_ranges(plan.bf16_blocks)} (the first is 0)"
    if plan.precision is Precision.NVFP4 and tokens is not None:
        yield f"  forward matmuls in BF16 from {late_switch_tokens(tokens) / 1e9:.1f}B of {tokens / 1e9:.0f}B tokens on"
    if (engine := ENGINES.get(plan.precision)) is not None:
        yield f"  Transformer Engine: {engine.recipe}(); Megatron-LM: {recipe(plan)['megatron_lm']} [{engine.source}]"


def _ranges(blocks: tuple[int, ...]) -> str:
    """ "0 to 1, 43 to 47"."""
    starts = [block for block in blocks if block - 1 not in blocks]
    ends = [block for block in blocks if block + 1 not in blocks]
    return ", ".join(f"{a} to {b}" if a != b else str(a) for a, b in zip(starts, ends, strict=True))


def _write(path: Path, written: dict[str, Any]) -> None:
    write_named("--recipe", path, json.dumps(written, indent=2) + "\n")
