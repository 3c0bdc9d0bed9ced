"""Megatron-LM's lines of several years, and what it leaves out of them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from governor.wire import formats

HEAD = "iteration {step:8d}/   1000 | consumed samples: {samples:12d} | elapsed time per iteration (ms): 412.5 |"
TAIL = " number of skipped iterations: {skipped:3d} | number of nan iterations: {nans:3d} |"


def line(step: int, loss: str | None = "2.5E+00", *, norm: str = "1.0", skipped: int = 0, nans: int = 0) -> str:
    said = f" lm loss: {loss} |" if loss is not None else ""
    head = HEAD.format(step=step, samples=step * 64)
    return f" {head}{said} loss scale: 1.0 | grad norm: {norm} |" + TAIL.format(skipped=skipped, nans=nans)


def read(*lines: str, **passed: int) -> list[dict[str, Any]]:
    log = formats.named("megatron", **passed)
    found = [log.record(text) for text in lines]
    return [record for record in found if isinstance(record, dict)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (  # Megatron-LM of 2025, with the date of its line.
            " [2025-12-19 10:49:15.123456] iteration      100/    1000 | consumed samples:        12800 | elapsed time "
            "per iteration (ms): 412.5 | learning rate: 9.984820E-06 | global batch size:   128 | lm loss: "
            "6.548988E-01 | load_balancing_loss: 1.000000E+00 | loss scale: 1.0 | grad norm: 0.061 | num zeros: 4.0 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |",
            {"step": 100, "loss": 0.6548988, "step_ms": 412.5, "lr": 9.98482e-06, "grad_norm": 0.061,
             "asctime": "2025-12-19 10:49:15.123456"},
        ),
        (  # Primus: this step's and the mean's.
            "[20251202 09:12:08][rank-7/8][INFO ] [--------trainer.py:2560] : iteration 126/ 5000 | consumed samples: "
            "16128 | elapsed time per iteration (ms): 13372.8/13364.7 | hip mem usage/free/total/usage_ratio: "
            "153.81GB/102.17GB/255.98GB/60.09% | throughput per GPU (TFLOP/s/GPU): 567.6/568.0 | tokens per GPU "
            "(tokens/s/GPU): 9801.4/9807.3 | learning rate: 9.984820E-06 | global batch size: 128 | lm loss: "
            "6.548988E-03 | loss scale: 1.0 | grad norm: 0.061 | number of skipped iterations: 0 | number of nan "
            "iterations: 0 |",
            {"step": 126, "loss": 0.006548988, "step_ms": 13372.8, "grad_norm": 0.061,
             "asctime": "2025-12-02 09:12:08"},
        ),
        (  # Megatron-DeepSpeed, under torchrun.
            "[default3]: iteration       10/ 3125000 | consumed samples:          960 | consumed tokens:      1966080 "
            "| elapsed time per iteration (s): 7.2310 | learning rate: 4.438E-07 | global batch size:    96 | lm loss: "
            "1.010967E+01 | loss scale: 4096.0 | grad norm: 178.553 | number of skipped iterations:   0 | number of "
            "nan iterations:   0 | samples per second: 13.276 | TFLOPs: 101.54 |",
            {"step": 10, "loss": 10.10967, "step_s": 7.231, "tokens_total": 1966080, "loss_scale": 4096.0},
        ),
        (  # Megatron-LM of 2019, GLM: no colon.
            " iteration       50/  200000 | elapsed time per iteration (ms): 1234.5 | learning rate 1.500E-04 | lm "
            "loss 8.238016E+00 | loss scale 16384.0 |",
            {"step": 50, "loss": 8.238016, "step_ms": 1234.5, "lr": 0.00015, "loss_scale": 16384.0},
        ),
        (  # GPT-NeoX.
            " samples/sec: 20.100 | iteration       20/   32000 | elapsed time per iteration (ms): 3184.1 | learning "
            "rate: 1.200E-05 | approx flops per GPU: 51.2TFLOPS | lm_loss: 1.000000E+01 | loss scale: 4096.0 | number "
            "number of skipped iterations:   0 | number of nan iterations:   0 |",
            {"step": 20, "loss": 10.0, "step_ms": 3184.1, "lr": 1.2e-05},
        ),
    ],
)  # fmt: skip
def test_versions(text: str, wanted: dict[str, Any]) -> None:
    (record,) = read(text)
    assert {name: record.get(name) for name in wanted} == wanted


def test_tokens_are_samples_times_the_sequence_length_that_the_log_says() -> None:
    records = read("  seq_length ...................................... 4096", line(10), line(20))
    assert [record["tokens_total"] for record in records] == [10 * 64 * 4096, 20 * 64 * 4096]


def test_the_sequence_length_that_is_passed_is_believed_before_the_logs() -> None:
    (record,) = read("  seq_length .... 4096", line(10), sequence_length=100)
    assert record["tokens_total"] == 10 * 64 * 100


def test_megatron_bridge_prints_its_configuration_as_yaml() -> None:
    (record,) = read("  seq_length: 8192", line(1))
    assert record["tokens_total"] == 64 * 8192


def test_what_is_missing_is_named_and_nothing_is_guessed() -> None:
    log = formats.named("megatron")
    record = log.record(line(1))
    assert isinstance(record, dict)
    assert not {"tokens_total", "step_tokens", "samples_total"} & record.keys()
    assert "sequence_length" in (log.missing() or "")


def test_a_loss_that_is_left_out_beside_a_broken_norm_is_nan() -> None:
    records = read(line(1), line(2, None, norm="nan"))
    assert math.isnan(records[1]["loss"])


def test_a_loss_that_is_left_out_beside_a_finite_norm_is_due() -> None:
    """It may have been exactly 0, or below."""
    records = read(line(1), line(2, None))
    assert records[1]["loss"] is None


def test_fp16_leaves_the_loss_of_a_skipped_update_out() -> None:
    records = read(line(1), line(2, None, skipped=1), line(12, None, skipped=10), line(22, "2.4E+00", skipped=2))
    assert [record.get("loss", "-") for record in records] == [2.5, "-", "-", 2.4]
    assert [record.get("loss_expected") for record in records] == [None, False, False, None]
    assert [record["skipped_steps"] for record in records] == [0, 1, 11, 13]


def test_some_of_an_intervals_updates_skipped_leave_a_loss_that_is_due() -> None:
    assert read(line(10), line(20, None, skipped=3, norm="nan"))[1]["loss"] != 0.0
    assert math.isnan(read(line(10), line(20, None, skipped=3, norm="nan"))[1]["loss"])


def test_nan_iterations_are_a_loss_that_is_not_a_number() -> None:
    records = read(line(1), line(2, None, skipped=1, nans=1), line(3, "2.4E+00", nans=1))
    assert all(math.isnan(record["loss"]) for record in records[1:])


@pytest.mark.parametrize("loss", ["nan", "NAN", "inf"])
def test_versions_that_print_a_broken_loss(loss: str) -> None:
    (record,) = read(line(1, loss))
    assert not math.isfinite(record["loss"])


def test_evaluations() -> None:
    records = read(
        "-----------------------------------------------------------------------------------------------",
        " validation loss at iteration 100 | lm loss value: 2.300000E+00 | lm loss PPL: 9.974182E+00 | ",
        " validation loss at iteration 200 on validation set | lm loss value: 2.2E+00 | lm loss PPL: 9.0E+00 | ",
        " validation loss at the end of training for val data | lm loss value: 2.1E+00 | lm loss PPL: 8.0E+00 | ",
    )
    assert records == [
        {"val_loss": 2.3, "step": 100},
        {"val_loss": 2.2, "step": 200},
        {"val_loss": 2.1},
    ]


@pytest.mark.parametrize("end", range(1, 240, 7))
def test_a_torn_line_tells_no_number_that_it_did_not_have(end: int) -> None:
    whole = line(10, "2.51234E+00", norm="1.25")
    full = read(whole)[0]
    for record in read(whole[:end]):
        assert {name: value for name, value in record.items() if full[name] != value} == {}


def test_ranks_that_print_one_step_count_once() -> None:
    said = [f"[rank{rank}]: {line(step).strip()}" for step in (10, 20) for rank in range(4)]
    records = read("seq_length ..... 4096", *said)
    assert [record["step"] for record in records] == [10, 20]


def test_a_rank_that_lags_behind_is_no_return() -> None:
    said = [f"{rank}: {line(step).strip()}" for rank, step in ((0, 1), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (0, 4))]
    assert [record["step"] for record in read(*said)] == [1, 2, 3, 4]


def test_a_return_of_another_rank_is_one_after_a_while() -> None:
    said = [f"0: {line(step)}" for step in range(90, 100)] + [f"3: {line(step)}" for step in range(80, 120)]
    assert [record["step"] for record in read(*said)][9:12] == [99, 92, 93]


def test_a_step_that_goes_back_is_a_return() -> None:
    assert [record["step"] for record in read(line(90), line(100), line(80), line(90))] == [90, 100, 80, 90]


@pytest.mark.parametrize(
    "text",
    [
        "iteration 10/ 100",
        " iteration       10/     100 | hello: 3 |",
        "[before the start of training step] datetime: 2024-08-01 09:44:51",
        "successfully saved checkpoint from iteration     100 to /ckpt [ t 1/1, p 1/1 ]",
        "(min, max) time across ranks (ms):",
        " iteration 99999999999999999999/ 100 | elapsed time per iteration (ms): 412.5 | lm loss: 1 |",
    ],
)
def test_other_lines_are_none(text: str) -> None:
    assert read(text) == []
