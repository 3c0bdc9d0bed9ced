"""What names a save or an evaluation in a console, and what only has its words."""

from __future__ import annotations

import math

import pytest

from governor.core.base.units import MonoNs
from governor.core.events.inputs import PhaseChange, Step
from governor.wire import formats
from governor.wire.formats.pauses import Pauses
from governor.wire.records import RecordReader
from tests.unit.wire.formats.test_dialects import read

STEP = "iter {}: loss 3.1, time {}ms, mfu 3.1%"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("megatron", "will be saving checkpoint at iteration 20 to /ckpt"),
        ("megatron", "not saving checkpoint at iteration 20 to /ckpt"),
        ("megatron", "saving checkpoint at iteration 20"),
        ("megatron", "    load-checkpoint ................................: (24895.07, 24895.13)"),
        ("megatron", "    save-checkpoint ................................: (24895.07, 24895.1"),
        ("torchtitan", "Saving the checkpoints of others."),
        ("torchtitan", "Finished saving the checkpoint in some seconds."),
        ("torchtune", "Saving checkpoint took long secs"),
        ("nanogpt", "saving checkpoint to a place that I know"),
        ("llm.c", "Writing checkpoint at step twenty"),
        ("hf", "Error saving model checkpoint: disk full"),
        ("hf", "***** Running Prediction *****"),
        ("deepspeed", "Checkpoint global_step20 is about to be loaded!"),
        ("lightning", "Epoch 0, global step 20: 'val_loss' was not in top 3"),
    ],
)
def test_lines_that_have_the_words_alone(name: str, text: str) -> None:
    log = formats.named(name)
    log._last = (0, 1)  # A step was told.
    assert log.record(text) is None


def test_a_save_before_the_first_step_is_the_starts() -> None:
    assert read("nanogpt", "saving checkpoint to out", STEP.format(1, 100))[0]["step"] == 1


def test_a_log_that_is_followed_is_in_its_save_until_its_next_step() -> None:
    reader = RecordReader("run", text=formats.named("nanogpt"))
    found = []
    for text in (STEP.format(1, 100), "saving checkpoint to out", STEP.format(2, 100)):
        events = reader.read_line(text.encode(), MonoNs(0))
        assert isinstance(events, tuple)
        found += events
    assert [type(event) for event in found] == [Step, PhaseChange, Step]
    assert found[1].phase == "checkpoint"


def test_the_end_of_a_save_is_training() -> None:
    texts = (
        "step:  1  loss:  8.1  memory: 1.00GiB(1.00%)  tps: 1,000",
        "Saving the checkpoint.",
        "Finished saving the checkpoint in 0.60 seconds.",
        "step:  2  loss:  8.1  memory: 1.00GiB(1.00%)  tps: 1,000",
    )
    records = read("torchtitan", *texts)
    assert [record.get("phase") for record in records] == [None, "checkpoint", "train", None]
    assert "checkpoint_s" not in records[2]
    assert records[3]["checkpoint_s"] == 0.6


def test_each_process_tells_of_one_save() -> None:
    texts = ["step:  1  loss:  8.1  memory: 1.00GiB(1.00%)  tps: 1,000"]
    texts += [
        f"[rank{rank}]:Finished saving the checkpoint in {seconds}.00 seconds." for rank, seconds in ((0, 5), (1, 6))
    ]
    records = read("torchtitan", *texts, "step:  2  loss:  8.1  memory: 1.00GiB(1.00%)  tps: 1,000")
    assert records[-1]["checkpoint_s"] == 6.0


def test_a_step_that_took_as_long_as_others_has_no_pause_in_it() -> None:
    texts = [STEP.format(step, 100 + step) for step in range(1, 9)]
    records = read("nanogpt", *texts, "saving checkpoint to out", STEP.format(9, 110))
    assert not {"checkpoint_s", "eval_s"} & records[-1].keys()


def test_a_step_without_a_finite_time_has_no_pause() -> None:
    texts = [STEP.format(step, 100) for step in range(1, 9)]
    records = read("nanogpt", *texts, "saving checkpoint to out", STEP.format(9, "9" * 30))
    assert all(math.isfinite(records[-1].get(field, 0.0)) for field in ("checkpoint_s", "eval_s"))


def test_a_step_that_is_a_little_longer_beside_a_long_save_does_not_have_it_in_its_time() -> None:
    """A save of 10 s, told exactly. The step took 0.3 s more than usual: the save is beside it, and whole."""
    pauses = Pauses()
    for _ in range(5):
        pauses.of_line(1.0, 1)
    pauses.see({"phase": "checkpoint", "checkpoint_s": 10.0}, None)
    assert pauses.of_line(1.3, 1) == ({"checkpoint_s": 10.0}, 10.0, 1.3)
    pauses.see({"phase": "checkpoint", "checkpoint_s": 10.0}, None)
    assert pauses.of_line(11.2, 1).beside_s == 0.0


def test_a_step_that_is_longer_by_the_most_of_a_save_has_it_in_its_time() -> None:
    """A save of 10 s, and a step of 8: the save went on beside a part of it, or was timed by another clock."""
    pauses = Pauses()
    for _ in range(5):
        pauses.of_line(1.0, 1)
    pauses.see({"phase": "checkpoint", "checkpoint_s": 10.0}, None)
    assert pauses.of_line(8.0, 1).beside_s == 0.0


@pytest.mark.parametrize(("more_s", "told"), [(6.0, {"eval_s": 6.0}), (12.0, {"eval_s": 10.0, "checkpoint_s": 2.0})])
def test_an_evaluation_beside_a_save_is_no_longer_than_both(more_s: float, told: dict[str, float]) -> None:
    """An evaluation alone took 10 s."""
    pauses = Pauses()
    for _ in range(5):
        pauses.of_line(1.0, 1)
    pauses.see({"phase": "eval"}, None)
    assert pauses.of_line(11.0, 1)[0]["eval_s"] == 10.0
    pauses.see({"phase": "eval"}, None)
    pauses.see({"phase": "checkpoint"}, None)
    found = pauses.of_line(1.0 + more_s, 1)[0]
    assert {name: found[name] for name in found if name.endswith("_s")} == told


def test_a_step_without_a_loss_that_tells_a_bound_of_its_evaluation_is_a_step() -> None:
    """`eval_bound` looks like a key of validation."""
    reader = RecordReader("run")
    record = {"step": 7, "step_s": 40.0, "eval_s": 30.0, "eval_bound": True, "loss_expected": False}
    (found,) = reader.read(record, MonoNs(0))
    assert isinstance(found, Step)
    assert found.eval_s == 30.0
    assert found.eval_bound is True


def test_an_evaluation_before_a_later_launchs_first_step_is_not_told_with_its_warm_up() -> None:
    log = formats.named("nanogpt")
    for step in range(9):
        log.record(STEP.format(step, 100))
    log.new_launch()
    log.record("step 9: train loss 4.1000, val loss 4.2000")
    found = log.record(STEP.format(9, 60_000))
    assert isinstance(found, dict)
    assert not {"eval_s", "eval_bound"} & found.keys()
