"""A process that loads a checkpoint between two steps: what comes behind it goes on from that."""

from __future__ import annotations

import pytest

from governor.core.events.checkpoints import Origin
from governor.core.runs.counting import tokens_at_last_step
from governor.core.runs.trained_count import STEPS_QUEUED_MAX, STRANDS_MAX
from tests.unit.core.engine.test_origins import OTHER, OWN
from tests.unit.core.engine.test_step import a_step, hello, peer, play, tick
from tests.unit.core.engine.test_trained_count import JUMP, S
from tests.unit.core.runs.test_counting import Shares, Trainer


@pytest.mark.parametrize("totals", [False, True])
@pytest.mark.parametrize("other", [OTHER, Origin("A", 82, None)])
def test_what_a_process_trained_before_it_loaded_another_runs_checkpoint_is_none_of_that(
    other: Origin, totals: bool
) -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21), totals=totals)
    trainer.say(other)
    trainer.train(*range(83, 93), totals=totals)
    assert (trainer.counted, trainer.paid) == ((20 + 10, 0), 30)


def test_a_launch_behind_a_process_that_had_loaded_has_all_of_its_own_steps() -> None:
    """Its first three frames are lost, and its checkpoint does not say what went before."""
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21))
    trainer.say(OTHER)
    trainer.train(*range(83, 93))
    trainer.launch(origin=Origin("B", 50, None))
    trainer.train(*range(51, 56), lost=3)
    assert trainer.counted == (20 + 10 + 5, 0)


def test_a_process_whose_count_has_jumped_finds_both_counts_behind_another_runs_checkpoint() -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 10))
    trainer.train(*range(10, 21), higher=JUMP)
    trainer.say(OTHER)
    trainer.train(*range(83, 93))
    assert trainer.counted == (20 + 10, 0)
    trainer.say(OWN)
    trainer.train(*range(18, 23), higher=JUMP)
    assert trainer.counted == (20 + 10 + 2, 3)
    trainer.say(OTHER)
    trainer.say(OWN)
    trainer.train(7, 8)
    assert trainer.counted == (8 + 10, 3 + 2)


def test_a_launch_from_a_count_of_its_own_that_has_jumped_is_of_that_count() -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 10))
    trainer.train(*range(10, 21), higher=JUMP)
    for first, again in ((18, 3), (8, 3 + 15)):
        trainer.launch(origin=OWN)
        trainer.train(*range(first, 23), higher=JUMP if first > 9 else 0)
        assert trainer.counted == (22, again)


@pytest.mark.parametrize("totals", [False, True])
def test_a_launch_from_where_another_runs_training_went_on_elsewhere_has_passed_over_that(totals: bool) -> None:
    trainer = Trainer()
    for numbers in (range(83, 93), range(1_001, 1_006), range(1_003, 1_008)):
        trainer.launch(origin=OTHER)
        trainer.train(*numbers, totals=totals)
    assert (trainer.counted, trainer.paid) == ((1_007 - 82, 3), 10 + 5 + 5)


@pytest.mark.parametrize("totals", [False, True])
def test_a_process_that_goes_on_from_where_its_run_was_trained_elsewhere_has_passed_over_that(totals: bool) -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21), totals=totals)
    trainer.say(OTHER)
    trainer.train(*range(83, 93), totals=totals)
    trainer.say(OWN)
    trainer.train(*range(2_001, 2_011), totals=totals)
    assert (trainer.counted, trainer.paid) == ((2_010 + 10, 0), 20 + 10 + 10)


def test_of_which_run_it_is_may_be_said_once_more_and_by_the_lead_alone() -> None:
    trainer = Trainer()
    trainer.launch()
    trainer.train(*range(1, 6))
    trainer.launch(origin=Origin("A", 5_000, 5_000 * S))
    trainer.train(*range(5_001, 5_008))
    for _ in range(2):
        trainer.say(Origin("A", 5_000, 5_000 * S), loaded_at=0)
        trainer.train(5_008 + trainer.own - 7)
    play(trainer.node, hello(1, trainer.now, attempt="a2", peer=peer(900), origin=OWN))
    trainer.train(5_010)
    assert trainer.counted == (5 + 10, 0)


