"""A run that shows no loss is said to be one, once an attempt; where another rank has the loss nothing is."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.engine.alarms import LOSS_DUE_STEPS
from governor.core.engine.node import Node
from governor.core.events.effects import Alarm
from governor.core.events.inputs import Step
from governor.core.events.streams import StreamOpened
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, play, rule, tick

LOSSLESS: dict[str, Any] = {"loss": None, "loss_expected": False}


def told(node: Node, steps: int, *ranks: dict[str, Any], since: int = 1) -> list[Alarm]:
    """Train so many steps, rank by rank with these fields; return what was said of a loss that is not there."""
    effects = []
    for number in range(since, since + steps):
        for rank, fields in enumerate(ranks):
            effects += play(node, a_step(number, rank, number, attempt_step=number - since + 1, **fields))
        effects += play(node, tick(number))
    return [effect for effect in effects if isinstance(effect, Alarm) and effect.name == "no_loss"]


def test_a_loop_without_a_loss_is_said_once_an_attempt_and_not_before_it_is_due() -> None:
    node = make_node()
    play(node, hello(0, world_size=1))
    assert told(node, LOSS_DUE_STEPS - 1, LOSSLESS) == []
    (alarm,) = told(node, 3 * LOSS_DUE_STEPS, LOSSLESS)
    assert "shim.loss(loss)" in alarm.text
    assert 'rule "r-nonfinite"' in alarm.text
    assert shown(node) == (3 * LOSS_DUE_STEPS, True)
    play(node, hello(0, 100, world_size=1, attempt="a2"))
    assert shown(node) == (None, False)
    assert len(told(node, 3 * LOSS_DUE_STEPS, LOSSLESS, since=101)) == 1


def test_it_stands_in_status_and_metrics_until_a_loss_comes() -> None:
    node = make_node()
    play(node, hello(0, world_size=1))
    assert len(told(node, 2 * LOSS_DUE_STEPS, LOSSLESS)) == 1
    assert shown(node) == (2 * LOSS_DUE_STEPS, True)
    assert told(node, 1, {}, since=2 * LOSS_DUE_STEPS + 1) == []
    assert shown(node) == (None, False)


def shown(node: Node) -> tuple[int | None, bool | None]:
    (metric,) = take_snapshot(node, at(300), GovernorHealth(), LagReading(), "").runs
    return run_status(node.runs["llama"], at(300))["loss_unseen_steps"], metric.loss_unseen


@pytest.mark.parametrize(
    ("framework", "world_size", "ranks"),
    [
        ("torch", 1, [{}]),
        ("pipeline", 2, [LOSSLESS, {}]),  # The last stage has it.
        ("pipeline", 4, [LOSSLESS, LOSSLESS]),  # The last stage is on another node.
    ],
)
def test_who_has_a_loss_somewhere_is_not_blind(framework: str, world_size: int, ranks: list[dict[str, Any]]) -> None:
    node = make_node()
    play(node, *(hello(rank, world_size=world_size, framework=framework) for rank in range(len(ranks))))
    assert told(node, 3 * LOSS_DUE_STEPS, *ranks) == []


def test_the_loss_of_a_pipeline_is_that_of_the_stage_that_has_it() -> None:
    node = make_node()
    play(node, *(hello(rank, world_size=2, framework="pipeline") for rank in range(2)))
    assert told(node, 2, LOSSLESS, {"loss": 2.5}) == []
    assert run_status(node.runs["llama"], at(300))["loss"] == 2.5
    told(node, 1, {"loss": None, "loss_expected": True}, {"loss": 2.5}, since=3)
    assert run_status(node.runs["llama"], at(300))["loss"] is None, "its own has vanished"


def test_a_policy_that_judges_no_loss_misses_none() -> None:
    node = make_node(rule("hang"))
    play(node, hello(0, world_size=1))
    assert told(node, 3 * LOSS_DUE_STEPS, LOSSLESS) == []


# --- a log that had a loss ----------------------------------------------------------------------------------------


def told_of_log(node: Node, *losses: float | None) -> list[Alarm]:
    """Lines with these losses, one a second, behind those that the run has."""
    since = (node.runs["log"].run.step or 0) + 1 if "log" in node.runs else 1
    effects = [] if since > 1 else play(node, StreamOpened(at(0), "log", 1000))
    for number, loss in enumerate(losses, since):
        effects += play(node, Step(at(number), None, "log", 0, number, loss=loss, lr=1e-4), tick(number))
    return [effect for effect in effects if isinstance(effect, Alarm) and effect.name == "no_loss"]


def of_log(node: Node) -> int | None:
    steps: int | None = run_status(node.runs["log"], at(3000))["loss_unseen_steps"]
    return steps


def test_a_log_that_had_losses_and_has_none_for_fifty_steps_is_said_to_have_none_until_one_comes() -> None:
    node = make_node(rule("hang"))
    assert told_of_log(node, *[2.0] * 20, *[None] * 49) == []
    (alarm,) = told_of_log(node, *[None] * 51)
    assert "50 steps" in alarm.text
    assert of_log(node) == 100
    assert told_of_log(node, 2.0) == []
    assert of_log(node) is None
    assert told_of_log(node, *[None] * 200) == [], "its longest gap is 101 steps"
    assert len(told_of_log(node, *[None] * 200)) == 1


def test_a_log_that_never_had_two_losses_or_has_them_seldom_is_its_writer_s() -> None:
    for losses in ([None] * 200, [2.0, *[None] * 200], [2.0, *[None] * 99] * 4):
        assert told_of_log(make_node(rule("hang")), *losses) == []
