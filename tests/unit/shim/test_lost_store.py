"""The store is lost for a moment while a checkpoint becomes whole: what stands on the disk, and what is said of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.shim.ranks import RANKS, SAFETY_S, Rank, start
from trainer_shim.saving import checkpoint
from trainer_shim.saving.agreement import Left, Phase, Round
from trainer_shim.saving.store import KeyStore, MemoryStore, StoreLostError

GIVEN_UP = {"abort": "rank 1: lost its way", "left": "LOST"}
RECORD = {"record": {"path": "cg_7"}, "step": 7, "exit": None}


def pair() -> tuple[Round, Round]:
    store = MemoryStore()
    return Round(store, 0, 0, 2), Round(store, 0, 1, 2)


def test_what_has_been_given_up_rank_0_does_not_commit() -> None:
    first, second = pair()
    second.let_go(Left.LOST)
    assert first.claim() == GIVEN_UP
    assert second.verdict(Phase.OUTCOME) == GIVEN_UP


def test_what_rank_0_commits_nobody_gives_up_for_others() -> None:
    first, second = pair()
    assert first.claim() is None
    assert second.abort(Phase.OUTCOME, "late")["abort"].startswith("late"), "it need not wait for ever itself"
    second.let_go(Left.LOST)
    assert first.verdict(Phase.OUTCOME) is None
    assert first.settle(Phase.OUTCOME, RECORD) == RECORD
    assert second.abort(Phase.OUTCOME, "late") == RECORD


def test_a_rank_that_was_lost_between_its_two_words_has_given_up() -> None:
    """It could say to rank 0 that it gives up, and to the others no more."""
    store = Breaks(MemoryStore(), lambda verb, key: verb == "settle" and key.endswith("outcome/verdict"))
    second = Round(store, 0, 1, 2)
    with pytest.raises(StoreLostError):
        second.let_go(Left.LOST)
    assert Round(store, 0, 0, 2).claim() == GIVEN_UP
    assert second.verdict(Phase.OUTCOME) == GIVEN_UP


def test_rank_0_takes_back_what_it_claimed_and_could_not_write() -> None:
    first, second = pair()
    assert first.claim() is None
    first.let_go(Left.LOST)
    assert second.verdict(Phase.OUTCOME) == {"abort": "rank 0: lost its way", "left": "LOST"}


def test_a_rank_that_has_voted_gives_up_nothing_of_the_outcome() -> None:
    first, second = pair()
    second.let_go(Left.LOST, has_voted=True)
    assert first.verdict(Phase.OUTCOME) is None
    assert first.verdict(Phase.WRITTEN) == GIVEN_UP
    assert first.claim() is None


class Breaks:
    """One rank's connection: `breaks` is asked at each call, and breaks it once, before that call."""

    def __init__(self, shared: KeyStore, breaks: Callable[[str, str], bool]) -> None:
        self._shared = shared
        self._breaks = breaks
        self.broke = threading.Event()

    def get(self, key: str) -> str | None:
        self._pass("get", key)
        return self._shared.get(key)

    def set(self, key: str, value: str) -> None:
        self._pass("set", key)
        self._shared.set(key, value)

    def add(self, key: str, amount: int) -> int:
        self._pass("add", key)
        return self._shared.add(key, amount)

    def settle(self, key: str, value: str) -> str:
        self._pass("settle", key)
        return self._shared.settle(key, value)

    def _pass(self, verb: str, key: str) -> None:
        if self._breaks(verb, key) and not self.broke.is_set():
            self.broke.set()
            raise StoreLostError("connection reset")


