"""Lines of each framework but Megatron-LM, of several versions: what they tell, and what they do not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from governor.wire import formats

BAR = " {percent:2d}%|█         | {at}/{of} [00:{at:02d}<03:00,  2.00it/s]"


def read(name: str, *lines: str, **passed: int) -> list[dict[str, Any]]:
    log = formats.named(name, **passed)
    found = [log.record(text) for text in lines]
    return [record for record in found if isinstance(record, dict)]


TOLD: list[tuple[str, str, dict[str, Any]]] = [
    (
        "nemo",
        "0: Training epoch 0, iteration 28/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: 28 | "
        "reduced_train_loss: 2.778 | train_step_timing in s: 0.189 | consumed_samples: 928 | val_loss: 2.861",
        {"step": 28, "loss": 2.778, "lr": 5.6e-06, "step_s": 0.189, "tokens_total": 928 * 100, "epoch": None},
    ),
    (
        "nemo",
        "[2025-11-20T14:55:23+08:00] retraining/0 Training epoch 2, iteration 7/99 | lr: 1e-05 | "
        "reduced_train_loss: 6.265 | train_step_timing in s: 12.22",
        {"step": 7, "epoch": 2, "loss": 6.265, "asctime": "2025-11-20T14:55:23+08:00"},
    ),
    (
        "nemo",
        "Epoch 0: : 100%|██████████| 100/100 [10:48<00:00, reduced_train_loss=0.0172, global_step=99.00, "
        "consumed_samples=25600.0, train_step_timing in s=3.130]",
        {"step": 100, "epoch": 0, "loss": 0.0172, "step_s": 3.13, "tokens_total": 25600 * 100, "elapsed_s": 648},
    ),
    (  # The step in the figures is rounded.
        "nemo",
        "Epoch 0:  22%|██▏       | 4499/20101 [22:26:14<77:48:37, 17.95s/it, loss=2.43, v_num=5563, "
        "reduced_train_loss=2.470, gradient_norm=0.121, global_step=4.51e+3, consumed_samples=1.16e+6]",
        {"step": 4499, "loss": 2.47, "grad_norm": 0.121, "tokens_total": None, "elapsed_s": 80774},
    ),
    (
        "torchtitan",
        "[rank0]:[titan] 2025-05-01 12:00:00,123 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.12345  "
        "\x1b[38;2;180;60;0mgrad_norm:  1.2000  \x1b[36mmemory: 10.51GiB(11.06%)  \x1b[34mtps: 1,234  "
        "\x1b[36mtflops: 59.97  \x1b[35mmfu: N/A\x1b[39m",
        {"step": 1, "loss": 8.12345, "grad_norm": 1.2, "asctime": "2025-05-01 12:00:00,123",
         "mem_reserved_bytes": round(10.51 * 2**30)},
    ),
    (  # Of 2024, its colours copied without their first character.
        "torchtitan",
        "2024-05-01 12:00:00,123 - root - INFO - [36mstep: 10  [32mloss:  8.2254  [33mmemory: 39.60GiB(41.69%)  "
        "[34mwps: 1,098  [35mmfu: 5.67%[39m",
        {"step": 10, "loss": 8.2254, "grad_norm": None},
    ),
    ("torchtitan", "step: 10  loss:     nan  memory: 39.60GiB(41.69%)  tps: 1,098", {"step": 10, "loss": math.nan}),
    (
        "torchtitan",
        "[rank0]:[titan] 2025-08-07 12:23:08,123 - root - INFO - validate step: 10  loss:  8.2254  memory: "
        "39.60GiB(41.69%)  tps: 1,098",
        {"step": 10, "val_loss": 8.2254, "loss": None},
    ),
    (
        "torchtune",
        "Step 12 | loss:1.2345 lr:2e-05 tokens_per_second_per_gpu:1234.5 grad_norm:0.5 peak_memory_active:10.2 ",
        {"step": 12, "loss": 1.2345, "lr": 2e-05, "grad_norm": 0.5},
    ),
    ("torchtune", "Step 12 | loss:nan lr:2e-05 ", {"step": 12, "loss": math.nan}),
    ("torchtune", "Step 12 | val_loss:1.5 ", {"step": 12, "val_loss": 1.5}),
    (
        "deepspeed",
        "[2023-11-07 01:55:23,711] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=4, "
        "lr=[4.99e-05, 4.99e-05], mom=[(0.9, 0.95), (0.9, 0.95)]",
        {"step": 10, "skipped_steps": 4, "lr": 4.99e-05, "loss": None, "asctime": "2023-11-07 01:55:23,711"},
    ),
    (
        "deepspeed",
        "steps: 200 loss: 5.5508 lm loss: 5.5103 moe loss: 0.0405 iter time (s): 0.936 samples/sec: 136.706",
        {"step": 200, "loss": 5.5508, "step_s": 0.936, "step_tokens": 128 * 100},
    ),
    (
        "deepspeed",
        "step:    10 /  1000 loss: nan iter time (s): 0.500 samples/sec: 16.000 eta: 1h2m ",
        {"step": 10, "loss": math.nan},
    ),
    ("nanogpt", "iter 10: loss 3.1234, time 123.45ms, mfu 12.34%", {"step": 10, "loss": 3.1234, "step_ms": 123.45}),
    ("nanogpt", "iter 10: loss nan, time 123.45ms, mfu -100.00%", {"step": 10, "loss": math.nan}),
    ("nanogpt", "iter 20: loss 3.1, time 0.250s, lr 6.00e-04", {"step": 20, "step_s": 0.25, "lr": 6e-4}),
    ("nanogpt", "step 250: train loss 4.1000, val loss 4.2000", {"step": 250, "val_loss": 4.2, "loss": None}),
    (
        "llm.c",
        "step    1/21479 | loss 11.007906 (+nanz)| norm 16.3235 (+nanz)| lr 2.86e-06 | 2734.72 ms | 39.7% bf16 MFU | "
        "167751 tok/s",
        {"step": 1, "loss": 11.007906, "grad_norm": 16.3235, "lr": 2.86e-06, "step_ms": 2734.72,
         "tokens_per_second": 167751.0},
    ),
    (
        "llm.c",
        "step   10/21479 | loss     nan (+nanz)| norm    nan (+nanz)| lr 2.86e-06 | 2734.72 ms | -100.0% bf16 MFU | "
        "167751 tok/s",
        {"step": 10, "loss": math.nan, "grad_norm": math.nan},
    ),
    (  # Of early 2024, and of its Python twin.
        "llm.c",
        "step    1/10 | train loss 4.370 | norm 1.2345 | lr 1.00e-04 | (1234.56 ms | 3318 tok/s)",
        {"step": 1, "loss": 4.37, "step_ms": 1234.56},
    ),
    ("llm.c", "val loss 11.033154", {"val_loss": 11.033154, "step": None}),
    (
        "modded-nanogpt",
        "step:10/1750 train_loss:4.2000 train_time:1234ms step_avg:123.40ms",
        {"step": 10, "loss": 4.2, "elapsed_s": 1.234},
    ),
    ("modded-nanogpt", "step:126/1770 train_time:12.249s step_avg:97.21ms", {"step": 126, "elapsed_s": 12.249}),
    (
        "modded-nanogpt",
        "step:125/1770 val_loss:4.6555 train_time:12222ms step_avg:97.78ms",
        {"step": 125, "val_loss": 4.6555, "loss": None},
    ),
    (
        "lightning",
        "Epoch 0:   6%|█▍     | 86/1563 [00:06<01:44, 14.19it/s, v_num=0, train_loss=1.800, train_acc=0.281]",
        {"step": 86, "epoch": 0, "loss": 1.8, "elapsed_s": 6},
    ),
    (  # The bar pads what has less than five characters.
        "lightning",
        "Epoch 3: |          | 1/? [00:20<00:00,  0.05it/s, v_num=0, train_loss_step=nan.0]",
        {"step": 1, "epoch": 3, "loss": math.nan},
    ),
    (
        "mllog",
        '0: :::MLLOG {"namespace": "", "time_ms": 1775725581676, "event_type": "POINT_IN_TIME", "key": "train_loss", '
        '"value": 11.846, "metadata": {"samples_count": 64, "lr": 3.125e-06}}',
        {"loss": 11.846, "lr": 3.125e-06, "timestamp": 1775725581.676, "tokens_total": 64 * 100},
    ),
    (
        "mllog",
        'ray-training  | [1] :::MLLOG {"time_ms": 1671571837234, "key": "eval_start", "value": null, "metadata": {}}',
        {"phase": "eval_start", "timestamp": 1671571837.234},
    ),
    (
        "mllog",
        ':::MLLOG {"time_ms": 5000, "key": "tracked_stats", "value": {"reduced_train_loss": 2.5, "train_step_time": '
        '0.5}, "metadata": {"samples_count": 128}}',
        {"loss": 2.5, "step_s": 0.5},
    ),
    (
        "hf",
        "{'loss': 0.58, 'grad_norm': 1.1, 'learning_rate': 1e-05, 'rewards/margins': 0.1, 'epoch': 0.49}",
        {"step": 1, "loss": 0.58, "grad_norm": 1.1, "lr": 1e-05},
    ),
    (  # Version 5: figures are text.
        "hf",
        "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'num_tokens': '81920', 'epoch': '0.49'}",
        {"loss": 0.0, "grad_norm": math.nan, "tokens_total": 81920},
    ),
    (
        "hf",
        "[INFO|trainer.py:3801] 2024-05-01 12:00:00,321 >> {'loss': nan, 'grad_norm': inf, 'epoch': 1.0}",
        {"loss": math.nan, "grad_norm": math.inf, "asctime": "2024-05-01 12:00:00,321"},
    ),
    ("hf", "{'loss': 2.1, 'global_step/max_steps': '35/100', 'epoch': 0.1}", {"step": 35}),
    ("hf", "{'eval_loss': 0.5, 'eval_runtime': 1.2, 'epoch': 1.0}", {"val_loss": 0.5, "loss": None}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "line", "wanted"), TOLD)
def test_what_a_line_tells(name: str, line: str, wanted: dict[str, Any]) -> None:
    (record,) = read(name, line, sequence_length=100)
    found = {field: record.get(field) for field in wanted}
    assert repr(found) == repr(wanted)


@pytest.mark.parametrize(("name", "line", "_wanted"), TOLD)
def test_a_line_is_of_one_format(name: str, line: str, _wanted: dict[str, Any]) -> None:
    assert [other for other in formats.NAMES if read(other, line)] == [name]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("hf", "{'train_runtime': 100.0, 'train_loss': 0.5, 'epoch': 1.0}"),
        ("hf", "{'loss': 0.58, 'grad_norm': 1.1, 'epo"),
        ("hf", "{'loss': 'hinge', 'C': 0.1, 'epoch': 1}"),
        ("hf", "{'loss': 0.58}"),
        ("nanogpt", "iter 10: loss 3.1234, time 123.4"),
        ("llm.c", "step    1/21479 | loss 11.007906 (+nanz)| norm 16.3235 (+nanz)| lr 2.86e-06 | 2734.72 ms | 39.7%"),
        ("modded-nanogpt", "step:10/1750 train_loss:4.2 train_time:12"),
        ("torchtitan", "step:  1  loss:  8.1"),
        ("deepspeed", "steps: 200 loss: 5.5508 lm loss: 5.5103"),
        ("lightning", "Epoch 0:   0%|          | 0/1563 [00:00<?, ?it/s]"),
        ("lightning", "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:01<00:00,  1.50it/s]"),
        ("nemo", "[NeMo W 2025-06-18 21:57:03 rerun_state_machine:239] RerunStateMachine initialized"),
        ("mllog", ':::MLLOG {"time_ms": 5, "key": "cache_clear", "value": true, "metadata": {}}'),
    ],
)
def test_lines_that_are_no_record(name: str, line: str) -> None:
    assert read(name, line) == []


def test_mllog_that_is_torn_is_a_fault() -> None:
    log = formats.named("mllog")
    assert log.record(':::MLLOG {"time_ms": 5, "key": "train_') == ["no JSON after :::MLLOG"]
    assert log.record(":::MLLOG 7") == ["no key after :::MLLOG"]


def test_mllog_divides_samples_by_the_batch_that_it_says() -> None:
    def said(key: str, value: object, **about: object) -> str:
        return f":::MLLOG {json.dumps({'time_ms': 5, 'key': key, 'value': value, 'metadata': about})}"

    head = [said("global_batch_size", 32), said("max_sequence_length", 1024)]
    records = read(
        "mllog", *head, said("train_loss", 2.5, samples_count=320), said("train_loss", 2.4, samples_count=352)
    )
    assert [(record["step"], record["tokens_total"]) for record in records] == [(10, 327680), (11, 360448)]
    assert records[1]["loss"] == 2.4


# --- tokens ------------------------------------------------------------------------------------------------


def test_torchtitans_batch_stands_in_its_first_lines() -> None:
    said = (
        "Trainer is initialized with local batch size 8, global batch size 64, gradient accumulation steps 1, "
        "sequence length 2048, total steps 1000 (warmup 200)"
    )
    steps = [f"step: {step:2}  loss:  8.1  memory: 1.00GiB(1.00%)  tps: 1,000" for step in (1, 10, 20)]
    assert [record["step_tokens"] for record in read("torchtitan", said, *steps)] == [64 * 2048 * k for k in (1, 9, 10)]


def test_a_rate_of_one_gpu_needs_their_number_and_a_time() -> None:
    lines = [
        f"2025-05-01 12:00:{second:02d},000 - root - INFO - "
        f"step: {second}  loss:  8.1  memory: 1.00GiB(1.00%)  tps: 1,000"
        for second in (1, 2, 3, 4)
    ]
    log = formats.named("torchtitan")
    assert not any("step_tokens" in (log.record(line) or {}) for line in lines)
    assert "gpus" in (log.missing() or "")
    # The first interval is not known to be a usual one.
    assert [record.get("step_tokens") for record in read("torchtitan", *lines, gpus=8)] == [None, None, 8000, 8000]


def test_nanogpts_batch_counts_for_each_step_between_two_lines() -> None:
    lines = ["tokens per iteration will be: 491,520", *(f"iter {step}: loss 3.1, time 10ms" for step in (0, 10, 20))]
    assert [record["step_tokens"] for record in read("nanogpt", *lines)] == [491520, 4915200, 4915200]


def test_llm_cs_batch_is_believed_before_its_mean_rate() -> None:
    line = "step {}/9 | loss 4.3 (+nanz)| norm 1.0 (+nanz)| lr 3.00e-04 | 349.48 ms | 1.0% bf16 MFU | 11720 tok/s"
    head = "batch_size B=4 * seq_len T=1024 * num_processes=1 and total_batch_size=4096"
    (record,) = read("llm.c", head, line.format(1))
    assert record["step_tokens"] == 4096
    assert "tokens_per_second" not in record


def test_modded_steps_take_the_training_time_between_them() -> None:
    lines = [f"step:{step}/99 train_loss:4.2 train_time:{ms}ms step_avg:1.0ms" for step, ms in ((10, 1000), (20, 3000))]
    assert read("modded-nanogpt", *lines)[1]["step_s"] == pytest.approx(0.2)


# --- steps of Hugging Face ---------------------------------------------------------------------------------


def hf(*steps: int, of: int = 100) -> list[str]:
    return [
        "\r".join((BAR.format(percent=at * 100 // of, at=at, of=of), " " * 40, "{'loss': 2.0, 'epoch': 0.1}"))
        for at in steps
    ]


def test_the_step_is_that_of_the_bar() -> None:
    log = formats.named("hf")
    records = [log.record(line) for line in hf(10, 20, 30)]
    assert [record["step"] for record in records if isinstance(record, dict)] == [10, 20, 30]
    assert log.missing() is None


def test_a_bar_that_is_not_drawn_anew_leaves_the_stride() -> None:
    lines = [*hf(10, 20), "{'loss': 2.0, 'epoch': 0.1}", *hf(40)]
    assert [record["step"] for record in read("hf", *lines)] == [10, 20, 30, 40]


def test_the_bar_of_an_evaluation_is_not_trainings() -> None:
    evaluation = BAR.format(percent=99, at=62, of=63)
    lines = [*hf(10), evaluation, "{'eval_loss': 2.0, 'epoch': 0.1}", *hf(20)]
    assert [record["step"] for record in read("hf", *lines)] == [10, 10, 20]


def test_another_launch_begins_where_its_bar_does() -> None:
    assert [record["step"] for record in read("hf", *hf(80, 90), *hf(50, 60))] == [80, 90, 50, 60]


def test_without_a_bar_a_step_is_a_line_and_that_is_said() -> None:
    log = formats.named("hf")
    records = [log.record("{'loss': 2.0, 'epoch': 0.1}") for _ in range(3)]
    assert [record["step"] for record in records if isinstance(record, dict)] == [1, 2, 3]
    assert "logging_steps" in (log.missing() or "")


# --- times -------------------------------------------------------------------------------------------------


def test_a_log_without_dates_has_the_clock_of_its_steps() -> None:
    records = read("nanogpt", *(f"iter {step}: loss 3.1, time 500.0ms" for step in (0, 10, 20)))
    assert [record["elapsed_s"] for record in records] == [0.5, 5.5, 10.5]


def test_a_date_that_comes_later_is_another_clock_and_left_out() -> None:
    records = read("nanogpt", "iter 0: loss 3.1, time 500.0ms", "2025-01-01 00:00:00 iter 1: loss 3.1, time 500.0ms")
    assert "asctime" not in records[1]
    assert records[1]["elapsed_s"] == 1.0


def test_deepspeeds_loss_has_the_date_of_the_line_before() -> None:
    date = (
        "[2023-11-07 01:55:2{},711] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=0, lr=[1e-05], mom=[0.9]"
    )
    loss = "steps: {} loss: 5.5508 iter time (s): 0.936 samples/sec: 136.706"
    records = read("deepspeed", date.format(1, 1), loss.format(1), date.format(2, 2), loss.format(2))
    assert [(record["step"], record.get("loss"), record["asctime"][17:19]) for record in records] == [
        (1, None, "21"), (1, 5.5508, "21"), (2, 5.5508, "22"),
    ]  # fmt: skip


def test_an_evaluation_in_nanogpts_last_step_takes_its_time_once() -> None:
    """The line of each tenth step has that step's time alone, and each 50th of them evaluates for a minute."""
    lines = [
        f"iter {n}: loss 3.0, time {60_000 if n % 50 == 0 and n else 250}.00ms, mfu 34.1%" for n in range(0, 501, 10)
    ]
    last = read("nanogpt", "tokens per iteration will be: 8,192", *lines)[-1]
    assert last["elapsed_s"] == pytest.approx(0.25 * 490 + 10 * 60.0, abs=3)


def test_a_mean_of_many_steps_counts_for_each_of_them() -> None:
    line = " iteration {at:8d}/    1000 | elapsed time per iteration (ms): 250.0 | lm loss: 2.0E+00 |"
    records = read("megatron", *(line.format(at=n) for n in range(100, 1001, 100)))
    assert records[-1]["elapsed_s"] == pytest.approx(0.25 * 901)


def test_mllogs_batch_outlives_a_restart_of_the_governor() -> None:
    before = formats.named("mllog")
    event = ':::MLLOG {{"time_ms": 1, "key": "{key}", "value": {value}, "metadata": {{"samples_count": {samples}}}}}'
    before.record(event.format(key="global_batch_size", value=64, samples=0))
    after = formats.named("mllog")
    after.resume(before.state())
    record = after.record(event.format(key="train_loss", value=2.0, samples=64 * 149))
    assert isinstance(record, dict)
    assert record["step"] == 149
