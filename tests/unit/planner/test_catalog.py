"""The planner's tables: what a name stands for, and what a row of somebody's table is read as."""

import pytest

from governor.planner.catalog import UnknownNameError, catalogue_gpus, gpu_named, model_named, models, shape_of
from governor.planner.model.setup import Checkpointing, Framework, ImpossibleSetupError, Precision
from governor.planner.model.shape import ImpossibleShapeError
from governor.planner.recognised import params_in_name
from governor.planner.table import UnreadableRowError, read

LLAMA = {
    "model": "Llama3-8B",
    "gpu": "H100-SXM-80GB",
    "gpus": "8",
    "seq_len": "8192",
    "framework": "torchtitan (FSDP2)",
}


def test_the_matrices_of_each_architecture_sum_to_its_published_parameters() -> None:
    for shape in models().values():
        if shape.stated_params is None:
            continue
        summed = shape.dense_params + shape.routed_params + shape.embedding_params
        # Names such as "1.7B" are rounded by up to 4 %.
        assert summed == pytest.approx(shape.stated_params, rel=0.04), shape.name


def test_the_active_parameters_of_mixtures_are_the_published_ones() -> None:
    # DeepSeek-V3 report: 37B activated of 671B; Qwen3-30B-A3B: 3.3B; both count the embedding once.
    assert model_named("DeepSeek-V3").matmul_params == pytest.approx(37e9, rel=0.03)
    assert model_named("qwen3-30b-a3b").matmul_params == pytest.approx(3.35e9 - 151936 * 2048, rel=0.03)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("a100-40", "A100-SXM-40GB"),
        ("A100 80GB", "A100-SXM-80GB"),
        ("NVIDIA H100 80GB", "H100-SXM-80GB"),
        ("h100 pcie", "H100-PCIe-80GB"),
        ("4090", "RTX4090"),
        ("AMD MI300X", "MI300X"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"),  # as nvidia-smi writes them
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("H100 SXM5", "H100-SXM-80GB"),
        ("B200-SXM-180GB", "B200"),
        ("H20", "H20-96GB"),  # a seventh of an H200
        ("NVIDIA B200", "B200"),  # and no GB200
    ],
)
def test_a_gpu_is_known_by_the_words_of_its_name(said: str, meant: str) -> None:
    assert gpu_named(said).name == meant


def test_a_gpu_that_does_not_exist_is_answered_with_those_of_like_names() -> None:
    with pytest.raises(UnknownNameError, match="near: H800-SXM-80GB, H200-SXM-141GB, H100-SXM-80GB"):
        gpu_named("h900")


def test_a_short_name_is_enough_and_a_wrong_one_is_told_what_is_near() -> None:
    assert gpu_named("h100").name == "H100-SXM-80GB"
    assert model_named("llama3 8b") is models()["Llama3-8B"]
    assert model_named("meta-llama/Llama-3.1-8B") is models()["Llama3-8B"]
    with pytest.raises(UnknownNameError, match=r"'H100 NVL' in the catalogue; near: "):
        gpu_named("H100 NVL")  # 94 GB, and slower
    with pytest.raises(UnknownNameError, match=r"'bloom' in the catalogue$"):
        model_named("bloom")
    with pytest.raises(UnknownNameError, match=r"near: .*Llama3-8B"):
        model_named("Llama3-9B")
    assert all(gpu.reached_bf16 <= gpu.peak_bf16 for gpu in catalogue_gpus().values())


def test_a_row_says_what_was_assumed_for_its_blanks() -> None:
    row = read(LLAMA)
    assert (row.setup.framework, row.setup.dp, row.setup.zero_stage) == (Framework.FSDP2, 8, 3)
    assert row.setup.checkpointing is Checkpointing.NONE
    assert "act_ckpt none" in row.assumed
    assert "seq_len" not in " ".join(row.assumed)


def test_a_model_of_which_nothing_is_known_is_guessed_and_said() -> None:
    row = read({"model": "(example, see page)", "framework": "DeepSpeed"})
    assert row.setup.shape.params == pytest.approx(7e9, rel=0.1)
    assert {"params_b 7.0", "gpus 8", "seq_len 2048"} <= set(row.assumed)
    # Of a family that is known, what its members share.
    assert read({"model": "Llama2-1B"}).setup.shape.vocab == 32000


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"gpus": "eight"}, UnreadableRowError, "gpus = 'eight' is no number"),
        ({"gpu": "H900"}, UnknownNameError, "H900"),
        (
            {"model": "x", "hidden": "4096", "heads": "32", "kv_heads": "5", "layers": "2"},
            ImpossibleShapeError,
            "divide",
        ),
        ({"gpus": "48", "tp": "3"}, ImpossibleSetupError, "possible: 1, 2, 4, 8, 16, 32"),
    ],
)
def test_a_row_that_cannot_be_is_one_line(changes: dict[str, str], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read(LLAMA | changes)


def test_a_precision_that_the_planner_does_not_know_is_assumed_aloud() -> None:
    assert "precision bf16" not in read({**LLAMA, "precision": "bf16-mixed"}).assumed
    for stated in ("fp32", "int8", ""):
        assert "precision bf16" in read({**LLAMA, "precision": stated}).assumed


def test_a_precision_that_the_gpu_lacks_is_read_as_the_next_that_it_has() -> None:
    row = read(LLAMA | {"precision": "nvfp4"})
    assert (row.setup.precision, "precision fp8" in row.assumed) == (Precision.FP8, True)
    assert read(LLAMA | {"precision": "fp8", "gpu": "a100"}).setup.precision is Precision.BF16


@pytest.mark.parametrize(
    ("name", "billions"), [("MPT-760m", 0.76), ("Mystery-13B", 13), ("GPT 0.1T", 100), ("X", None)]
)
def test_a_name_speaks_of_its_parameters(name: str, billions: float | None) -> None:
    assert params_in_name(name) == billions


def test_heads_that_share_unevenly_are_told_the_divisors() -> None:
    with pytest.raises(ImpossibleShapeError, match="4 or 8"):
        shape_of({"model": "m", "layers": "2", "hidden": "64", "heads": "8", "kv_heads": "5", "vocab": "100"})
