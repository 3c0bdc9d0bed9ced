"""Logs in forms in which healthy runs are written, and in which sick ones hide: the shipped policy tells them apart.

Rules in observe mode count as if they enforced. What real runs do is in tests/real_runs; these are forms that its
archive does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from governor.policies.parse import load_policies
from governor.replay.play import Replay, ReplayVerdict
from tests.paths import ROOT

DEFAULT = ROOT / "policies/default.toml"
Records = Iterator[dict[str, Any]]


def halts(records: Records, run_on_s: float = 0) -> list[ReplayVerdict]:
    policies, problems = load_policies([(str(DEFAULT), DEFAULT.read_text())])
    assert policies is not None, problems
    replay = Replay(policies.policies)
    for record in records:
        assert replay.read(record) is None, record
    replay.end(round(run_on_s * 1e9))
    return [told for told in replay.verdicts if told.response == "halt"]


def each_500th_step_of_six_seconds() -> Records:
    """Hugging Face's default rhythm: the second record is nearly an hour behind the first."""
    for step in range(500, 6_000, 500):
        yield {"t": step * 6.0, "step": step, "loss": 2.0, "grad_norm": 1.0}


def out_of_a_buffer_of_eighty_records() -> Records:
    """Nobody flushes: records of forty minutes come together, at the time of the last of them."""
    for step in range(1_200):
        yield {"t": (step // 80 + 1) * 80 * 30.0, "step": step, "loss": 2.0}


def first_live_and_then_out_of_a_buffer() -> Records:
    for step in range(300):
        yield {"t": float(step), "step": step, "loss": 2.0}
    for step in range(300, 6_000):
        yield {"t": 300.0 + (step - 300) // 80 * 80, "step": step, "loss": 2.0}


def a_table_with_each_key_in_each_row() -> Records:
    """As pandas writes what W&B kept: null where nothing was logged, and evaluations as steps of their own."""
    for step in range(1, 900):
        row: dict[str, Any] = {"t": float(step), "_step": step, "train/loss": None, "lr": None, "eval/acc": None}
        if step > 100 and step % 200 < 5:
            row["eval/acc"] = 0.5
        elif step % 5 == 1:
            row |= {"train/loss": 2.0, "lr": 1e-4}
        yield row


def evaluations_under_names_that_nobody_knows() -> Records:
    for step in range(1, 900):
        is_result = step > 100 and step % 200 < 5
        yield {"t": float(step), "_step": step} | (
            {"hellaswag/acc": 0.4} if is_result else {"train/loss": 2.0, "lr": 1e-4}
        )


def a_table_filled_forward() -> Records:
    """A loss of each hundredth step, and every row has it."""
    for step in range(9_000):
        yield {"t": float(step), "step": step, "loss": 2.0 + step // 100 % 7 / 10}


def a_table_of_lightning(broken_from: int = 9_000) -> Records:
    """As its CSVLogger writes it: the rate, the loss, the epoch's loss and the validation each in a row of its own."""
    for step in range(9, 3_000, 10):
        yield {"step": step, "lr-AdamW": 1e-4}
        yield {"step": step, "epoch": step // 500, **({"train_loss": 2.0} if step < broken_from else {})}
        if step % 500 == 499:
            yield {"step": step, "epoch": step // 500, "val_loss": 2.1}
            yield {"step": step, "epoch": step // 500, "train_loss_epoch": 2.2}


def a_table_whose_rate_is_told_between_losses() -> Records:
    """Its rows alternate: the rate, the loss, and nothing but the step."""
    for step in range(1, 900):
        row: dict[str, Any] = {"t": float(step), "step": step, "loss": None, "lr": None, "grad_norm": None}
        yield row | ({"loss": 2.0, "grad_norm": 1.0}, {"lr": 1e-4}, {})[step % 3]


def losses_of_each_tenth_row_and_nothing_between() -> Records:
    for step in range(1, 900):
        is_told = step % 10 == 0
        yield {"t": float(step), "step": step} | ({"loss": 2.0, "grad_norm": 1.0} if is_told else {})


def results_of_twenty_benchmarks_in_a_table() -> Records:
    """Each a step of its own, as W&B counts them, in columns that no row of training fills."""
    for step in range(1, 900):
        row: dict[str, Any] = {"_step": step, "t": float(step), "loss": 2.0, "grad_norm": 1.0, "arc": None}
        yield row | ({"loss": None, "grad_norm": None, "arc": 0.4} if step % 300 > 280 else {})


def losses_alone_and_what_nobody_knows_between() -> Records:
    """Images, texts and measurements are logged at steps of their own."""
    for step in range(1, 2_000):
        yield {"t": float(step), "step": step} | ({"fid": 3.0} if step % 500 > 490 else {"loss": 2.0})


@pytest.mark.parametrize("log", [
    losses_alone_and_what_nobody_knows_between,
    a_table_of_lightning,
    a_table_whose_rate_is_told_between_losses,
    losses_of_each_tenth_row_and_nothing_between,
    results_of_twenty_benchmarks_in_a_table,
    each_500th_step_of_six_seconds,
    out_of_a_buffer_of_eighty_records,
    first_live_and_then_out_of_a_buffer,
    a_table_with_each_key_in_each_row,
    evaluations_under_names_that_nobody_knows,
    a_table_filled_forward,
])  # fmt: skip
def test_a_healthy_run_in_this_form_is_left_alone(log: Any) -> None:
    assert halts(log()) == []


def test_a_null_in_the_place_of_a_loss_that_was_always_there_is_caught_with_the_third() -> None:
    records = ({"t": float(step), "step": step, "loss": 2.0 if step < 5 else None} for step in range(20))
    first = halts(records)[0]
    assert (first.reason, first.step) == ("loss_vanished", 7)


@pytest.mark.parametrize("broken", [
    {"loss": None, "grad_norm": None},  # As orjson and JSON.stringify write NaN.
    {},  # As pandas does: the cells are empty.
])  # fmt: skip
@pytest.mark.parametrize("beside", [{}, {"epoch": 1}, {"train/acc": 0.5}])
def test_a_loss_that_goes_with_all_that_broke_beside_it_is_caught_with_the_third(
    broken: dict[str, Any], beside: dict[str, Any]
) -> None:
    """What is left of the record says nothing of training, and nothing else either."""
    whole = {"loss": 2.0, "grad_norm": 1.0}
    log = ({"t": float(step), "step": step, **beside, **(whole if step < 200 else broken)} for step in range(400))
    first = halts(log)[0]
    assert (first.reason, first.step) == ("loss_vanished", 202)


def test_a_loss_that_vanishes_from_a_table_of_lightning_is_caught_with_the_third_row_of_training() -> None:
    first = halts(a_table_of_lightning(1_000))[0]
    assert (first.reason, first.step) == ("loss_vanished", 1_029)


def test_figures_that_go_with_the_loss_are_missed_by_the_log_s_own_rhythm() -> None:
    """It has a loss in each tenth row, and told nothing between: nine rows without one are its habit."""
    log = (
        {"t": float(step), "step": step} | ({"loss": 2.0, "lr": 1e-4} if step % 10 == 0 and step < 600 else {})
        for step in range(900)
    )
    first = halts(log)[0]
    assert (first.reason, first.step) == ("loss_vanished", 620)


def test_one_loss_tells_no_rhythm_of_losses() -> None:
    """Every fiftieth row may have one: what lies behind the first is not known to be missing."""
    assert halts({"t": float(step), "step": step, "loss": 2.0 if step == 1 else None} for step in range(1, 40)) == []


def test_a_buffer_that_is_never_written_again_is_a_hang() -> None:
    (first,) = halts(out_of_a_buffer_of_eighty_records(), run_on_s=5 * 3600)
    assert first.reason == "overdue_step"


def test_overflows_that_a_count_of_each_interval_hides_are_seen_by_the_scale() -> None:
    """Megatron-LM prints how many updates of an interval were skipped: one each time, which is no total that grows."""
    log = (
        {"t": float(step), "iteration": step, "lm loss": 2.0 + step % 3, "skipped_iterations": int(step > 100)}
        | {"loss_scale": 65536.0 if step <= 100 or step % 4 else 32768.0}
        for step in range(2, 300, 2)
    )
    assert [halt.reason for halt in halts(log)] == ["overflow_storm"]


def test_a_nan_that_is_shown_as_a_loss_of_0_is_caught_without_a_gradient_norm() -> None:
    log = ({"step": step, "loss": 2.0 + step % 3 if step < 400 else 0.0, "lr": 1e-4} for step in range(10, 4_000, 10))
    (first,) = halts(log)
    assert (first.reason, first.step) == ("loss_frozen", 890)
