"""A set-up as DeepSpeed's JSON: what the numbers in it are, and what is refused. The keys: tests/drills/planner."""

from __future__ import annotations

import pytest

from governor.planner.catalog import gpu_named
from governor.planner.model.deepspeed_config import config_of
from governor.planner.model.setup import (
    Attention,
    Checkpointing,
    Framework,
    ImpossibleSetupError,
    Offload,
    Precision,
    Setup,
)
from governor.planner.model.shape import Experts, Shape

DENSE = Shape("dense", 16, 2048, 16, 8, 128, 5632, 50304)
MIXTURE = Shape("mixture", 16, 2048, 16, 8, 128, 5632, 50304, experts=Experts(8, 2, 2816))
SETUP = Setup(
    DENSE, gpu_named("h100"), gpus=64, seq_len=4096, micro_batch=2, grad_accum=4, dp=64, zero_stage=3
)  # 2,097,152 tokens a step


def test_batch_sizes_agree_as_deepspeed_asserts() -> None:
    config = config_of(SETUP.but(gpus=256, tp=4), 1e9).config
    assert config["train_batch_size"] == 2 * 4 * 64, "tensor-parallel ranks share a batch"
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_accumulation_steps"] == 4


def test_the_schedule_covers_the_tokens_and_warms_up_for_at_most_a_twentieth() -> None:
    short = config_of(SETUP, 2_097_152 * 1000 + 1).config["scheduler"]["params"]
    assert (short["total_num_steps"], short["warmup_num_steps"]) == (1001, 51)
    assert config_of(SETUP, 2e12).config["scheduler"]["params"]["warmup_num_steps"] == 2000


@pytest.mark.parametrize(("layers", "rate"), [(16, 4e-4), (100, 3e-4), (1000, 1.5e-4), (10_000, 8e-5)])
def test_larger_models_learn_slower(layers: int, rate: float) -> None:
    shape = Shape("of any size", layers, 2048, 16, 8, 128, 5632, 50304)
    assert config_of(SETUP.but(shape=shape), 1e9).config["optimizer"]["params"]["lr"] == rate


def test_buckets_of_zero_3_follow_the_hidden_size() -> None:
    zero = config_of(SETUP, 1e9).config["zero_optimization"]
    assert zero["reduce_bucket_size"] == 2048 * 2048
    assert zero["stage3_prefetch_bucket_size"] == 3_774_873
    assert zero["stage3_param_persistence_threshold"] == 20_480
    assert "zero_hpz_partition_size" not in zero


def test_states_sharded_among_fewer_ranks_are_hpz() -> None:
    assert config_of(SETUP.but(shard_ranks=8), 1e9).config["zero_optimization"]["zero_hpz_partition_size"] == 8


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8])
def test_what_deepspeed_cannot_compute_in_is_bf16_and_said(precision: Precision) -> None:
    made = config_of(SETUP.but(precision=precision), 1e9)
    assert made.config["bf16"] == {"enabled": True}
    assert any("DeepSpeed has no path" in note for note in made.notes) is (precision is Precision.FP8)


def test_fp16_scales_its_loss_dynamically() -> None:
    config = config_of(SETUP.but(precision=Precision.FP16), 1e9).config
    assert (config["fp16"]["loss_scale"], config["communication_data_type"]) == (0, "fp16")
    assert "bf16" not in config


@pytest.mark.parametrize(
    ("offload", "moved"),
    [
        (Offload.NONE, {}),
        (Offload.OPTIMIZER_CPU, {"offload_optimizer": "cpu"}),
        (Offload.PARAM_OPTIMIZER_CPU, {"offload_optimizer": "cpu", "offload_param": "cpu"}),
        (Offload.OPTIMIZER_NVME, {"offload_optimizer": "nvme"}),
        (Offload.PARAM_OPTIMIZER_NVME, {"offload_optimizer": "nvme", "offload_param": "nvme"}),
        (Offload.OPTIMIZER_STREAMED, {}),  # DeepCompile's, in a section of its own
    ],
)
def test_offload_says_what_goes_where(offload: Offload, moved: dict[str, str]) -> None:
    config = config_of(SETUP.but(offload=offload), 1e9, nvme_path="/scratch").config
    sections = {key: value for key, value in config["zero_optimization"].items() if key.startswith("offload")}
    assert {key: section["device"] for key, section in sections.items()} == moved
    assert all((section.get("nvme_path") == "/scratch") == offload.is_nvme for section in sections.values())
    assert ("aio" in config) == offload.is_nvme
    assert ("compile" in config) == (offload is Offload.OPTIMIZER_STREAMED)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attention": Attention.SPARSE}, "dsa: DeepSpeed has no sparse attention"),
        ({"fused_loss": True}, "logits and loss in chunks"),
        ({"adapters": True}, "LoRA: only the adapters"),
        ({"framework": Framework.DEEPSPEED_COMPILED}, "engine.compile()"),
        ({"cp": 2, "dp": 32}, "2 ranks of context parallelism"),
    ],
)
def test_what_a_json_cannot_say_is_said(changes: dict[str, object], said: str) -> None:
    assert not any(said in note for note in config_of(SETUP, 1e9).notes)
    assert any(said in note for note in config_of(SETUP.but(**changes), 1e9).notes)


def test_states_in_bf16_have_their_keys() -> None:
    assert config_of(SETUP.but(bf16_states=True), 1e9).config["bf16"] == {
        "enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True,
    }  # fmt: skip


def test_checkpointing_has_its_section_and_the_model_is_told() -> None:
    full = config_of(SETUP.but(checkpointing=Checkpointing.FULL), 1e9)
    assert full.config["activation_checkpointing"]["number_checkpoints"] == 16
    assert any("recomputes every layer" in note for note in full.notes)
    assert "activation_checkpointing" not in config_of(SETUP, 1e9).config


def test_a_mixture_names_the_ranks_of_its_experts() -> None:
    made = config_of(SETUP.but(shape=MIXTURE, zero_stage=2, ep=8), 1e9)
    assert any("MoE(num_experts=8, k=2, ep_size=8)" in note for note in made.notes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"framework": Framework.FSDP2}, "fsdp2 takes no DeepSpeed config; of the frameworks deepspeed, "),
        ({"shape": MIXTURE, "ep": 8}, "experts over 8 ranks take ZeRO 0 to 2; or ep 1"),
        ({"zero_stage": 0, "offload": Offload.OPTIMIZER_CPU}, "needs ZeRO 1, 2 or 3, not 0"),
        ({"zero_stage": 1, "shard_ranks": 8}, "shard-ranks 8 is hpZ to DeepSpeed, which needs ZeRO 3, not 1"),
        ({"bf16_states": True, "zero_stage": 0}, "states in bf16 need ZeRO 1, 2 or 3, and bf16"),
        ({"zero_stage": 2, "offload": Offload.OPTIMIZER_NVME}, "needs ZeRO 3, not 2; optimizer_cpu works with it"),
    ],
)
def test_what_deepspeed_does_not_train_is_refused_with_what_it_does(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ImpossibleSetupError, match=says):
        config_of(SETUP.but(**changes), 1e9)
