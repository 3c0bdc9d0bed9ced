"""Whose turn it is in a process that trains more than once, and that we keep nothing alive that it has trained."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
import weakref
from typing import Any

import pytest

from trainer_shim.engines import hooks
from trainer_shim.lifetime import keeping
from trainer_shim.lifetime.turns import Turn
from trainer_shim.progress import Progress


class Kind:
    """A kind of engine."""


class OtherKind:
    """Another one."""


class Loop:
    """A module, or its optimizer."""

    def method(self) -> str:
        return "its own"


class Trainer:
    """Has the loop in itself, as those of transformers and Lightning."""

    def train(self, ask: Any) -> bool:
        return bool(ask())


def begun(engine: Any, keeper: Any = None) -> tuple[Turn, Progress]:
    progress = Progress(threading.get_ident())
    progress.bump("boundary")
    return Turn(engine, engine if keeper is None else keeper, Kind, progress), progress


def test_a_loop_of_ones_own_that_lives_is_under_way_until_it_says_that_it_is_not() -> None:
    model, optimizer = Loop(), Loop()
    turn, progress = begun(model, optimizer)
    assert not turn.is_over(Kind)
    progress.set_phase("finish")
    assert turn.is_over(Kind)
    progress.set_phase("train")
    assert not turn.is_over(Kind), "it goes on after its end"


@pytest.mark.parametrize("dropped", ["model", "optimizer"])
def test_what_can_make_no_step_any_more_is_over(dropped: str) -> None:
    things: dict[str, Any] = {"model": Loop(), "optimizer": Loop()}
    for one in things.values():
        one.cycle = one  # As hooks and what they hang at.
    turn, _ = begun(things["model"], things["optimizer"])
    del things[dropped], one
    assert turn.is_over(Kind)


def test_another_kind_of_object_takes_the_place_of_one_that_is_not_inside_a_step() -> None:
    model = Loop()
    turn, progress = begun(model)
    progress.in_step = True
    assert not turn.is_over(OtherKind)
    progress.in_step = False
    assert turn.is_over(OtherKind)
    assert not turn.is_over(Kind), "a GAN's two networks are of one kind"


def test_a_trainer_trains_while_its_method_is_on_the_stack() -> None:
    trainer = Trainer()
    turn, _ = begun(trainer)
    assert not trainer.train(lambda: turn.is_over(Kind)), "attached from a callback of it"
    assert not trainer.train(lambda: turn.is_over(OtherKind))
    assert Trainer().train(lambda: turn.is_over(Kind)), "that is another one's"
    assert turn.is_over(Kind), "an exception has ended it, and no callback told"


def test_a_trainer_that_has_not_begun_may_begin_yet() -> None:
    trainer = Trainer()
    turn = Turn(trainer, trainer, Kind, Progress(threading.get_ident()))
    assert not turn.is_over(Kind)
    assert turn.is_over(OtherKind)


def test_another_optimizer_is_another_training_of_the_same_model() -> None:
    model, optimizer = Loop(), Loop()
    turn, _ = begun(model, optimizer)
    assert turn.is_of(model, optimizer)
    assert not turn.is_of(model, Loop())
    assert not turn.is_of(Loop(), optimizer)


def test_another_optimizer_of_the_same_module_is_its_next_stage_between_two_steps() -> None:
    """A curriculum: a scheduler may hold the former optimizer yet."""
    model, optimizer = Loop(), Loop()
    turn, progress = begun(model, optimizer)
    assert turn.is_over(Kind, model)
    assert not turn.is_over(Kind, Loop())
    progress.in_step = True
    assert not turn.is_over(Kind, model)
    assert not Turn(model, optimizer, Kind, Progress(threading.get_ident())).is_over(Kind, model), "it has not begun"


class Saver:
    engine = keeping.Of()
    other = keeping.Of()

    def __init__(self, keeper: Any, engine: Any) -> None:
        keeping.keep_at(keeper, self)
        self.engine, self.other = engine, None


def test_what_a_saver_knows_lives_as_long_as_what_it_is_kept_at() -> None:
    keeper, engine = Loop(), Loop()
    saver, seen = Saver(keeper, engine), weakref.ref(engine)
    del engine
    assert saver.engine is seen() is not None
    keeping.let_go(keeping.known(keeper))
    assert saver.engine is seen() is None
    saver.other = "too late"
    assert saver.other is None


def test_where_nothing_can_be_kept_the_saver_keeps_it_itself() -> None:
    slots = object()
    saver = Saver(slots, slots)
    assert saver.engine is slots
    assert keeping.known(slots)() is slots
    keeping.let_go(keeping.known(slots))


def test_a_copy_and_a_pickle_of_a_keeper_have_nothing_of_ours() -> None:
    keeper = Loop()
    Saver(keeper, lambda: "no pickle has this")
    for other in (copy.deepcopy(keeper), pickle.loads(pickle.dumps(keeper))):
        (left,) = vars(other).values()
        assert isinstance(left, contextlib.nullcontext)
        Saver(other, other)
        assert isinstance(vars(other)["_costgov_kept"], keeping.Kept)


def test_a_hook_is_taken_off_what_lives_and_keeps_alive_nothing() -> None:
    first, second, undo = Loop(), Loop(), hooks.Undo()
    for one in (first, second):
        hooks.replace(undo, one, "method", lambda original: lambda: "seen " + original())
    assert second.method() == "seen its own"
    gone = weakref.ref(first)
    gone_too = gone()
    assert gone_too is not None
    vars(first).clear()
    del first, one, gone_too
    assert gone() is None
    undo()
    assert second.method() == "its own"
