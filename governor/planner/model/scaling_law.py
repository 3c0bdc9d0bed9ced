"""How large a model a budget of compute is best spent on, and how many tokens it should see.

The parametric law of Hoffmann et al. 2022 (arXiv 2203.15556, approach 3), loss = E + A / N^alpha + B / D^beta, for N
parameters and D tokens, with the constants that Besiroglu et al. 2024 (arXiv 2404.10102) found when they repeated the
fit: the published ones came from an optimizer that had stopped too early, and contradict the paper's other two
approaches. The law was fitted on dense models of 70M to 16B parameters and on one text: for others it is a guide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FLOPS_PER_PARAM_TOKEN = 6  # Forward 2, backward 4; both papers count so.


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """Loss in nats a token."""

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
        """Parameters at which this many FLOPs, spent as 6 N D, leave the least loss."""
        exponents = self.alpha + self.beta
        return self._ratio * math.pow(flops / FLOPS_PER_PARAM_TOKEN, self.beta / exponents)

    def best_tokens(self, flops: float) -> float:
        return flops / FLOPS_PER_PARAM_TOKEN / self.best_params(flops)

    def tokens_for(self, params: float) -> float:
        """Tokens at which a model of this size is the one that their FLOPs are best spent on."""
        exponents = self.alpha + self.beta
        return math.pow(params / self._ratio, exponents / self.beta) / params

    def equal_tokens(self, params: float, loss: float) -> float:
        """Tokens after which a model of this size has this loss; infinite where it never has."""
        left = loss - self.irreducible - self.a / math.pow(params, self.alpha)
        return math.pow(self.b / left, 1 / self.beta) if left > 0 else math.inf


CHINCHILLA = ScalingLaw(irreducible=1.8172, a=482.01, alpha=0.3478, b=2085.43, beta=0.3658)
