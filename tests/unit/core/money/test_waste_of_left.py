"""What an attempt's money bought when nobody saw it end, and when its start is of another stage than its steps."""

from __future__ import annotations

import json

import pytest

from governor.core.base.units import NS_PER_S, MonoNs
from governor.core.money.waste import Seen, SpendSplit, SpentOn

START_UP, TRAINING, AFTER = SpentOn.START_UP, SpentOn.TRAINING, SpentOn.AFTER_LAST_STEP


def seen(
    now: int, *, steps: tuple[int, ...] = (), stage: str | None = None, began: int = 0, ended: bool = False
) -> Seen:
    """A micro-dollar a second. `steps`: when those of the attempt ended."""
    return Seen(
        now,
        lambda at: at // NS_PER_S,
        stage,
        at(began),
        at(steps[0]) if steps else None,
        at(steps[-1]) if steps else None,
        has_ended=ended,
    )


def at(seconds: int) -> MonoNs:
    return MonoNs(seconds * NS_PER_S)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_attempt_that_steps_on_behind_another_launchs_begin_has_its_own_end(restarts: bool) -> None:
    """Its first step is at 2 s. It is left at 5 s, steps on at 7 s, and ends at 10 s."""
    split = SpendSplit()
    split.count(seen(2, steps=(2,)))
    split.leave(5, at(5))
    split.count(seen(7, steps=(2, 7)))
    if restarts:
        split = SpendSplit.restored(json.loads(json.dumps(split.snapshot())))
    split.count(seen(10, steps=(2, 7), ended=True))
    assert split.by_cause() == {START_UP: 2, AFTER: 3 + 3, TRAINING: 2}


def test_an_attempt_that_is_left_and_steps_no_more_had_its_end_then() -> None:
    """From 5 s on the money is the next launch's, which steps at 12 s for the first time."""
    split = SpendSplit()
    split.count(seen(2, steps=(2,)))
    split.leave(5, at(5))
    split.count(seen(8, steps=(2,)))
    split.count(seen(10, began=8))
    split.count(seen(12, steps=(12,), began=8))
    assert split.by_cause() == {START_UP: 2 + 7, AFTER: 3}


def test_a_start_is_of_the_stage_in_which_it_was() -> None:
    """The governor is killed while stage one starts. By its return, the run is of stage two."""
    split = SpendSplit()
    split.count(seen(2, stage="one"))
    split.pass_unstored(5)
    split.count(seen(9, stage="two", steps=(8,)))
    assert split.of_stages() == {"one": {START_UP: 5}, "two": {START_UP: 3, TRAINING: 1}}


def test_what_followed_a_left_attempt_is_a_start_of_its_stage_until_the_next_one_begins() -> None:
    split = SpendSplit()
    split.count(seen(2, stage="one", steps=(2,)))
    split.leave(5, at(5))
    split.count(seen(9, stage="one", steps=(2,)))
    split.count(seen(12, stage="two", began=10))
    split.count(seen(14, stage="two", began=10, steps=(13,)))
    assert split.of_stages() == {"one": {START_UP: 2 + 5, AFTER: 3}, "two": {START_UP: 3, TRAINING: 1}}