class Crew:
    """Ranks of which some have a connection of their own making."""

    def __init__(self, directory: Path) -> None:
        self.store = MemoryStore()
        self.ranks = [Rank(rank, self.store, directory, 0.001) for rank in range(RANKS)]

    def lose(self, rank: int, breaks: Callable[[str, str], bool]) -> threading.Event:
        broken = Breaks(self.store, breaks)
        agreement = self.ranks[rank].agreement
        agreement._connect = lambda: broken
        agreement.reconnect_s = 0.01
        return broken.broke

    def endings(self, incident: str) -> list[str]:
        return [rank.ack(incident, "saved", "failed", "aborted")["what"] for rank in self.ranks]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    made = Crew(tmp_path)
    yield made
    for rank in made.ranks:
        rank.halt.set()
        rank.gate.finish()
        rank.agreement.stop(SAFETY_S)
        if rank.thread.ident is not None:
            rank.thread.join(SAFETY_S)


def whole(directory: Path) -> list[str]:
    return [Path(found["path"]).name for found in checkpoint.candidates(str(directory))]


def test_a_rank_that_has_voted_and_is_lost_costs_no_checkpoint(crew: Crew, tmp_path: Path) -> None:
    """Another still hashes, which takes minutes where the files are large. The next save finds a full disk."""
    back = threading.Event()

    def hashes(verb: str, key: str) -> bool:
        if (verb, key) == ("set", "0/vote/7"):
            assert back.wait(SAFETY_S)
        return False

    def looks(verb: str, key: str) -> bool:
        if key == "1/notice":  # It has let go, and listens for the next round.
            back.set()
        return (verb, key) == ("get", "0/outcome/verdict")

    broke = crew.lose(5, looks)
    crew.lose(7, hashes)
    start(crew.ranks)
    crew.ranks[0].ask("a")
    assert crew.endings("a") == ["saved"] * 5 + ["failed"] + ["saved"] * 2
    assert broke.is_set()
    (saved,) = whole(tmp_path)
    for rank in crew.ranks:
        rank.saver.full = True
    crew.ranks[0].ask("b")
    assert crew.endings("b") == ["failed"] * RANKS
    assert whole(tmp_path) == [saved]
    assert (tmp_path / checkpoint.LATEST).read_text().strip() == saved


def test_a_rank_that_is_lost_before_its_vote_ends_the_round_and_nothing_is_committed(
    crew: Crew, tmp_path: Path
) -> None:
    crew.lose(5, lambda verb, key: (verb, key) == ("set", "0/vote/5"))
    start(crew.ranks)
    crew.ranks[0].ask("a")
    assert crew.endings("a") == ["failed"] * RANKS
    assert whole(tmp_path) == []
    assert not (tmp_path / checkpoint.LATEST).exists()
    crew.ranks[3].ask("b")
    assert crew.endings("b") == ["saved"] * RANKS


def test_what_has_been_given_up_when_all_have_voted_is_not_committed(crew: Crew, tmp_path: Path) -> None:
    """A rank whose vote came through, and which does not know that, gives the round up before rank 0 looks."""
    gone = threading.Event()

    def breaks(verb: str, key: str) -> bool:
        if key == "1/notice":
            gone.set()
        is_counted = (verb, key) == ("add", "0/vote/count")
        if is_counted:
            crew.store.add(key, 1)
        return is_counted

    def waits(verb: str, key: str) -> bool:
        if (verb, key) == ("add", "0/vote/count") and crew.store.get("0/vote/0"):
            assert gone.wait(SAFETY_S)
        return False

    crew.lose(5, breaks)
    crew.lose(0, waits)
    start(crew.ranks)
    crew.ranks[0].ask("a")
    assert crew.endings("a") == ["failed"] * RANKS
    assert whole(tmp_path) == []


def test_rank_0_that_is_lost_behind_its_manifest_says_that_it_is_saved_and_so_do_all(
    crew: Crew, tmp_path: Path
) -> None:
    crew.lose(0, lambda verb, key: (verb, key) == ("settle", "0/outcome/verdict"))
    start(crew.ranks)
    crew.ranks[0].ask("a")
    assert crew.endings("a") == ["saved"] * RANKS
    paths = {rank.ack("a", "saved")["checkpoint"]["path"] for rank in crew.ranks}
    assert {Path(path).name for path in paths} == set(whole(tmp_path))
    crew.ranks[3].ask("b")
    assert crew.endings("b") == ["saved"] * RANKS
