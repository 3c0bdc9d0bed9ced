"""Plans of precisions: what stays in BF16, what may be hoped for, and what comes after each of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from governor.cli.plan.precision import precision
from governor.planner.catalog import catalogue_gpus, gpu_named, model_named, models
from governor.planner.model.precision_facts import LATE_SWITCH_AT
from governor.planner.model.precision_plan import advised, bf16_blocks, late_switch_tokens, precision_plan, recipe
from governor.planner.model.setup import Precision
from governor.planner.model.shape import Experts, Shape
from governor.planner.model.training_stages import STAGES

B200, H100, A100 = (gpu_named(name) for name in ("B200", "H100", "A100"))
LARGE = STAGES[-1]
WIDE = Shape("70B of wide experts", 48, 4096, 64, 8, 128, 16384, 128256, experts=Experts(16, 2, 6912))
NVFP4, MXFP8, FP8, BF16 = Precision.NVFP4, Precision.MXFP8, Precision.FP8, Precision.BF16


@pytest.mark.parametrize("keep_attention", [False, True])
def test_the_parts_of_every_model_add_up_to_its_step(keep_attention: bool) -> None:
    for shape in models().values():
        plan = precision_plan(shape, B200, 4096, keep_attention_projections=keep_attention)
        assert sum(group.flops_share for group in plan.groups) == pytest.approx(1.0, abs=1e-9), shape.name
        assert min(group.flops_share for group in plan.groups) >= 0, shape.name


@pytest.mark.parametrize(
    ("gpu", "order"),
    [
        ("B200", [NVFP4, MXFP8, BF16]),
        ("GB300", [NVFP4, MXFP8, BF16]),
        ("RTX5090", [MXFP8, BF16]),  # SM 12.0: it can multiply in NVFP4, but no library trains on it so.
        ("H100", [FP8, BF16]),
        ("A100", [BF16]),
    ],
)
def test_what_falls_back_on_what(gpu: str, order: list[Precision]) -> None:
    plan = precision_plan(LARGE.shape, gpu_named(gpu), LARGE.seq_len)
    assert [plan.precision, *plan.fallbacks] == order


def test_nvfp4_asked_for_on_hopper_is_fp8_and_says_so() -> None:
    plan = precision_plan(LARGE.shape, H100, LARGE.seq_len, wanted=NVFP4)
    assert plan.precision is FP8
    assert plan.bf16_blocks == ()  # FP8 as DeepSeek-V3 has it keeps none whole.
    assert plan.notes == ("H100-SXM-80GB has no nvfp4 matmuls that training uses: fp8 is the lowest that it has",)


@pytest.mark.parametrize(
    ("layers", "keep_first", "blocks"),
    [
        (48, False, tuple(range(41, 48))),
        (48, True, (0, 1, *range(43, 48))),
        (62, True, (0, 1, *range(55, 62))),  # The 12B run kept one more at the end: 10 of 62.
        (1, True, (0,)),
        (2, True, (1,)),
    ],
)
def test_blocks_kept_are_the_last_ones(layers: int, keep_first: bool, blocks: tuple[int, ...]) -> None:
    assert bf16_blocks(layers, keep_first) == blocks


def test_what_is_never_quantised() -> None:
    for group in precision_plan(LARGE.shape, B200, LARGE.seq_len).groups:
        kept = group.name in ("attention scores and softmax", "LM head", "router", "blocks kept whole")
        assert (group.precision is BF16) == kept, group.name


def test_no_promise_goes_beyond_what_the_shares_allow() -> None:
    for shape in models().values():
        for gpu in catalogue_gpus().values():
            plan = precision_plan(shape, gpu, 8192)
            assert plan.speedup.low <= plan.speedup.high <= max(plan.ceiling, 1), (shape.name, gpu.name)
    # Attention stays in BF16, so the longer the sequence, the less there is to gain.
    dense = model_named("Llama3-8B")
    short, long = (precision_plan(dense, B200, length).speedup for length in (4096, 1 << 18))
    assert long.high < short.high
    assert long.high < 1.2


def test_a_mixture_is_not_said_to_gain_from_nvfp4_and_a_dense_8b_is() -> None:
    assert precision_plan(LARGE.shape, B200, LARGE.seq_len).pays is None
    assert advised(LARGE.shape, B200, LARGE.seq_len) is MXFP8, "measured on experts narrower than these"
    assert advised(model_named("Qwen3-30B-A3B"), B200, 8192) is BF16
    assert precision_plan(WIDE, B200, 8192).pays is None
    assert advised(WIDE, B200, 8192) is MXFP8
    assert advised(WIDE, H100, 8192) is BF16
    eight = model_named("Llama3-8B")
    assert precision_plan(eight, B200, 8192).pays
    assert advised(eight, B200, 8192) is NVFP4
    assert precision_plan(eight, A100, 8192).pays is False


@pytest.mark.parametrize(
    ("name", "seq_len", "tokens", "objection"),
    [
        ("TinyLlama", 2048, None, "hidden 2048 is below 4096"),
        ("Qwen3-30B-A3B", 4096, None, "experts 768 wide gain little"),
        ("Llama3-8B", 1 << 17, None, "attention scores are 70 % of the FLOPs"),
        ("Llama3-8B", 8192, 2048, "a matmul takes about 2048 tokens"),
        ("Mixtral-8x7B", 8192, 8192, "a matmul takes about 2048 tokens"),  # Each of 8 experts sees a quarter.
    ],
)
def test_what_speaks_against_it(name: str, seq_len: int, tokens: int | None, objection: str) -> None:
    plan = precision_plan(model_named(name), B200, seq_len, tokens=tokens)
    assert [one for one in plan.objections if one.startswith(objection)], plan.objections
    assert plan.pays is None
    assert plan.speedup.low <= 1
    assert advised(model_named(name), B200, seq_len, tokens) is BF16


def test_each_precision_is_judged_by_experts_as_narrow_as_it_was_measured_on() -> None:
    """Stage 4's are 2816 wide: DeepSeek-V3's gain in MXFP8 was at 2048, Nemotron's lack of one in NVFP4 at 2688."""
    found = {
        plan.precision: plan.objections
        for gpu, wanted in ((B200, NVFP4), (B200, MXFP8), (H100, FP8))
        for plan in [precision_plan(LARGE.shape, gpu, LARGE.seq_len, wanted=wanted)]
    }
    assert found[MXFP8] == ()
    assert found[NVFP4] == ("experts 2816 wide gain little: 0.88 to 1.04 over MXFP8 was measured at 2688",)
    assert found[FP8] == ("experts 2816 wide gain little: 1.25 was measured at 32768",)
    narrow = Shape("70B of narrow experts", 48, 4096, 64, 8, 128, 16384, 128256, experts=Experts(128, 16, 1024))
    assert precision_plan(narrow, B200, 8192, wanted=MXFP8).objections == (
        "experts 1024 wide gain little: 1.13 to 1.28 was measured at 2048",
    )


