"""`total_steps` is a goal also where steps have unequal tokens, and before the first window closes."""

from __future__ import annotations

import json
import re

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.base.units import MTOK, BootNs, UsdMicros
from governor.core.engine.node import Node
from governor.core.engine.node_journal import run_snapshot
from governor.core.engine.resume import restore_runs
from governor.core.engine.run_forecast import plan_of
from governor.core.events.effects import Effect
from governor.core.events.inputs import PhaseChange
from governor.core.views.status import run_status
from tests.unit.core.engine.test_ceiling_forecast import a_tick, said, started
from tests.unit.core.engine.test_step import a_step, at, hello, play

# Steps of 4,000 and of 6,000 tokens in turns, a second each, at $3.60/h: a tenth of a cent a second.
SIZES = (4_000, 6_000)


def told(node: Node, now: float) -> dict[str, object]:
    return run_status(node.runs["llama"], at(now))


def begun(ceiling: str, total_steps: int | None, tokens: int | None = None) -> Node:
    node = started(ceiling, tokens=tokens)
    play(node, hello(0, 0, world_size=1, tokens_per_step=None, total_steps=total_steps))
    play(node, PhaseChange(at(0), ConnectionId(1), "llama", 0, "train"))
    return node


def trained(
    node: Node, steps: range, since: float = 0.0, *, times: int = 1, before: int = 0, step_s: float = 1.0
) -> list[Effect]:
    effects: list[Effect] = []
    total = before
    for index, number in enumerate(steps, 1):
        tokens = SIZES[number % 2] * times
        total += tokens
        when = since + index * step_s
        step = a_step(number, when=when, tokens=tokens, tokens_total=total, step_s=step_s)
        effects += play(node, a_tick(when), step, a_tick(when + 0.1))
    return effects


def test_steps_of_any_size_tell_what_is_left_before_the_first_window_closes() -> None:
    """A hundred of 300 steps, half a million tokens: 200 seconds and 20 cents are left."""
    node = begun("10", 300)
    trained(node, range(1, 101))
    seen = told(node, 100.1)
    assert seen["tokens_goal"] == pytest.approx(1_500_000, rel=0.01)
    assert seen["hours_left"] == [None, pytest.approx(200 / 3600, rel=0.02), None]
    assert seen["cost_left_usd"] == [None, pytest.approx(0.20, rel=0.02), None]
    assert seen["ceiling_before_end"] is False


def test_steps_of_any_size_tell_between_what_the_run_lands() -> None:
    """Windows of 50 steps: four of them, and 800 of a thousand steps are left."""
    node = begun("10", 1000)
    trained(node, range(1, 201), times=4)
    hours = told(node, 200.1)["hours_left"]
    assert isinstance(hours, list)
    low, mid, high = hours
    assert low <= mid <= high
    assert mid == pytest.approx(800 / 3600, rel=0.02)


def test_a_start_up_is_none_of_the_time_that_is_left() -> None:
    node = begun("10", 300)
    trained(node, range(1, 2), step_s=600.0)
    trained(node, range(2, 101), since=600, before=SIZES[1])
    [_, mid, _] = told(node, 699.1)["hours_left"]  # type: ignore[misc]
    assert mid == pytest.approx(200 / 3600, rel=0.02)


@pytest.mark.parametrize("times", [1, 400])
def test_a_run_whose_last_step_comes_before_the_ceiling_is_not_warned_of_it(times: int) -> None:
    """35 cents, less a reserve of some five: 300 steps fit, and half of the ceiling is spent by then."""
    assert said(trained(begun("0.37", 300), range(1, 301), times=times)) == []


def test_a_run_whose_last_step_comes_after_the_ceiling_is_warned_once_of_a_step_before_it() -> None:
    texts = said(trained(begun("0.37", 1000), range(1, 301), times=400))
    [text] = texts
    [hit] = [int(number) for number in re.findall(r"at step ([\d,]+)", text)]
    assert 250 < hit < 370
    assert "the goal of 1,000 steps" in text


def test_without_tokens_the_time_of_the_steps_says_whether_the_last_comes_first() -> None:
    def alarms(total_steps: int | None) -> list[str]:
        node, effects = begun("0.37", total_steps), []
        for number in range(1, 251):
            effects += play(node, a_tick(number), a_step(number, when=number, step_s=1.0), a_tick(number + 0.1))
        return said(effects)

    assert alarms(300) == []
    assert len(alarms(1000)) == len(alarms(None)) == 1


def test_of_two_goals_the_first_one_counts() -> None:
    node = begun("10", 300, tokens=MTOK)
    trained(node, range(1, 101))
    assert told(node, 100.1)["tokens_goal"] == MTOK
    node = begun("10", 150, tokens=MTOK)
    trained(node, range(1, 101))
    assert told(node, 100.1)["tokens_goal"] == pytest.approx(750_000, rel=0.01)


def test_a_run_that_goes_on_from_uncounted_steps_has_its_goal_by_those_that_are_left() -> None:
    """It goes on from step 5,000, and its tokens begin with nothing: 200 steps are left, a million tokens."""
    node = begun("10", 5300)
    trained(node, range(5001, 5101))
    assert told(node, 100.1)["tokens_goal"] == pytest.approx(1_500_000, rel=0.01)


def test_a_governor_that_comes_back_warns_of_no_moving_goal_again() -> None:
    node = begun("0.37", 1000)
    assert len(said(trained(node, range(1, 201), times=400))) == 1
    kept = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(200.1))))
    reborn = begun("0.37", 1000)
    reborn.runs.clear()
    restore_runs(reborn, [kept], BootNs(at(200.1)), at(200.1))
    play(reborn, a_tick(201), hello(0, 201, world_size=1, tokens_per_step=None, total_steps=1000))
    before = node.runs["llama"].run.tokens_total
    assert before is not None
    assert said(trained(reborn, range(201, 231), since=201, times=400, before=before)) == []


def test_another_training_of_the_process_has_its_own_goal_beside_what_was_metered_before() -> None:
    node = begun("10", 100)
    trained(node, range(1, 101))
    play(node, hello(0, 101, world_size=1, tokens_per_step=None, total_steps=100, attempt="a2"))
    run = node.runs["llama"].run
    assert run.trains_again
    assert told(node, 101)["tokens_goal"] is None, "it has made no step yet"
    trained(node, range(1, 51), since=101)
    seen = told(node, 151.1)
    assert seen["tokens_goal"] == pytest.approx(500_000, rel=0.01)
    [_, mid, _] = seen["hours_left"]  # type: ignore[misc]
    assert mid == pytest.approx(50 / 3600, rel=0.03)
    assert plan_of(node.runs["llama"]).tokens_goal == pytest.approx(MTOK, rel=0.01)


def test_a_schedule_without_end_is_no_goal() -> None:
    node = begun("10", 2**60)
    trained(node, range(1, 11))
    assert told(node, 10.1)["tokens_goal"] is None
    assert node.runs["llama"].run.spend_usd_micros > UsdMicros(0)
