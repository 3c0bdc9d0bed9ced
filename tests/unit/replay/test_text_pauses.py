"""Saves and evaluations that a console names: what a log's goodput tells of them, as each trainer prints them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from governor.core.attribution.causes import Cause
from governor.core.base.units import NS_PER_S
from governor.replay.goodput import LogGoodput, goodput_of
from governor.replay.readers.text import TextOptions
from governor.wire import formats
from governor.wire.jsonl import DEFAULT_FIELDS
from tests.unit.wire.formats.written import WRITERS, Did

BEFORE, STEPS, STEP_S, PAUSE_S = 20, 40, 2.0, 30.0
SAVE, EVALUATION = Cause.CHECKPOINT, Cause.EVALUATION
TITAN = "[rank0]:[titan] 2025-06-15 15:07:50,250 - root - INFO - "
DEEPSPEED = "[2025-06-15 15:07:50,250] [INFO] [logging.py:96:log_dist] [Rank 0] "

# What a trainer prints between two steps, and whether its own figure of a step has the pause in it.
SAVED: list[tuple[str, bool, tuple[str, ...]]] = [
    (
        "megatron", False,
        (
            "saving checkpoint at iteration      20 to /ckpt in torch_dist format",
            "  successfully saved checkpoint from iteration      20 to /ckpt [ t 1/1, p 1/1 ]",
        ),
    ),
    (  # Its timers tell the seconds.
        "megatron", False,
        (
            "saving checkpoint at iteration      20 to /ckpt in torch_dist format",
            "(min, max) time across ranks (ms):",
            "    save-checkpoint ................................: (29000.00, 30000.00)",
        ),
    ),
    (
        "megatron", True,
        (
            "global rank 0 is saving checkpoint at iteration      20 to /ckpt/iter_0000020/mp_rank_00/model_rng.pt",
            "  successfully saved checkpoint at iteration      20 to /ckpt",
            "time (ms) | save-checkpoint: 30000.00",
        ),
    ),
    ("megatron", True, ("saving checkpoint at iteration      20 to /ckpt",)),
    (
        "torchtitan", False,
        (
            TITAN + "Saving the checkpoint (or staging if async is enabled).",
            TITAN + "Finished saving the checkpoint (or staging if async is enabled)in 30.00 seconds.",
        ),
    ),
    ("torchtitan", False, (TITAN + "Saving a full checkpoint at last step, step 20.",)),
    (
        "torchtune", False,
        (
            "INFO:torchtune.utils._logging:Saving checkpoint. This may take some time. Retrieving full model state "
            "dict...",
        ),
    ),
    ("nanogpt", True, ("saving checkpoint to out",)),
    ("llm.c", False, ("Writing checkpoint at step 20", "Writing model to log124M/model_00000020.bin")),
    ("hf", False, ("[INFO|trainer.py:3503] 2025-06-15 15:07:50,250 >> Saving model checkpoint to out/checkpoint-20",)),
    (  # Behind a bar, which ends no line.
        "hf", False,
        ("  2%|▏         | 20/1000 [01:10<45:00,  2.00s/it]" + DEEPSPEED + "Saving model checkpoint: out/a_states.pt",),
    ),
    (
        "deepspeed", False,
        (
            DEEPSPEED + "[Torch] Checkpoint global_step20 is about to be saved!",
            "[2025-06-15 15:08:20,250] [INFO] [torch_checkpoint_engine.py:33:commit] [Torch] Checkpoint global_step20 "
            "is ready now!",
        ),
    ),
    (
        "lightning", False,
        (
            "Epoch 0, global step 20: 'val_loss' reached 0.31030 (best 0.31030), saving model to "
            "'/a b/epoch=0-step=20.ckpt' as top 3",
        ),
    ),
    (
        "nemo", False,
        ("Epoch 0, global step 20: 'val_loss' reached 0.31030 (best 0.31030), saving model to '/a.ckpt' as top 3",),
    ),
]  # fmt: skip
EVALUATED: list[tuple[str, bool, tuple[str, ...]]] = [
    ("megatron", False, (" validation loss at iteration 20 | lm loss value: 4.58E+00 | lm loss PPL: 9.7E+01 | ",)),
    (
        "megatron", True,
        (
            "    evaluate .......................................: (29000.00, 30000.00)",
            " validation loss at iteration 20 | lm loss value: 4.58E+00 | lm loss PPL: 9.7E+01 | ",
        ),
    ),
    ("megatron", False, ("Evaluating iter 1/32", "Evaluating iter 32/32")),
    ("torchtitan", False, (TITAN + "validate step: 20  loss:  8.2254  memory: 39.60GiB(41.69%)  tps: 1,098",)),
    ("torchtune", False, ("Step 20 | val_loss:1.5 ",)),
    ("nanogpt", True, ("step 20: train loss 4.1000, val loss 4.2000",)),
    ("llm.c", False, ("val loss 4.2",)),
    ("hf", False, ("***** Running Evaluation *****", "  Num examples = 56", "  Batch size = 16")),
    ("hf", False, ("{'eval_loss': 3.29, 'eval_runtime': 30.0, 'eval_steps_per_second': 23.1, 'epoch': 1.11}",)),
    ("lightning", False, ("Validation DataLoader 0: 100%|██████████| 2/2 [00:01<00:00,  1.50it/s]",)),
    ("nemo", False, ("Validation: iteration 10/10",)),
]  # fmt: skip
CASES = [(*case, SAVE) for case in SAVED] + [(*case, EVALUATION) for case in EVALUATED]
UNDATED = {"llm.c", "torchtune", "nemo"}  # A launcher dates their lines here: their own clocks know of no pause.


def did(pauses: dict[int, float], *, is_in: bool) -> list[Did]:
    """Steps, and behind some of them a pause. `is_in`: it is in the next step's own time."""
    ended_s, found = 30.25, []
    for step in range(1, STEPS + 1):
        pause_s = pauses.get(step - 1, 0.0)
        ended_s += STEP_S + pause_s
        found.append(Did(step, 3.0, 1.0, STEP_S + (pause_s if is_in else 0.0), ended_s))
    return found


