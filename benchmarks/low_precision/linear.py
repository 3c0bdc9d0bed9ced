"""Linear layers whose three matmuls see only what a format can hold, as NVFP4's recipe has it (arXiv 2509.25149 §4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.low_precision.formats import NV_BLOCK, hadamard, mxfp8, nvfp4, rotated


@dataclass
class Recipe:
    """What the matmuls compute in: "fp32", "bf16", "mxfp8" or "nvfp4", and the parts of NVFP4's recipe.

    Mutable: `forward` changes in mid-run where the late switch is played.
    """

    forward: str = "nvfp4"
    backward: str = "nvfp4"
    has_square_weights: bool = True  # 16 x 16 scales: forward and backward see one quantised weight
    has_stochastic_gradients: bool = True
    has_hadamard: bool = True  # on both inputs of the weight gradient


class Rounding:
    """The run's random numbers: one vector of signs for all of it, and the generator of stochastic rounding."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        signs = torch.randint(0, 2, (NV_BLOCK,), generator=self.generator) * 2.0 - 1
        self.matrix = hadamard(signs)


def held(x: Tensor, precision: str, *, square: bool = False, generator: torch.Generator | None = None) -> Tensor:
    """What is left of x, in blocks along its rows; fp32 leaves all of it."""
    match precision:
        case "fp32":
            return x
        case "bf16":
            return x.to(torch.bfloat16).to(x.dtype)
        case "mxfp8":
            return mxfp8(x)
        case "nvfp4":
            return nvfp4(x, square=square, generator=generator)
    raise ValueError(f'"{precision}" is no precision: fp32, bf16, mxfp8 or nvfp4')


class _Matmul(torch.autograd.Function):
    """x @ weight.T. Blocks lie along the sum of each matmul, so each tensor is quantised anew for each of its uses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, recipe: Recipe, rounding: Rounding) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.recipe, ctx.rounding = recipe, rounding
        quantised = held(weight, recipe.forward, square=recipe.has_square_weights)
        return held(x, recipe.forward) @ quantised.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        recipe, rounding = ctx.recipe, ctx.rounding
        stochastic = rounding.generator if recipe.has_stochastic_gradients else None
        back = recipe.backward
        across = held(weight.T.contiguous(), back, square=recipe.has_square_weights)
        to_x = held(gradient, back, generator=stochastic) @ across.T
        left, right = gradient.T.contiguous(), x.T.contiguous()
        if recipe.has_hadamard and back == "nvfp4":
            left, right = rotated(left, rounding.matrix), rotated(right, rounding.matrix)
        to_weight = held(left, back, generator=stochastic) @ held(right, back).T
        return to_x, to_weight, None, None


class Linear(nn.Module):
    """Takes the place of an nn.Linear and its parameters."""

    def __init__(self, replaced: nn.Linear, recipe: Recipe, rounding: Rounding) -> None:
        super().__init__()
        self.weight, self.bias = replaced.weight, replaced.bias
        self.recipe, self.rounding = recipe, rounding

    def forward(self, x: Tensor) -> Tensor:
        flat = _Matmul.apply(x.reshape(-1, x.shape[-1]), self.weight, self.recipe, self.rounding)
        out = flat.reshape(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


def replace_linears(blocks: nn.Module, recipe: Recipe, rounding: Rounding) -> int:
    """Replace every nn.Linear below `blocks`; returns how many. Scores, norms and embeddings stay as they are."""
    found = [(parent, name) for parent in blocks.modules() for name, one in parent.named_children()
             if isinstance(one, nn.Linear)]  # fmt: skip
    for parent, name in found:
        setattr(parent, name, Linear(getattr(parent, name), recipe, rounding))
    return len(found)
