"""Launches whose checkpoint says of which run it is: what was trained here counts, whoever heard the launch before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from governor.core.base.printable import printable
from governor.core.base.units import MonoNs
from governor.core.engine.node_journal import run_snapshot
from governor.core.events.checkpoints import Origin
from governor.core.events.effects import Alarm
from governor.core.events.inputs import Bye
from governor.core.runs import intake
from governor.core.runs.trained_count import TrainedCount
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, peer, play, tick
from tests.unit.core.engine.test_trained_count import JUMP, S, trained_of
from tests.unit.core.runs.test_counting import Trainer

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
@pytest.mark.parametrize("totals", [False, True])
def test_what_the_run_has_trained_elsewhere_is_in_its_total_and_in_no_price(restarts: bool, totals: bool) -> None:
    launches = [(range(1, 101), OWN), (range(2_601, 2_611), OWN), (range(2_606, 2_616), OWN)]
    assert told_launches(launches, restarts=restarts, totals=totals) == (2_615, 115 + 5, 5, 0)
    back = [*launches, (range(51, 56), OWN)]
    assert told_launches(back, restarts=restarts, totals=totals) == (55, 115 + 5 + 5, 5 + 5, 0)


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
        play(node, hello(0, own, **facts, origin=origin, loaded_at=own))
        for number in numbers:
            own += 1
            play(node, a_step(number, when=own, attempt_step=own, tokens=S, tokens_total=number * S), tick(own))
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert (trained_of(node), meter.wasted_tokens) == ((20 + 10 - 5) * S, 5 * S)


def test_two_checkpoints_of_the_same_total_are_two_origins() -> None:
    other = Origin("B", 82, 82 * S)
    assert told_launches([(range(1, 21), OWN), (range(83, 93), OTHER), (range(83, 93), other)]) == (40, 40, 0, 0)


# --- how far is far -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "counted", "paid"),
    [
        (OWN, 510, 310),  # Another machine has trained 200 steps.
        (None, 510, 310),  # It may have lost so many frames in a row. But it has paid for no such time.
    ],
)
def test_200_steps_ahead_of_300_were_trained_elsewhere_where_the_checkpoint_is_its_own(
    origin: Origin | None, counted: int, paid: int
) -> None:
    trainer = Trainer()
    trainer.launch(origin=origin)
    trainer.train(*range(1, 301))
    trainer.launch(origin=origin)
    trainer.train(*range(501, 511))
    assert (trainer.counted, trainer.paid) == ((counted, 0), paid)


@pytest.mark.parametrize("totals", [False, True])
def test_a_step_that_the_run_had_before_its_last_launch_is_not_far(totals: bool) -> None:
    trainer = Trainer()
    for numbers in (range(1, 301), range(1, 6), range(250, 256)):
        trainer.launch()
        trainer.train(*numbers, totals=totals)
    assert trainer.counted == (255, 5 + 6)


@pytest.mark.parametrize("totals", [False, True])
def test_another_runs_tokens_come_behind_all_that_was_trained_and_not_behind_the_last_launch(totals: bool) -> None:
    trainer = Trainer()
    for numbers in (range(1, 21), range(5, 9), range(5_001, 5_004)):
        trainer.launch()
        trainer.train(*numbers, totals=totals)
    assert trainer.counted == (20 + 3, 4)
    trainer.launch()
    trainer.train(*range(120, 126))  # 99 steps behind the twentieth.
    assert trainer.counted == (125 + 3, 4)


def test_of_two_counts_that_have_had_a_step_it_is_of_the_later_one_and_beyond_both_of_neither() -> None:
    """It tells no totals. Where the other run's began, this one has come by itself since."""
    trainer = Trainer()
    for numbers in (range(1, 6), range(201, 208), range(6, 301), range(203, 208), range(100_001, 100_004)):
        trainer.launch()
        trainer.train(*numbers, totals=False)
        if numbers[0] == 203:
            assert trainer.counted == (207 + 7, 5)
    assert trainer.counted == (300 + 7 + 3, 5)


