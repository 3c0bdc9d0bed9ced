"""The interval around a predicted speed: what widens it, and that published speeds lie where it says."""

import csv
import math
import statistics
from pathlib import Path

import pytest

from governor.planner.catalog import gpu_named, model_named
from governor.planner.model.predict import GUESSED_SPEED, Z80, Doubts, band_of, predict, spread_of
from governor.planner.model.setup import Framework, Offload, Setup
from governor.planner.table import read

PUBLISHED = Path(__file__).resolve().parents[3] / "benchmarks" / "data" / "published_speeds.csv"
MEGATRON = Setup(
    shape=model_named("Llama3-8B"), gpu=gpu_named("h100"), gpus=8, seq_len=8192, micro_batch=1, grad_accum=4, dp=8,
    zero_stage=1, framework=Framework.MEGATRON,
)  # fmt: skip
DOUBTS = Doubts(always=0.3, framework=0.4, offload=1.2)


def test_doubts_add_in_squares() -> None:
    assert spread_of(MEGATRON, (), DOUBTS) == pytest.approx(0.3)
    elsewhere = MEGATRON.but(framework=Framework.FSDP, zero_stage=3)
    assert spread_of(elsewhere, (), DOUBTS) == pytest.approx(0.5)
    assert spread_of(elsewhere.but(offload=Offload.OPTIMIZER_CPU), (), DOUBTS) == pytest.approx(1.3)
    guessed = ["gpu A100-SXM-80GB", "seq_len 2048", "zero_stage 1"]
    parts = (0.3, GUESSED_SPEED["gpu"], GUESSED_SPEED["seq_len"], 0.03)
    assert spread_of(MEGATRON, guessed, DOUBTS) == pytest.approx(math.hypot(*parts))


def test_a_framework_adds_the_doubt_that_its_left_out_rows_have() -> None:
    def width(framework: Framework, zero: int = 3) -> float:
        return spread_of(MEGATRON.but(framework=framework, zero_stage=zero))

    assert spread_of(MEGATRON) == width(Framework.XLA) < width(Framework.MEGATRON_DEEPSPEED, 1)
    assert width(Framework.MEGATRON_DEEPSPEED, 1) < width(Framework.FSDP2) < width(Framework.FSDP)
    # Of AMD's GPUs hardly anything is published.
    assert spread_of(MEGATRON.but(gpu=gpu_named("mi355x"))) > 3 * spread_of(MEGATRON)


def test_a_guessed_micro_batch_says_little_where_its_step_is_stated_and_kernels_are_full() -> None:
    eager = MEGATRON.but(framework=Framework.DEEPSPEED)
    assert spread_of(MEGATRON, ["micro_bs 1"]) < 1.1 * spread_of(MEGATRON)
    assert spread_of(MEGATRON, ["micro_bs 1", "grad_accum 8"]) > 3 * spread_of(MEGATRON)
    assert spread_of(eager, ["micro_bs 1"]) > 1.5 * spread_of(eager)


def test_a_guess_widens_the_interval_by_what_it_decides() -> None:
    def factor(*guessed: str) -> float:
        band = band_of(1000.0, MEGATRON, guessed)
        return band.high / band.mid

    assert factor() < factor("vocab 51200") < factor("precision bf16") < factor("framework deepspeed")
    assert factor("framework deepspeed") < factor("gpu A100-SXM-80GB") < factor("params_b 7.0")
    # Nothing is known of the model: ten times as fast, or a tenth.
    assert factor("params_b 7.0", "hidden 4096", "heads 32", "layers 32", "vocab 51200") > 10


def test_a_band_is_as_wide_upwards_as_downwards_in_ratio() -> None:
    band = band_of(1000.0, MEGATRON, (), DOUBTS)
    assert band.mid / band.low == pytest.approx(band.high / band.mid) == pytest.approx(math.exp(0.3 * Z80))


def test_published_speeds_are_met_and_four_fifths_of_them_lie_within_their_bands() -> None:
    # The package's own rows (torchtitan, fms-fsdp, NeMo 24.12); the larger tables are held against by bench-planner.
    with PUBLISHED.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    errors, inside = [], []
    for row in rows:
        found = read(row)
        band = predict(found.setup, found.assumed).tokens_per_gpu_s
        measured = float(row["tok_s_gpu"])
        errors.append(abs(band.mid / measured - 1))
        inside.append(band.low <= measured <= band.high)
    assert statistics.median(errors) <= 0.10
    assert statistics.mean(inside) >= 0.8
