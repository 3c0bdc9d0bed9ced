"""What a sum of money is best spent on: the size of a dense model and its tokens, by the scaling law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from governor.planner.model.scaling_law import CHINCHILLA, FLOPS_PER_PARAM_TOKEN
from governor.planner.model.searching import Limits
from governor.planner.model.shape import Shape
from governor.planner.model.usual_shape import usual_shape
from governor.planner.plan_search import Searched, Wanted, searched, wanted

DAYS_USUAL: Final = 30.0  # A deadline, where nobody stated one: without any, one GPU for three years is cheapest.
# Sizes beside the one guessed, in steps of the square root of two: the law's optimum is flat.
STEPS: Final = (0.25, 0.5, 0.707, 1.0, 1.414, 2.0, 4.0)
# For the first guess alone: A100s reach some 140 TFLOP/s at some $1.5 an hour, H100s 400 at some $3.
FLOPS_PER_USD: Final = 4e17
PARAMS_MIN: Final = 2e7
PARAMS_MAX: Final = 2e12


@dataclass(frozen=True, slots=True)
class Size:
    """One size of model, and what the money buys of it."""

    shape: Shape
    want: Wanted
    result: Searched

    @property
    def tokens(self) -> float:
        return self.result.tokens

    @property
    def loss(self) -> float:
        """In nats a token, on the text and the tokenizer of the law's own models: to be compared, not expected."""
        return CHINCHILLA.loss(self.shape.params, self.tokens)


def sizes_for(values: Mapping[str, str], limits: Limits) -> list[Size]:
    """Sizes about the best one, the smallest first; those of which nothing fits or can be bought are left out."""
    assert limits.budget_usd is not None, "a budget"
    best = CHINCHILLA.best_params(limits.budget_usd * FLOPS_PER_USD / 2)  # The calendar costs its part.
    for _ in range(3):
        size = _size(values, limits, min(max(best, PARAMS_MIN), PARAMS_MAX))
        if size is None:
            best /= 4
            continue
        flops = FLOPS_PER_PARAM_TOKEN * size.shape.params * size.tokens
        best = CHINCHILLA.best_params(flops)
    tried = (_size(values, limits, min(max(step * best, PARAMS_MIN), PARAMS_MAX)) for step in STEPS)
    return list({size.shape.params: size for size in tried if size is not None}.values())


def best_of(sizes: Sequence[Size]) -> Size:
    return min(sizes, key=lambda size: size.loss)


def _size(values: Mapping[str, str], limits: Limits, params: float) -> Size | None:
    shape = usual_shape(params)
    want = wanted({**values, "shape": words_of(shape), "name": shape.name}, limits)
    result = searched(want, None)
    return Size(shape, want, result) if result.choice.primary is not None and result.tokens > 0 else None


def words_of(shape: Shape) -> str:
    """A dense shape as the key `shape` takes it."""
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
    return ",".join([*(f"{name}={getattr(shape, name)}" for name in names), f"tied={int(shape.tied)}"])