def test_nothing_speaks_against_a_large_dense_model() -> None:
    assert precision_plan(model_named("Llama3-70B"), B200, 8192, tokens=8192).objections == ()


def test_the_late_switch_is_six_percent_of_the_compute() -> None:
    """8.2T of 10T tokens; of the rest only the forward pass, a third, is in BF16."""
    assert late_switch_tokens(10e12) == pytest.approx(8.2e12)
    assert pytest.approx(0.06) == (1 - LATE_SWITCH_AT) / 3


def test_the_file_tells_every_engine_and_only_bf16_to_deepspeed() -> None:
    plan = precision_plan(LARGE.shape, B200, LARGE.seq_len, keep_first=True)
    told = recipe(plan, LARGE.tokens, "next.json")
    assert told["deepspeed"] == {"bf16": {"enabled": True}}
    assert told["low_precision"] == ["attention projections", "experts"]
    assert {"attention scores and softmax", "LM head", "router", "embeddings", "norms"} <= set(told["kept"])
    assert "start-in-bf16 2 --num-layers-at-end-in-bf16 5" in told["megatron_lm"]
    assert told["forward_in_bf16_from_tokens"] == 196_800_000_000
    plain = recipe(precision_plan(LARGE.shape, A100, LARGE.seq_len), LARGE.tokens)
    assert (plain["low_precision"], plain["transformer_engine"], plain["megatron_lm"]) == ([], None, "--bf16")
    assert plain["forward_in_bf16_from_tokens"] is None


def run(*args: str) -> Result:
    return CliRunner().invoke(precision, args)


def test_people_read_what_is_advised_and_why(tmp_path: Path) -> None:
    said = run("--recipe", str(tmp_path / "plan.json")).stdout
    assert "nvfp4 is not known to pay: 0.99 to 1.33 x BF16" in said
    assert "advised: mxfp8" in said
    assert "blocks in BF16: 41 to 47" in said
    assert "It has no NVFP4 path" in said
    assert json.loads((tmp_path / "plan.json").read_text())["precision"] == "nvfp4"
    assert "advised: bf16, nothing lower is known to pay here" in run("--gpu", "H100").stdout
    assert "blocks in BF16: 0 to 1, 43 to 47" in run("--keep-first").stdout
    assert "has no matmuls below BF16" in run("--gpu", "A100").stdout


def test_programs_read_that_a_gain_is_not_known() -> None:
    found = json.loads(run("--json").stdout)
    assert (found["pays"], found["advised"], found["precision"], found["fallbacks"]) == (
        None, "mxfp8", "nvfp4", ["mxfp8", "bf16"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--model", "none-such"], "no model named"),
        (["--gpu", "H900"], "no GPU named"),
        (["--recipe", "no/such/place.json"], "can be written"),
    ],
)
def test_a_wrong_word_is_one_line(args: list[str], words: str) -> None:
    found = run(*args)
    assert found.exit_code == 1
    assert words in found.output
