"""`costgov plan sparse`: for which model and length DeepSeek Sparse Attention would pay."""

from __future__ import annotations

import html
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from governor.cli.common import Failed, exits, json_option, print_json, show_line, write_named
from governor.planner.catalog import UnknownNameError, gpu_named, shape_named
from governor.planner.model.setup import Gpu
from governor.planner.model.shape import Shape
from governor.planner.model.sparse import Indexer, TopK
from governor.planner.model.sparse_advice import (
    LENGTHS,
    PAYS_FROM,
    SPARSE_LIMITS,
    Advice,
    advise,
    start_length,
    target_for,
)
from governor.planner.model.training_stages import STAGES
from governor.text.page import page, table
from governor.text.screen import screen_of
from governor.text.svg import Axis, Plot, colours_of, standalone
from governor.text.table import Head, render_rows

DRAWN: Final = (2048, *LENGTHS)
# 16M tokens. No training uses more, and a drawing would show nothing.
SEQ_LEN_MAX = 1 << 24
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
    STEP ×      speed-up of the whole step, where computing is all of its time,
                as two ways of counting say
    NSA ×       the same of Native Sparse Attention
    ADDED GIB   memory that it adds for a micro-batch of one sequence (indices and
                the indexer's activations)
    BREAK EVEN  tokens of sparse training that earn its dense warm-up of 2.1B
                tokens back

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
                    "limits": [asdict(limit) for limit in SPARSE_LIMITS]})  # fmt: skip
        return
    rows = [_cells(one) for one in advices]
    sys.stdout.write(render_rows(HEADS, rows, total=False, screen=screen_of(sys.stdout)))
    for name, start in _starts(shapes, gpu).items():
        show_line(f"{name}: pays from {length_name(start)} on" if start else f"{name}: pays at no length up to 128K")
    click.echo("Limits:")
    for limit in SPARSE_LIMITS:
        show_line(f"  - {limit.text} [{limit.source}]")


def _indexer(text: str) -> Indexer:
    found = re.fullmatch(r"([0-9]{1,4})\s*[xX×]\s*([0-9]{1,4})", text.strip())
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
    if path.suffix not in (".svg", ".html"):
        raise Failed(f"--plot: {path}: name a file that ends in .html or .svg")
    plots = drawings(shapes, gpu)
    text = standalone(plots) if path.suffix == ".svg" else _page(plots, [_cells(one) for one in advices])
    write_named("--plot", path, text)


# --- the drawing: how much less it computes, and how much faster a step becomes, over the sequence length


def length_name(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def drawings(shapes: Sequence[Shape], gpu: Gpu | None) -> list[Plot]:
    ratios = {shape.name: [advise(shape, length, gpu).flops_ratio for length in DRAWN] for shape in shapes}
    speeds = {shape.name: [advise(shape, length, gpu).speedup_low for length in DRAWN] for shape in shapes}
    return [
        _drawing("Attention FLOPs, dense over sparse (forward)", ratios, 1.0, "as many as dense"),
        _drawing(
            "Speed-up of the training step, by the lower of two counts",
            speeds,
            PAYS_FROM,
            f"pays from {PAYS_FROM:.2f} on",
        ),
    ]


def _drawing(title: str, curves: Mapping[str, Sequence[float]], limit: float, limit_name: str) -> Plot:
    """Both axes are logarithmic, with a factor of 2 between marks."""
    every = [limit, *(value for values in curves.values() for value in values)]
    low, high = math.floor(math.log2(min(every))), math.ceil(math.log2(max(every)))
    powers = [2.0**power for power in range(low, max(high, low + 1) + 1)]
    names = [(float(length), length_name(length)) for length in DRAWN]
    plot = Plot(
        Axis(DRAWN[0], DRAWN[-1], "sequence length, tokens", is_log=True, marks=names),
        Axis(powers[0], powers[-1], is_log=True, marks=[(power, f"{power:g}") for power in powers]),
        title=title, height=380, width=760, left=60, right=210, top=40, bottom=50,
    )  # fmt: skip
    plot.rule(limit, limit_name)
    colours = colours_of(list(curves))
    for name, values in curves.items():
        plot.line(list(zip(DRAWN, values, strict=True)), colours[name])
    plot.names([(values[-1], name, colours[name]) for name, values in curves.items()])
    return plot


def _page(plots: Sequence[Plot], rows: Sequence[Sequence[str]]) -> str:
    limits = "".join(
        f'<li>{html.escape(limit.text)} <span class="quiet">[{html.escape(limit.source)}]</span></li>'
        for limit in SPARSE_LIMITS
    )
    drawn = "".join(f'<div style="max-width: 60rem">{plot.svg()}</div>' for plot in plots)
    return page("costgov plan sparse", f"{drawn}{table(HEADS, rows)}<h2>Limits</h2>\n<ul>{limits}</ul>")
