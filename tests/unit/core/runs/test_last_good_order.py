"""Which checkpoint takes another's place, what is remembered of those that were passed over, and in which order."""

from __future__ import annotations

import pytest

from governor.core.base.units import MonoNs
from governor.core.events.checkpoints import CheckpointSeen, LastGoodSeen, LookedFor, NamedCheckpoint
from governor.core.runs.last_good import NAMED_BEFORE_MAX, LastGood, after_looks, after_naming, is_news

ASKED = MonoNs(100)


def fit(step: int, path: str | None = None, when: int | None = None) -> LastGood:
    return LastGood(step, path or f"/ck/cg_{step}", mono_ns=when)


def torn(step: int, path: str | None = None) -> LastGood:
    return LastGood(step, path or f"/ck/cg_{step}", torn="cut", refused_mono_ns=ASKED)


def looks(*found: LastGood) -> LastGoodSeen:
    asked = LookedFor(ASKED, tuple(one.as_named for one in found))
    seen = (CheckpointSeen(str(one.path), True, "is there", torn=one.torn) for one in found)
    return LastGoodSeen(MonoNs(ASKED + 5), "r", asked, tuple(seen))


def steps(found: tuple[LastGood, ...]) -> list[int | None]:
    return [one.step for one in found]


def test_what_was_passed_over_is_named_newest_first() -> None:
    """The halt's own save was torn; then looks find more."""
    known = torn(71).in_favour_of(fit(67))
    found = after_looks(known, (fit(62), fit(56), fit(52)), looks(torn(67), torn(62), torn(56), fit(52)))
    assert (found.step, steps(found.passed_over)) == (52, [71, 67, 62, 56])
    found = after_looks(known, (fit(62),), looks(torn(67), torn(62)))
    assert (found.step, found.torn, steps(found.passed_over)) == (67, "cut", [71, 62]), "none is left"
    assert steps(torn(67).in_favour_of(found).passed_over) == [67]


def test_of_too_many_the_newest_are_remembered() -> None:
    known = torn(71).in_favour_of(fit(67))
    older = [*range(66, 59, -1)]
    before = tuple(fit(step) for step in (*older, 59))
    found = after_looks(known, before, looks(torn(67), *map(torn, older), fit(59)))
    assert (found.step, steps(found.passed_over)) == (59, [71, 67, *older[: NAMED_BEFORE_MAX - 2]])


def test_so_it_is_where_the_run_goes_back() -> None:
    known = after_looks(fit(50), tuple(map(fit, range(49, 41, -1))), looks(*map(torn, range(50, 41, -1))))
    assert steps(known.passed_over) == [*range(49, 41, -1)]
    named, before = after_naming(known, (), NamedCheckpoint(10, "/ck/cg_10"))
    assert (steps(named.passed_over), before) == ([*range(50, 42, -1)], ())


@pytest.mark.parametrize(("step", "is_taken"), [(29, False), (30, True), (31, True)])
def test_an_older_step_takes_no_place_and_the_same_one_saved_again_does(step: int, is_taken: bool) -> None:
    named = NamedCheckpoint(step, "/ck/again", mono_ns=MonoNs(9))
    assert is_news(fit(30, when=5), named, is_timed=True) is is_taken
    assert is_news(torn(30), named, is_timed=True), "there is nothing to lose"


@pytest.mark.parametrize(("when", "is_refused"), [(99, True), (100, True), (101, False)])
def test_what_was_there_when_the_look_was_asked_for_is_refused(when: int, is_refused: bool) -> None:
    named = NamedCheckpoint(30, "/ck/cg_30", mono_ns=MonoNs(when))
    assert torn(30).refuses(named) is is_refused
    assert torn(30).in_favour_of(fit(20)).refuses(named) is is_refused
    assert not fit(30).refuses(named)


def test_one_that_is_not_fit_is_not_gone_back_to() -> None:
    named, before = after_naming(torn(20), (fit(10),), NamedCheckpoint(30, "/ck/cg_30"))
    assert (named.passed_over, before) == ((), (fit(10),))


def test_what_was_saved_again_in_its_place_is_passed_over_no_more() -> None:
    known = torn(40, "/ck/last").in_favour_of(fit(20))
    named, before = after_naming(known, (fit(15, "/ck/last"),), NamedCheckpoint(30, "/ck/last"))
    assert (named, before) == (LastGood(30, "/ck/last"), (fit(20),))


def test_what_is_gone_back_to_does_not_say_what_was_passed_over_for_it() -> None:
    known = torn(40).in_favour_of(fit(20))
    named, before = after_naming(known, (), NamedCheckpoint(30, "/ck/cg_30"))
    assert (steps(named.passed_over), before) == ([40], (fit(20),))