@pytest.mark.parametrize("late", [0, 1, 4])
@pytest.mark.parametrize("totals", [False, True])
@pytest.mark.parametrize("first", [83, 5_001])
def test_frames_of_before_a_load_are_of_before_it_though_its_hello_comes_sooner(
    late: int, totals: bool, first: int
) -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21 - late), totals=totals)
    trainer.say(Origin("A", first - 1, (first - 1) * S), loaded_at=20)
    trainer.train(*range(21 - late, 21), totals=totals)
    trainer.train(*range(first, first + 10), totals=totals)
    assert (trainer.counted, trainer.paid) == ((30, 0), 30)


def test_what_is_left_to_the_last_step_behind_a_load_is_by_the_steps_since_then() -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN, total_steps=1_000)
    trainer.train(*range(1, 21))
    trainer.say(Origin("A", 82, 82 * S), total_steps=1_000)
    trainer.train(*range(83, 93))
    assert tokens_at_last_step(trainer.node.runs["llama"].run) == (30 + 1_000 - 92) * S


def test_a_restart_between_a_hello_and_the_first_step_forgets_no_launch() -> None:
    for origin, counted in ((OWN, 2_610), (None, 30)):
        trainer = Trainer()
        trainer.launch(origin=origin)
        trainer.train(*range(1, 21))
        trainer.launch(origin=origin)
        trainer.restart()
        trainer.launches -= 1
        trainer.launch(origin=origin)
        trainer.train(*range(2_601, 2_611))
        assert (trainer.counted, trainer.paid) == ((counted, 0), 30)


def test_whatever_comes_a_run_goes_back_to_its_own_tokens() -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 101))
    for step in range(1_000, 1_000 + 3 * STRANDS_MAX):
        trainer.launch(origin=Origin("A", step, step * S))
        trainer.train(step + 1)
    trainer.launch(origin=OWN)
    trainer.train(*range(96, 106))
    assert trainer.counted == (105 + 3 * STRANDS_MAX, 5)


@pytest.mark.parametrize("totals", [False, True])
def test_what_was_trained_elsewhere_on_from_an_origin_that_is_new_here_is_in_no_price(totals: bool) -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21), totals=totals)
    trainer.launch(origin=OTHER)
    trainer.train(*range(2_601, 2_611), totals=totals)
    assert (trainer.counted, trainer.paid) == ((20 + 2_610 - 82, 0), 30)


@pytest.mark.parametrize("hello_first", [True, False])
@pytest.mark.parametrize("first", [13, 83, 5_001])
@pytest.mark.parametrize(("origin", "totals"), [(OWN, True), (None, True), (None, False)])
def test_a_restart_beside_a_load_forgets_no_load(
    origin: Origin | None, first: int, *, totals: bool, hello_first: bool
) -> None:
    trainer = Trainer()
    trainer.launch(origin=origin)
    trainer.train(*range(1, 21), totals=totals)
    other = Origin("A", first - 1, (first - 1) * S)
    if hello_first:
        trainer.say(other)
    trainer.restart()
    trainer.say(other)
    trainer.train(*range(first, first + 10), totals=totals)
    assert (trainer.counted, trainer.paid) == ((30, 0), 30)
    trainer.restart()
    trainer.say(other, loaded_at=20)
    trainer.train(*range(first + 10, first + 15), totals=totals)
    assert (trainer.counted, trainer.paid) == ((35, 0), 35)


def test_behind_one_heard_step_what_was_trained_elsewhere_is_in_no_price() -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(1)
    trainer.launch(origin=OWN)
    trainer.train(*range(2_601, 2_611))
    assert (trainer.counted, trainer.paid) == ((2_610, 0), 11)


