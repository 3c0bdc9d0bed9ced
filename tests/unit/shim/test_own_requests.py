"""What the script asks for with checkpoint(): who looks whether all ranks would save it, and what is said if not."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.shim.ranks import RANKS, OneFileSaver, Rank, start
from trainer_shim.attach import Shim, _watcher
from trainer_shim.interfaces import NoWatch
from trainer_shim.lifetime.meeting import Ranks, Way, Where
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.saving.open_requests import OWN
from trainer_shim.saving.store import MemoryStore
from trainer_shim.tokens import TokenCount


def test_no_rank_stands_still_for_what_not_all_would_save_and_it_is_said_once(
    ranks: list[Rank], capsys: pytest.CaptureFixture[str]
) -> None:
    asked_on: set[str] = set()

    def absent() -> str | None:
        asked_on.add(threading.current_thread().name)
        return "rank 9 trains something else"

    ranks[0].lacking = absent
    start(ranks, range(1, RANKS))  # Rank 0 makes no step: who began a round would stand and wait for it.
    for number in (1, 2):
        ranks[0].ask(f"{OWN}{number}.1", grace_s=2.0)
        assert ranks[0].ack(f"{OWN}{number}.1", "aborted")["reason"] == "rank 9 trains something else"
    assert asked_on == {"costgov-agree"}, "it asks the store: not on the training thread"
    assert capsys.readouterr().err == "costgov: checkpoint(): rank 9 trains something else: nothing is saved\n"
    assert all(len(rank.acks) == 0 for rank in ranks[1:]), "nobody else has heard of it"


def test_a_governor_is_answered_by_the_ranks_that_are_there(ranks: list[Rank]) -> None:
    ranks[0].lacking = lambda: "rank 9 trains something else"
    start(ranks)
    ranks[0].ask("i")
    assert {rank.ack("i", "saved", "aborted", "failed")["what"] for rank in ranks} == {"saved"}


def test_what_the_script_asks_for_is_saved_once_all_are_there(ranks: list[Rank], tmp_path: Path) -> None:
    # Where it is not known yet nobody stands still, and it is asked again. Who has found the store asks once, too.
    told: list[str | None] = [None, "", "", "rank 9 trains something else", None]
    ranks[0].lacking = told.pop
    start(ranks)
    for number, ending in ((1, "aborted"), (2, "saved")):
        ranks[0].ask(f"{OWN}{number}.1")
        assert ranks[0].ack(f"{OWN}{number}.1", "saved", "aborted", "failed")["what"] == ending


class Asked(NoWatch):
    def __init__(self) -> None:
        self.asked: list[str] = []

    def checkpoint(self) -> None:
        self.asked.append("checkpoint")

    def resume(self, directory: str | None = None) -> None:
        self.asked.append("resume")


def handle(way: Way) -> tuple[Shim, Asked]:
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    meter.watch = watch = Asked()
    shim = Shim(meter, None, way)
    shim.watching = True
    return shim, watch


class FakeWay(Way):
    """A job whose other ranks are where it is told."""

    def __init__(self, where: Where, other: int = 1) -> None:
        super().__init__(lambda: None)
        self.where = where, other
        self.asked: list[str] = []

    def gather(self) -> tuple[Where, int]:
        self.asked.append("gather")
        return self.where

    def late_number(self) -> int | None:
        self.asked.append("late_number")
        return None


def test_checkpoint_only_leaves_word_and_asks_no_rank() -> None:
    way = FakeWay(Where.APART)
    shim, watch = handle(way)
    shim.checkpoint()
    assert (watch.asked, way.asked) == (["checkpoint"], [])


def test_resume_loads_where_all_ranks_are_together_and_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    way = FakeWay(Where.TOGETHER)
    shim, watch = handle(way)
    shim.resume()
    assert (watch.asked, way.asked) == (["resume"], ["gather"])
    way.where = Where.APART, 3
    assert shim.resume() is None
    assert "resume(): rank 3 trains something else, or UNWATCHED" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="rank 3 trains something else"):
        shim.resume("checkpoints/cg_101")
    assert watch.asked == ["resume"]


def test_what_is_watched_asks_whether_all_ranks_are_in_its_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From attach() to the thread of the agreement, which takes what the script asks for."""
    way = Way(lambda: Ranks(store, 0, 2))
    store = MemoryStore()
    assert [way.number_for(True), way.number_for(True)] == [1, 2]
    way.settle_in()
    progress = Progress(threading.get_ident())
    watch: Any = _watcher(
        way, {"run": "r"}, progress, OneFileSaver(tmp_path, 0), environ={"COSTGOV_SOCKET": "/nonexistent"}
    )
    watch.start()
    watch.checkpoint()
    began, pause = time.monotonic(), threading.Event()
    while watch._requests.request is not None:
        assert time.monotonic() < began + 5.0
        pause.wait(0.001)
    watch.close()
    told = "checkpoint(): rank 1 trains something else, or has not attached this: nothing is saved"
    assert told in capsys.readouterr().err
