"""Memory of a rank: worked by hand, against published measurements, and what must hold for every set-up."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.planner.catalog import gpu_named, model_named
from governor.planner.model.memory import Memory, memory_of
from governor.planner.model.memory_states import USUAL_CONSTANTS, MemoryConstants
from governor.planner.model.setup import Attention, Checkpointing, Framework, Offload, Precision, Setup
from governor.planner.model.shape import Shape

LLAMA_7B = Setup(
    shape=model_named("Llama2-7B"),
    gpu=gpu_named("H100"),
    gpus=8,
    seq_len=4096,
    micro_batch=1,
    grad_accum=4,
    dp=8,
    zero_stage=3,
    checkpointing=Checkpointing.FULL,
    framework=Framework.DEEPSPEED,
)
# Megatron-LM's functional tests: gpt3_mcore_te_tp1_pp1_*, 64M parameters on 8 H100.
TINY = Shape(
    name="tiny",
    layers=12,
    hidden=512,
    heads=8,
    kv_heads=8,
    head_dim=64,
    ffn=2048,
    vocab=50304,
    gated=False,
    tied=True,
    learned_positions=1024,
)
MEGATRON = Setup(
    shape=TINY,
    gpu=gpu_named("H100"),
    gpus=8,
    seq_len=1024,
    micro_batch=4,
    grad_accum=1,
    dp=8,
    zero_stage=1,
    framework=Framework.MEGATRON,
    dropout=True,
)


def test_seven_billion_parameters_under_zero_3_on_eight_gpus_by_hand() -> None:
    memory = memory_of(LLAMA_7B)
    params = 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 32000 * 4096
    assert memory.weights == pytest.approx(2 * params / 8)
    assert memory.gradients == pytest.approx(2 * params / 8)
    assert memory.optimizer == pytest.approx(12 * params / 8)
    # The inputs of 32 layers; at the loss, 14 bytes for each of 4096 x 32000 logits: one layer again takes less.
    assert memory.activations == pytest.approx(32 * 2 * 4096 * 4096)
    assert memory.logits == pytest.approx(14 * 4096 * 32000)
    # A bucket of 5e8 elements, and 1e9 gathered ones beside the layer in use: 2 bytes each.
    layer = params / 32
    assert memory.buffers == pytest.approx(2 * (5e8 + 1e9 + layer), rel=0.1)
    assert memory.allocated / 1e9 == pytest.approx(20, abs=1.5)
    assert memory.fits


@pytest.mark.parametrize(
    ("changes", "published_gb"),
    [
        # NVIDIA/Megatron-LM tests/functional_tests, golden values of dgx_h100, mem-max-allocated-bytes / 1e9.
        ({}, 2.691),
        ({"attention": Attention.UNFUSED}, 4.702),
        ({"checkpointing": Checkpointing.FULL, "zero_stage": 0}, 2.561),
        ({"tp": 4, "dp": 2, "sequence_parallel": False, "attention": Attention.UNFUSED}, 1.543),
        ({"pp": 2, "dp": 4, "grad_accum": 2, "zero_stage": 0}, 2.598),
        ({"tp": 2, "cp": 2, "dp": 2, "zero_stage": 0, "dropout": False}, 1.22),
    ],
)
def test_megatrons_own_tests_allocate_what_is_predicted_of_their_last_rank(
    changes: dict[str, object], published_gb: float
) -> None:
    assert memory_of(MEGATRON.but(**changes)).last_stage / 1e9 == pytest.approx(published_gb, rel=0.04)


def test_the_first_stage_holds_the_micro_batches_and_the_last_the_logits() -> None:
    piped = MEGATRON.but(pp=4, dp=2, attention=Attention.UNFUSED, grad_accum=8)
    assert memory_of(piped).stage == 0
    short = piped.but(attention=Attention.FLASH, shape=MEGATRON.shape, micro_batch=16, seq_len=256)
    assert memory_of(short).stage == 3


setups = st.builds(
    lambda zero, dp, micro, checkpointing, framework, precision, attention: LLAMA_7B.but(
        zero_stage=zero,
        dp=dp,
        gpus=dp,
        micro_batch=micro,
        checkpointing=checkpointing,
        framework=framework,
        precision=precision,
        attention=attention,
    ),
    st.integers(0, 3),
    st.sampled_from([1, 2, 8, 64]),
    st.integers(1, 8),
    st.sampled_from(Checkpointing),
    st.sampled_from(Framework),
    st.sampled_from([Precision.BF16, Precision.FP16, Precision.FP8]),
    st.sampled_from([Attention.FLASH, Attention.UNFUSED]),
)


@given(setups)
def test_more_ranks_under_zero_never_take_more_memory(setup: Setup) -> None:
    more = setup.but(dp=2 * setup.dp, gpus=2 * setup.gpus)
    assert memory_of(more).allocated <= memory_of(setup).allocated


@given(setups)
def test_each_zero_stage_takes_no_more_states_than_the_one_before(setup: Setup) -> None:
    states = [_states(memory_of(setup.but(zero_stage=stage))) for stage in (0, 1, 2, 3)]
    assert states == sorted(states, reverse=True)


@given(setups)
def test_checkpointing_never_takes_more(setup: Setup) -> None:
    none, selective, full = (memory_of(setup.but(checkpointing=c)).allocated for c in Checkpointing)
    assert full <= selective <= none


@given(setups, st.sampled_from([o for o in Offload if o.moves_optimizer]))
def test_what_is_offloaded_leaves_the_gpu_and_arrives_on_the_host(setup: Setup, offload: Offload) -> None:
    here, there = memory_of(setup), memory_of(setup.but(offload=offload))
    assert there.allocated <= here.allocated
    assert there.optimizer == 0
    assert there.host > here.host == 0


@given(setups)
def test_parts_are_never_negative_and_sum_to_what_is_allocated(setup: Setup) -> None:
    memory = memory_of(setup)
    parts = ("weights", "gradients", "optimizer", "activations", "logits", "buffers")
    assert all(getattr(memory, part) >= 0 for part in parts)
    assert sum(getattr(memory, part) for part in parts) == pytest.approx(memory.allocated)
    assert memory.reserved > memory.allocated + memory.context


def test_dsa_keeps_its_indices_and_what_its_indexer_computed() -> None:
    # Llama-2-7B's indexer has 8 heads of 64: 4 x 2,048 bytes of indices a token and layer, and 2 x (512 + 64 + 8).
    dense = LLAMA_7B.but(checkpointing=Checkpointing.NONE, seq_len=16384)
    added = memory_of(dense.but(attention=Attention.SPARSE)).activations - memory_of(dense).activations
    assert added == pytest.approx(32 * 16384 * (4 * 2048 + 2 * (512 + 64 + 8)))


def test_a_model_that_no_gpu_holds_does_not_fit() -> None:
    whole = LLAMA_7B.but(zero_stage=0, checkpointing=Checkpointing.NONE, shape=model_named("Llama2-70B"))
    memory = memory_of(whole)
    assert not memory.fits
    assert memory.spare < -1000e9


def test_every_constant_says_its_unit_its_meaning_and_its_source() -> None:
    for constant in fields(MemoryConstants):
        assert all(constant.metadata[key] for key in ("unit", "meaning", "source")), constant.name
        assert getattr(USUAL_CONSTANTS, constant.name) > 0


def _states(memory: Memory) -> float:
    return memory.weights + memory.gradients + memory.optimizer
