"""Sparse attention: the cost of DeepSeek Sparse Attention (DSA) and Native Sparse Attention (NSA) against dense.

Counts are FLOPs of one attention layer for one sequence, averaged over a causal sequence and per token of it. Sources:
DSA, arXiv 2512.02556 and DeepSeek-V3.2-Exp's inference/config_671B_v3.2.json; NSA, arXiv 2502.11089; a training step of
DSA, Megatron-LM pull requests 6753 and 7157.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from governor.planner.model.shape import Shape

# Forward, gradient of the inputs, gradient of the weights (or of keys and values): three matmuls for each.
TRAINING_PASSES: Final = 3.0
INDEX_BYTES: Final = 4  # int32
SCORE_BYTES: Final = 4  # fp32


@dataclass(frozen=True, slots=True)
class Indexer:
    """DSA's lightning indexer: `heads` queries of `dim` elements score every earlier token through ReLU."""

    heads: int
    dim: int

    @property
    def pair_flops(self) -> float:
        """FLOPs of one query against one key, all heads."""
        return 2.0 * self.heads * self.dim

    def params(self, shape: Shape) -> int:
        """Of one layer: queries (from MLA's query latent if there is one), one shared key, one weight per head."""
        q_in = shape.latent.q_rank if shape.latent and shape.latent.q_rank else shape.hidden
        return q_in * self.heads * self.dim + shape.hidden * (self.dim + self.heads)

    def __str__(self) -> str:
        return f"{self.heads} x {self.dim}"


@dataclass(frozen=True, slots=True)
class TopK:
    """DSA: each query attends to the `k` tokens that its indexer ranks first."""

    k: int
    indexer: Indexer
    layers_per_indexer: int = 1  # GLM-5.2 computes one selection for four layers.


@dataclass(frozen=True, slots=True)
class Blocks:
    """NSA: compressed blocks, of which the best are read whole, and a window. The paper's sizes (§4.1)."""

    compressed: int = 32  # tokens per compressed key
    stride: int = 16
    block: int = 64  # tokens per selected block
    selected: int = 16  # blocks, including the first and two local ones
    window: int = 512


Sparse = TopK | Blocks

PUBLISHED: Final = TopK(2048, Indexer(64, 128))  # DeepSeek-V3.2-Exp
SMALL_INDEXER: Final = Indexer(8, 64)


@dataclass(frozen=True, slots=True)
class Counting:
    """How FLOPs become time. Efficiencies are relative to dense FlashAttention, which counts as a matmul."""

    kernel_efficiency: float
    indexer_rate: float  # speed of the index scores relative to BF16
    has_projections: bool  # The indexer has projections.
    is_indexer_backward_sparse: bool  # The gradients of the indexer cover only the selected tokens.
    # The scores are computed again for the indexer's KL loss, because fused attention keeps none.
    has_target: bool


# 0.6 is an assumption for gathers against streaming. Every FLOP counts the same, with three passes over everything.
# This is the simplest count, and the worse one for DSA at long lengths.
PLAIN: Final = Counting(0.6, 1.0, has_projections=False, is_indexer_backward_sparse=False, has_target=False)


def executed(fp8_rate: float) -> Counting:
    """The counting of a fused training step. `fp8_rate`: the GPU's FP8 rate over its BF16 rate (1 without FP8)."""
    return Counting(0.6, fp8_rate, has_projections=True, is_indexer_backward_sparse=True, has_target=True)


# NSA's own kernels against the authors' Triton FlashAttention at 64K: 9.0 times forward, 6.0 times backward (Figure 6).
# The pairs alone give 9.1. Two thirds of the work is backward: 3 / (1 * 9.1 / 9.0 + 2 * 9.1 / 6.0) = 0.74.
NSA_EFFICIENCY: Final = 0.74


def dense_pairs(seq_len: int) -> float:
    """Keys per query, averaged over a causal sequence."""
    return seq_len / 2


