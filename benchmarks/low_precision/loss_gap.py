"""The gap in loss between precisions on the demo's model: `python -m benchmarks.low_precision.loss_gap [--steps 300]`.

The same weights, data and order for each; what differs is what the matmuls of the blocks see. A gap that a second seed
turns around is none: every seed stands in the row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from benchmarks.low_precision.formats import BITS, hadamard, mxfp4, mxfp8, nvfp4, relative_error, rotated
from benchmarks.low_precision.linear import Recipe, Rounding, replace_linears
from examples.train_bytes import BATCH, CONTEXT, ByteGPT, Sources
from governor.planner.model.precision_facts import LATE_SWITCH_AT

LAST_FRAC = 0.1  # Of the steps: their mean loss is compared.


@dataclass(frozen=True)
class Variant:
    name: str
    recipe: Recipe = field(default_factory=Recipe)
    blocks_kept: int = 0  # of the last ones, in BF16
    late_forward: str = ""  # the precision of forward matmuls after LATE_SWITCH_AT of the steps
    late_backward: str = ""


FULL = Recipe()
VARIANTS = (
    Variant("bf16", Recipe("bf16", "bf16")),
    Variant("fp32", Recipe("fp32", "fp32")),
    Variant("mxfp8", Recipe("mxfp8", "mxfp8")),
    Variant("nvfp4, whole recipe", FULL),
    Variant("nvfp4, last block in bf16", FULL, blocks_kept=1),
    Variant("nvfp4, forward in bf16 at the end", FULL, late_forward="bf16"),
    Variant("nvfp4, backward in bf16 at the end", FULL, late_backward="bf16"),
    Variant("nvfp4, gradients to nearest", replace(FULL, has_stochastic_gradients=False)),
    Variant("nvfp4, no Hadamard", replace(FULL, has_hadamard=False)),
    Variant("nvfp4, weights in 1 x 16", replace(FULL, has_square_weights=False)),
    Variant("nvfp4, none of the three", Recipe("nvfp4", "nvfp4", False, False, False)),
)


def batches(sources: Sources, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(sources), generator=torch.Generator().manual_seed(seed))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        pairs = [sources[int(index)] for index in order[start : start + BATCH]]
        yield torch.stack([ids for ids, _ in pairs]), torch.stack([targets for _, targets in pairs])


def model_of(variant: Variant, seed: int) -> tuple[ByteGPT, Recipe]:
    """The demo's model with these matmuls. The recipe is its own: a late switch changes it."""
    torch.manual_seed(seed)
    model = ByteGPT()
    recipe, rounding = replace(variant.recipe), Rounding(seed)
    kept = len(model.blocks) - variant.blocks_kept
    for number, block in enumerate(model.blocks):
        replace_linears(block, recipe if number < kept else Recipe("bf16", "bf16"), rounding)
    return model, recipe


def train(variant: Variant, seed: int, steps: int, sources: Sources) -> list[float]:
    """The loss of every step."""
    model, recipe = model_of(variant, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Warm-up, then down to a tenth: the loss at the end depends on noise in the gradients as it does in a real run.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1.0 - 0.9 * step / steps))
    losses = []
    for step, (ids, targets) in zip(range(steps), batches(sources, seed), strict=False):
        if step == int(LATE_SWITCH_AT * steps):
            recipe.forward = variant.late_forward or recipe.forward
            recipe.backward = variant.late_backward or recipe.backward
        loss = model(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def last(losses: list[float]) -> float:
    return statistics.fmean(losses[-max(round(LAST_FRAC * len(losses)), 1) :])


def errors(seed: int) -> dict[str, dict[str, float]]:
    """Relative errors of the formats on numbers of known kinds."""
    draw = torch.Generator().manual_seed(seed)
    normal = torch.randn(512, 512, generator=draw)
    spiked = normal.clone()
    spiked[:, ::64] *= 30  # A channel in 64 stands out, as activations have them.
    matrix = hadamard(torch.randint(0, 2, (16,), generator=draw) * 2.0 - 1)
    rows = {}
    for name, x in (("normal", normal), ("with outlying channels", spiked)):
        turned = rotated(x, matrix)
        rows[name] = {
            "mxfp8": relative_error(x, mxfp8(x)),
            "mxfp4": relative_error(x, mxfp4(x)),
            "nvfp4, 1 x 16": relative_error(x, nvfp4(x)),
            "nvfp4, 16 x 16": relative_error(x, nvfp4(x, square=True)),
            "nvfp4, 1 x 16, stochastic": relative_error(x, nvfp4(x, generator=draw)),
            "nvfp4, 1 x 16, after Hadamard": relative_error(turned, nvfp4(turned)),
        }
    return rows


def main() -> None:
    """A line of JSON a variant, as soon as it is known; beside it a word for who waits."""
    torch.set_num_threads(1)  # Matmuls this small gain nothing from more.
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", action="append", help="names of variants; bf16 is always played")
    given = parser.parse_args()
    sources = Sources()
    wanted = [one for one in VARIANTS if given.only is None or one.name in ("bf16", *given.only)]
    print(json.dumps({"bits": BITS, "errors": errors(0)}), flush=True)
    base: dict[int, float] = {}
    for variant in wanted:
        begun_s = time.monotonic()
        ends = [last(train(variant, seed, given.steps, sources)) for seed in range(given.seeds)]
        base = base or dict(enumerate(ends))
        gaps = [100 * (end / base[seed] - 1) for seed, end in enumerate(ends)]
        row = {"variant": variant.name, "steps": given.steps, "loss": ends, "gap_percent": gaps,
               "mean_gap_percent": statistics.fmean(gaps),
               "s_per_step": (time.monotonic() - begun_s) / given.seeds / given.steps}  # fmt: skip
        print(json.dumps(row), flush=True)
        print(f"{variant.name}: {row['mean_gap_percent']:+.2f} %", file=sys.stderr)


assert CONTEXT * BATCH % 16 == 0, "the weight gradient sums over tokens in blocks of 16"

if __name__ == "__main__":
    main()
