"""A plan on fewer and on more GPUs: what its hours and dollars would be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from governor.planner.model.searching import candidates
from governor.planner.model.setup import ImpossibleSetupError
from governor.planner.plan_estimate import Estimate, estimate_of, memory_frac, tokens_per_gpu_s
from governor.planner.plan_request import Asked, settle

FACTORS = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Point:
    gpus: int
    estimate: Estimate


def curve(one: Estimate) -> Iterator[Point]:
    """Only where it fits, and where somebody runs it so. The step keeps its tokens, the GPU-hour its price."""
    if one.is_measured:  # A speed that was measured holds for as many GPUs as it was measured on.
        return
    asked = one.plan.asked
    for factor in FACTORS:
        gpus = int(asked.gpus * factor)
        made = None if gpus < 1 else _on(asked, gpus)
        if made is not None and made.prediction.memory.fits:
            yield Point(gpus, made)


def _on(asked: Asked, gpus: int) -> Estimate | None:
    other = replace(asked, gpus=gpus, space=replace(asked.space, gpus=(gpus,)))
    if next(candidates(other.shape, (other.gpu,), other.seq_len, other.batch_tokens, other.space), None) is None:
        return None
    try:
        return estimate_of(settle(other, memory_frac, tokens_per_gpu_s))
    except ImpossibleSetupError:
        return None
