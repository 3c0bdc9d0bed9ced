"""Sparse attention: published counts and curves come out, and what does not pay is said not to."""

from __future__ import annotations

import pytest

from governor.planner.catalog import gpu_named, model_named
from governor.planner.model.shape import Experts, Latent, Shape
from governor.planner.model.sparse import (
    PLAIN,
    PUBLISHED,
    SMALL_INDEXER,
    Blocks,
    Counting,
    Indexer,
    TopK,
    added_memory,
    attention_share,
    dense_pairs,
    dense_training,
    flops_ratio,
    selected_pairs,
    sparse_forward,
    sparse_training,
    step_speedup,
    warmup_equivalent,
)
from governor.planner.model.sparse_advice import LENGTHS, PAYS_FROM, advise, start_length
from governor.planner.model.training_stages import STAGES

K = 1024
LLAMA_8B, LLAMA_70B, DEEPSEEK = (model_named(name) for name in ("Llama3-8B", "Llama3-70B", "DeepSeek-V3"))
SMALL = TopK(2048, SMALL_INDEXER)


@pytest.mark.parametrize(
    ("shape", "sparse", "ratios"),
    [  # From the formulas by hand, 4K to 128K, to the digits given.
        (DEEPSEEK, PUBLISHED, (0.36, 0.59, 1.0, 1.6, 2.4, 3.3)),
        (LLAMA_8B, PUBLISHED, (0.57, 0.70, 0.81, 0.89, 0.94, 0.97)),
        (LLAMA_8B, SMALL, (1.23, 2.0, 3.4, 5.4, 8.1, 10.7)),
    ],
)
def test_attention_flops_dense_over_sparse(shape: Shape, sparse: TopK, ratios: tuple[float, ...]) -> None:
    for length, ratio in zip(LENGTHS, ratios, strict=True):
        assert flops_ratio(shape, sparse, length) == pytest.approx(ratio, abs=0.005 if ratio < 1 else 0.05), length


@pytest.mark.parametrize(
    ("shape", "sparse", "speeds", "apart"),
    [  # An independent count, to the digits given. It names no sizes for its 1B: this one is near.
        (LLAMA_8B, SMALL, {4: 0.98, 8: 1.03, 16: 1.14, 32: 1.37, 64: 1.8, 128: 2.6}, 0.005),
        (LLAMA_70B, TopK(2048, Indexer(16, 64)), {4: 0.99, 16: 1.08, 32: 1.21, 128: 2.0}, 0.005),
        (model_named("TinyLlama"), SMALL, {4: 0.95, 16: 1.26}, 0.01),
    ],
)
def test_speedup_of_the_whole_step(shape: Shape, sparse: TopK, speeds: dict[int, float], apart: float) -> None:
    for length, speed in speeds.items():
        digits = apart if length < 64 else 0.05
        assert step_speedup(shape, sparse, length * K) == pytest.approx(speed, abs=digits), length


def test_an_indexer_of_deepseeks_size_never_pays_for_an_8b_with_grouped_queries() -> None:
    assert all(flops_ratio(LLAMA_8B, PUBLISHED, length) < 1 for length in (*LENGTHS, 1 << 24))


@pytest.mark.parametrize("length", [1, 512, 2047, 2048])
def test_a_sequence_within_k_is_dense_to_the_last_flop(length: int) -> None:
    assert flops_ratio(LLAMA_8B, SMALL, length) == 1.0
    assert step_speedup(DEEPSEEK, PUBLISHED, length) == 1.0
    assert not advise(LLAMA_8B, length).pays
    assert added_memory(LLAMA_8B, SMALL, length).indices == 0


def test_selected_pairs_are_those_that_counting_finds() -> None:
    """The formula's continuous sums stand for these discrete ones: half a pair apart at most."""
    for length, k in ((4096, 2048), (5000, 1), (2049, 2048), (100, 100)):
        counted = sum(min(t, k) for t in range(1, length + 1)) / length
        assert selected_pairs(length, k) == pytest.approx(counted, abs=0.5)


def test_sparsity_is_the_part_of_the_pairs_that_is_left_out() -> None:
    kept = sum(min(t, 2048) for t in range(1, 4 * K + 1)) / sum(range(1, 4 * K + 1))
    assert advise(LLAMA_8B, 4 * K).sparsity == pytest.approx(1 - kept, abs=1e-3)
    assert advise(LLAMA_8B, 2 * K).sparsity == 0


