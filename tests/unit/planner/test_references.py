"""Reference set-ups: the page's table of bytes a parameter is what the memory model counts, and where each way fits."""

from __future__ import annotations

import pytest

from governor.planner.compare import MEGATRON, Reference, references

ALL = {one.name: one for one in references()}
SEVEN = ALL["llama2-7b-8"]


@pytest.mark.parametrize(
    ("way", "bytes_each"),
    [("DDP", 16), ("ZeRO-1", 5.5), ("ZeRO-2", 3.75), ("ZeRO-3", 2), ("FSDP", 2), ("FSDP2", 2)],
)
def test_the_states_of_a_7b_on_eight_ranks_are_the_pages_bytes_a_parameter(way: str, bytes_each: float) -> None:
    one = SEVEN.by_way[way]
    assert one is not None
    assert _states(one.prediction.memory) == pytest.approx(bytes_each * one.setup.shape.params, rel=0.005)


def test_megatrons_are_divided_over_tensor_and_pipeline_ranks_too() -> None:
    one = SEVEN.by_way[MEGATRON]
    assert one is not None
    setup = one.setup
    each = (2 + 4 + 12 / setup.dp) / (setup.tp * setup.pp)
    # The first stage of a pipeline holds the embedding, too.
    assert _states(one.prediction.memory) == pytest.approx(
        each * setup.shape.params, rel=0.005 if setup.pp == 1 else 0.1
    )


@pytest.mark.parametrize("one", ALL.values(), ids=ALL)
def test_a_config_is_of_a_way_that_fits_and_takes_the_stated_step(one: Reference) -> None:
    assert one.deepspeed.prediction.memory.fits
    assert one.deepspeed.setup.gpus == one.gpus
    assert (
        one.deepspeed.setup.tokens_per_step
        == {"Llama2": 2**22, "Llama3": 2**23, "Llama3.1": 2**24}[one.model.split("-")[0]]
    )


def test_what_is_whole_on_every_gpu_fits_none_beyond_7b() -> None:
    for one in ALL.values():
        for way in ("DDP", "ZeRO-1", "ZeRO-2"):
            estimate = one.by_way[way]
            assert estimate is not None
            assert estimate.prediction.memory.fits == (one is SEVEN and way != "DDP"), (one.name, way)


def _states(memory: object) -> float:
    return float(sum(getattr(memory, part) for part in ("weights", "gradients", "optimizer")))
