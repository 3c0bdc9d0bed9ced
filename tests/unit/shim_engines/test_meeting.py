"""The ranks of a job attach one training after the other, not always alike. They must not stay apart for that."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from trainer_shim.lifetime.meeting import MET_S, NAMES_MAX, Presence, Ranks, Steps, Waits, Way, Where
from trainer_shim.saving.store import MemoryStore, StoreLostError

T = TypeVar("T")
LONG_S = 4.0  # Half of it is room enough for what must not wait


class Rank:
    """One rank of two. All have watched the job's first training."""

    def __init__(self, store: MemoryStore, rank: int, first: bool = True) -> None:
        self.steps = Steps(SHORT)
        self.ranks = Ranks(store, rank, 2, poll_s=0.001)
        if first:
            assert self.arrive(True) == 1

    def arrive(self, is_over: bool) -> int | None:
        return self._in(self.steps.arrive(self.ranks, is_over))

    def arrive_late(self) -> int | None:
        return self._in(self.steps.arrive_late(self.ranks))

    def where(self) -> Where:
        return self.steps.gather(self.ranks)[0]

    def absent(self) -> str | None:
        return Presence(lambda: self.ranks, self.steps.number).absent()

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
    assert together(two[0].where, two[1].where) == [Where.TOGETHER] * 2


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
        assert together(two[0].where, two[1].where) == [Where.TOGETHER] * 2
    else:
        assert together(lambda: two[0].arrive(False), lambda: two[1].arrive(False)) == [None, None]


def test_who_comes_to_a_turn_that_has_gone_on_without_it_opens_the_next(two: tuple[Rank, Rank]) -> None:
    let_wait(two, SHORT)
    assert two[0].arrive(False) is None
    assert two[0].steps.last == 2
    assert two[1].arrive(False) is None
    assert two[1].steps.last == 3, "nobody has asked it about the second"


@pytest.mark.parametrize("vain_s", [0.0, 0.1])
def test_a_rank_that_has_waited_in_vain_waits_less_and_less_until_the_next_training(
    two: tuple[Rank, Rank], vain_s: float
) -> None:
    """A helper model that one rank attaches in each epoch held all ranks half a second each time."""
    let_wait(two, SHORT._replace(vain_s=vain_s))
    assert two[0].arrive(False) is None
    let_wait(two, LONG._replace(vain_s=vain_s))
    began = time.monotonic()
    for _ in range(100):
        assert two[0].arrive(False) is None
    assert time.monotonic() - began < LONG_S / 2


def test_ranks_of_which_one_began_a_stage_alone_meet_in_resume(two: tuple[Rank, Rank]) -> None:
    let_wait(two, LONG)
    assert two[0].arrive(True) == 2
    assert "rank 1 trains something else" in (two[0].absent() or ""), "what is asked for now no two ranks would save"
    assert two[1].arrive(True) == 2, "it comes first, and takes rank 0's stage for the next one"
    assert two[0].arrive(True) == 3
    assert two[1].where() is Where.AHEAD
    assert two[1].arrive(True) == 3
    assert together(two[0].where, two[1].where) == [Where.TOGETHER] * 2
    assert two[0].absent() is None
    assert [one.arrive(True) for one in two] == [4, 4]


def test_who_comes_to_a_turn_that_another_is_about_to_leave_follows_it(two: tuple[Rank, Rank]) -> None:
    """Both were counted in rank 0's stage for a moment: rank 1 loaded there, rank 0 waited 300 s for it in the next."""
    let_wait(two, LONG)
    assert two[0].arrive(True) == 2
    assert two[1].arrive(True) == 2
    with ThreadPoolExecutor(1) as pool:
        where = pool.submit(two[1].where)
        while two[0].ranks.missing_in_resume(2, 1) == 2:
            pass
        assert two[0].arrive(True) == 3
        assert where.result(30) is Where.AHEAD
    assert two[1].arrive(True) == 3
    assert together(two[0].where, two[1].where) == [Where.TOGETHER] * 2


def test_ranks_meet_in_each_resume_of_a_training(two: tuple[Rank, Rank]) -> None:
    for _ in range(2):
        assert together(two[0].where, two[1].where) == [Where.TOGETHER] * 2
    let_wait(two, SHORT._replace(resume_s=0.05))
    for _ in range(2):  # Of one rank alone, twice: what it has asked for itself counts once.
        with pytest.raises(TimeoutError, match="rank 1 did not join"):
            two[0].where()


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
    assert together(two[0].where, two[1].where) == [Where.TOGETHER] * 2


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
    assert together(two[0].where, two[1].where) == [Where.TOGETHER] * 2


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
        assert way.presence().absent() is None


