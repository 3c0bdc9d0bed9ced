"""What was trained between the last heard step and the next launch's begin: paid for here, or trained elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.events.checkpoints import Origin
from governor.core.events.inputs import Bye, Step, TrainerExited
from tests.unit.core.engine.test_step import a_step, at, hello, play, tick
from tests.unit.core.engine.test_trained_count import S
from tests.unit.core.runs.test_counting import Shares, Trainer

OWN, OTHER = Origin(), Origin("A", 82, 82 * S)


def heard(seconds: int, *, bye: Bye | None = None, ends_after: int | None = None) -> Trainer:
    """A hundred steps, a second each, and so many seconds more. `bye`: what the rank says behind its last one."""
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 101))
    if bye is not None:
        play(trainer.node, bye)
    for second in range(1, seconds + 1):
        trainer.now += 1
        if second == ends_after:
            play(trainer.node, TrainerExited(at(trainer.now), "llama", None))
        play(trainer.node, tick(trainer.now))
    trainer.launch(origin=OWN)
    return trainer


@pytest.mark.parametrize(("first", "paid"), [(131, 140), (300, 110)])
def test_what_the_time_was_paid_for_is_in_the_prices(first: int, paid: int) -> None:
    """Nobody saw the attempt end. In a minute it may have trained sixty steps, twice as many if they were cheaper."""
    trainer = heard(60)
    trainer.train(*range(first, first + 10))
    assert (trainer.counted, trainer.paid) == ((first + 9, 0), paid)


def test_behind_an_end_that_was_seen_no_time_counts() -> None:
    trainer = heard(60, ends_after=2)
    trainer.train(*range(131, 141))
    assert (trainer.counted, trainer.paid) == ((140, 0), 110)


@pytest.mark.parametrize(("step", "paid"), [(100, 110), (130, 140), (None, 140)])
def test_behind_a_bye_nothing_was_trained_if_its_last_step_was_heard(step: int | None, paid: int) -> None:
    trainer = heard(60, bye=said_bye(step=step))
    trainer.train(*range(131, 141))
    assert (trainer.counted, trainer.paid) == ((140, 0), paid)


def test_what_a_process_cost_that_had_trained_to_its_end_bought_no_steps() -> None:
    """An older hook does not say its last step."""
    trainer = heard(60, bye=said_bye(completed=True))
    trainer.train(*range(131, 141))
    assert (trainer.counted, trainer.paid) == ((140, 0), 110)


@pytest.mark.parametrize(("by", "paid"), [(0, 110), (1, 140)])
@pytest.mark.parametrize("others_first", [False, True])
def test_a_bye_of_the_lead_counts_also_before_the_other_ranks_last_step(
    by: int, paid: int, *, others_first: bool
) -> None:
    """Another rank may have had fewer batches."""
    trainer = Shares()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 100))
    trainer.now, trainer.own = 100, 100
    told = [a_share(trainer, 0), a_share(trainer, 1)]
    for rank in (1, 0) if others_first else (0, 1):
        play(trainer.node, told[rank])
        if rank == by:
            play(trainer.node, said_bye(rank, step=100))
    trainer.wait(60)
    trainer.launch(origin=OWN)
    trainer.train(*range(131, 141))
    assert (trainer.counted, trainer.paid) == ((140, 0), paid)


def test_the_bye_of_a_training_that_made_no_step_says_nothing_of_the_one_before() -> None:
    """What it says is the step of its checkpoint: another training has ended with that number."""
    trainer = heard(60)
    play(trainer.node, said_bye(step=100))
    trainer.launch(origin=OWN)
    trainer.train(*range(131, 141))
    assert (trainer.counted, trainer.paid) == ((140, 0), 140)


@pytest.mark.parametrize(
    ("between", "numbers", "progress", "again"),
    [(OWN, range(91, 96), 140, 5), (OTHER, range(83, 93), 150, 0), (OTHER, range(83, 283), 340, 0)],
)
@pytest.mark.parametrize("totals", [False, True])
def test_what_was_trained_unheard_is_paid_for_also_behind_a_launch_that_goes_on_with_something_else(
    between: Origin, numbers: range, progress: int, again: int, *, totals: bool
) -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 101), totals=totals)
    trainer.wait(60)
    trainer.launch(origin=between)
    trainer.train(*numbers, totals=totals)
    trainer.launch(origin=OWN)
    trainer.restart()
    trainer.launches -= 1
    trainer.launch(origin=OWN)
    trainer.train(*range(131, 141), totals=totals)
    assert (trainer.counted, trainer.paid) == ((progress, again), progress + again)


def test_what_an_attempt_may_have_trained_unheard_is_nothing_of_another_runs() -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 101))
    trainer.wait(60)
    for numbers in (range(83, 93), range(123, 133)):
        trainer.launch(origin=OTHER)
        trainer.train(*numbers)
    assert (trainer.counted, trainer.paid) == ((150, 0), 120)


@pytest.mark.parametrize(
    ("hung", "heard_since", "first", "lent"), [(60, 2, 81, 0), (600, 500, 1_001, 480), (600, 500, 701, 0)]
)
@pytest.mark.parametrize("restarts", [False, True])
def test_time_unheard_has_bought_less_by_what_its_strand_has_trained_since(
    hung: int, heard_since: int, first: int, lent: int, *, restarts: bool
) -> None:
    """Ten minutes may have bought 1,200 steps behind step 20. A launch goes on from there with 500 that are heard."""
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 21))
    trainer.wait(hung)
    trainer.launch(origin=OWN)
    trainer.train(*range(21, 21 + heard_since))
    play(trainer.node, said_bye(step=20 + heard_since))
    if restarts:
        trainer.restart()
    trainer.launch(origin=OWN)
    trainer.train(*range(first, first + 10))
    assert (trainer.counted, trainer.paid) == ((first + 9, 0), first + 9 - lent)


@pytest.mark.parametrize("totals", [False, True])
@pytest.mark.parametrize(("lost", "first", "lent"), [(30, 126, 0), (3, 104, 0), (0, 131, 30), (30, 1_001, 900)])
def test_what_a_process_trained_unheard_before_a_load_was_paid_for(
    lost: int, first: int, lent: int, *, totals: bool
) -> None:
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 101), totals=totals)
    trainer.wait(lost, trains=True)
    trainer.say(OWN)
    trainer.train(*range(first, first + 10), totals=totals)
    assert (trainer.counted, trainer.paid) == ((first + 9, 0), first + 9 - lent)


def test_what_was_spent_before_a_load_makes_no_step_behind_it_dearer() -> None:
    """A minute that bought nothing; from elsewhere then; and two steps unheard, for two seconds."""
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(1, 2, 3)
    trainer.wait(60)
    trainer.say(OWN)
    trainer.train(*range(5_001, 5_005))
    trainer.wait(2, trains=True)
    trainer.launch(origin=OWN)
    trainer.train(*range(5_007, 5_010))
    assert (trainer.counted, trainer.paid) == ((5_009, 0), 3 + 4 + 2 + 3)


@pytest.mark.parametrize(("lost", "lent"), [(0, 30), (30, 0)])
def test_what_a_launch_trained_unheard_before_its_first_load_was_paid_for_and_no_time_before_it_was(
    lost: int, lent: int
) -> None:
    """Its process has waited for a minute."""
    trainer = Trainer()
    trainer.launch(origin=OWN)
    trainer.train(*range(1, 101))
    play(trainer.node, TrainerExited(at(trainer.now), "llama", None))
    trainer.wait(60)
    trainer.launch(origin=OWN)
    trainer.wait(lost, trains=True)
    trainer.say(OWN)
    trainer.train(*range(131, 141))
    assert (trainer.counted, trainer.paid) == ((140, 0), 140 - lent)


def said_bye(rank: int = 0, **said: Any) -> Bye:
    return Bye(at(100), hello(rank).connection, "llama", rank, 9, **said)


def a_share(trainer: Shares, rank: int) -> Step:
    told = {"attempt_step": 100, "tokens": S, "tokens_total": 100 * S, "tokens_own_total": 100 * S // trainer.size}
    return a_step(100, rank, when=100, **told)
