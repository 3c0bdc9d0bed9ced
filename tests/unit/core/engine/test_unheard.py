"""What was trained between the last heard step and the next launch's begin: paid for here, or trained elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from governor.core.events.checkpoints import Origin
from governor.core.events.inputs import Bye, TrainerExited
from tests.unit.core.engine.test_step import at, hello, play, tick
from tests.unit.core.runs.test_counting import Trainer

OWN = Origin()


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


def said_bye(**said: Any) -> Bye:
    return Bye(at(100), hello(0).connection, "llama", 0, 9, **said)