def test_a_launch_whose_checkpoint_says_its_run_is_none_of_which_nobody_knew() -> None:
    trainer = Trainer()
    for numbers, origin in (
        (range(1, 6), None), (range(5_001, 5_008), None), (range(5_005, 5_010), Origin("A", 5_004, 5_004 * S)),
    ):  # fmt: skip
        trainer.launch(origin=origin)
        trainer.train(*numbers)
    assert trainer.counted == (5 + 7 + 5, 0)


@pytest.mark.parametrize("origin", [None, OWN])
def test_another_training_of_the_process_whose_count_begins_high_has_its_own_steps(origin: Origin | None) -> None:
    trainer = Trainer()
    trainer.launch(origin=origin)
    trainer.train(*range(1, 6))
    trainer.launch(attempt="a1+1", peer=peer(101), origin=origin)
    trainer.train(1, 2, 3, higher=10**12)
    assert (trainer.counted, trainer.paid) == ((3, 0), 5 + 3)


def test_another_training_of_a_process_passes_over_nothing_that_the_one_before_did() -> None:
    trainer = Trainer()
    for numbers in (range(1, 101), range(2_601, 2_611)):
        trainer.launch(origin=OWN)
        trainer.train(*numbers)
    trainer.launch(attempt="a2+1", peer=peer(102), origin=OWN)
    trainer.train(1, 2, 3)
    assert (trainer.counted, trainer.paid) == ((3, 0), 100 + 10 + 3)


def test_what_the_checkpoint_says_of_its_tokens_is_surer_than_the_size_of_the_first_step_heard() -> None:
    """Three steps of S are lost; the fourth has two of them."""
    trainer = Trainer()
    trainer.launch(origin=OTHER)
    play(trainer.node, a_step(86, when=4, attempt_step=4, tokens=2 * S, tokens_total=87 * S), tick(4))
    assert trainer.counted == (5, 0)


@pytest.mark.parametrize(("step", "passed"), [(450, 149), (302, None), (250, None)])
def test_what_is_passed_over_is_told_with_all_that_was_trained_here(step: int, passed: int | None) -> None:
    """It had 300 steps, and its last launch has begun anew."""
    trainer = Trainer()
    for numbers in (range(1, 301), range(1, 6)):
        trainer.launch(origin=OWN)
        trainer.train(*numbers)
    trainer.launch(origin=OWN)
    effects = play(trainer.node, a_step(step, when=400, attempt_step=1, tokens=S, tokens_total=step * S), tick(400))
    said = [one.text for one in effects if isinstance(one, Alarm) and one.name == "figure_refused"]
    assert [f"{(passed or 0) * S:,} tokens" in text for text in said] == ([True] if passed is not None else [])


@pytest.mark.parametrize("says", [10**15, 2**62])
def test_an_origin_that_says_more_than_is_told_behind_it_is_not_believed_in_that_and_it_is_said(says: int) -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21))
    trainer.launch(origin=Origin("B", 82, says))
    effects = play(trainer.node, a_step(83, when=21, attempt_step=1, tokens=S, tokens_total=83 * S), tick(21))
    assert [f"{says:,}" in one.text for one in effects if isinstance(one, Alarm)] == [True]
    trainer.own = 1
    trainer.train(*range(84, 93))
    trainer.launch(origin=OWN)
    trainer.train(*range(21, 31))
    assert (trainer.counted, trainer.paid) == ((40, 0), 40)


def test_a_launch_whose_count_jumps_with_its_first_step_has_passed_over_nothing() -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21))
    play(trainer.node, Bye(at(20), hello(0).connection, "llama", 0, 9, step=20))
    trainer.launch(origin=OWN)
    trainer.train(*range(21, 31), higher=JUMP)
    assert (trainer.counted, trainer.paid) == ((30, 0), 30)


