"""The account of any trainer's log: it adds up, and says what the log does not tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from governor.core.attribution.causes import Cause
from governor.core.base.units import NS_PER_S, UsdMicros
from governor.replay.goodput import LogGoodput, goodput_of
from governor.replay.readers.text import ANY
from governor.wire.jsonl import DEFAULT_FIELDS
from tests.unit.replay.recorded_file import Written


def told(path: Path, *rows: dict[str, Any] | str, price: int | None = None) -> LogGoodput:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return goodput_of(path, None if price is None else UsdMicros(price), DEFAULT_FIELDS, ANY)


def seconds(one: LogGoodput) -> dict[Cause, float]:
    return {cause: amount.ns / NS_PER_S for cause, amount in one.whole.by_cause.items() if amount.ns}


def lines(*at: float) -> list[dict[str, Any]]:
    return [{"t": when, "step": number, "loss": 2.0} for number, when in enumerate(at, start=1)]


def test_a_log_of_step_and_loss_has_its_start_and_its_pause_and_says_what_is_missing(tmp_path: Path) -> None:
    one = told(tmp_path / "a.jsonl", *lines(31, 32, 33, 34, 35, 95, 96))
    assert seconds(one) == {Cause.START_UP: 30.0, Cause.PRODUCTIVE: 7.0, Cause.UNKNOWN: 59.0}
    assert one.whole.wall_ns == 96 * NS_PER_S
    assert any("no parts of a step" in line for line in one.missing)
    assert one.problem is None
    assert one.whole.usd_micros == 0


def test_dollars_are_those_of_its_time_to_the_micro_dollar(tmp_path: Path) -> None:
    one = told(tmp_path / "a.jsonl", *lines(31, 32, 33, 34, 35), price=22_000_000)
    assert one.whole.usd_micros == 22_000_000 * 35 // 3600


def test_parts_of_a_step_have_their_causes(tmp_path: Path) -> None:
    parts = {"data_s": 0.5, "forward_s": 0.5, "backward_s": 0.9, "optimizer_s": 0.1, "step_s": 2.0}
    rows = [{"t": 2.0 * number, "step": number, "loss": 2.0, **parts} for number in range(1, 21)]
    one = told(tmp_path / "a.jsonl", *rows)
    assert seconds(one)[Cause.DATA] == pytest.approx(10.0, abs=0.1)
    assert one.missing == ("it tells no time in collectives: exposed communication counts as productive",)


def test_steps_that_are_trained_again_are_lost(tmp_path: Path) -> None:
    rows = lines(*range(1, 11)) + [{"t": 10.0 + at, "step": 5 + at, "loss": 2.0} for at in range(1, 11)]
    assert seconds(told(tmp_path / "a.jsonl", *rows))[Cause.LOST_STEPS] == pytest.approx(5.0)


def test_a_log_without_times_counts_by_its_step_times(tmp_path: Path) -> None:
    one = told(tmp_path / "a.jsonl", *({"step": n, "loss": 2.0, "step_time_s": 1.5} for n in range(1, 11)))
    assert one.whole.wall_ns == 15 * NS_PER_S
    assert "no time" in one.missing[0]


def test_a_log_without_any_times_is_one_clear_line(tmp_path: Path) -> None:
    one = told(tmp_path / "a.jsonl", {"step": 1, "loss": 2.0}, {"step": 2, "loss": 2.0})
    assert one.problem is not None
    assert "neither times nor step times" in one.problem
    assert not one.is_told


def test_a_torn_line_costs_that_line(tmp_path: Path) -> None:
    one = told(tmp_path / "a.jsonl", *lines(1, 2, 3), "{torn", {"t": 4, "step": 4, "loss": 2.0})
    assert one.problem is not None
    assert "a.jsonl:4" in one.problem
    assert one.whole.wall_ns == 4 * NS_PER_S


def test_a_recording_is_counted_by_its_frames_and_a_gap_has_no_cause(tmp_path: Path) -> None:
    log = Written("run", 1_000).hello(0).steps(range(1, 11), 10, 1).hello(100, "b").steps(range(11, 21), 110, 1)
    (tmp_path / "frames.jsonl").write_bytes(b"".join(log.lines))
    one = goodput_of(tmp_path / "frames.jsonl", None, DEFAULT_FIELDS, ANY)
    assert one.problem is None
    assert one.whole.wall_ns == 119 * NS_PER_S
    assert seconds(one)[Cause.PRODUCTIVE] == pytest.approx(20.0, abs=2.0)
    assert Cause.RESTART in seconds(one)


def test_a_log_that_tells_its_data_and_no_passes_says_what_counts_as_productive(tmp_path: Path) -> None:
    told_s = {"time_metrics/end_to_end(s)": 1.0, "time_metrics/data_loading(s)": 0.25}
    rows = [{"t": 1.7e9 + 10 * at, "step": 10 * at, "loss": 2.0, **told_s} for at in range(1, 22)]
    one = told(tmp_path / "a.jsonl", *rows)
    assert seconds(one)[Cause.PRODUCTIVE] == pytest.approx(150.0)
    assert seconds(one)[Cause.DATA] == pytest.approx(50.0)
    (missing,) = one.missing
    assert "passes" in missing


PARTS = {"data_s": 0.1, "forward_s": 0.03, "backward_s": 0.06, "optimizer_s": 0.01}


@pytest.mark.parametrize("own", [{"step_s": 0.2}, {}])
@pytest.mark.parametrize("stamp", [int, lambda at: f"2026-05-28T20:{int(at) // 60:02}:{int(at) % 60:02}Z"])
def test_stamps_of_whole_seconds_do_not_make_of_five_steps_one(
    tmp_path: Path, stamp: Any, own: dict[str, float]
) -> None:
    rows = [{"timestamp": stamp(1_000 + n / 5), "step": n, "loss": 2.0, **PARTS, **own} for n in range(1, 301)]
    found = seconds(told(tmp_path / "a.jsonl", *rows))
    assert found[Cause.PRODUCTIVE] == pytest.approx(30, abs=1.0)
    assert found[Cause.DATA] == pytest.approx(30, abs=1.0)
    assert found.get(Cause.UNKNOWN, 0.0) < 1.0


def test_a_pause_in_a_log_of_whole_seconds_is_still_one(tmp_path: Path) -> None:
    at = [1_000 + n / 5 + (60 if n > 150 else 0) for n in range(1, 301)]
    rows = [{"timestamp": int(when), "step": n, "loss": 2.0, **PARTS, "step_s": 0.2} for n, when in enumerate(at, 1)]
    assert seconds(told(tmp_path / "a.jsonl", *rows))[Cause.UNKNOWN] == pytest.approx(60, abs=1.5)


def test_a_trainer_state_without_times_says_what_to_give_instead(tmp_path: Path) -> None:
    history = [{"step": 20, "loss": 5.4, "epoch": 0.1}, {"step": 40, "loss": 5.3, "epoch": 0.2}]
    one = told(tmp_path / "trainer_state.json", json.dumps({"log_history": history}))
    assert one.problem is not None
    assert "has no times" in one.problem
    assert "--map" not in one.problem


def walled(*at: float) -> list[dict[str, Any]]:
    return [{"step": number, "loss": 1, "time": 1.76e9 + second} for number, second in enumerate(at)]


def back(number: int, first: int, last: int, by_s: float) -> float:
    return number - (by_s if first <= number <= last else 0.0)


@pytest.mark.parametrize("by_s", [2.5, 500.0, 86_400.0])
def test_a_wall_clock_that_is_set_back_and_right_again_makes_no_time(tmp_path: Path, by_s: float) -> None:
    one = told(
        tmp_path / "log.jsonl", *walled(*(back(number, 51, 59, by_s) for number in range(100))), price=22_000_000
    )
    assert one.whole.wall_ns / NS_PER_S == pytest.approx(99.0, abs=0.01)
    assert seconds(one)[Cause.PRODUCTIVE] == pytest.approx(99.0, abs=1.0)
    assert any("went back 1 time:" in line for line in one.missing)


def test_a_clock_that_is_set_back_twice_is_set_right_at_once_or_one_by_one(tmp_path: Path) -> None:
    for last in (59, 69):
        at = [back(number, 41, last, 500) + back(number, 51, 59, 300) - number for number in range(100)]
        one = told(tmp_path / f"{last}.jsonl", *walled(*at))
        assert one.whole.wall_ns / NS_PER_S == pytest.approx(99.0, abs=0.01)
        assert any("went back 2 times:" in line for line in one.missing)


def test_a_clock_that_stays_back_goes_on_and_its_pauses_are_pauses(tmp_path: Path) -> None:
    at = [back(number, 51, 100, 500) + (120 if number > 70 else 0) for number in range(100)]
    one = told(tmp_path / "log.jsonl", *walled(*at))
    assert one.whole.wall_ns / NS_PER_S == pytest.approx(219.0, abs=0.01)
    assert seconds(one)[Cause.UNKNOWN] == pytest.approx(120.0, abs=1.0)


def test_lines_that_tell_of_no_step_are_none(tmp_path: Path) -> None:
    """As W&B has them between the steps: of GPUs, of events, with the step before."""
    rows = [
        {
            "step": max(0, number - 5),
            "t": float(number),
            **({"gpu": 0.5} if number < 6 or number % 2 else {"loss": 2.0}),
        }
        for number in range(40)
    ]
    rows = [row | ({} if "loss" in row else {"step": max(0, row["step"] - 1)}) for row in rows]
    one = told(tmp_path / "log.jsonl", *rows)
    assert one.steps == sum("loss" in row for row in rows)
    assert Cause.LOST_STEPS not in seconds(one)


def test_the_length_of_an_evaluation_does_not_make_one_of_a_steps_line(tmp_path: Path) -> None:
    parts = {"step_s": 2.0, "forward_s": 0.5, "backward_s": 0.5, "eval_s": 1.0}
    one = told(tmp_path / "log.jsonl", *({"step": number, "t": 2.0 * number, **parts} for number in range(1, 21)))
    assert (one.steps, seconds(one)[Cause.EVALUATION]) == (20, pytest.approx(20.0, abs=2.0))
