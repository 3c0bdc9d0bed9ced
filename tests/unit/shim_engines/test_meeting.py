"""The ranks of a job attach one training after the other, not always alike. They must not stay apart for that."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from trainer_shim.lifetime.meeting import Ranks, Steps, Waits, Way, Where
from trainer_shim.saving.store import MemoryStore, StoreLostError

T = TypeVar("T")
LONG_S = 60.0


class Rank:
    """One rank of two. All have watched the job's first training."""

    def __init__(self, store: MemoryStore, rank: int, first: bool = True) -> None:
        self.steps = Steps()
        self.ranks = Ranks(store, rank, 2, poll_s=0.001)
        if first:
            assert self.arrive(True) == 1

    def arrive(self, is_over: bool) -> int | None:
        return self._in(self.steps.arrive(self.ranks, is_over))

    def arrive_late(self) -> int | None:
        return self._in(self.steps.arrive_late(self.ranks))

    def where(self) -> Where:
        return self.steps.gather(self.ranks)[0]

    def _in(self, number: int | None) -> int | None:
        if number is not None:
            self.steps.settle_in(self.ranks)
        return number


@pytest.fixture
def two() -> tuple[Rank, Rank]:
    store = MemoryStore()
    return Rank(store, 0), Rank(store, 1)


def together(*calls: Callable[[], T]) -> list[T]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result(30) for each in [pool.submit(call) for call in calls]]


LONG = Waits(LONG_S, LONG_S, LONG_S, LONG_S)
SHORT = Waits(0.05, 0.05, 0.05, LONG_S)


def let_wait(two: tuple[Rank, Rank], waits: Waits) -> None:
    for one in two:
        one.steps.waits = waits


@pytest.mark.parametrize("seen", [(True, True), (True, False), (False, True), (False, False)])
def test_a_training_is_over_for_all_ranks_where_one_sees_it_and_no_healthy_one_waits(
    two: tuple[Rank, Rank], seen: tuple[bool, bool]
) -> None:
    """One has closed its handle, the other keeps the teacher; or a GAN's two networks, which go on on both."""
    let_wait(two, LONG)
    began = time.monotonic()
    told = together(lambda: two[0].arrive(seen[0]), lambda: two[1].arrive(seen[1]))
    assert told == [2 if any(seen) else None] * 2
    assert time.monotonic() - began < LONG_S / 2


def test_who_sees_it_waits_for_nobody_and_who_comes_later_goes_by_it(two: tuple[Rank, Rank]) -> None:
    let_wait(two, LONG)
    assert two[1].arrive(True) == 2
    assert two[0].arrive(False) == 2
    assert two[0].where() is two[1].where() is Where.TOGETHER


