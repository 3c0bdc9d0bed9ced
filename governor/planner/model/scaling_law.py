"""The model size and token count that a compute budget is best spent on.

The parametric law of Hoffmann et al. 2022 (arXiv 2203.15556, approach 3) is loss = E + A / N^alpha + B / D^beta, for N
parameters and D tokens. The constants are those of Besiroglu et al. 2024 (arXiv 2404.10102), who repeated the fit: the
published ones came from an optimizer that had stopped too early, and contradict the paper's other two approaches. The
law was fitted on dense models of 70M to 16B parameters and on one text. For other models it is a guide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from governor.planner.model.shape import Shape

FLOPS_PER_PARAM_TOKEN = 6  # Forward 2, backward 4. Both papers count so.


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """Loss in nats per token."""

    irreducible: float
    a: float
    alpha: float
    b: float
    beta: float

    def loss(self, params: float, tokens: float) -> float:
        return self.irreducible + self.a / math.pow(params, self.alpha) + self.b / math.pow(tokens, self.beta)

    @property
    def _ratio(self) -> float:
        return math.pow(self.alpha * self.a / (self.beta * self.b), 1 / (self.alpha + self.beta))

    def best_params(self, flops: float) -> float:
        """The parameter count with the least loss for this many FLOPs, spent as 6 N D."""
        exponents = self.alpha + self.beta
        return self._ratio * math.pow(flops / FLOPS_PER_PARAM_TOKEN, self.beta / exponents)

    def best_tokens(self, flops: float) -> float:
        return flops / FLOPS_PER_PARAM_TOKEN / self.best_params(flops)

    def tokens_for(self, params: float) -> float:
        """The token count for which a model of this size is the best use of the FLOPs."""
        exponents = self.alpha + self.beta
        return math.pow(params / self._ratio, exponents / self.beta) / params

    def equal_tokens(self, params: float, loss: float) -> float:
        """The token count after which a model of this size has this loss; infinite if it never has."""
        left = loss - self.irreducible - self.a / math.pow(params, self.alpha)
        return math.pow(self.b / left, 1 / self.beta) if left > 0 else math.inf


CHINCHILLA = ScalingLaw(irreducible=1.8172, a=482.01, alpha=0.3478, b=2085.43, beta=0.3658)


# A dense model of any size in the proportions of Llama models, for plans that begin with money.


HEAD_DIM = 128
VOCAB = 128_256  # Llama 3's.
# As in Llama 3.2. In smaller models the embedding is too large a share to exist twice.
TIED_BELOW = 2.5e9
FFN_STEP = 256
HEADS = (*range(1, 8), *range(8, 24, 4), *range(24, 200, 8))  # Tensor parallelism needs multiples of eight.
NEAR = 0.03


def usual_shape(params: float) -> Shape:
    """The nearest shape to this parameter count, at least about 20M.

    It has about as many layers as heads of 128 (Llama 3: 32 and 32, 80 and 64), an MLP three and a half times as wide,
    and 8 key/value heads if they divide.
    """
    tied = params < TIED_BELOW
    near = [_nearest(heads, params, tied) for heads in HEADS]
    return min(near, key=lambda shape: (abs(shape.params / params - 1) > NEAR, _distance(shape, params)))


def _nearest(heads: int, params: float, tied: bool) -> Shape:
    one, two = _shape(heads, 1, tied).params, _shape(heads, 2, tied).params
    layers = round(1 + (params - one) / (two - one))
    return _shape(heads, min(max(layers, round(0.75 * heads), 1), max(round(1.35 * heads), 1)), tied)


def _distance(shape: Shape, params: float) -> float:
    """The distance from the usual depth for shapes that are near enough, else from the parameter count."""
    missed = abs(shape.params / params - 1)
    return abs(shape.layers / shape.heads - 1.1) if missed <= NEAR else missed


def _shape(heads: int, layers: int, tied: bool) -> Shape:
    hidden = heads * HEAD_DIM
    ffn = FFN_STEP * max(round(3.5 * hidden / FFN_STEP), 1)
    kv_heads = 8 if heads % 8 == 0 else heads
    shape = Shape("dense", layers, hidden, heads, kv_heads, HEAD_DIM, ffn, VOCAB, tied=tied)
    return Shape(_name(shape.params), layers, hidden, heads, kv_heads, HEAD_DIM, ffn, VOCAB, tied=tied)


def _name(params: float) -> str:
    return f"dense {params / 1e9:.3g}B" if params >= 1e9 else f"dense {params / 1e6:.3g}M"
