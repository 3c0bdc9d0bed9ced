"""Model FLOPs: what training needs at least, by the convention of PaLM's appendix B with causal attention."""

from __future__ import annotations

from governor.core.planner.shape import Shape


def model_flops_per_token(shape: Shape, seq_len: int, *, causal: bool = True) -> float:
    """Forward and backward, no recompute. Input embedding left out, LM head counted (arXiv 2204.02311, B)."""
    pairs = seq_len / 2 if causal else seq_len
    scores = 6 * shape.attention_layers * shape.heads * (shape.qk_dim + shape.v_dim) * pairs
    states = 6 * shape.state_space_layers * (shape.hybrid.inner if shape.hybrid else 0) * 2 * 128
    return 6 * shape.matmul_params + scores + states