@pytest.mark.parametrize("next_seen", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_what_one_rank_has_tried_alone_is_forgotten_at_the_next_attach(
    two: tuple[Rank, Rank], first: int, next_seen: bool
) -> None:
    """A probe on rank 0. Rank 1 took its old "goes on" for an answer, and the two were one ask apart for ever."""
    let_wait(two, SHORT)
    assert two[0].arrive(False) is None
    let_wait(two, LONG)
    if next_seen:
        assert [two[one].arrive(True) for one in (first, 1 - first)] == [3, 3]
        assert two[0].where() is two[1].where() is Where.TOGETHER
    else:
        assert together(lambda: two[0].arrive(False), lambda: two[1].arrive(False)) == [None, None]


def test_a_rank_that_has_waited_in_vain_waits_less_until_the_next_training(two: tuple[Rank, Rank]) -> None:
    let_wait(two, SHORT._replace(vain_s=0.0))
    assert two[0].arrive(False) is None
    let_wait(two, LONG._replace(vain_s=0.0))
    began = time.monotonic()
    for _ in range(20):
        assert two[0].arrive(False) is None
    assert time.monotonic() - began < LONG_S / 2


def test_ranks_of_which_one_began_a_stage_alone_meet_in_resume(two: tuple[Rank, Rank]) -> None:
    let_wait(two, LONG)
    assert two[0].arrive(True) == 2
    assert two[0].steps.absent(two[0].ranks) == 1, "what is asked for now no two ranks would save"
    assert two[1].arrive(True) == 2, "it comes first, and takes rank 0's stage for the next one"
    assert two[0].arrive(True) == 3
    assert two[1].where() is Where.AHEAD
    assert two[1].arrive(True) == 3
    assert two[0].where() is two[1].where() is Where.TOGETHER
    assert two[0].steps.absent(two[0].ranks) is None
    assert [one.arrive(True) for one in two] == [4, 4]


def test_a_first_attach_of_one_rank_alone_too() -> None:
    store = MemoryStore()
    early, late = Rank(store, 0), Rank(store, 1, first=False)
    assert early.arrive(True) == 2
    assert late.arrive(True) == 2


def test_who_comes_late_and_sees_it_over_is_joined_in_resume(two: tuple[Rank, Rank]) -> None:
    let_wait(two, SHORT)
    assert two[0].arrive(False) is None
    let_wait(two, LONG)
    late = together(two[0].arrive_late, lambda: two[1].arrive(True))
    assert late == [3, 3]
    assert two[0].where() is two[1].where() is Where.TOGETHER


def test_in_resume_nobody_waits_where_all_have_seen_it_go_on(two: tuple[Rank, Rank]) -> None:
    let_wait(two, LONG)
    assert together(lambda: two[0].arrive(False), lambda: two[1].arrive(False)) == [None, None]
    assert together(two[0].arrive_late, two[1].arrive_late) == [None, None]


def test_who_has_given_up_is_not_waited_for_and_is_there_again_at_the_next(two: tuple[Rank, Rank]) -> None:
    """resume() waited 300 s for a rank whose own resume() had loaded nothing."""
    let_wait(two, SHORT)
    assert two[0].arrive(False) is None
    assert two[0].arrive_late() is None
    assert two[1].arrive(True) == 3
    assert two[1].where() is Where.APART
    assert two[0].arrive_late() is None, "the others go on without it, so it does not begin that one"
    let_wait(two, LONG)
    numbers = [one.arrive(True) for one in two]
    assert numbers[0] == numbers[1]
    assert two[0].where() is two[1].where() is Where.TOGETHER


def test_who_has_not_attached_yet_is_waited_for(two: tuple[Rank, Rank]) -> None:
    let_wait(two, SHORT._replace(resume_s=0.05))
    two[0].arrive(True)
    with pytest.raises(TimeoutError, match="rank 1 did not join"):
        two[0].where()


def test_a_process_group_made_anew_has_a_store_in_which_the_turns_go_on(two: tuple[Rank, Rank]) -> None:
    for one in two:
        one.arrive(True)
    store = MemoryStore()
    for one in two:
        one.ranks = Ranks(store, one.ranks.rank, 2, poll_s=0.001)
    assert [one.arrive(True) for one in two] == [3, 3]


def test_one_process_alone_goes_by_what_it_sees_and_so_does_one_whose_store_is_gone() -> None:
    def lost() -> Ranks:
        raise StoreLostError("gone")

    for each in (lambda: None, lost):
        way = Way(each)
        assert [way.number_for(seen) for seen in (True, False, True)] == [1, None, 2]
        assert way.number == 2
        assert way.late_number() is None
        assert way.gather()[0] is Where.TOGETHER
        assert not way.tells_absent()


def test_a_checkpoint_that_lacks_a_rank_is_told_once(
    two: tuple[Rank, Rank], capsys: pytest.CaptureFixture[str]
) -> None:
    way = Way(lambda: two[0].ranks)
    assert [way.number_for(True), way.number_for(True)] == [1, 2]
    way.settle_in()
    assert way.tells_absent()
    assert way.tells_absent()
    assert capsys.readouterr().err.count("rank 1 trains something else, or has not attached this") == 1
    assert two[1].arrive(True) == 2
    assert not way.tells_absent()