def selected_pairs(seq_len: int, k: int) -> float:
    """Keys per query when it keeps at most `k`. The first k queries have fewer."""
    return dense_pairs(seq_len) if seq_len <= k else k - k * k / (2 * seq_len)


def block_pairs(seq_len: int, blocks: Blocks) -> float:
    """Keys per query in NSA's three branches. No branch has more keys than the earlier tokens."""
    compressed = max(dense_pairs(seq_len) - blocks.compressed / 2, 0.0) / blocks.stride
    return compressed + selected_pairs(seq_len, blocks.block * blocks.selected) + selected_pairs(seq_len, blocks.window)


def pair_flops(shape: Shape) -> float:
    """FLOPs of one query against one key and its value, all heads, as in dense training."""
    return 2.0 * shape.heads * (shape.qk_dim + shape.v_dim)


def sparse_pair_flops(shape: Shape) -> float:
    """`pair_flops` with gathered keys: MLA then attends in its latent, which all heads share (its MQA mode)."""
    if (latent := shape.latent) is None:
        return pair_flops(shape)
    return 2.0 * shape.heads * (latent.kv_rank + latent.rope_dim + latent.kv_rank)


def score_flops(shape: Shape) -> float:
    """The first half of a pair: query against key."""
    latent = shape.latent
    return 2.0 * shape.heads * (latent.kv_rank + latent.rope_dim if latent else shape.qk_dim)


def is_dense(sparse: Sparse, seq_len: int) -> bool:
    """DSA selects everything in a sequence within `k`. Implementations then run the dense kernel without indexer."""
    return isinstance(sparse, TopK) and seq_len <= sparse.k


def dense_forward(shape: Shape, seq_len: int) -> float:
    """FLOPs of dense causal attention, per token and layer, forward."""
    return pair_flops(shape) * dense_pairs(seq_len)


def sparse_forward(shape: Shape, sparse: Sparse, seq_len: int) -> float:
    """Forward FLOPs of sparse attention: the selected pairs and the index scores, without projections, unweighted."""
    if is_dense(sparse, seq_len):
        return dense_forward(shape, seq_len)
    if isinstance(sparse, Blocks):
        return pair_flops(shape) * block_pairs(seq_len, sparse)
    scores = sparse.indexer.pair_flops * dense_pairs(seq_len) / sparse.layers_per_indexer
    return sparse_pair_flops(shape) * selected_pairs(seq_len, sparse.k) + scores


def flops_ratio(shape: Shape, sparse: Sparse, seq_len: int) -> float:
    """Dense over sparse attention FLOPs, forward. Above 1 the sparse one computes less."""
    return dense_forward(shape, seq_len) / sparse_forward(shape, sparse, seq_len)


def dense_training(shape: Shape, seq_len: int) -> float:
    return TRAINING_PASSES * dense_forward(shape, seq_len)


def sparse_training(shape: Shape, sparse: Sparse, seq_len: int, counting: Counting = PLAIN) -> float:
    """The cost of sparse attention in a training step, per token and layer, in FLOPs at dense attention's speed."""
    if is_dense(sparse, seq_len):
        return dense_training(shape, seq_len)
    if isinstance(sparse, Blocks):
        return TRAINING_PASSES * sparse_forward(shape, sparse, seq_len) / NSA_EFFICIENCY
    selected = selected_pairs(seq_len, sparse.k)
    core = TRAINING_PASSES * sparse_pair_flops(shape) * selected / counting.kernel_efficiency
    return core + _indexer_training(shape, sparse, seq_len, counting)


