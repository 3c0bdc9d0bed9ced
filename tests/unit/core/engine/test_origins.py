"""Launches whose checkpoint says of which run it is: what was trained here counts, whoever heard the launch before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.core.base.printable import printable
from governor.core.engine.node_journal import run_snapshot
from governor.core.events.checkpoints import Origin
from governor.core.runs import intake
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, tick
from tests.unit.core.engine.test_trained_count import S, trained_of

OWN, OTHER = Origin(), Origin("A", 82, 82 * S)


def told_launches(
    launches: list[tuple[range, Origin | None]], *, restarts: bool = False, totals: bool = True
) -> tuple[int, int, int, int]:
    """A step a second. Each launch is a range of steps, and what its checkpoint says.

    Returns the steps of its total, and those that are in its prices, as trained twice, and of the goal that are left.
    """
    node, now = make_node(cloud="none"), 0
    play(node, tick(0))
    for index, (numbers, origin) in enumerate(launches):
        if restarts and index:
            row = json.loads(json.dumps(run_snapshot(node, node.runs["llama"], at(now))))
            node.runs["llama"].run = intake.restored(row, at(now), same_boot=True)
        facts = {"world_size": 1, "tokens_per_step": None, "attempt": f"a{index}", "peer": peer(100 + index)}
        play(node, hello(0, now, **facts, origin=OWN))  # At attach(), before it has loaded.
        play(node, hello(0, now, **facts, origin=origin))
        for own, number in enumerate(numbers, 1):
            now += 1
            total = number * S if totals else None
            frame = a_step(number, when=now, attempt_step=own, tokens=S, tokens_total=total)
            play(node, frame, tick(now))
    meter, total = node.runs["llama"].history.meter, trained_of(node)
    assert meter is not None
    assert total is not None
    return total // S, meter.trained_tokens // S, meter.wasted_tokens // S, meter.began_tokens // S


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("totals", [False, True])
def test_another_runs_checkpoint_counts_at_no_distance(restarts: bool, totals: bool) -> None:
    launches = [(range(1, 21), OWN), (range(83, 93), OTHER), (range(16, 31), OWN), (range(88, 98), OTHER)]
    assert told_launches(launches, restarts=restarts, totals=totals) == (20 + 10 + 10 + 5, 20 + 10 + 15 + 10, 10, 0)


@pytest.mark.parametrize("totals", [False, True])
def test_of_a_run_that_begins_with_another_ones_checkpoint_only_its_own_tokens_count(totals: bool) -> None:
    assert told_launches([(range(83, 93), OTHER)], totals=totals) == (10, 10, 0, 0)
    twice = [(range(83, 93), OTHER), (range(88, 98), OTHER)]
    assert told_launches(twice, restarts=True, totals=totals) == (15, 20, 5, 0)
    anew = [(range(83, 93), OTHER), (range(1, 6), OWN), (range(3, 9), OWN)]
    assert told_launches(anew, restarts=True, totals=totals) == (18, 21, 3, 0)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_the_run_has_trained_elsewhere_is_in_its_total_and_in_no_price(restarts: bool) -> None:
    launches = [(range(1, 101), OWN), (range(2_601, 2_611), OWN), (range(2_606, 2_616), OWN)]
    assert told_launches(launches, restarts=restarts) == (2_615, 115 + 5, 5, 0)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("totals", [False, True])
def test_where_nobody_knows_a_far_step_is_another_runs_whoever_heard_the_launch_before(
    restarts: bool, totals: bool
) -> None:
    launches = [(range(1, 6), None), (range(5_001, 5_008), None), (range(6, 16), None), (range(5_006, 5_011), None)]
    assert told_launches(launches, restarts=restarts, totals=totals) == (5 + 7 + 10 + 3, 27, 2, 0)


def test_a_process_that_loads_another_checkpoint_between_two_steps_goes_on_from_that() -> None:
    node = make_node(cloud="none")
    facts = {"world_size": 1, "tokens_per_step": None}
    play(node, tick(0), hello(0, **facts, origin=OWN))
    own = 0
    for numbers, origin in ((range(1, 21), OWN), (range(83, 93), OTHER), (range(11, 16), OWN)):
        play(node, hello(0, own, **facts, origin=origin))
        for number in numbers:
            own += 1
            play(node, a_step(number, when=own, attempt_step=own, tokens=S, tokens_total=number * S), tick(own))
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert (trained_of(node), meter.wasted_tokens) == ((20 + 10 - 5) * S, 5 * S)


def test_two_checkpoints_of_the_same_total_are_two_origins() -> None:
    other = Origin("B", 82, 82 * S)
    assert told_launches([(range(1, 21), OWN), (range(83, 93), OTHER), (range(83, 93), other)]) == (40, 40, 0, 0)


@pytest.mark.parametrize(
    "said", [{"run": ""}, {"run": "x" * 129, "step": 1}, {"run": "A"}, {"run": "A", "step": -1}, {"run": 5, "step": 1}]
)
def test_an_origin_that_makes_no_sense_is_none(said: dict[str, Any]) -> None:
    assert Origin.said(said) is None


def test_an_origin_as_it_is_said() -> None:
    assert Origin.said(None) is None
    assert Origin.said({}) == OWN
    assert Origin.said({"run": "A\n", "step": 5, "tokens_total": True}) == Origin(printable("A\n"), 5, None)
