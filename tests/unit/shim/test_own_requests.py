"""What the script asks for with checkpoint(): who looks whether all ranks would save it, and what is said if not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.unit.shim.ranks import RANKS, Rank, start
from trainer_shim.attach import Shim
from trainer_shim.interfaces import NoWatch
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.saving.open_requests import OWN
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
        ranks[0].ask(f"{OWN}{number}.1")
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
    told: list[str | None] = [None, "rank 9 trains something else"]
    ranks[0].lacking = told.pop
    start(ranks)
    for number, ending in ((1, "aborted"), (2, "saved")):
        ranks[0].ask(f"{OWN}{number}.1")
        assert ranks[0].ack(f"{OWN}{number}.1", "saved", "aborted", "failed")["what"] == ending


class Asked(NoWatch):
    def __init__(self) -> None:
        self.asked = 0

    def checkpoint(self) -> None:
        self.asked += 1


def test_checkpoint_only_leaves_word_for_its_watch() -> None:
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    meter.watch = watch = Asked()
    shim = Shim(meter, None)
    shim.watching = True
    shim.checkpoint()
    assert watch.asked == 1
