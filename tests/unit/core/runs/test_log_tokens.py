"""Tokens of a log that tells each step's: what was trained before a step that goes back has its total already."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable

import pytest

from governor.core.base.units import MonoNs
from governor.core.engine.node_journal import run_snapshot
from governor.core.events.inputs import Step
from governor.core.events.streams import StreamOpened
from governor.core.runs import intake
from governor.core.runs.counting import LOG_TOTALS_MAX
from governor.core.runs.state import Run
from tests.unit.core.engine.test_metering import World
from tests.unit.core.engine.test_step import at, make_node

EACH = 100_000


def read(run: Run, steps: Iterable[int], tokens: int = EACH) -> None:
    for number in steps:
        intake.apply_step(run, None, Step(MonoNs(number), None, "log", 0, number, tokens=tokens))


def a_log() -> Run:
    return Run("log", 1000, MonoNs(0), jsonl_only=True)


@pytest.mark.parametrize("is_new_attempt", [False, True])
def test_steps_that_were_trained_before_have_their_total(is_new_attempt: bool) -> None:
    run = a_log()
    read(run, range(1, 61))
    assert run.tokens_total == 6_000_000
    if is_new_attempt:
        intake.begin_attempt(run, "stream", MonoNs(100))
    read(run, [31])
    assert run.tokens_total == 3_100_000
    read(run, range(32, 51))
    assert run.tokens_total == 5_000_000  # The goal of 8M is 30 steps away.
    read(run, range(51, 81))
    assert (run.tokens_total, run.furthest) == (8_000_000, (80, 8_000_000))


def test_an_attempt_that_begins_at_the_last_step_has_trained_it_before() -> None:
    run = a_log()
    read(run, range(1, 61))
    intake.begin_attempt(run, "stream", MonoNs(100))
    read(run, [60, 61])
    assert run.tokens_total == 6_100_000


def test_each_line_of_a_step_counts() -> None:
    run = a_log()
    read(run, [1, 1, 2, 2])
    assert run.tokens_total == 400_000
    read(run, [1, 1, 2, 3])
    assert run.tokens_total == 500_000


def test_a_log_that_shows_each_tenth_step_counts_its_lines_and_what_lies_between_them_in_proportion() -> None:
    run = a_log()
    read(run, range(10, 61, 10))
    read(run, [35])
    assert run.tokens_total == 350_000
    read(run, range(45, 80, 10))
    assert run.tokens_total == 800_000  # Six lines, then those of steps 65 and 75.


def test_steps_before_the_first_one_that_was_heard_add_nothing_to_what_was_trained() -> None:
    run = a_log()
    read(run, range(1000, 1060))
    read(run, range(900, 1060))
    assert run.tokens_total == 6_000_000


def test_what_is_kept_of_a_long_log_is_little_and_right() -> None:
    """Of batches of any length: within one of those that were thrown away."""
    run, drawn, truth = a_log(), random.Random(3), {0: 0}
    for number in range(1, 3001):
        tokens = drawn.randint(1, 1000)
        truth[number] = truth[number - 1] + tokens
        read(run, [number], tokens)
    assert len(run.log_totals) <= LOG_TOTALS_MAX
    gap = max(later[0] - sooner[0] for sooner, later in zip(run.log_totals, run.log_totals[1:], strict=False))
    for number in (1, 700, 1501, 2999):
        read(run, [number])
        assert abs((run.tokens_total or 0) - truth[number]) <= gap * 1000
    read(run, [3001], 7)
    assert run.tokens_total == truth[3000] + 7


@pytest.mark.parametrize("is_old", [False, True])
def test_a_governor_that_comes_back_knows_them_and_counts_the_rest_as_trained_twice(is_old: bool) -> None:
    world = World(make_node(cloud="none"))
    world.tick()
    world.play(StreamOpened(at(0), "log", 1000))
    for number in range(1, 61):
        world.play(Step(at(number), None, "log", 0, number, tokens=EACH))
    world.at(61)
    managed = world.node.runs["log"]
    world.runs["log"] = json.loads(json.dumps(run_snapshot(world.node, managed, at(61))))
    if is_old:
        del world.runs["log"]["log_totals"]  # type: ignore[attr-defined]
    world.restart()
    world.tick()
    world.play(StreamOpened(at(61), "log", 1000))
    for number in range(31, 61):
        world.play(Step(at(40 + number), None, "log", 0, number, tokens=EACH))
    managed = world.node.runs["log"]
    meter = managed.history.meter
    assert meter is not None
    assert (managed.run.tokens_total, meter.useful_tokens, meter.wasted_tokens) == (6_000_000, 6_000_000, 3_000_000)


def test_of_a_long_log_each_second_total_is_kept_at_least() -> None:
    """The last steps have a hundred times the tokens of those before: a straight line from first to last is far off."""
    run = a_log()
    read(run, range(1, LOG_TOTALS_MAX + 1))
    read(run, range(LOG_TOTALS_MAX + 1, LOG_TOTALS_MAX + 3), tokens=100 * EACH)
    intake.begin_attempt(run, "stream", MonoNs(100))
    read(run, [31])
    assert run.tokens_total == 31 * EACH


def test_what_the_last_attempt_told_last_is_not_confirmed_by_the_next() -> None:
    """Its last total cannot be. The next one's first, a step's tokens beyond that, stands alone again."""
    run = a_log()

    def tell(step: int, total: int) -> None:
        intake.apply_step(run, None, Step(MonoNs(step), None, "log", 0, step, tokens_total=total))

    for number in (1, 2, 3):
        tell(number, number * EACH)
    tell(4, 2**50)
    intake.begin_attempt(run, "stream", MonoNs(100))
    tell(5, 2**50 + EACH)
    assert run.tokens_total == 3 * EACH
    tell(6, 6 * EACH)
    assert (run.tokens_total, run.trained_count.offset) == (6 * EACH, 0)
