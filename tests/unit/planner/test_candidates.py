"""The search and its choice, with a memory and a speed that can be worked out by hand."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governor.planner.catalog import gpu_named, model_named
from governor.planner.model.candidates import (
    EXPERT_RANKS,
    Found,
    Limits,
    Offer,
    Space,
    candidates,
    choose,
    interleaves,
    is_within,
    pareto,
    search,
)
from governor.planner.model.memory import memory_of
from governor.planner.model.setup import Checkpointing, Framework, Offload, Setup
from governor.planner.what_fits import what_fits

H100, A100, B200 = gpu_named("H100"), gpu_named("A100"), gpu_named("B200")
LLAMA = model_named("Llama3-8B")
OFFERS = (Offer(H100, 3.0, "dear"), Offer(H100, 2.0, "cheap"), Offer(A100, 1.2, "cheap"))
SPACE = Space(gpus=(4, 8), zero_stages=(0, 1, 2, 3), tps=(1, 2))


def memory_frac(setup: Setup) -> float:
    """States alone, sharded from stage 3 on; checkpointing and the micro-batch by a tenth each."""
    states = 16 * setup.shape.params / (setup.shards if setup.zero_stage == 3 else 1) / setup.tp
    kept = {Checkpointing.NONE: 0.2, Checkpointing.SELECTIVE: 0.1, Checkpointing.FULL: 0.0}[setup.checkpointing]
    offloaded = 0.3 if setup.offload.moves_optimizer else 1.0
    return offloaded * states / (setup.gpu.hbm_gb * 1e9) + kept * setup.micro_batch


def tokens_per_gpu_s(setup: Setup) -> float:
    recompute = {Checkpointing.NONE: 1.0, Checkpointing.SELECTIVE: 0.95, Checkpointing.FULL: 0.75}[setup.checkpointing]
    return recompute * (10_000 if setup.gpu == H100 else 4_000) * (1 - 0.01 * setup.gpus)


def found() -> list[Found]:
    setups = candidates(LLAMA, (H100, A100), 4096, 1e6, SPACE)
    return search(setups, OFFERS, 100e9, memory_frac, tokens_per_gpu_s)


def test_only_what_fits_is_found_at_the_cheapest_offer() -> None:
    every = list(candidates(LLAMA, (H100, A100), 4096, 1e6, SPACE))
    assert all(one.memory_frac <= 1 for one in found())
    assert 0 < len(found()) < len(every)
    assert {one.offer.gpu_hour_usd for one in found() if one.setup.gpu == H100} == {2.0}
    assert all(abs(setup.tokens_per_step - 1e6) < 0.05e6 for setup in every)


def test_impossible_and_senseless_candidates_are_passed_over() -> None:
    space = Space(
        gpus=(16,), zero_stages=(0, 1, 2, 3), tps=(1, 16), pps=(1, 64), frameworks=(Framework.FSDP2, Framework.DDP)
    )
    every = list(candidates(LLAMA, (H100,), 4096, 1e6, space))
    assert {(setup.framework, setup.zero_stage, setup.tp) for setup in every} == {
        (Framework.FSDP2, 3, 1),
        (Framework.DDP, 0, 1),
    }


def test_a_pipeline_is_interleaved_where_megatron_can() -> None:
    # 16 stages of 8 chunks: two of 126 layers' 128 are empty. 80 layers would leave 48 of 128 so.
    assert interleaves(Framework.MEGATRON, 126, 16, 8, 16)
    assert not interleaves(Framework.MEGATRON, 80, 16, 8, 16)
    assert not interleaves(Framework.MEGATRON, 126, 16, 8, 24)  # no multiple of 16 micro-batches
    assert not interleaves(Framework.MEGATRON, 126, 1, 8, 16)
    assert not interleaves(Framework.DEEPSPEED, 126, 16, 8, 16)
    space = Space(gpus=(8,), zero_stages=(1,), pps=(1, 2), vps=(1, 2), frameworks=(Framework.MEGATRON,))
    every = {(one.pp, one.virtual_stages) for one in candidates(LLAMA, (H100,), 4096, 1e6, space)}
    assert every == {(1, 1), (2, 1), (2, 2)}


def test_deepspeed_spreads_experts_up_to_zero_2_and_keeps_them_whole_under_zero_3() -> None:
    # deepspeed.moe takes ZeRO up to 2; under ZeRO-3 a mixture is a leaf (set_z3_leaf_modules), on every rank.
    space = Space(gpus=(8,), zero_stages=(1, 2, 3), eps=EXPERT_RANKS, frameworks=(Framework.DEEPSPEED,))
    every = list(candidates(model_named("Mixtral-8x7B"), (H100,), 4096, 1e6, space))
    spread = {zero: {one.ep for one in every if one.zero_stage == zero} for zero in (1, 2, 3)}
    assert spread == {1: {1, 2, 4, 8}, 2: {1, 2, 4, 8}, 3: {1}}


SIZES = st.tuples(st.integers(1, 5), st.integers(1, 5), st.sampled_from([4, 8, 16]))


@given(st.lists(SIZES, min_size=1, max_size=30))
def test_the_front_is_what_nothing_beats(sizes: list[tuple[int, int, int]]) -> None:
    base = found()[0]
    every = [
        replace(base, usd=float(usd), hours=float(hours), setup=base.setup.but(gpus=gpus, dp=gpus, tp=1))
        for usd, hours, gpus in sizes
    ]

    def figures(one: Found) -> tuple[float, float, int]:
        return one.usd, one.hours, one.setup.gpus

    def beats(one: Found, other: Found) -> bool:
        return figures(one) != figures(other) and all(a <= b for a, b in zip(figures(one), figures(other), strict=True))

    front = pareto(every)
    assert {figures(one) for one in front} == {
        figures(one) for one in every if not any(beats(other, one) for other in every)
    }
    assert len(front) == len({figures(one) for one in front})


def test_the_primary_is_the_cheapest_within_the_limits_and_the_fallback_needs_less_memory() -> None:
    choice = choose(found(), Limits(deadline_h=5000, budget_usd=9000))
    assert choice.primary is not None
    assert choice.fallback is not None
    assert choice.primary.usd == min(one.usd for one in found() if one.hours <= 5000 and one.memory_frac <= 0.9)
    assert choice.fallback.memory_frac <= 0.8 * choice.primary.memory_frac
    assert choice.reasons[0].startswith("primary: the cheapest of")
    assert "below the budget" in choice.reasons[0]
    assert choice.reasons[1].startswith("fallback: when memory does not suffice: takes")


def test_without_a_plan_in_the_limits_the_nearest_is_told() -> None:
    choice = choose(found(), Limits(deadline_h=1, budget_usd=10))
    assert choice.primary is None
    assert "nothing keeps to $10 (the cheapest costs $" in choice.reasons[0]
    assert "1 h (the fastest takes" in choice.reasons[0]
    assert choose([], Limits()).reasons == ("no candidate fits into its GPUs' memory",)


def setup_of(**changes: object) -> Setup:
    base = Setup(shape=LLAMA, gpu=H100, gpus=8, seq_len=4096, micro_batch=4, grad_accum=8, dp=8, zero_stage=1)
    return base.but(**changes)


def fits(setup: Setup) -> bool:
    return memory_frac(setup) <= 1


def test_the_smallest_change_that_fits_comes_first() -> None:
    # 128 GB of states on one GPU: ZeRO-3 shares them among 8; 16 GB and two fifths of 80 GB remain.
    assert what_fits(setup_of(micro_batch=2), fits)[0].change == "zero 3"
    # Already sharded: what is kept of the activations must go.
    assert what_fits(setup_of(zero_stage=3, micro_batch=8), fits)[0].change == "checkpointing full"
    assert all(fits(fit.setup) for fit in what_fits(setup_of(), fits))


@pytest.mark.parametrize(("gpus", "words"), [(1, "2 GPUs and zero 3 and checkpointing full and micro-batch 1")])
def test_where_these_gpus_do_not_suffice_more_of_them_are_named(gpus: int, words: str) -> None:
    setup = setup_of(gpus=gpus, dp=gpus, zero_stage=0)
    assert what_fits(setup, fits)[0].change == words


def test_a_model_beyond_everything_is_offered_the_hosts_memory_or_nothing() -> None:
    alone = setup_of(gpus=8, dp=1, tp=8, zero_stage=0)
    assert not what_fits(alone, lambda _: False)
    only_offload = what_fits(alone, lambda setup: setup.offload is not Offload.NONE)
    assert only_offload[0].change.startswith("offload optimizer_cpu")


def test_a_model_of_experts_is_split_further_before_anything_is_offloaded() -> None:
    setup = Setup(
        shape=model_named("DeepSeek-V3"), gpu=H100, gpus=256, dp=256, ep=8, seq_len=4096, micro_batch=1, grad_accum=4,
        zero_stage=1, framework=Framework.MEGATRON,
    )  # fmt: skip
    found = what_fits(setup, lambda one: memory_of(one).fits)
    assert re.match(r"tp \d+ and pp \d+", found[0].change)
    for fit in found:
        made = fit.setup
        assert made.dp * made.tp * made.pp * made.cp == made.gpus == 256
        assert made.tokens_per_step == setup.tokens_per_step


def test_a_long_sequence_is_split_before_other_machines_are_sought() -> None:
    def changes(seq_len: int) -> list[str]:
        setup = setup_of(zero_stage=3, checkpointing=Checkpointing.FULL, seq_len=seq_len)
        return [fit.change for fit in what_fits(setup, lambda one: one.seq_len / one.cp <= seq_len / 4 or one.gpus > 8)]

    assert changes(65536) == ["cp 4", "16 GPUs"]
    assert changes(16384) == ["16 GPUs"]  # 4,096 tokens a rank: a shorter micro-batch of them all is no help


def test_whole_logits_are_fused_away_before_a_sequence_is_split() -> None:
    def whole_logits(one: Setup) -> float:
        return (1.0 if one.fused_loss else 4.0) * one.seq_len / one.cp

    long = setup_of(zero_stage=3, checkpointing=Checkpointing.FULL, micro_batch=1, seq_len=131072, grad_accum=2)
    assert what_fits(long, lambda one: whole_logits(one) <= 131072)[0].change == "fused-loss 1"
    changes = [fit.change for fit in what_fits(long, lambda one: whole_logits(one) <= 65536)]
    assert changes == ["cp 2 and fused-loss 1", "cp 8"]
    # Megatron's loss is fused as it is.
    megatron = long.but(framework=Framework.MEGATRON, zero_stage=1)
    assert all("fused" not in fit.change for fit in what_fits(megatron, lambda one: one.fused_loss or one.cp > 1))


def test_one_rank_is_offered_to_shard_nothing() -> None:
    alone = setup_of(gpus=1, dp=1, zero_stage=3)
    changes = [fit.change for fit in what_fits(alone, lambda one: one.framework is Framework.DDP or one.gpus > 1)]
    assert changes == ["framework ddp", "2 GPUs"]
    assert all("ddp" not in fit.change for fit in what_fits(setup_of(zero_stage=3), lambda one: one.zero_stage == 0))


def test_gpus_that_could_be_had_instead_are_named() -> None:
    setup = setup_of(gpus=1, dp=1, seq_len=8192, shape=model_named("Llama3-70B"))
    assert not what_fits(setup, lambda one: one.gpu is B200)
    assert what_fits(setup, lambda one: one.gpu is B200, larger=[H100, B200])[0].change == "gpu B200"
    at_least_eight = what_fits(setup, lambda one: one.gpu is B200 and one.gpus >= 8, larger=[B200])
    assert at_least_eight[0].change.startswith("gpu B200 and 8 GPUs")


def test_memory_that_may_not_suffice_is_never_recommended() -> None:
    cheap, dear = replace(found()[0], usd=10.0, memory_frac=0.97), replace(found()[0], usd=11.0, memory_frac=0.85)
    assert choose([cheap, dear], Limits()).primary == dear
    assert choose([cheap, dear], Limits(budget_usd=10.5)).primary is None
    tight = choose([cheap], Limits())
    assert (tight.primary, tight.fallback) == (None, None)
    assert "no candidate leaves room in memory: 1 fit, the thriftiest into 97% of it" in tight.reasons[0]


def test_limits_are_held_by_four_of_five_runs_and_the_chance_to_miss_is_said() -> None:
    # P80 lies 0.8416 standard deviations above: at a doubt of 0.4, 1.40 times what is expected.
    one = replace(found()[0], usd=100.0, hours=100.0, memory_frac=0.5, sigma=0.4)
    assert one.held_usd == pytest.approx(140.0, rel=2e-3)
    for limits in (Limits(budget_usd=139), Limits(deadline_h=139)):
        assert not is_within(one, limits)
        assert "nothing keeps to" in choose([one], limits).reasons[0]
        assert "140" in choose([one], limits).reasons[0]
    choice = choose([one], Limits(deadline_h=200, budget_usd=141))
    assert choice.primary == one
    chances = one.chances(Limits(deadline_h=200, budget_usd=141))
    assert chances == pytest.approx({"budget": 0.195, "deadline": 0.042}, rel=0.02)
    assert "(missed is the budget by 20% and the deadline by 4% of such runs)" in choice.reasons[0]


def test_a_fallback_keeps_to_the_limits_too_or_there_is_none() -> None:
    primary, thrifty = (replace(found()[0], usd=usd, memory_frac=frac) for usd, frac in ((10.0, 0.8), (12.0, 0.4)))
    assert choose([primary, thrifty], Limits(budget_usd=12)).fallback == thrifty
    without = choose([primary, thrifty], Limits(budget_usd=11))
    assert (without.primary, without.fallback) == (primary, None)
    assert "no candidate within the limits needs clearly less memory" in without.reasons[1]


def test_a_listing_of_small_machines_is_no_large_cluster() -> None:
    single, node = Offer(H100, 1.0, "a", machines=(1, 2)), Offer(H100, 2.0, "b", machines=(8,))
    large = Offer(H100, 3.0, "c")  # A stated price.
    assert [single.gives(gpus) for gpus in (1, 2, 4, 8, 1024)] == [True, True, False, False, False]
    assert [node.gives(gpus) for gpus in (1, 8, 1024)] == [False, True, True]
    setups = [setup_of(gpus=gpus, dp=gpus, zero_stage=3, micro_batch=1) for gpus in (2, 4, 8)]

    def sellers(offers: tuple[Offer, ...]) -> list[tuple[int, str]]:
        made = search(setups, offers, 1e9, lambda _: 0.5, tokens_per_gpu_s)
        return [(one.setup.gpus, one.offer.seller) for one in made]

    assert sellers((single, node, large)) == [(2, "a"), (4, "c"), (8, "b")]
    assert sellers((single, node)) == [(2, "a"), (8, "b")]


def test_without_a_deadline_the_primary_is_the_fastest_that_costs_hardly_more_than_the_cheapest() -> None:
    base = found()[0]
    slow, near, far = (
        replace(base, usd=usd, hours=hours, memory_frac=0.5)
        for usd, hours in ((100.0, 900.0), (104.0, 9.0), (106.0, 1.0))
    )
    assert choose([slow, near, far], Limits()).primary == near
    assert choose([slow, near, far], Limits(deadline_h=1000)).primary == slow
    assert choose([slow, near, far], Limits(budget_usd=101)).primary == slow


# 256 sequences of 4,096 tokens are 1.05M.
def test_no_step_grows_beyond_what_was_asked_for_its_many_gpus() -> None:
    every = candidates(LLAMA, (H100,), 4096, 1e6, replace(SPACE, gpus=(128, 256, 512)))
    assert {setup.gpus for setup in every if setup.tp == 1} == {128, 256}


def test_a_change_on_top_of_one_that_suffices_is_not_offered() -> None:
    changes = [set(fit.change.split(" and ")) for fit in what_fits(setup_of(), fits, count=9)]
    assert not any(one < other for one in changes for other in changes)
    more = [fit.change for fit in what_fits(setup_of(gpus=1, dp=1), fits, count=9) if fit.change.endswith(" GPUs")]
    assert len(more) <= 1