def test_where_no_step_tells_its_tokens_the_largest_says_nothing_of_what_was_trained_again() -> None:
    """The first step has ten times the tokens of the others. The launch goes back by one step."""
    node = make_node(cloud="none")
    play(node, tick(0))
    for attempt, numbers in enumerate((range(1, 21), range(20, 31))):
        play(node, hello(0, 20, world_size=1, tokens_per_step=None, attempt=f"a{attempt}", peer=peer(100 + attempt)))
        for own, number in enumerate(numbers, 1):
            when = 20 * attempt + own
            play(node, a_step(number, when=when, attempt_step=own, tokens_total=(9 + number) * S), tick(when))
    meter = node.runs["llama"].history.meter
    assert meter is not None
    assert (meter.progress_tokens // S, meter.wasted_tokens // S) == (39, 0), "the first tells nothing of its own"


# --- what is kept ---------------------------------------------------------------------------------------------------


def test_of_a_run_of_its_own_checkpoints_alone_the_journal_has_no_more_than_that() -> None:
    trainer = Trainer()
    for numbers in (range(1, 6), range(4, 9)):
        trainer.launch(origin=OWN)
        trainer.train(*numbers)
    count = trainer.node.runs["llama"].run.trained_count
    assert (kept(count), count.strands, count.bends, count.offset) == (count, [], [], 0)


def test_what_is_known_of_a_launch_before_its_first_step_is_kept() -> None:
    count = TrainedCount()
    count.begin_attempt(None)
    count.hear(OTHER, 0, MonoNs(0))
    assert count.is_of_new_origin
    assert kept(count) == count
    count.go_on_apart(82, 82 * S, None, 0)
    count.hear(OWN, 10, MonoNs(0))
    count.turn(11, (92, 10 * S))
    assert (count.origin, count.loaded_at, count.is_new) == (OWN, 10, True)
    assert kept(count) == count
    count.begin_attempt(None)
    assert (count.origin, count.loaded_at) == (None, 0)


def kept(count: TrainedCount) -> TrainedCount:
    return TrainedCount.of(json.loads(json.dumps(count.row())))


def test_a_launch_of_larger_steps_goes_back_no_further_than_where_its_run_began() -> None:
    count = TrainedCount()
    count.hear(OTHER, 0, MonoNs(0))
    count.go_on_apart(82, 82 * S, None, 0)
    count.note(92, 10 * S)
    for tokens, told in ((S, 85 * S), (4 * S, 82 * S)):
        count.begin_attempt(None)
        count.hear(OTHER, 0, MonoNs(0))
        assert (count.go_to_step(85, tokens, None), count.is_new) == (told, False)


def test_a_jump_is_none_of_the_next_attempts_where_nobody_knows_what_was_trained() -> None:
    count = TrainedCount()
    count.jump(1_000, 900)
    count.begin_attempt(None)
    assert (count.bends, count.offset) == ([], 0)


def test_with_what_an_attempt_goes_on_is_taken_once() -> None:
    count = TrainedCount()
    count.begin_at(5)
    assert [count.take_begun() for _ in range(2)] == [(5, False), None]
    count.end_training(5, 5)
    count.begin_at(5)
    assert kept(count).has_said_bye
    count.note(6, 6)
    assert (count.take_begun(), count.has_said_bye) == ((5, True), False)


@pytest.mark.parametrize(
    "said", [{"run": ""}, {"run": "x" * 129, "step": 1}, {"run": "A"}, {"run": "A", "step": -1}, {"run": 5, "step": 1}]
)
def test_an_origin_that_makes_no_sense_is_none(said: dict[str, Any]) -> None:
    assert Origin.said(said) is None


def test_an_origin_as_it_is_said() -> None:
    assert Origin.said(None) is None
    assert Origin.said({}) == OWN
    assert Origin.said({"run": "A\n", "step": 5, "tokens_total": True}) == Origin(printable("A\n"), 5, None)