def _indexer_training(shape: Shape, sparse: TopK, seq_len: int, counting: Counting) -> float:
    scores = sparse.indexer.pair_flops
    every, selected = dense_pairs(seq_len), selected_pairs(seq_len, sparse.k)
    cost = scores * every / counting.indexer_rate
    # The backward pass runs in BF16. The KL loss of the sparse stage covers the selected tokens. Gathers slow it down
    # as they do attention.
    cost += 2 * scores * (selected / counting.kernel_efficiency if counting.is_indexer_backward_sparse else every)
    if counting.has_target:
        cost += score_flops(shape) * selected / counting.kernel_efficiency
    if counting.has_projections:
        # The input is detached: no gradient enters the layer, which saves one of the three passes.
        cost += (TRAINING_PASSES - 1) * 2 * sparse.indexer.params(shape)
    return cost / sparse.layers_per_indexer


def linear_training(shape: Shape) -> float:
    """FLOPs outside attention scores, per token, all layers: 6 for each active parameter."""
    return 2 * TRAINING_PASSES * shape.matmul_params


def step_speedup(
    shape: Shape,
    sparse: Sparse,
    seq_len: int,
    counting: Counting = PLAIN,
    linear_efficiency: float = 1.0,
) -> float:
    """Time of a dense training step over that of a sparse one, with compute alone.

    `linear_efficiency`: speed of the other matmuls over that of dense attention. Below 1 (small experts), attention is
    a smaller part of the step. Exposed communication and pipeline bubbles bring the true figure nearer to 1.
    """
    rest = linear_training(shape) / linear_efficiency
    layers = shape.attention_layers
    dense = rest + layers * dense_training(shape, seq_len)
    return dense / (rest + layers * sparse_training(shape, sparse, seq_len, counting))


def attention_share(shape: Shape, seq_len: int) -> float:
    """The part of a dense step's FLOPs in attention scores."""
    scores = shape.attention_layers * dense_training(shape, seq_len)
    return scores / (scores + linear_training(shape))


def warmup_equivalent(shape: Shape, sparse: TopK, seq_len: int, counting: Counting) -> float:
    """The cost of a token in the dense warm-up, in tokens of dense training.

    The model is frozen. The cost is its forward pass, the scores again as the indexer's target, and the indexer's own
    three passes over every pair.
    """
    layers = shape.attention_layers
    forward = (linear_training(shape) + layers * dense_training(shape, seq_len)) / TRAINING_PASSES
    target = 2.0 * shape.heads * shape.qk_dim * dense_pairs(seq_len)
    scores = sparse.indexer.pair_flops * dense_pairs(seq_len) * (2 + 1 / counting.indexer_rate)
    projections = (TRAINING_PASSES - 1) * 2 * sparse.indexer.params(shape)
    indexer = (target + scores + projections) / sparse.layers_per_indexer
    full = linear_training(shape) + layers * dense_training(shape, seq_len)
    return (forward + layers * indexer) / full


@dataclass(frozen=True, slots=True)
class AddedMemory:
    """The bytes that DSA adds on a GPU, for one micro-batch of one sequence. It removes none: see `saved`."""

    # Indexer parameters of the whole model. Their states come on top, as for any parameter.
    params: float
    indices: float  # for the backward pass, all layers
    indexer_activations: float  # queries, key and head weights in BF16, all layers
    keys_fp8: float  # the indexer's keys as inference caches them, all layers
    # One layer's [L, L] fp32 scores, without a kernel that fuses scoring and top-k.
    scores_unfused: float
    saved: float = 0.0  # 0: FlashAttention keeps nothing that grows with L squared.


def added_memory(shape: Shape, sparse: TopK, seq_len: int) -> AddedMemory:
    indexer = sparse.indexer
    layers = shape.attention_layers / sparse.layers_per_indexer
    if is_dense(sparse, seq_len):
        return AddedMemory(layers * indexer.params(shape), 0.0, 0.0, 0.0, 0.0)
    tokens = layers * seq_len
    return AddedMemory(
        params=layers * indexer.params(shape),
        indices=tokens * sparse.k * INDEX_BYTES,
        indexer_activations=2.0 * tokens * (indexer.heads * indexer.dim + indexer.dim + indexer.heads),
        keys_fp8=tokens * indexer.dim,
        scores_unfused=float(seq_len * seq_len * SCORE_BYTES),
    )