def test_a_hello_of_before_that_comes_late_undoes_no_load() -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21))
    trainer.say(OTHER)
    trainer.say(OWN, loaded_at=0)
    trainer.train(*range(83, 93))
    trainer.say(OWN, loaded_at=0)
    trainer.train(*range(93, 96))
    assert (trainer.counted, trainer.paid) == ((33, 0), 33)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    ("origin", "first", "lost", "counted"),
    [
        (OWN, 21, 0, (30, 0)),
        (OWN, 16, 0, (25, 5)),
        (None, 21, 0, (30, 0)),
        (None, 5_001, 0, (30, 0)),
        (OTHER, 83, 7, (30, 0)),
        (OTHER, 83, 0, (30, 0)),
    ],
)
def test_what_ranks_have_counted_themselves_before_a_load_is_none_of_the_first_step_behind_it(
    origin: Origin | None, first: int, lost: int, counted: tuple[int, int], size: int
) -> None:
    trainer = Shares(size)
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21))
    trainer.say(origin)
    trainer.train(*range(first, first + 10), lost=lost)
    assert (trainer.counted, trainer.paid) == (counted, 30)


def test_ranks_of_which_one_tells_nothing_more_count_behind_a_load_by_the_leads_estimate() -> None:
    trainer = Shares()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21))
    trainer.say(OTHER)
    for number in range(83, 119):
        trainer.now, trainer.own = trainer.now + 1, trainer.own + 1
        trainer.tell(0, number, number * S)
        play(trainer.node, tick(trainer.now))
    assert (trainer.counted, trainer.paid) == ((56, 0), 56)


def test_a_load_further_on_of_shorter_steps_goes_back_in_no_total() -> None:
    """Three of its own steps are half as long as the others, and another run's checkpoint was heard before."""
    total = {step: sum(S // 2 if one in {901, 902, 903} else S for one in range(1, step + 1)) for step in range(1_101)}
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 901))
    tell_from(trainer, total, range(901, 1_001))
    trainer.launch(origin=OTHER)
    trainer.train(*range(83, 93))
    trainer.launch(origin=OWN)
    trainer.train(*range(101, 111))
    trainer.say(OWN)
    tell_from(trainer, total, range(901, 1_051))
    meter = trainer.node.runs["llama"].history.meter
    assert meter is not None
    assert meter.progress_tokens == total[1_050] + 10 * S
    assert meter.wasted_tokens == 10 * S + total[1_000] - total[900]


def tell_from(trainer: Trainer, total: dict[int, int], numbers: range) -> None:
    for number in numbers:
        trainer.now, trainer.own = trainer.now + 1, trainer.own + 1
        told = {"tokens": total[number] - total[number - 1], "tokens_total": total[number]}
        play(trainer.node, a_step(number, when=trainer.now, attempt_step=trainer.own, **told), tick(trainer.now))


@pytest.mark.parametrize("totals", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_load_behind_more_steps_than_a_rank_can_have_kept_was_before_the_step_that_comes(
    *, later: bool, totals: bool
) -> None:
    """And hides no later one."""
    trainer = Trainer()
    far = 1 if later else STEPS_QUEUED_MAX + 22
    trainer.launch(origin=OWN, loaded_at=STEPS_QUEUED_MAX + 2 if later else 0)
    trainer.train(*range(1, 21), totals=totals)
    trainer.say(OTHER, loaded_at=20 if later else far)
    trainer.train(*range(83, 93), totals=totals)
    assert (trainer.counted, trainer.paid) == ((30, 0), 30)


def test_a_step_that_is_held_when_a_load_comes_is_none_of_what_comes_behind_it() -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21))
    trainer.train(21, higher=JUMP)
    trainer.say(OWN)
    trainer.train(*range(22, 31), higher=JUMP)
    assert trainer.counted == (30, 0)


@pytest.mark.parametrize("totals", [False, True])
def test_a_launch_that_goes_back_to_a_training_whose_totals_are_far_higher_has_its_first_step(*, totals: bool) -> None:
    far = Origin("A", 82, 10**12)
    trainer = Trainer()
    for origin, numbers in ((OWN, range(1, 21)), (far, range(83, 93)), (OWN, range(21, 31)), (far, range(93, 94))):
        trainer.launch(origin=origin)
        trainer.train(*numbers, totals=totals, higher=10**12 - 82 * S if origin is far else 0)
    assert (trainer.counted, trainer.paid) == ((20 + 10 + 10 + 1, 0), 41)
