"""A plan as people state it: what is read, what is chosen or assumed and said so, and one line for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from governor.planner.catalog import NoPriceError, UnknownNameError
from governor.planner.keys import PlanUnreadableError, checked, from_words, resolved
from governor.planner.model.candidates import Space
from governor.planner.model.setup import Checkpointing, Framework, ImpossibleSetupError, Setup
from governor.planner.model.shape import ImpossibleShapeError
from governor.planner.request import RunPlan, asked, settle

# Every value but the one in question.
PLAN = {"model": "llama3-8b", "gpu": "h100", "gpus": "8", "seq-len": "4096", "batch-tokens": "2M"}


def memory_frac(setup: Setup) -> float:
    """Full checkpointing or ZeRO-3 alone do not suffice: both do, and the micro-batch fills what is left."""
    kept = {Checkpointing.NONE: 1.0, Checkpointing.SELECTIVE: 0.8, Checkpointing.FULL: 0.4}[setup.checkpointing]
    return kept + (0.0 if setup.zero_stage == 3 else 0.7) + 0.1 * setup.micro_batch


def tokens_per_gpu_s(setup: Setup) -> float:
    return 1000.0 * setup.micro_batch / (1 + (setup.checkpointing is Checkpointing.FULL))


def plan(**values: str) -> RunPlan:
    stated = {**PLAN, **{key.replace("_", "-"): value for key, value in values.items()}}
    return settle(asked(stated), memory_frac, tokens_per_gpu_s)


def test_what_is_left_open_is_the_fastest_that_fits_with_room_and_is_said() -> None:
    made = plan()
    assert (made.setup.zero_stage, made.setup.checkpointing, made.setup.micro_batch) == (3, Checkpointing.FULL, 4)
    assert made.chosen == ("zero 3", "checkpointing full", "micro-batch 4")
    assert made.assumed == ()
    assert made.setup.tokens_per_step == pytest.approx(2e6, rel=0.05)


def test_what_is_stated_is_kept_even_where_it_does_not_fit() -> None:
    made = plan(zero="1", checkpointing="none", micro_batch="2")
    assert (made.setup.zero_stage, made.setup.checkpointing, made.setup.micro_batch) == (1, Checkpointing.NONE, 2)
    assert made.chosen == ()


def test_nothing_but_a_model_assumes_the_rest_and_says_so() -> None:
    made = settle(asked({"model": "llama3-8b"}), memory_frac, tokens_per_gpu_s)
    assert made.assumed == ("gpu H100-SXM-80GB", "gpus 8", "seq-len 4096", "batch-tokens 2M")


def test_a_stage_brings_its_tokens_and_length_and_gives_way_to_what_is_stated() -> None:
    stage = asked({"model": "stage3"})
    assert (stage.tokens, stage.seq_len, stage.batch_tokens) == (100e9, 8192, 2**22)
    assert asked({"model": "stage3", "tokens": "5B"}).tokens == 5e9


def test_sizes_over_a_model_change_those_alone() -> None:
    shape = asked({**PLAN, "shape": "layers=16,vocab=32000"}).shape
    known = asked(PLAN).shape
    assert (shape.layers, shape.vocab, shape.hidden, shape.ffn) == (16, 32000, known.hidden, known.ffn)
    assert shape.params < 0.6 * known.params


def test_fewer_layers_than_a_model_has_dense_ones_are_all_dense() -> None:
    # DeepSeek-V3 begins with three dense layers.
    two, three = (asked({**PLAN, "model": "deepseek-v3", "shape": f"layers={count}"}).shape for count in (2, 3))
    assert (two.moe_layers, two.dense_layers, three.moe_layers) == (0, 2, 0)
    assert 0 < two.params < three.params


def test_megatron_spaces_hold_tensor_and_pipeline_parallelism_and_fsdp_none() -> None:
    def space(framework: str) -> Space:
        return asked({**PLAN, "framework": framework, "gpus": "64"}).space

    assert space("megatron").tps == (1, 2, 4, 8)
    assert (space("fsdp2").tps, space("fsdp2").zero_stages) == ((1,), (3,))
    assert space("ddp").zero_stages == (0,)


def test_prices_are_of_one_gpu_of_a_node_or_of_a_seller() -> None:
    assert asked({**PLAN, "price": "2.5"}).price == asked({**PLAN, "node-price": "20"}).price
    # Twelve GPUs are two machines of eight: $40 an hour, whoever uses the other four.
    assert asked({**PLAN, "gpus": "12", "node-price": "20"}).price == asked({**PLAN, "price": str(40 / 12)}).price
    listed = asked({**PLAN, "provider": "lambda"}).price
    cheapest = asked({**PLAN, "provider": "cheapest"}).price
    assert listed is not None
    assert cheapest is not None
    assert 0 < cheapest.gpu_hour_usd <= listed.gpu_hour_usd
    assert asked(PLAN).price is None


def test_a_measured_speed_may_be_stated_in_steps() -> None:
    assert asked({**PLAN, "steps-per-hour": "3600"}).measured_tokens_per_s == pytest.approx(2e6)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"shape": "heads=30"}, "30 heads do not divide hidden 4096: 8 or 16 or 32 do; or state head_dim"),
        ({"shape": "kv_heads=5"}, "kv_heads must divide heads: "),
        ({"shape": "layres=3"}, "layres=3"),
        ({"model": "nemotron-h-56b", "shape": "layers=8"}, "has layers of several kinds"),
        ({"shape": "heads=999999999"}, "at most 10,000,000"),
        ({"shape": "layers=0"}, "layers must be at least 1"),
        ({"tp": "64"}, "tp 64 does not divide the 32 heads; possible: 1, 2, 4, 8"),
        ({"tp": "16"}, "tp 16 x pp 1 x cp 1 are 16 ranks, which do not divide 8 gpus"),
        ({"pp": "64", "gpus": "64", "framework": "megatron", "zero": "1"}, "the model has 32"),
        ({"tp": "3", "gpus": "6"}, "tp 3 does not divide the 32 heads"),
        ({"gpu": "h1000"}, "no GPU named 'h1000'"),
        ({"model": "lama3-8b"}, "near: "),
        ({"model": "bloom"}, "no model named 'bloom' in the catalogue; else give its config.json, or its shape"),
        ({"precision": "fp4"}, "there are bf16, fp16, fp8, mxfp8, nvfp4"),
        ({"precision": "nvfp4"}, "has no nvfp4 matmuls, only bf16, fp16, fp8"),
        ({"framework": "torch"}, "there are megatron"),
        ({"zero": "4"}, "from 0 to 3"),
        ({"gpus": "0"}, "from 1 to 1000000"),
        ({"gpus": "eight"}, "must be a whole number"),
        ({"tokens": "-1"}, "tokens"),
        ({"tokens": "many"}, "tokens"),
        ({"price": "55.04"}, "for a whole machine write node-price 55.04"),
        ({"price": "free"}, 'price: "free" is not an amount in dollars'),
        ({"price": "2,5"}, 'price: "2,5" is not an amount in dollars; write'),
        ({"provider": "nobody"}, "no on-demand price of H100-SXM-80GB at nobody; listed per GPU-hour: "),
        ({"provider": "lambda", "price-kind": "barter"}, "there are on-demand, spot"),
        ({"grad-accum": "4"}, "goes with micro-batch"),
        ({"batch-tokens": "4096", "micro-batch": "4"}, "state that many, or a smaller micro-batch, or fewer gpus"),
        ({"save-every": "often"}, "save-every"),
        ({"save-every": "0s"}, "save-every '0s': must be a second at least"),
        ({"zero": "1", "offload": "optimizer_nvme"}, "zero '1': offload optimizer_nvme needs 3"),
        ({"zero": "3", "framework": "ddp"}, "zero '3': ddp replicates what ZeRO shards"),
        ({"shard-ranks": "3"}, "shard-ranks '3': must divide the 8 gpus: "),
        ({"vp": "3"}, "vp '3': cuts the stages of a pipeline: state pp"),
        ({"vp": "40", "pp": "2", "framework": "megatron"}, "vp '40': the model's 32 layers make no 40 chunks"),
        ({"vintage": "24"}, "must be a year from 2018 on"),
        ({"shape": "experts=8,moe_ffn=0"}, "moe_ffn must be at least 1"),
        ({"data-wait": "1.5"}, "at most 0.99"),
    ],
)
def test_what_cannot_be_is_one_line_that_says_what_could(values: dict[str, str], words: str) -> None:
    kinds = (PlanUnreadableError, ImpossibleSetupError, ImpossibleShapeError, UnknownNameError, NoPriceError)
    with pytest.raises(kinds) as caught:
        settle(asked({**PLAN, **values}), memory_frac, tokens_per_gpu_s)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_lies_on_drives_is_sharded_as_deepspeed_wants_it() -> None:
    assert asked({**PLAN, "offload": "optimizer_nvme"}).space.zero_stages == (3,)
    assert asked({**PLAN, "offload": "optimizer_cpu"}).space.zero_stages == (1, 2, 3)


def test_a_sequence_of_2_to_the_20_tokens_can_be_planned() -> None:
    assert plan(seq_len="1048576", batch_tokens="16M").setup.seq_len == 2**20


def test_a_gpu_that_nobody_lists_says_to_state_a_price() -> None:
    with pytest.raises(NoPriceError, match=r"no provider is listed with .*: state a price"):
        asked({**PLAN, "gpu": "V100-SXM2-32GB", "provider": "cheapest"})


def test_a_file_states_a_plan_and_what_stands_beside_it_counts_more(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257}'
    )
    path = tmp_path / "mine.toml"
    path.write_text('[plan]\nconfig = "config.json"\ngpus = 4\ngpu = "a100"\nzero = 3\n[plan.shape]\nvocab = 50304\n')
    made = asked({"model": str(path), "gpus": "2"})
    assert (made.name, made.gpus, made.gpu.name, made.shape.vocab) == ("mine", 2, "A100-SXM-80GB", 50304)
    assert made.given["zero"] == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tokans = 8", "no such key: tokans; did you mean tokens?"),
        ("gpus = [8, 16]", "gpus must be one value"),
        ("gpus = ", "mine.toml:1: "),
        ("model = 'llama3-8b'" + " " * 100_001, "too large for a plan"),
    ],
)
def test_a_file_that_is_no_plan_is_one_line_with_its_name(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(PlanUnreadableError) as caught:
        resolved({"model": str(path)})
    assert words in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_words_of_a_comparison() -> None:
    assert from_words("8xh100 zero-3 llama3-8b price=2.5") == {
        "name": "8xh100 zero-3 llama3-8b price=2.5", "gpus": "8", "gpu": "h100", "zero": "3", "model": "llama3-8b",
        "price": "2.5",
    }  # fmt: skip
    assert from_words("2×a100 FSDP")["framework"] == "fsdp"
    assert from_words("1xh100 tuned")["framework"] == Framework.DEEPSPEED_COMPILED
    assert checked({"seq_len": 4096}, "here") == {"seq-len": "4096"}
