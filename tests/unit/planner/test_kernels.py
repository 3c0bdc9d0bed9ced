"""`--attention`: the kernels that trainers name are inputs of a plan, a comparison, a search and a hint."""

import pytest

from governor.planner.estimate import Estimate, estimate
from governor.planner.keys import PlanUnreadableError, from_words
from governor.planner.model.candidates import Limits
from governor.planner.model.memory import memory_of
from governor.planner.model.setup import Attention, ImpossibleSetupError, Kernel
from governor.planner.search import searched, wanted
from governor.planner.what_fits import would_fit
from governor.planner.words import ways

LONG = {"model": "llama3-8b", "gpu": "h100", "gpus": "8", "seq-len": "32768", "framework": "fsdp2"}


def planned(attention: str, **values: str) -> Estimate:
    return estimate(LONG | {"attention": attention} | values)


def speed(attention: str, **values: str) -> float:
    return planned(attention, **values).tokens_per_s.mid


def test_a_kernel_that_knows_the_gpus_units_is_faster_and_eager_is_slowest() -> None:
    assert speed("fa3") == speed("fa4") == speed("cudnn") > 1.3 * speed("fa2")
    assert speed("fa2") == speed("sdpa") == speed("flash") > speed("flex") > speed("eager")
    assert ways(planned("fa3").setup).endswith("attention fa3")


def test_what_a_trainer_calls_eager_keeps_the_scores() -> None:
    eager, fused = (planned(word, **{"micro-batch": "1"}).setup for word in ("eager", "sdpa"))
    assert eager.attention is Attention.UNFUSED
    assert memory_of(eager).reserved > memory_of(fused.but(checkpointing=eager.checkpointing)).reserved


@pytest.mark.parametrize(
    ("gpu", "attention"),
    [("a100", "fa3"), ("a100", "fa4"), ("b200", "fa3"), ("mi300x", "cudnn"), ("mi300x", "fa4"), ("l40s", "fa3")],
)
def test_a_kernel_that_the_gpu_does_not_have_is_one_line(gpu: str, attention: str) -> None:
    with pytest.raises(ImpossibleSetupError, match=f"attention {attention}: .* has no such kernel; it runs fa2"):
        planned(attention, gpu=gpu)


def test_an_unknown_word_names_the_known_ones() -> None:
    with pytest.raises(PlanUnreadableError, match="attention 'fa9': there are flash, fa2, fa3, fa4, cudnn, flex"):
        planned("fa9")


def test_a_comparison_takes_the_kernel_as_a_word() -> None:
    stated = from_words("8xh100 llama3-8b fsdp2 fa3")
    assert (stated["attention"], stated["framework"]) == ("fa3", "fsdp2")


def test_a_search_tries_the_gpus_that_have_the_kernel() -> None:
    values = {"model": "llama3-8b", "gpu": "a100,h100", "gpus": "8", "framework": "fsdp2", "attention": "fa3"}
    found = searched(wanted(values, Limits()), 1e9).found
    assert {(one.setup.gpu.arch, one.setup.kernel) for one in found} == {("Hopper", Kernel.FLASH_3)}


@pytest.mark.parametrize(
    ("key", "word", "why"),
    [
        ("attention", "fa3", "attention fa3: A100-SXM-80GB has no such kernel; it runs fa2, cudnn, flex"),
        ("precision", "fp8", "A100-SXM-80GB has no fp8 matmuls, only bf16, fp16"),
    ],
)
def test_a_search_that_can_try_nothing_says_why_and_not_that_nothing_fits(key: str, word: str, why: str) -> None:
    result = searched(wanted({"model": "llama3-8b", "gpu": "a100", key: word}, Limits()), 1e9)
    assert (result.tried, result.choice.reasons) == (0, (why,))


def test_scores_that_do_not_fit_have_a_fused_kernel_in_their_hint() -> None:
    eager = planned("eager", framework="deepspeed", **{"micro-batch": "1"}).setup
    offered = would_fit("it", eager).partition("; it fits with ")[2]
    assert offered.startswith("fused-loss 1 and attention flash, or with ")
