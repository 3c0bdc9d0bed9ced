"""A run that makes no step has no speed: not in the status, not in the metrics, and no forecast is made from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import NS_PER_S
from governor.core.engine.node import Node
from governor.core.events.inputs import PhaseChange, StreamOpened
from governor.core.runs.stepless import stepless_ns
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from tests.unit.core.engine.test_ceiling_forecast import a_tick, said, started, trained
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, tick


def speeds(node: Node, when: float) -> tuple[bool, bool, float | None]:
    """Whether status and metrics show a speed, and for how long they say that no step has come."""
    shown = run_status(node.runs["llama"], at(when))
    (metric,) = take_snapshot(node, at(when), GovernorHealth(), LagReading(), "").runs
    return shown["tokens_per_s"] is not None, metric.tokens_per_s is not None, shown["stepless_s"]


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.25, 5.0), (1.0, 5.0), (2.0, 6.0), (30.0, 90.0)])
def test_a_speed_is_shown_for_three_steps_and_five_seconds(step_s: float, limit_s: float) -> None:
    node = make_node()
    play(node, hello(0, world_size=1), PhaseChange(at(0), ConnectionId(1), "llama", 0, "train"))
    for number in range(1, 11):
        play(node, a_step(number, when=number * step_s, step_s=step_s), tick(number * step_s))
    last = 10 * step_s
    assert speeds(node, last + limit_s) == (True, True, None)
    assert speeds(node, last + limit_s + 1) == (False, False, limit_s + 1)
    play(node, a_step(11, when=last + 300.0, step_s=step_s))
    assert speeds(node, last + 301.0) == (True, True, None)


def test_before_a_rhythm_is_known_the_first_steps_are_given_a_minute() -> None:
    node = make_node()
    play(node, hello(0, world_size=1), a_step(1, when=10.0))
    run = node.runs["llama"].run
    assert stepless_ns(run, at(70.0)) is None
    assert stepless_ns(run, at(71.0)) == 61 * NS_PER_S


def test_a_log_that_shows_ten_steps_every_two_minutes_is_not_frozen_between() -> None:
    node = make_node()
    play(node, StreamOpened(at(0), "llama", 1000))
    for number in range(1, 51):
        play(node, replace(a_step(number, when=120.0 * -(-number // 10), tokens=1000, step_s=12.0), connection=None))
    assert node.runs["llama"].run.jsonl_only
    assert speeds(node, 600.0 + 119) == (True, True, None)
    assert speeds(node, 600.0 + 361) == (False, False, 361.0)


def test_no_ceiling_is_announced_at_the_rate_of_a_run_that_makes_no_step() -> None:
    node = started("0.50", tokens=None)
    assert trained(node, range(1, 17), 0) == []
    play(node, a_tick(77))
    assert said([effect for when in range(78, 400) for effect in play(node, a_tick(when))]) == []