def test_megatrons_count_of_glm_52_comes_out() -> None:
    """Megatron-LM PR 6148's table: GFLOPs a token before (dense) and after, 78 layers and one of MTP, 22 indexers."""
    glm = Shape("GLM-5.2", 79, 6144, 64, 64, 256, 12288, 154880)
    projections_of = Shape("", 79, 6144, 64, 64, 256, 12288, 154880, latent=Latent(2048, 512, 64, 192, 256))
    indexer, none = Indexer(32, 128), Indexer(0, 0)
    # Three passes over all scores, at one rate; the selected pairs not in MLA's latent: as that table counts.
    counting = Counting(1.0, 1.0, has_projections=False, is_indexer_backward_sparse=False, has_target=False)
    for length, before, after in ((4096, 280.9, 274.9), (32768, 503.6, 289.6), (131072, 1267.0, 316.9)):
        core = sparse_training(glm, TopK(2048, none), length, counting)
        scores = sparse_training(glm, TopK(2048, indexer), length, counting) - core
        change = 79 * (core - dense_training(glm, length)) + 22 * (scores + 4 * indexer.params(projections_of))
        assert before + change / 1e9 == pytest.approx(after, abs=0.15)


def test_gradients_of_the_index_scores_span_the_selected_tokens_alone() -> None:
    """Megatron-LM PR 7157: at 128K the factor on the scores falls from 3 to 1 + 2 x 0.031."""
    both = []
    for is_sparse in (False, True):
        counting = Counting(1.0, 1.0, False, is_sparse, has_target=False)
        full, core = (
            sparse_training(DEEPSEEK, TopK(2048, one), 128 * K, counting) for one in (Indexer(32, 128), Indexer(0, 0))
        )
        both.append((full - core) / (8192 * dense_pairs(128 * K)))
    assert both == [pytest.approx(3), pytest.approx(1 + 2 * 0.031, abs=0.001)]


def test_layers_that_share_a_selection_share_its_cost() -> None:
    alone, shared = (sparse_forward(DEEPSEEK, TopK(2048, Indexer(64, 128), n), 32 * K) for n in (1, 4))
    assert alone - shared == pytest.approx(0.75 * 64 * 128 * 2 * 16 * K)


def test_the_warm_up_runs_the_frozen_model_forward_and_its_scores_twice() -> None:
    """Scores are half of attention's forward pass, which is a third of training; without an indexer that is all."""
    for length in (4 * K, 128 * K):
        cost = warmup_equivalent(LLAMA_8B, TopK(2048, Indexer(0, 0)), length, PLAIN)
        assert cost == pytest.approx(1 / 3 + attention_share(LLAMA_8B, length) / 6, rel=1e-9)
    assert warmup_equivalent(LLAMA_8B, SMALL, 128 * K, PLAIN) > cost


def test_nsa_at_64k_computes_a_ninth() -> None:
    """Its paper reports 9.0 times forward there."""
    assert flops_ratio(LLAMA_8B, Blocks(), 64 * K) == pytest.approx(9.0, rel=0.03)


def test_memory_is_added_and_none_is_saved() -> None:
    added = added_memory(DEEPSEEK, PUBLISHED, 128 * K)
    assert added.scores_unfused == 64 * 2**30
    assert added.indices == 61 * 128 * K * 8192  # 8 KiB a token and layer
    assert added.keys_fp8 == 61 * 128 * K * 128
    assert added.saved == 0


def test_every_stage_is_dense_where_it_trains_and_pays_only_when_long() -> None:
    for stage in STAGES:
        here = advise(stage.shape, stage.seq_len)
        assert not here.pays
        start = start_length(stage.shape)
        assert start is not None
        assert start >= 16 * K
    assert start_length(LLAMA_8B) == 16 * K
    assert start_length(LLAMA_70B) == 32 * K


def test_advice_rests_on_the_lower_of_two_counts() -> None:
    """Small experts run slower than the count of FLOPs says, and leave attention a smaller part of the step."""
    dense = Shape("dense", 32, 4096, 32, 8, 128, 14336, 128256)
    mixture = Shape("mixture", 32, 4096, 32, 8, 128, 14336, 128256, experts=Experts(1, 1, 14336))
    one, other = advise(dense, 16 * K), advise(mixture, 16 * K)
    assert one.pays
    assert other.speedup_low < one.speedup_low < one.speedup_high < PAYS_FROM + 0.03
    assert other.speedup_high == pytest.approx(step_speedup(dense, SMALL, 16 * K), rel=1e-3)
    assert not other.pays
    assert other.speedup_high > PAYS_FROM > other.speedup_low


def test_a_gpu_without_such_kernels_is_told_so() -> None:
    advice = advise(LLAMA_8B, 128 * K, gpu_named("A100"))
    assert not advice.pays
    assert "no kernel for Ampere" in advice.why
    assert start_length(LLAMA_8B, gpu_named("A100")) is None


def test_the_warm_up_is_earned_back_or_never() -> None:
    assert advise(LLAMA_8B, 4 * K).speedup_over(1e12) is None
    long = advise(LLAMA_8B, 32 * K)
    assert long.break_even_tokens is not None
    assert long.speedup_over(long.break_even_tokens) == pytest.approx(1.0)
    assert long.speedup_over(1e15) == pytest.approx(long.speedup_low, rel=1e-3)
