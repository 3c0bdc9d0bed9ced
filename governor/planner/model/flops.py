"""Model FLOPs: what training needs at least, by the convention of PaLM's appendix B with causal attention."""

from __future__ import annotations

from governor.planner.model.shape import Shape
from governor.planner.model.sparse import TRAINING_PASSES, Sparse, dense_forward, sparse_forward


def model_flops_per_token(shape: Shape, seq_len: int, *, causal: bool = True, sparse: Sparse | None = None) -> float:
    """Forward and backward, no recompute. Input embedding left out, LM head counted (arXiv 2204.02311, B). Of sparse
    attention what it selects and ranks: pairs that nobody computes are no work done."""
    forward = sparse_forward(shape, sparse, seq_len) if sparse else (2 - causal) * dense_forward(shape, seq_len)
    scores = TRAINING_PASSES * shape.attention_layers * forward
    states = 6 * shape.state_space_layers * (shape.hybrid.inner if shape.hybrid else 0) * 2 * 128
    return 6 * shape.matmul_params + scores + states
