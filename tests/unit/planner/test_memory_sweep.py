"""Memory over every kind of set-up, the absurd ones too: what must hold whatever the constants are."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from governor.planner.catalog import gpu_named, model_named, models
from governor.planner.model.memory import Memory, memory_of
from governor.planner.model.predict import memory_band, predict
from governor.planner.model.setup import (
    Attention,
    Checkpointing,
    Framework,
    ImpossibleSetupError,
    Offload,
    Precision,
    Setup,
)
from governor.planner.model.shape import Shape

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "context", "host")
GPUS = [gpu_named(name) for name in ("A100-SXM-80GB", "H100-SXM-80GB", "B200", "RTX4090", "MI300X")]
# Made once: a strategy that is made at each draw costs as much as the draw.
SIZES = [st.sampled_from(sizes) for sizes in ([1, 2, 4, 8, 16, 64, 1024], [1, 2, 8], [1, 2, 4, 16], [1, 1, 2])]
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "shape": st.sampled_from(list(models().values())),
    "gpu": st.sampled_from(GPUS),
    "seq_len": st.sampled_from([1, 512, 4096, 1_048_576]),
    "micro_batch": st.sampled_from([1, 2, 32, 1024]),
    "grad_accum": st.sampled_from([1, 8, 512]),
    "virtual_stages": st.sampled_from([1, 2]),
    "ep": st.sampled_from([1, 1, 2, 8]),
    "sequence_parallel": st.booleans(),
    "zero_stage": st.integers(0, 3),
    "checkpointing": st.sampled_from(Checkpointing),
    "precision": st.sampled_from([Precision.BF16, Precision.FP16, Precision.FP8]),
    "attention": st.sampled_from([Attention.FLASH, Attention.UNFUSED]),
    "framework": st.sampled_from(Framework),
    "offload": st.sampled_from(Offload),
    "bf16_states": st.booleans(),
    "dropout": st.booleans(),
    "fused_loss": st.booleans(),
    "unfused_optimizer": st.booleans(),
    "uniform_routing": st.booleans(),
}


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Of the whole catalogue; what no framework runs is passed over."""
    dp, tp, pp, cp = (draw(sizes) for sizes in SIZES)
    keys = {key: draw(values) for key, values in KEYS.items()}
    try:
        return Setup(gpus=dp * tp * pp * cp, dp=dp, tp=tp, pp=pp, cp=cp, **keys)
    except ImpossibleSetupError:
        assume(False)
        raise


@given(setups())
def test_every_part_is_a_size_and_the_whole_is_their_sum(setup: Setup) -> None:
    memory = memory_of(setup)
    assert all(0 <= getattr(memory, part) < math.inf for part in PARTS)
    assert math.isclose(memory.allocated, sum(getattr(memory, part) for part in PARTS[:6]))
    assert memory.reserved >= memory.allocated + memory.context
    assert memory.last_stage <= memory.allocated * (1 + 1e-9)
    assert memory.fits or not memory.surely_fits


@given(setups(), st.sampled_from(["micro_batch", "seq_len"]))
def test_twice_the_tokens_never_take_less(setup: Setup, name: str) -> None:
    assert _takes_no_more(setup, setup.but(**{name: 2 * getattr(setup, name)}))


@given(setups())
def test_checkpointing_more_never_takes_more(setup: Setup) -> None:
    none, selective, full = (setup.but(checkpointing=c) for c in Checkpointing)
    assert _takes_no_more(full, selective)
    assert _takes_no_more(selective, none)