def written(name: str, steps: Sequence[Did], said: dict[int, Sequence[str]]) -> list[str]:
    """The lines of a log: `said` are those behind a step."""
    lines: list[str] = []
    for count, step in enumerate(steps, start=1):
        # The writers' lines of the steps so far, without the summary at the end.
        found = [line for line in WRITERS[name](steps[:count]) if "train_runtime" not in line]
        added = found[len(lines) - sum(len(said.get(before, ())) for before in range(1, count)) :]
        lines += [f"[{step.date()}] {line}" for line in added] if name in UNDATED else added
        lines += said.get(count, ())
    return lines


def goodput(path: Path, name: str, lines: Sequence[str], tell: Callable[[str], None] | None = None) -> LogGoodput:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return goodput_of(path, None, DEFAULT_FIELDS, TextOptions(name, tell=tell))


def seconds(
    path: Path, name: str, lines: Sequence[str], tell: Callable[[str], None] | None = None
) -> dict[Cause, float]:
    whole = goodput(path, name, lines, tell).whole
    assert sum(amount.ns for amount in whole.by_cause.values()) == whole.wall_ns
    return {cause: amount.ns / NS_PER_S for cause, amount in whole.by_cause.items() if amount.ns}


@pytest.mark.parametrize(("name", "is_in", "said", "cause"), CASES)
def test_the_pause_has_the_cause_that_the_log_names(
    tmp_path: Path, name: str, is_in: bool, said: tuple[str, ...], cause: Cause
) -> None:
    steps = did({BEFORE: PAUSE_S}, is_in=is_in)
    found = seconds(tmp_path / "train.log", name, written(name, steps, {BEFORE: said}))
    assert found[cause] == pytest.approx(PAUSE_S, abs=0.1)
    assert found[Cause.PRODUCTIVE] == pytest.approx(STEPS * STEP_S, abs=STEP_S + 0.1)
    assert not {SAVE, EVALUATION, Cause.UNKNOWN} - {cause} & found.keys()


@pytest.mark.parametrize("name", [name for name in formats.NAMES if name not in ("mllog", "modded-nanogpt")])
def test_a_pause_that_nobody_names_is_no_save(tmp_path: Path, name: str) -> None:
    said = "I was saving checkpoint to out, and Saving model checkpoint to x; Writing checkpoint at step 20 failed"
    found = seconds(tmp_path / "a.log", name, written(name, did({BEFORE: PAUSE_S}, is_in=False), {BEFORE: [said]}))
    assert not {SAVE, EVALUATION} & found.keys()


