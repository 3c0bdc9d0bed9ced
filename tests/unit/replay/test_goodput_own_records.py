"""Saves and evaluations that a log tells in records of their own, by their seconds, with a step and without one."""

from __future__ import annotations

from typing import Any

import pytest

from governor.replay.goodput import LogTime


def told(rows: list[dict[str, Any]]) -> dict[str, float]:
    log = LogTime()
    for row in rows:
        log.read(row)
    log.end()
    return {cause.value: round(amount.ns / 1e9, 3) for cause, amount in log.whole.by_cause.items() if amount.ns}


def lines(
    every: int, own: dict[str, Any], seconds: float, *, has_step: bool, step_s: float | None
) -> list[dict[str, Any]]:
    """Twenty lines of twenty steps, two seconds each; behind each `every`th a record with `own` in it."""
    rows: list[dict[str, Any]] = []
    at = 0.0
    for number in range(1, 21):
        at += 2.0
        rows.append({"t": at, "step": 20 * number, "loss": 2.0, **({"step_time_s": step_s} if step_s else {})})
        if number % every == 0:
            at += seconds
            rows.append({"t": at, **own, **({"step": 20 * number} if has_step else {})})
    return rows


@pytest.mark.parametrize("step_s", [None, 0.1])
@pytest.mark.parametrize("has_step", [True, False])
@pytest.mark.parametrize("every", [1, 2, 20])
@pytest.mark.parametrize(
    ("own", "cause"),
    [({"val_loss": 2.5, "eval_s": 3.0}, "evaluation"), ({"checkpoint_s": 3.0}, "checkpoint_stall")],
    ids=["evaluation", "save"],
)
def test_a_record_of_a_pause_alone_has_its_seconds(
    own: dict[str, Any], cause: str, every: int, step_s: float | None, *, has_step: bool
) -> None:
    found = told(lines(every, own, 3.0, has_step=has_step, step_s=step_s))
    assert found == {"productive": 38.0 + 2.0, cause: 3.0 * (20 // every)}


@pytest.mark.parametrize("has_step", [True, False])
def test_without_times_too(*, has_step: bool) -> None:
    rows = [
        row | {"step_time_s": 0.1} if "loss" in row else row
        for row in lines(4, {"val_loss": 2.5, "eval_s": 3.0, "checkpoint_s": 1.0}, 4.0, has_step=has_step, step_s=None)
    ]
    found = told([{name: value for name, value in row.items() if name != "t"} for row in rows])
    assert (found["evaluation"], found["checkpoint_stall"]) == (15.0, 5.0)