class CountingStore(MemoryStore):
    """Knows what it was asked. Each call is a round trip or two to the one store of the job."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def get(self, key: str) -> str | None:
        self.calls.append("get " + key)
        return super().get(key)

    def set(self, key: str, value: str) -> None:
        self.calls.append("set " + key)
        super().set(key, value)

    def add(self, key: str, amount: int) -> int:
        self.calls.append("add " + key)
        return super().add(key, amount)

    def settle(self, key: str, value: str) -> str:
        self.calls.append("settle " + key)
        return super().settle(key, value)


def attached(count: int, world_size: int) -> tuple[CountingStore, list[tuple[Steps, Ranks]]]:
    """So many of a job's ranks attach two trainings, one after the other."""
    store = CountingStore()
    ranks = [
        (Steps(SHORT._replace(resume_s=0.05)), Ranks(store, rank, world_size, poll_s=0.001)) for rank in range(count)
    ]
    for number in (1, 2):
        for steps, of in ranks:
            assert steps.arrive(of, True) == number
            steps.settle_in(of)
    store.calls.clear()
    return store, ranks


@pytest.mark.parametrize("world_size", [64, 256])
def test_ranks_that_resume_or_save_ask_the_store_for_no_other_by_its_name(world_size: int) -> None:
    """256 ranks asked for each of 256: 131,072 round trips to one store before anything was loaded."""
    store, ranks = attached(world_size, world_size)
    for _, of in ranks:
        of.come_to_resume(2, 1)
    assert {steps.gather(of)[0] for steps, of in ranks} == {Where.TOGETHER}
    assert len(store.calls) <= 6 * world_size, store.calls[:20]
    store.calls.clear()
    presences = [Presence(lambda of=of: of, 2) for _, of in ranks]  # type: ignore[misc]
    assert [one.absent() for one in presences for _ in range(3)] == [None] * 3 * world_size
    assert len(store.calls) <= 4 * world_size, store.calls[:20]


@pytest.mark.parametrize(("here", "told"), [(5, "rank 5"), (255, "one of the ranks from 16 on")])
def test_a_few_ranks_are_asked_for_by_name_where_one_is_absent_and_once(here: int, told: str) -> None:
    store, ranks = attached(here, 256)
    presence = Presence(lambda: ranks[0][1], 2)
    for _ in range(50):
        assert presence.absent() == told + " trains something else, or has not attached this"
    assert len(store.calls) <= 1 + NAMES_MAX + 50
    for _, of in ranks:
        of.come_to_resume(2, 1)
    store.calls.clear()
    with pytest.raises(TimeoutError, match=told + " did not join"):
        ranks[0][0].gather(ranks[0][1])
    assert len([call for call in store.calls if call.startswith("get resumes/")]) <= 1 + NAMES_MAX


def test_who_is_absent_now_is_named_and_not_who_was() -> None:
    _, ranks = attached(3, 5)
    presence = Presence(lambda: ranks[0][1], 2)
    assert "rank 3 " in (presence.absent() or "")
    late = Ranks(ranks[0][1].store, 3, 5)
    late.settle_in(2)
    assert "rank 4 " in (presence.absent() or "")
    Ranks(ranks[0][1].store, 4, 5).settle_in(2)
    assert presence.absent() is None
    late.settle_in(3)
    assert "rank 3 " in (presence.absent() or ""), "it has gone on"


def test_who_attached_before_the_ranks_had_met_is_counted_when_it_first_asks() -> None:
    """A rank that alone attached held all others 30 s at each request: in the first turn nobody was called absent."""
    store, now = MemoryStore(), [0.0]
    first, second = Ranks(store, 0, 2), Ranks(store, 1, 2)
    of_first, of_second = (Presence(lambda each=each: each, 1, lambda: now[0]) for each in (first, second))  # type: ignore[misc]
    assert of_first.absent() == "", "the other may not have met it yet"
    now[0] = MET_S
    assert "rank 1 " in (of_first.absent() or "")
    assert of_second.absent() is None
    assert of_first.absent() is None
    second.settle_in(2)
    assert "rank 1 " in (of_first.absent() or ""), "it is known at once where that one is"


def test_a_rank_is_counted_in_no_turn_that_it_has_left() -> None:
    store = MemoryStore()
    rank = Ranks(store, 0, 2)
    rank.settle_in(2)
    Presence(lambda: rank, 1).absent()
    assert [rank.missing(turn) for turn in (1, 2)] == [2, 1]


def test_a_rank_that_is_counted_twice_counts_once() -> None:
    store = MemoryStore()
    for _ in range(2):
        Ranks(store, 0, 2).settle_in(4)
    assert Ranks(store, 1, 2).missing(4) == 1
