"""One process that trains more than once: each training is judged from its own first step, and paid as one launch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.engine.node import Node
from governor.core.events.checkpoints import NamedCheckpoint
from governor.core.events.effects import Alarm, Effect
from governor.core.money.token_windows import TokenMeter
from governor.core.views.metrics import GovernorHealth, LagReading, take_snapshot
from governor.core.views.status import run_status
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, rule, tick


def alarms(effects: list[Effect], name: str) -> list[Alarm]:
    return [effect for effect in effects if isinstance(effect, Alarm) and effect.name == name]


def train(node: Node, when: int, attempt: str, steps: int, **changes: Any) -> list[Effect]:
    effects = play(node, hello(0, when, world_size=1, attempt=attempt, **changes))
    for number in range(1, steps + 1):
        effects += play(
            node,
            a_step(number, 0, when + number, attempt_step=number, tokens=100, tokens_total=None),
            tick(when + number),
        )
    return effects


def test_the_second_training_begins_at_step_0_without_the_firsts_checkpoints() -> None:
    node = make_node()
    saved = NamedCheckpoint(60, "/ck/fold0/checkpoint-60")
    train(node, 0, "a1", 3)
    play(node, hello(0, 10, world_size=1, attempt="a1", last_good=saved))
    said = train(node, 20, "a1+1", 3, resumes="called")
    run = node.runs["llama"].run
    assert (run.attempt, run.step, run.attempt_step, run.last_good) == ("a1+1", 3, 3, None)
    assert alarms(said, "begun_anew") == [], "it is not expected to go on from the first one's"
    play(node, hello(0, 30, world_size=1, attempt="a1+1", last_good=NamedCheckpoint(10, "/ck/fold1/checkpoint-10")))
    assert run.last_good is not None
    assert run.last_good.step == 10, "news, although the first training came to step 60"


def test_a_launch_keeps_what_the_launch_before_has_saved() -> None:
    node = make_node()
    train(node, 0, "a1", 3)
    play(node, hello(0, 10, world_size=1, attempt="a1", last_good=NamedCheckpoint(60, "/ck/60")))
    train(node, 20, "a2", 3, peer=peer(900), connection=ConnectionId(9))
    assert node.runs["llama"].run.last_good is not None


@pytest.mark.parametrize("is_one_process", [True, False])
def test_short_trainings_of_one_process_are_no_loop_of_restarts(is_one_process: bool) -> None:
    """A search over hyperparameters gives most trials up within a few steps."""
    node = make_node(rule("restart_loop"))
    for number in range(6):
        whose: dict[str, Any] = {} if is_one_process else {"peer": peer(900 + number)}
        train(node, 100 * number, f"a1+{number}", 2, **whose)
    assert (node.runs["llama"].incident is None) is is_one_process


def test_what_trains_unwatched_beside_it_is_said_once_and_stands_until_the_end() -> None:
    node = make_node()
    assert alarms(train(node, 0, "a1", 3), "trains_beside") == []
    assert shown(node, 4) == (None, False)
    (alarm,) = alarms(train(node, 10, "a1", 5, beside="Critic"), "trains_beside")
    assert "UNWATCHED" in alarm.text
    assert "Critic" in alarm.text
    assert shown(node, 20) == ("Critic", True)
    assert alarms(train(node, 30, "a1+1", 5), "trains_beside") == []
    assert shown(node, 40) == (None, False)


def shown(node: Node, when: float) -> tuple[str | None, bool | None]:
    """In status, and in metrics."""
    (metric,) = take_snapshot(node, at(when), GovernorHealth(), LagReading(), "").runs
    return run_status(node.runs["llama"], at(when))["unwatched_beside"], metric.trains_beside


def test_what_the_second_training_costs_repeats_nothing_of_the_firsts() -> None:
    """Healthy folds were "tokens trained twice", and half of what they cost was waste."""
    node = make_node(price_usd_micros_per_hour=22_000_000)
    for number in range(3):
        train(node, 20 * number, f"a1+{number}", 10)
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert (meter.wasted_tokens, meter.trained_tokens) == (0, 30 * 100)
    shown = run_status(node.runs["llama"], at(60))
    assert shown["usd_per_mtok_useful"] == shown["usd_per_mtok_all_in"]
    again = TokenMeter.restored(json.loads(json.dumps(meter.snapshot())), same_boot=True)
    assert again == meter
    train(node, 80, "a2", 10, peer=peer(900))
    assert meter.wasted_tokens == 10 * 100, "a launch that begins anew does repeat"


def test_one_that_has_loaded_a_checkpoint_goes_on_from_its_totals_and_repeats_what_was_lost() -> None:
    """A restart within the process."""
    node = make_node(price_usd_micros_per_hour=22_000_000)
    train(node, 0, "a1", 10)
    play(node, hello(0, 20, world_size=1, attempt="a1+1"))
    for number in range(1, 11):
        step = a_step(6 + number, 0, 20 + number, attempt_step=number, tokens=100, tokens_total=100 * (6 + number))
        play(node, step, tick(20 + number))
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert (meter.wasted_tokens, meter.trained_tokens) == (400, 2_000)


@pytest.mark.parametrize("base", [10**12, 5 * 10**10])
def test_a_second_training_whose_totals_go_on_from_anothers_has_trained_none_of_those(base: int) -> None:
    node = make_node(price_usd_micros_per_hour=22_000_000)
    train(node, 0, "a1", 10, tokens_per_step=None)
    effects = play(node, hello(0, 20, world_size=1, attempt="a1+1", tokens_per_step=None))
    for number in range(1, 11):
        step = a_step(number, 0, 20 + number, attempt_step=number, tokens=100, tokens_total=base + 100 * number)
        effects += play(node, step, tick(20 + number))
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert (meter.wasted_tokens, meter.trained_tokens) == (0, 2_000)
    (alarm,) = alarms(effects, "figure_refused")
    assert f"{base - 1000:,} of them are not counted" in alarm.text