def test_nanogpts_save_behind_an_evaluation_has_what_an_evaluation_alone_leaves(tmp_path: Path) -> None:
    evaluated, saved = "step {}: train loss 4.1000, val loss 4.2000", "saving checkpoint to out"
    steps = did({10: 20.0, 20: 30.0}, is_in=True)
    lines = written("nanogpt", steps, {10: [evaluated.format(10)], 20: [evaluated.format(20), saved]})
    found = seconds(tmp_path / "a.log", "nanogpt", lines)
    assert found == pytest.approx({EVALUATION: 40.0, SAVE: 10.0, Cause.PRODUCTIVE: 80.0})


def test_an_evaluation_and_a_save_in_one_step_of_nanogpt_are_its_evaluation_until_one_was_alone(tmp_path: Path) -> None:
    said = ["step 20: train loss 4.1000, val loss 4.2000", "saving checkpoint to out"]
    found = seconds(tmp_path / "a.log", "nanogpt", written("nanogpt", did({20: 30.0}, is_in=True), {20: said}))
    assert found == pytest.approx({EVALUATION: 30.0, Cause.PRODUCTIVE: 80.0})


@pytest.mark.parametrize("is_dated", [True, False])
@pytest.mark.parametrize("is_in", [True, False])
def test_megatrons_timers_divide_an_evaluation_and_a_save(tmp_path: Path, *, is_in: bool, is_dated: bool) -> None:
    """Also of a log without dates, whose clock is the sum of what its steps took."""
    said = [
        "    evaluate .......................................: (20000.00, 20000.00)",
        " validation loss at iteration 20 | lm loss value: 4.58E+00 | lm loss PPL: 9.7E+01 | ",
        "saving checkpoint at iteration      20 to /ckpt in torch_dist format",
        "    save-checkpoint ................................: (10000.00, 10000.00)",
    ]
    lines = written("megatron", did({20: 30.0}, is_in=is_in), {20: said})
    if not is_dated:
        lines = [line.split("] ", 1)[-1] for line in lines]
    found = seconds(tmp_path / "a.log", "megatron", lines)
    assert {cause: found[cause] for cause in (EVALUATION, SAVE)} == pytest.approx({EVALUATION: 20.0, SAVE: 10.0})
    assert found[Cause.PRODUCTIVE] == pytest.approx(80.0, abs=STEP_S + 0.1)  # A dated log begins with its first line.


