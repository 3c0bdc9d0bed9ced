"""`costgov plan sparse`: whether DeepSeek Sparse Attention would pay, for which model and at what length."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from governor.cli.cli_common import Failed, json_option, print_json
from governor.cli.exit_codes import exits
from governor.planner.model.hardware import Gpu
from governor.planner.model.shape import Shape
from governor.planner.model.sparse import Indexer, TopK
from governor.planner.model.sparse_advice import LENGTHS, Advice, advise, start_length, target_for
from governor.planner.model.sparse_limits import LIMITS
from governor.planner.model.stages import STAGES
from governor.planner.output.sparse_page import drawings, length_name, page
from governor.planner.plan_catalog import UnknownNameError, gpu_named, shape_named
from governor.text.cli_rows import Head, render_rows

SEQ_LEN_MAX = 1 << 24  # 16M tokens: beyond it nobody trains, and a drawing says nothing.
HEADS = (
    Head("MODEL"), Head("LENGTH", True), Head("K", True), Head("SPARSITY", True), Head("INDEXER", True),
    Head("ATTENTION", True),
    Head("FLOPS ÷", True), Head("STEP ×", True), Head("NSA ×", True), Head("ADDED GIB", True),
    Head("BREAK EVEN", True), Head("PAYS"), Head("WHY"),
)  # fmt: skip


@click.command(short_help="Whether sparse attention (DSA, NSA) would pay.", epilog=exits())
@click.option("--model", "models", multiple=True, metavar="NAME", help="Model or stage; several. Default: the stages.")
@click.option(
    "--seq-len", "lengths", multiple=True, type=click.IntRange(1, SEQ_LEN_MAX), metavar="TOKENS",
    help="Sequence length; several. Default: 4K to 128K, doubling.",
)  # fmt: skip
@click.option("--gpu", "gpu_name", default="H100", show_default=True, metavar="NAME", help="GPU: its FP8 rate counts.")
@click.option("--k", type=click.IntRange(1, SEQ_LEN_MAX), metavar="TOKENS", help="Tokens a query keeps.")
@click.option("--indexer", metavar="HEADSxDIM", help="The indexer's size, such as 8x64. Default: scaled to the model.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw it: .html or .svg.")
@json_option
def sparse(
    models: tuple[str, ...], lengths: tuple[int, ...], gpu_name: str, k: int | None, indexer: str | None,
    plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say whether DeepSeek Sparse Attention pays, with which sizes, and from which sequence length on.

    \b
    SPARSITY    of the pairs that dense attention computes, how many are left out
    ATTENTION   its scores' part of a dense step's FLOPs
    FLOPS ÷     dense over sparse attention FLOPs, forward
    STEP ×      speed-up of the whole step, where computing is all of its time, as two ways of counting say
    NSA ×       the same of Native Sparse Attention
    ADDED GIB   memory that it adds for a micro-batch of one sequence (indices and the indexer's activations)
    BREAK EVEN  tokens of sparse training that earn its dense warm-up of 2.1B tokens back

    The sparse kernels count at 0.6 of FlashAttention's efficiency. What it does not know: exposed communication, which
    brings every speed-up nearer to 1, and quality, which is published for DeepSeek-V3.2 and GLM-5 alone.
    """
    try:
        gpu = gpu_named(gpu_name)
        shapes = [shape_named(name) for name in models] if models else [stage.shape for stage in STAGES]
    except UnknownNameError as error:
        raise Failed(str(error)) from error
    wanted = tuple(sorted(set(lengths))) or LENGTHS
    size = _indexer(indexer) if indexer is not None else None
    advices = [advise(shape, length, gpu, _target(shape, length, k, size)) for shape in shapes for length in wanted]
    if plot is not None:
        _draw(plot, shapes, gpu, advices)
    if as_json:
        print_json({"gpu": gpu.name, "rows": [_row(one) for one in advices], "starts": _starts(shapes, gpu),
                    "limits": [asdict(limit) for limit in LIMITS]})  # fmt: skip
        return
    rows = [_cells(one) for one in advices]
    sys.stdout.write(render_rows(HEADS, rows, total=False, colour=sys.stdout.isatty()))
    for name, start in _starts(shapes, gpu).items():
        click.echo(f"{name}: pays from {length_name(start)} on" if start else f"{name}: pays at no length up to 128K")
    click.echo("Limits:")
    for limit in LIMITS:
        click.echo(f"  - {limit.text} [{limit.source}]")


def _indexer(text: str) -> Indexer:
    found = re.fullmatch(r"(\d{1,4})\s*[xX×]\s*(\d{1,4})", text.strip())
    if found is None or not int(found[1]) * int(found[2]):
        raise Failed(f'--indexer: "{text}" is no size; write heads x elements of a head, such as 8x64')
    return Indexer(int(found[1]), int(found[2]))


def _target(shape: Shape, length: int, k: int | None, indexer: Indexer | None) -> TopK:
    usual = target_for(shape, length)
    return TopK(k or usual.k, indexer or usual.indexer)


def _starts(shapes: Sequence[Shape], gpu: Gpu) -> dict[str, int | None]:
    return {shape.name: start_length(shape, gpu) for shape in shapes}


def _row(advice: Advice) -> dict[str, Any]:
    return {**asdict(advice), "k": advice.sparse.k, "indexer": str(advice.sparse.indexer)}


def _cells(advice: Advice) -> tuple[str, ...]:
    speed = f"{advice.speedup_low:.2f}"
    if f"{advice.speedup_high:.2f}" != speed:
        speed += f" to {advice.speedup_high:.2f}"
    added = (advice.added.indices + advice.added.indexer_activations) / 2**30
    tokens = advice.break_even_tokens
    even = "never" if tokens is None else f"{tokens / 1e9:,.1f}B" if tokens < 1e13 else ">10T"
    return (
        advice.model, length_name(advice.seq_len), str(advice.sparse.k),
        f"{100 * advice.sparsity:.0f} %", str(advice.sparse.indexer),
        f"{100 * advice.attention_share:.0f} %", f"{advice.flops_ratio:.2f}", speed, f"{advice.speedup_nsa:.2f}",
        f"{added:.1f}", even, "yes" if advice.pays else "no", advice.why,
    )  # fmt: skip


def _draw(path: Path, shapes: Sequence[Shape], gpu: Gpu, advices: Sequence[Advice]) -> None:
    from governor.planner.output.curves import document

    if path.suffix not in (".svg", ".html"):
        raise Failed(f"--plot: {path}: name a file that ends in .html or .svg")
    drawn = drawings(shapes, gpu)
    text = document(drawn) if path.suffix == ".svg" else page(document(drawn), [h.title for h in HEADS],
                                                             [_cells(one) for one in advices])  # fmt: skip
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failed(f"--plot: {path}: {error.strerror}; name a file that can be written") from error
