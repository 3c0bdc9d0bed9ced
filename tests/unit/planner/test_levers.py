"""Levers multiply, and save no more than there is."""

import pytest

from governor.planner.catalog import gpu_named, model_named
from governor.planner.levers import WAIT, Evidence, Lever, data_levers, modelled, other_ways, together
from governor.planner.model.setup import Attention, Framework, Offload, Setup


def test_levers_multiply_and_are_not_added() -> None:
    levers = [Lever(str(n), "", 0.7, 0.75, 0.8, Evidence.RULE, "") for n in range(4)]
    # Four times a quarter would be all of it: 1 - 0.75^4 = 68 %.
    assert together(levers, possible=0.0).usual == pytest.approx(0.75**4)


def test_they_never_save_more_than_the_best_plan_does() -> None:
    levers = [Lever(str(n), "", 0.5, 0.6, 0.7, Evidence.RULE, "") for n in range(5)]
    both = together(levers, possible=0.45)
    assert (both.best, both.usual, both.least) == (0.45, 0.45, 0.45)
    assert both.is_bounded
    assert not together(levers[:1], possible=0.45).is_bounded


def test_levers_on_the_loader_save_no_more_than_the_wait_for_data() -> None:
    # NVMe, workers and tokens together would save 39 %; GPUs wait 20 % of the time.
    levers = data_levers(0.20)
    assert all(lever.best >= 0.80 for lever in levers)
    assert [(lever.name, lever.evidence) for lever in levers if lever.is_bound] == [(WAIT, Evidence.MEASURED)]
    assert together(levers, possible=0.1, wait_share=0.20).best == pytest.approx(0.80)


def test_the_wait_for_data_itself_is_in_no_sum() -> None:
    # Half of it, where the three would save 39 % at most: it bounds, and is not saved on top.
    assert together(data_levers(0.5), possible=0.1, wait_share=0.5).best == pytest.approx(0.70 * 0.85 * 0.90)


def test_what_the_plan_counts_on_is_not_saved_again() -> None:
    levers = data_levers(None)
    assert all(lever.is_done for lever in levers)
    assert together(levers, possible=0.1).best == 1.0


def test_a_modelled_lever_that_saves_nothing_is_none() -> None:
    assert modelled("micro-batch", "4", 10.0, 10.0, "") is None
    lever = modelled("micro-batch", "4", 10.0, 8.0, "")
    assert lever is not None
    assert (lever.best, lever.evidence) == (0.8, Evidence.MODELLED)


def test_the_best_plan_is_sought_among_others_like_this_one() -> None:
    setup = Setup(
        shape=model_named("Mixtral-8x7B"), gpu=gpu_named("H100"), gpus=16, seq_len=4096, micro_batch=2, grad_accum=4,
        dp=4, tp=2, pp=2, ep=4, zero_stage=1, virtual_stages=2, shard_ranks=2, node_gbps=50.0, vintage=2023.5,
        framework=Framework.MEGATRON, attention=Attention.UNFUSED, offload=Offload.OPTIMIZER_CPU,
        dropout=True, fused_loss=True, fp8_params=True, bf16_states=True, unfused_optimizer=True,
        overlapped_experts=True, uniform_routing=False,
    )  # fmt: skip
    ways = list(other_ways(setup))
    assert setup in ways
    assert {one.zero_stage for one in ways} == {1}