@given(
    st.sampled_from(["Llama2-7B", "Llama3-8B", "Llama3-70B", "GPT3-175B"]),
    st.sampled_from([f for f in Framework if f is not Framework.DDP]),
    st.sampled_from([8, 64, 1024]),
    st.sampled_from([Precision.BF16, Precision.FP16, Precision.FP8]),
    st.sampled_from(Checkpointing),
    st.booleans(),
)
def test_a_higher_zero_stage_never_takes_more_of_a_large_model(
    model: str, framework: Framework, dp: int, precision: Precision, checkpointing: Checkpointing, unfused: bool
) -> None:
    """A small one may: ZeRO's buckets and gathered layers are larger than what there is to shard."""
    stages = [
        Setup(
            shape=model_named(model),
            gpu=gpu_named("H100"),
            gpus=dp,
            dp=dp,
            seq_len=4096,
            micro_batch=1,
            grad_accum=1,
            zero_stage=stage,
            checkpointing=checkpointing,
            precision=precision,
            framework=framework,
            unfused_optimizer=unfused,
        )
        for stage in range(4)
    ]
    assert all(_takes_no_more(higher, lower) for lower, higher in pairwise(stages))


@given(setups())
def test_adapters_have_no_states_to_speak_of(setup: Setup) -> None:
    assume(setup.precision.bits == 16)
    adapters, whole = memory_of(setup.but(adapters=True)), memory_of(setup)
    assert adapters.gradients == adapters.optimizer == 0
    assert _takes_no_more(setup.but(adapters=True), setup)
    assert adapters.weights <= whole.weights * (1 + 1e-9)


@given(setups())
def test_offload_moves_bytes_to_the_host(setup: Setup) -> None:
    here = setup.but(offload=Offload.NONE)
    optimizer, both = (setup.but(offload=o) for o in (Offload.OPTIMIZER_CPU, Offload.PARAM_OPTIMIZER_CPU))
    assert _takes_no_more(optimizer, here)
    assert _takes_no_more(both, optimizer)
    hosts = [memory_of(one).host for one in (here, optimizer, both)]
    assert hosts[0] == 0 < hosts[1] < hosts[2]
    left = _states(memory_of(here)) - _states(memory_of(both))
    ranks = min(setup.gpus, setup.gpu.gpus_per_node)
    assert hosts[2] >= ranks * left * (1 - 1e-9)


@given(setups(), st.lists(st.sampled_from(["hidden 4096", "gpus 8", "seq_len 2048", "grad_accum 1"]), unique=True))
def test_the_more_is_guessed_the_wider_the_band(setup: Setup, assumed: list[str]) -> None:
    known, guessed = memory_band(setup), memory_band(setup, assumed)
    assert 0 < guessed.low <= known.low < 1 < known.high <= guessed.high
    assert guessed.around(100.0) == (100 * guessed.low, 100 * guessed.high)


def test_the_runs_that_ran_out_of_memory_are_not_said_to_fit() -> None:
    """BigScience's chronicle of BLOOM-176B: on 48 nodes of A100-80 these did not start."""
    shape = Shape(
        "bloom", layers=72, hidden=14336, heads=64, kv_heads=64, head_dim=224, ffn=57344, vocab=250_880, gated=False,
        tied=True,
    )  # fmt: skip
    proto = Setup(
        shape=shape,
        gpu=gpu_named("A100"), gpus=384, seq_len=2048, micro_batch=1, grad_accum=128, dp=48, tp=8,
        sequence_parallel=False, zero_stage=1, checkpointing=Checkpointing.FULL, precision=Precision.FP16,
        attention=Attention.UNFUSED, framework=Framework.MEGATRON_DEEPSPEED,
    )  # fmt: skip
    for changes in ({}, {"tp": 2, "pp": 6, "dp": 32}):
        assert not memory_of(proto.but(**changes)).fits
        assert "does not fit" in predict(proto.but(**changes)).notes[0]
    # And these ran, the second with 80 GB in use.
    assert memory_of(proto.but(tp=4, pp=12, dp=8, micro_batch=2)).surely_fits
    ten_layers = proto.but(shape=replace(shape, layers=10), gpus=8, dp=1)
    assert memory_of(ten_layers).fits
    assert not memory_of(ten_layers).surely_fits
    assert "may not fit" in predict(ten_layers).notes[0]


def _takes_no_more(less: Setup, more: Setup) -> bool:
    a, b = memory_of(less), memory_of(more)
    return a.allocated <= b.allocated * (1 + 1e-9) and a.reserved <= b.reserved * (1 + 1e-9)


def _states(memory: Memory) -> float:
    return memory.weights + memory.gradients + memory.optimizer
