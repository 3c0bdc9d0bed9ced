"""A look counts for the checkpoint that it was asked for: a path may be saved to again meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from governor.core.base.identity import ConnectionId
from governor.core.engine.node import Node
from governor.core.events.checkpoints import CheckpointSeen, LastGoodSeen, NamedCheckpoint
from governor.core.events.effects import Alarm, Effect, FindLastGood
from governor.core.events.inputs import Disconnected, TrainerExited
from governor.core.runs.last_good import LastGood
from tests.unit.core.engine.test_step import a_step, at, hello, make_node, only, play, rule, tick, training

PLACE = "/ck/last"
TORN = CheckpointSeen(PLACE, True, "is there", torn="model.pt ends in one of its records")
WHOLE = CheckpointSeen(PLACE, True, "is there")


def saved(step: int, when: float) -> NamedCheckpoint:
    """As loops save that keep one checkpoint, in one place."""
    return NamedCheckpoint(step, PLACE, mono_ns=at(when))


def answer(asked: FindLastGood, when: float, look: CheckpointSeen) -> LastGoodSeen:
    return LastGoodSeen(at(when), asked.run, asked.asked, (look,))


def halted() -> tuple[Node, FindLastGood]:
    """At 31 a verdict asks for a look at what was saved at 20. A save to the same place is under way."""
    node = make_node(rule())
    training(node)
    play(node, hello(when=20.5, last_good=saved(20, 20)))
    return node, only(play(node, a_step(31, 1, loss=float("nan"))), FindLastGood)


def alarms(effects: list[Effect]) -> list[str]:
    return [effect.name for effect in effects if isinstance(effect, Alarm)]


def test_a_look_from_before_a_save_to_the_same_place_does_not_refuse_it() -> None:
    node, asked = halted()
    play(node, answer(asked, 31.4, TORN))
    incident = node.runs["llama"].incident
    assert incident is not None
    assert incident.last_good == LastGood(20, PLACE, mono_ns=at(20), torn=TORN.torn, refused_mono_ns=at(31))
    # It was whole at 31.2, between the look and its answer.
    again = only(play(node, hello(when=31.5, last_good=saved(30, 31.2))), FindLastGood)
    play(node, answer(again, 31.7, WHOLE))
    assert incident.last_good == LastGood.named(saved(30, 31.2)) == node.runs["llama"].run.last_good


def test_an_answer_that_comes_after_a_save_to_the_same_place_says_nothing_of_it() -> None:
    node, asked = halted()
    again = only(play(node, hello(when=31.3, last_good=saved(30, 31.2))), FindLastGood)
    assert alarms(play(node, answer(asked, 31.4, TORN))) == []
    run = node.runs["llama"].run
    assert run.last_good == LastGood.named(saved(30, 31.2)).pending()
    play(node, answer(again, 31.7, WHOLE))
    assert run.last_good == LastGood.named(saved(30, 31.2))


def test_the_look_at_the_end_of_an_attempt_says_nothing_of_the_next_ones_save() -> None:
    node = make_node()
    training(node)
    play(node, *(hello(rank, when=20.5, last_good=saved(20, 20)) for rank in (0, 1)))
    lost = [Disconnected(at(40), ConnectionId(connection)) for connection in (1, 2)]
    asked = only(play(node, *lost, TrainerExited(at(41), "llama", 1)), FindLastGood)
    play(node, *(hello(rank, when=44, attempt="a2", last_good=saved(20, 43)) for rank in (0, 1)))
    gone = replace(TORN, there=False, reason="is no longer there", torn=None)
    assert alarms(play(node, answer(asked, 45, gone))) == []
    assert node.runs["llama"].run.last_good == LastGood.named(saved(20, 43))


def test_a_look_that_was_asked_for_after_the_save_counts_however_the_rank_said_it() -> None:
    """An ack has no time of the save; the hello that repeats it has one."""
    node = make_node()
    training(node)
    run = node.runs["llama"].run
    run.name_last_good(NamedCheckpoint(20, PLACE), at(20.1))
    asked = only(play(node, a_step(31, 1, loss=float("nan"))), FindLastGood)
    run.name_last_good(saved(20, 20), at(31.1))
    assert alarms(play(node, answer(asked, 31.4, TORN))) == ["checkpoint_torn"]
    assert run.last_good == LastGood(20, PLACE, mono_ns=at(20), torn=TORN.torn, refused_mono_ns=at(31))


def test_where_nobody_says_when_it_was_saved_another_step_is_another_save() -> None:
    node = make_node()
    training(node)
    run = node.runs["llama"].run
    run.name_last_good(NamedCheckpoint(20, PLACE), at(20.1))
    asked = only(play(node, a_step(31, 1, loss=float("nan"))), FindLastGood)
    run.name_last_good(NamedCheckpoint(30, PLACE), at(31.1))
    play(node, answer(asked, 31.4, TORN))
    assert run.last_good == LastGood(30, PLACE)


def test_each_is_said_once_and_by_what_it_was() -> None:
    node = make_node(rule())
    training(node)
    for step in (10, 20, 30):
        play(node, hello(when=30 + step / 1000, last_good=NamedCheckpoint(step, f"/ck/{step}")))
    asked = only(play(node, a_step(31, 1, loss=float("nan"))), FindLastGood)
    torn = {step: CheckpointSeen(f"/ck/{step}", True, "is there", torn="cut") for step in (10, 20, 30)}

    def said(*looks: CheckpointSeen) -> list[str]:
        effects = play(node, LastGoodSeen(at(32), "llama", asked.asked, looks))
        return [effect.text.partition(",")[0] for effect in effects if isinstance(effect, Alarm)]

    both = ["the last good checkpoint", "a checkpoint that was named as good"]
    assert said(torn[30], torn[20], CheckpointSeen("/ck/10", True, "is there")) == both
    asked = replace(asked, asked=replace(asked.asked, named=asked.asked.named[2:]))
    assert said(torn[10]) == ["the last good checkpoint"], "the others are known"


@pytest.mark.parametrize(
    ("resumes", "first", "path", "is_told"),
    [
        ("called", 1, PLACE, True),
        ("called", 21, PLACE, False),  # It has gone on.
        ("called", 11, PLACE, False),  # Somebody went back to an older one.
        ("loaded", 1, PLACE, False),  # By its own means: its steps may count from 0.
        ("called", 1, None, False),
    ],
)
def test_a_launch_whose_resume_finds_nothing_of_what_was_saved_says_so_once(
    resumes: str, first: int, path: str | None, is_told: bool
) -> None:
    node = make_node()
    training(node)
    told = saved(20, 20) if path else None
    play(node, *(hello(rank, when=30.5, last_good=told) for rank in (0, 1)))
    play(node, *(Disconnected(at(40), ConnectionId(one)) for one in (1, 2)), TrainerExited(at(41), "llama", 1))
    play(node, *(hello(rank, when=44, attempt="a2", resumes=resumes) for rank in (0, 1)))
    steps = [
        one
        for count in range(1, 6)
        for one in (a_step(first + count - 1, 0, when=44 + count, attempt_step=count), tick(44 + count))
    ]
    assert alarms(play(node, *steps)).count("begun_anew") == is_told


@pytest.mark.parametrize(("resumed_step", "is_told"), [(20, False), (None, True)])
def test_a_launch_that_has_just_loaded_between_two_steps_has_not_begun_anew(
    resumed_step: int | None, is_told: bool
) -> None:
    node = make_node()
    play(node, *(hello(rank, when=1, resumes="never") for rank in (0, 1)))
    play(node, *(one for step in (1, 2) for one in (a_step(step, 0, when=1 + step), tick(1 + step))))
    loaded = {"resumes": "called", "resumed_step": resumed_step, "last_good": saved(20, 0)}
    play(node, *(hello(rank, when=4, **loaded) for rank in (0, 1)))
    assert alarms(play(node, tick(4), a_step(3, 0, when=5, attempt_step=3), tick(5))).count("begun_anew") == is_told


def test_what_the_launch_itself_has_saved_before_its_first_step_is_told_is_nothing_to_go_on_from() -> None:
    node = make_node()
    play(node, *(hello(rank, when=1, resumes="called") for rank in (0, 1)))
    play(node, hello(when=1.4, resumes="called", last_good=saved(3, 1.3)))
    steps = [one for step in (1, 2, 3) for one in (a_step(step, 0, when=1.5 + step / 100), tick(2 + step / 10))]
    assert alarms(play(node, *steps)).count("begun_anew") == 0
