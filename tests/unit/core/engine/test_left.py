"""What is left of a run is what is left now, however large its windows are: status and alarm say the same."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import MTOK, NS_PER_S, DurationNs
from governor.core.engine.node import Node
from governor.core.engine.run_forecast import outlook
from governor.core.events.inputs import TrainerExited
from governor.core.views.status import run_status
from tests.unit.core.engine.test_ceiling_forecast import a_tick, said, started, trained, with_ceiling
from tests.unit.core.engine.test_step import a_step, at, hello, play


def with_windows(node: Node, tokens: int) -> Node:
    managed = node.runs["llama"]
    managed.judge_by(replace(managed.policy, budget=replace(managed.policy.budget, window_tokens=tokens)))
    return node


def test_near_its_goal_a_second_and_a_tenth_of_a_cent_are_left() -> None:
    """A quarter of a million of 100 a second, 99.75 of them trained: the last window closed 39 s before."""
    node = with_windows(started("1000"), 10 * MTOK)
    trained(node, range(1, 400), 0)
    told = run_status(node.runs["llama"], at(399.25))
    assert [hours * 3600 for hours in told["hours_left"]] == pytest.approx([1.0] * 3)
    assert told["cost_left_usd"] == pytest.approx([0.001] * 3)
    assert told["spend_usd"] + told["cost_left_usd"][1] == pytest.approx(0.40025), "as of the last step, 0.25 s before"


def test_a_pause_leaves_what_is_left() -> None:
    """Half of a window is trained, and then comes a step of 100 s."""
    node = with_windows(started("1000"), 10 * MTOK)
    trained(node, range(1, 221), 0)
    before = run_status(node.runs["llama"], at(220.25))["hours_left"]
    trained(node, range(221, 222), 220, step_s=100.0)
    after = run_status(node.runs["llama"], at(320.25))["hours_left"]
    assert [(then - now) * 3600 for then, now in zip(before, after, strict=True)] == pytest.approx([1.0] * 3)


def test_tokens_that_were_lost_are_left_again() -> None:
    """The next attempt goes on from step 50 of 60: its steps 51 and 52 are trained again, and 348 are left."""
    node = started("1000")
    trained(node, range(1, 61), 0)
    play(node, TrainerExited(at(60.25), "llama", 0))
    again = ConnectionId(2)
    play(node, hello(0, 61, world_size=1, tokens_per_step=None, attempt="a2", connection=again))
    for number in (51, 52):
        when = 11.0 + number
        step = a_step(number, when=when, tokens=MTOK // 4, tokens_total=number * MTOK // 4, attempt_step=number - 50)
        play(node, a_tick(when), replace(step, connection=again))
    left = outlook(node.runs["llama"], at(63.25)).left
    assert left is not None
    assert left.hours_left.mid * 3600 == pytest.approx(348)


def test_the_alarm_says_what_status_says() -> None:
    """In the middle of a window, whose steps are twice as fast as those before: spent and left are what would be."""
    node = with_windows(started("1000"), 10 * MTOK)
    assert trained(node, range(1, 201), 0, step_s=2.0) == []
    assert trained(node, range(201, 221), 400) == []
    with_ceiling(node, "0.60")
    [text] = said(play(node, a_tick(420.5)))
    told = run_status(node.runs["llama"], at(420.5))
    found = re.search(r"by which \$([\d.]+) ", text)
    assert found is not None
    assert float(found[1]) == pytest.approx(told["spend_usd"] + told["cost_left_usd"][1], abs=1e-4)


def test_a_slow_piece_of_a_window_is_no_news_before_it_closes() -> None:
    """Of 62 cents 40 are needed. Ten steps of 25 s are a quarter of a dollar more, in a window that goes on."""
    node = with_windows(started("0.62"), 10 * MTOK)
    assert trained(node, range(1, 201), 0) == []
    assert trained(node, range(201, 211), 200, step_s=25.0) == []
    assert DurationNs(node.runs["llama"].history.meter.spent_ns) >= 250 * NS_PER_S  # type: ignore[union-attr]
