"""Sparse attention drawn: how much less it computes, and how much faster a step becomes, over the sequence length."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

from governor.planner.model.hardware import Gpu
from governor.planner.model.shape import Shape
from governor.planner.model.sparse_advice import LENGTHS, PAYS_FROM, advise
from governor.planner.model.sparse_limits import LIMITS
from governor.planner.output.curves import Curve, Drawing

DRAWN: Final = (2048, *LENGTHS)
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
svg { display: block; width: 100%; max-width: 60rem; height: auto; border-radius: 6px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }
td, th { padding: .15rem .9rem .15rem 0; text-align: right; vertical-align: top; white-space: nowrap; }
td:first-child, th:first-child, td:nth-last-child(-n+2), th:nth-last-child(-n+2) { text-align: left; }
td:last-child { white-space: normal; }
.quiet { opacity: .65; }
"""


def length_name(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def drawings(shapes: Sequence[Shape], gpu: Gpu | None) -> list[Drawing]:
    ratios, speeds = [], []
    for shape in shapes:
        advices = [advise(shape, length, gpu) for length in DRAWN]
        ratios.append(Curve(shape.name, [one.flops_ratio for one in advices]))
        speeds.append(Curve(shape.name, [one.speedup_low for one in advices]))
    names = [length_name(length) for length in DRAWN]
    return [
        Drawing("Attention FLOPs, dense over sparse (forward)", DRAWN, names, "sequence length, tokens", ratios,
                (1.0, "as many as dense")),
        Drawing("Speed-up of the training step, by the lower of two counts", DRAWN, names, "sequence length, tokens",
                speeds, (PAYS_FROM, f"pays from {PAYS_FROM:.2f} on")),
    ]  # fmt: skip


def page(drawn: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Drawings, table and limits as one page; nothing in it is fetched from anywhere."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    limits = "".join(
        f'<li>{html.escape(limit.text)} <span class="quiet">[{html.escape(limit.source)}]</span></li>'
        for limit in LIMITS
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>costgov plan sparse</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>costgov plan sparse</h1>\n{drawn}\n"
        f"<table><tr>{head}</tr>{body}</table>\n<h2>Limits</h2>\n<ul>{limits}</ul>\n</body></html>\n"
    )
