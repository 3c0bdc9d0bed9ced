"""The memory of a pipeline's stages: who has which layers, and what waits for its backward pass."""

import pytest

from governor.planner.catalog import gpu_named, model_named
from governor.planner.model.memory import in_flight, memory_of
from governor.planner.model.memory_states import layers_of_stage, pipeline_stage_of
from governor.planner.model.setup import Attention, Checkpointing, Framework, Precision, Setup
from governor.planner.model.step_time import step_time_of

DENSE = Setup(
    shape=model_named("llama3.1-405b"), gpu=gpu_named("h100"), gpus=16384, seq_len=8192, micro_batch=1, grad_accum=16,
    dp=128, tp=8, pp=16, virtual_stages=8, zero_stage=2, framework=Framework.MEGATRON,
)  # fmt: skip
MIXTURE = Setup(
    shape=model_named("deepseek-v3"), gpu=gpu_named("h800"), gpus=2048, seq_len=4096, micro_batch=1, grad_accum=120,
    dp=128, pp=16, ep=64, zero_stage=1, precision=Precision.FP8, checkpointing=Checkpointing.SELECTIVE,
    framework=Framework.MEGATRON,
)  # fmt: skip
DUAL = MIXTURE.but(overlapped_experts=True)


def layers(setup: Setup) -> list[int]:
    return [layers_of_stage(setup, index) for index in range(setup.pp)]


def test_embedding_and_head_count_as_a_layer_where_that_makes_the_stages_even() -> None:
    assert layers(DENSE) == [7, *[8] * 14, 7]
    # 126 layers and both make no multiple of 10: an even split, whose outer stages are among the fullest.
    assert layers(DENSE.but(pp=10, dp=128, gpus=10240)) == [13] * 10


def test_the_last_stage_of_a_mixture_has_what_is_left() -> None:
    # Megatron-Bridge's layouts of DeepSeek-V3: 15 x 4 and 1, 7 x 8 and 5, 3 x 16 and 13.
    for pp, last in ((16, 1), (8, 5), (4, 13)):
        made = layers(MIXTURE.but(pp=pp, dp=2048 // pp))
        assert (made[-1], sum(made)) == (last, 61)
    assert pipeline_stage_of(MIXTURE, 0).moe_layers == 1  # after three dense ones
    assert pipeline_stage_of(MIXTURE, 1).moe_layers == 4


def test_dual_pipe_has_two_stages_a_rank_and_one_micro_batch_more() -> None:
    assert DUAL.is_dual_pipe
    assert [2 * in_flight(DUAL, index) for index in (0, 7, 15)] == [17, 17, 17]
    one, both = memory_of(MIXTURE), memory_of(DUAL)
    assert both.weights == pytest.approx(2 * one.weights, rel=0.05)
    assert both.gradients == pytest.approx(2 * one.gradients, rel=0.05)
    assert both.optimizer == pytest.approx(one.optimizer, rel=0.05)
    # It waits for 4.7 micro-batches instead of 15 (table 2).
    assert step_time_of(DUAL).bubble < 0.4 * step_time_of(MIXTURE).bubble


@pytest.mark.parametrize(
    "changes",
    [{"virtual_stages": 2}, {"grad_accum": 16}, {"pp": 1, "dp": 2048}, {"overlapped_experts": False}],
)
def test_an_overlap_in_an_interleaved_pipeline_is_megatrons(changes: dict[str, int]) -> None:
    assert not DUAL.but(**changes).is_dual_pipe


def test_a_mixture_recomputes_norms_and_up_projections_and_little_time_is_lost() -> None:
    whole = MIXTURE.but(checkpointing=Checkpointing.NONE)
    full = MIXTURE.but(checkpointing=Checkpointing.FULL)
    kept = [memory_of(one).activations for one in (full, MIXTURE, whole)]
    assert kept == sorted(kept)
    assert kept[1] < 0.5 * kept[2]
    spent = [step_time_of(one).recompute for one in (whole, MIXTURE, full)]
    assert spent[0] == 0 < spent[1] < 0.5 * spent[2]
    # Without a fused kernel it is the scores that are computed again.
    assert not MIXTURE.but(attention=Attention.UNFUSED).recomputes_modules


def test_embedding_and_head_have_no_copies_in_fp8() -> None:
    wide, narrow = (memory_of(MIXTURE.but(precision=kind, pp=1, dp=2048)) for kind in (Precision.BF16, Precision.FP8))
    copied = MIXTURE.shape.params - MIXTURE.shape.embedding_params - MIXTURE.shape.routed_params * 63 / 64
    assert narrow.weights - wide.weights == pytest.approx(2 * copied, rel=0.02)
