"""Whatever a log's records are, its time adds up and no cause is below zero."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from governor.core.attribution.causes import Cause
from governor.replay.goodput import LogTime
from tests.sweeps import share_of

MARKS = ["init", "eval", "eval_end", "checkpoint", "checkpoint_end", "train", "finish"]
SECONDS = st.sampled_from([0.0, 0.1, 0.5, 3.0, 20.0])


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """What differs from the record before: later by so many seconds, further by so many steps."""
    found: dict[str, Any] = {"later": draw(st.sampled_from([0.0, 0.001, 0.3, 1.0, 2.0, 30.0, -5.0]))}
    kind = draw(st.sampled_from(["line", "line", "line", "mark", "eval", "save"]))
    if kind == "mark":
        found["phase"] = draw(st.sampled_from(MARKS))
    if kind == "line":
        found["loss"] = 2.0
    if kind == "eval":
        found["val_loss"] = 2.0
    if kind != "mark" and draw(st.booleans()):
        found["steps"] = draw(st.sampled_from([0, 1, 1, 10, -20]))
    for name in ("step_time_s", "checkpoint_s", "eval_s", "data_s"):
        if draw(st.integers(0, 3)) == 0:
            found[name] = draw(SECONDS)
    return found


QUICK: list[dict[str, Any]] = [
    {"later": 31.0, "loss": 2.0, "steps": 1, "step_time_s": 20.0}, {"later": 3.0, "phase": "init"},
]  # fmt: skip
SAVED: list[dict[str, Any]] = [{"later": 2.0, "steps": 1, "checkpoint_s": 0.1}, {"later": 3.0, "phase": "init"}]


@pytest.mark.parametrize("is_timed", [True, False])
@given(st.lists(records(), min_size=1, max_size=30))
@example(QUICK)
@example(SAVED)
@settings(max_examples=share_of(300), deadline=None)
def test_the_time_of_any_log_adds_up(is_timed: bool, drawn: list[dict[str, Any]]) -> None:
    log, at, step = LogTime(price=36_000_000), 100.0, 0
    for one in drawn:
        record = {key: value for key, value in one.items() if key not in ("later", "steps")}
        at += one["later"]
        if "steps" in one:
            step = max(0, step + one["steps"])
            record["step"] = step
        log.read({**record, "t": at} if is_timed else record)
    log.end()
    whole = log.whole
    assert all(amount.ns >= 0 and amount.usd_micros >= 0 for amount in whole.by_cause.values()), whole
    assert whole.wall_ns == sum(amount.ns for amount in whole.by_cause.values())
    assert Cause.NOT_TOLD not in whole.by_cause
    assert whole.wall_ns == log.clock.now - log.clock.began or not is_timed or any(one["later"] < 0 for one in drawn)