def test_a_save_that_is_short_beside_its_interval_is_told_by_megatrons_timer(tmp_path: Path) -> None:
    """Lines of 100 steps: 50 s more than 200 are no pause by their distance."""
    line = (
        " [2025-06-15 15:{:02d}:{:02d}] iteration {:8d}/    1000 | elapsed time per iteration (ms): 2000.0 | lm loss: "
        "2.0E+00 |"
    )
    lines, at = [], 0
    for step in range(100, 801, 100):
        at += 200 + (50 if step == 600 else 0)
        lines.append(line.format(at // 60, at % 60, step))
        if step == 500:
            lines += [
                "saving checkpoint at iteration     500 to /ckpt",
                "    save-checkpoint ....: (50000.00, 50000.00)",
            ]
    assert seconds(tmp_path / "a.log", "megatron", lines)[SAVE] == pytest.approx(50.0, abs=0.1)


def test_an_evaluation_that_is_short_beside_its_interval_is_told_by_hugging_faces_runtime(tmp_path: Path) -> None:
    """And a save behind it is what is left, where that is a pause. Its lines have dates, those of steps have none."""
    said = [
        "***** Running Evaluation *****",
        "{'eval_loss': 3.29, 'eval_runtime': 1.5, 'eval_steps_per_second': 23.1, 'epoch': 1.11}",
    ]
    short = seconds(tmp_path / "a.log", "hf", written("hf", did({20: 1.5, 30: 0.5}, is_in=False), {20: said}))
    assert short[EVALUATION] == pytest.approx(1.5)
    saved = DEEPSPEED + "[Torch] Checkpoint global_step20 is about to be saved!"
    both = seconds(tmp_path / "b.log", "hf", written("hf", did({20: 31.5}, is_in=False), {20: [*said, saved]}))
    assert both[EVALUATION] == pytest.approx(1.5)
    assert both[SAVE] == pytest.approx(30.0, abs=1.0)  # The bar's clock has whole seconds.


EVALUATED_ALONE, SAVED_BEHIND = "step {}: train loss 4.1000, val loss 4.2000", "saving checkpoint to out"


def nanogpt(took_s: Sequence[float], said: dict[int, Sequence[str]], stride: int = 1) -> list[str]:
    """Lines without dates. `said`: before a line, by its place."""
    lines: list[str] = []
    for place, took in enumerate(took_s):
        lines += said.get(place, ())
        lines.append(f"iter {place * stride}: loss 3.1000, time {took * 1000:.2f}ms, mfu 3.10%")
    return lines


@pytest.mark.parametrize("said", [[EVALUATED_ALONE], [SAVED_BEHIND], [EVALUATED_ALONE, SAVED_BEHIND]])
def test_seconds_that_are_worked_out_are_weak(tmp_path: Path, said: list[str]) -> None:
    lines = nanogpt([2.0] * 10 + [32.0] + [2.0] * 10, {10: [line.format(10) for line in said]})
    whole = goodput(tmp_path / "a.log", "nanogpt", lines).whole
    cause = EVALUATION if EVALUATED_ALONE in said else SAVE
    assert whole.by_cause[cause].ns == 30 * NS_PER_S
    assert whole.weak == {cause}


def test_seconds_that_a_log_tells_are_exact_beside_those_that_are_worked_out(tmp_path: Path) -> None:
    said = [
        "    evaluate .......................................: (20000.00, 20000.00)",
        " validation loss at iteration 20 | lm loss value: 4.58E+00 | lm loss PPL: 9.7E+01 | ",
        "saving checkpoint at iteration      20 to /ckpt in torch_dist format",
    ]
    lines = written("megatron", did({20: 30.0}, is_in=True), {20: said})
    whole = goodput(tmp_path / "a.log", "megatron", [line.split("] ", 1)[-1] for line in lines]).whole
    assert whole.by_cause[EVALUATION].ns == 20 * NS_PER_S
    assert whole.by_cause[SAVE].ns == 10 * NS_PER_S
    assert SAVE in whole.weak
    assert EVALUATION not in whole.weak


@pytest.mark.parametrize("first_s", [2.0, 40.0])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_an_evaluation_behind_one_of_the_first_lines_is_none_of_training(
    tmp_path: Path, place: int, first_s: float
) -> None:
    """Also where the first line has warmed up. Behind that one alone, the step itself is in the bound."""
    took = [first_s, *[2.0] * 11]
    took[place] += 30.0
    whole = goodput(tmp_path / "a.log", "nanogpt", nanogpt(took, {place: [EVALUATED_ALONE.format(place)]})).whole
    assert EVALUATION in whole.weak
    assert 30.0 <= whole.by_cause[EVALUATION].ns / NS_PER_S <= 32.0
    assert whole.productive.ns / NS_PER_S == pytest.approx(24.0, abs=2.0)


def test_an_evaluation_at_every_line_is_none_of_training(tmp_path: Path) -> None:
    """Neither are the steps between the lines as long as it."""
    said = {place: [EVALUATED_ALONE.format(place * 10)] for place in range(20)}
    whole = goodput(tmp_path / "a.log", "nanogpt", nanogpt([32.0] * 20, said, stride=10)).whole
    assert whole.wall_ns / NS_PER_S == pytest.approx(20 * 32, abs=1.0)
    assert whole.by_cause[EVALUATION].ns >= 19 * 30 * NS_PER_S
    assert EVALUATION in whole.weak


def test_megatrons_evaluation_behind_the_second_line_is_none_of_training(tmp_path: Path) -> None:
    said = [" validation loss at iteration 2 | lm loss value: 4.58E+00 | lm loss PPL: 9.7E+01 | "]
    lines = written("megatron", did({2: 30.0}, is_in=True), {2: said})
    found = seconds(tmp_path / "a.log", "megatron", [line.split("] ", 1)[-1] for line in lines])
    assert found[EVALUATION] == pytest.approx(30.0)


def test_an_evaluation_in_the_first_steps_time_is_named(tmp_path: Path) -> None:
    with_it = goodput(tmp_path / "a.log", "nanogpt", nanogpt([60.0, *[2.0] * 9], {0: [EVALUATED_ALONE.format(0)]}))
    without = goodput(tmp_path / "b.log", "nanogpt", nanogpt([60.0, *[2.0] * 9], {}))
    assert with_it.whole.by_cause[Cause.COMPILE].ns == 58 * NS_PER_S
    assert len(with_it.missing) == len(without.missing) + 1
