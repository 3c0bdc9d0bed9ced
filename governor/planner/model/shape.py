"""The architecture of a model, and what follows from it alone: parameters and the matmuls per token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

# Of one dimension: fifty times the largest vocabulary. A larger value is probably a parameter count.
SIZE_MAX = 10_000_000


class ImpossibleShapeError(ValueError):
    """An architecture that no program can build. The text names the field and what is possible."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture-of-experts half of a model (Shazeer 2017). The field names are Megatron's."""

    count: int  # routed experts per layer
    topk: int  # routed experts that serve one token
    ffn: int  # width of one routed expert
    shared_ffn: int = 0  # width of the expert that serves every token; 0: none
    first_dense: int = 0  # number of dense layers
    latent: int = (
        # Width of the projection that routed experts work in (LatentMoE, arXiv 2512.20856). 0: the hidden size.
        0
    )


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1): keys and values through a narrow latent."""

    q_rank: int  # 0: direct query projection
    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Layers of a single kind each (Nemotron-H, arXiv 2504.03624): an attention, a Mamba-2 mixer, or an MLP."""

    attention: int
    state_space: int
    mlp: int
    inner: int  # total width of a mixer's state-space heads


@dataclass(frozen=True)
class Shape:
    """A decoder-only transformer. All sizes are counts of elements; `ffn` is the width of a dense layer's MLP.

    What follows from the sizes is computed once for each shape: a search asks for it in each of its candidates.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool = True  # SwiGLU and similar: three matrices per MLP instead of two
    tied: bool = False  # the LM head is the embedding
    learned_positions: int = 0
    experts: Experts | None = None
    latent: Latent | None = None
    hybrid: Hybrid | None = None  # None: every layer is an attention and an MLP
    stated_params: float | None = None  # the published number, if it is more precise than the sizes
    stated_active: float | None = None

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab"):
            if not 0 < getattr(self, field) <= SIZE_MAX:
                wanted = f"must be from 1 to {SIZE_MAX:,}"
                raise ImpossibleShapeError(f"{self.name}: {field} {wanted}, not {getattr(self, field)}")
        if self.heads % self.kv_heads:
            raise ImpossibleShapeError(
                f"{self.name}: {self.heads} heads cannot share {self.kv_heads} key/value heads evenly; "
                f"kv_heads must divide heads: {divisors_near(self.heads, self.kv_heads)}"
            )
        if self.experts is not None and not 0 < self.experts.topk <= self.experts.count:
            raise ImpossibleShapeError(f"{self.name}: topk {self.experts.topk} of {self.experts.count} experts")

    @cached_property
    def is_moe(self) -> bool:
        return self.experts is not None

    def can_spread(self, ranks: int) -> bool:
        """Whether the experts divide evenly over this many ranks."""
        return self.experts is not None and self.experts.count % ranks == 0

    @cached_property
    def attention_layers(self) -> int:
        return self.hybrid.attention if self.hybrid else self.layers

    @cached_property
    def state_space_layers(self) -> int:
        return self.hybrid.state_space if self.hybrid else 0

    @cached_property
    def mlp_layers(self) -> int:
        return self.hybrid.mlp if self.hybrid else self.layers

    @cached_property
    def moe_layers(self) -> int:
        return max(self.mlp_layers - self.experts.first_dense, 0) if self.experts else 0

    @cached_property
    def dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return self.mlp_layers - self.moe_layers

    @cached_property
    def matrices_per_mlp(self) -> int:
        return 3 if self.gated else 2

    @cached_property
    def qk_dim(self) -> int:
        """Elements of one head's query (and key) in the scores."""
        return self.latent.nope_dim + self.latent.rope_dim if self.latent else self.head_dim

    @cached_property
    def v_dim(self) -> int:
        return self.latent.value_dim if self.latent else self.head_dim

    @cached_property
    def attention_params(self) -> int:
        """Parameters of the projections of one attention layer, without biases and norms (< 0.1 %)."""
        if (latent := self.latent) is None:
            return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        q_out = self.heads * self.qk_dim
        queries = self.hidden * latent.q_rank + latent.q_rank * q_out if latent.q_rank else self.hidden * q_out
        down = self.hidden * (latent.kv_rank + latent.rope_dim)
        up = latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        return queries + down + up + self.heads * latent.value_dim * self.hidden

    @cached_property
    def dense_mlp_params(self) -> int:
        return self.matrices_per_mlp * self.hidden * self.ffn

    @cached_property
    def expert_params(self) -> int:
        """Parameters of one routed expert."""
        return 0 if self.experts is None else self.matrices_per_mlp * self.expert_width * self.experts.ffn

    @cached_property
    def expert_width(self) -> int:
        """Elements per token at the input and output of a routed expert."""
        return (self.experts.latent if self.experts else 0) or self.hidden

    @cached_property
    def shared_expert_params(self) -> int:
        return 0 if self.experts is None else self.matrices_per_mlp * self.hidden * self.experts.shared_ffn

    @cached_property
    def router_params(self) -> int:
        """Parameters of one MoE layer's router, and of the two projections around a latent."""
        if self.experts is None:
            return 0
        return self.hidden * (self.experts.count + 2 * self.experts.latent)

    @cached_property
    def state_space_params(self) -> int:
        """Of one Mamba-2 mixer (arXiv 2405.21060): projections to x, z, B, C and out; 8 groups of 128 states."""
        return self.hidden * (3 * self.hybrid.inner + 2 * 8 * 128) if self.hybrid else 0

    @cached_property
    def head_params(self) -> int:
        return self.vocab * self.hidden

    @cached_property
    def embedding_params(self) -> int:
        return self.head_params * (1 if self.tied else 2) + self.learned_positions * self.hidden

    @cached_property
    def dense_params(self) -> int:
        """Parameters outside routed experts, embeddings and LM head."""
        mixers = self.attention_layers * self.attention_params + self.state_space_layers * self.state_space_params
        moe = self.moe_layers * (self.shared_expert_params + self.router_params)
        return mixers + self.dense_layers * self.dense_mlp_params + moe

    @cached_property
    def routed_params(self) -> int:
        return 0 if self.experts is None else self.moe_layers * self.experts.count * self.expert_params

    @cached_property
    def params(self) -> float:
        """All parameters: the published number if there is one, else the sum of the matrices."""
        return self.stated_params or float(self.dense_params + self.routed_params + self.embedding_params)

    @cached_property
    def matmul_params(self) -> float:
        """Parameters that multiply each token: no input embedding, the LM head, `topk` of the experts."""
        routed = 0 if self.experts is None else self.moe_layers * self.experts.topk * self.expert_params
        return float(self.dense_params + routed + self.head_params)


def divisors_near(number: int, wanted: int) -> str:
    """The three nearest divisors of `number`, in words. `number` is at most SIZE_MAX."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    near = sorted({*low, *(number // d for d in low)}, key=lambda d: (abs(d - wanted), d))[:3]
    return " or ".join(str(d) for d in sorted(near))
