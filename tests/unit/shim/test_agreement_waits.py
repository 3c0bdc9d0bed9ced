"""For whom the ranks of an agreement wait, and how long: for none that has left, nor for ever at the agreed step."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from tests.unit.shim.ranks import RANKS, SAFETY_S, Rank, start
from trainer_shim.saving.open_requests import OWN


def test_a_rank_whose_loop_ends_waits_for_nobody_who_has_not_posted_a_step(ranks: list[Rank]) -> None:
    ranks[0].agreement.start()
    ranks[0].thread.start()
    ranks[0].ask("own.7")
    while not ranks[0].gate.raised:
        ranks[0].halt.wait(0.001)
    ranks[0].gate.finish()
    ranks[0].agreement.wake()
    assert ranks[0].ack("own.7", "aborted")["reason"].startswith("rank 0: training has finished")


def test_a_rank_that_leaves_is_waited_for_by_nobody_and_no_line_is_printed(
    ranks: list[Rank], capsys: pytest.CaptureFixture[str]
) -> None:
    start(ranks)
    ranks[3].gate.finish()
    ranks[3].agreement.stop(SAFETY_S)
    for incident in ("own.8", "own.9"):
        ranks[0].ask(incident)
        reasons = {rank.ack(incident, "aborted")["reason"] for rank in ranks if rank is not ranks[3]}
        assert reasons == {"rank 3: training has finished"}
    assert capsys.readouterr().err == ""


def test_a_rank_whose_loop_has_ended_asked_for_what_nobody_saves_and_no_line_is_printed(
    ranks: list[Rank], capsys: pytest.CaptureFixture[str]
) -> None:
    start(ranks)
    ranks[3].gate.finish()
    ranks[0].ask(f"{OWN}1.1")
    assert "rank 3: training has finished" in ranks[0].ack(f"{OWN}1.1", "aborted")["reason"]
    assert capsys.readouterr().err == ""


def test_a_reason_that_reads_like_the_end_of_training_is_said_all_the_same(
    ranks: list[Rank], capsys: pytest.CaptureFixture[str]
) -> None:
    """What a rank could not do is told in its own words, and those may be any."""
    ranks[3].saver.directory = "/proc/training has finished"
    start(ranks)
    ranks[0].ask(f"{OWN}1.1")
    reason = ranks[0].ack(f"{OWN}1.1", "failed", "aborted")["reason"]
    assert "rank 3: cannot write to /proc/training has finished" in reason
    assert capsys.readouterr().err == f"costgov: checkpoint(): {reason}: nothing is saved\n"


def test_what_the_script_asks_for_holds_no_rank_for_long_where_another_makes_no_step(ranks: list[Rank]) -> None:
    """Uneven inputs: a rank that is out of data waits in a collective for those that stand at the agreed step."""
    for rank in ranks:
        rank.agreement.own_wait_ns = 200_000_000
    start(ranks, range(1, RANKS))
    ranks[0].ask(f"{OWN}1.1")
    for rank in ranks:
        assert "time ran out before step" in rank.ack(f"{OWN}1.1", "aborted")["reason"]
    stood_at = ranks[1].gate.step
    while ranks[1].gate.step < stood_at + 5:
        ranks[1].halt.wait(0.001)


@pytest.mark.parametrize("strides", [(2,), (1, 1, 1, 1, 2), (3, 1, 40)])
def test_boundaries_that_several_steps_lie_between_are_agreed_on(ranks: list[Rank], strides: tuple[int, ...]) -> None:
    """Several optimizers step in a batch, or in each fifth one, and each counts: not every step has a boundary."""
    for rank in ranks:
        rank.strides = itertools.cycle(strides)
    start(ranks)
    for number in range(1, 2 * len(strides) + 1):
        ranks[0].ask(f"{OWN}{number}.1")
        ends = [rank.ack(f"{OWN}{number}.1", "saved", "failed", "aborted") for rank in ranks]
        assert [end["what"] for end in ends] == ["saved"] * RANKS
        assert len({end["step"] for end in ends}) == 1
        assert {rank.saver.steps[-1] for rank in ranks} == {ends[0]["step"]}, "and there they stood"


def test_a_rank_that_has_made_no_step_since_is_not_waited_for_again_and_one_that_has_is(ranks: list[Rank]) -> None:
    """Each checkpoint of torch's Join would hold the others, who are all that is left to train."""
    for rank in ranks:
        rank.agreement.own_wait_ns = 100_000_000
    start(ranks, range(1, RANKS))
    ranks[0].ask(f"{OWN}1.1")
    assert all("time ran out before step" in rank.ack(f"{OWN}1.1", "aborted")["reason"] for rank in ranks)
    for rank in ranks:
        rank.agreement.own_wait_ns = int(SAFETY_S * 10**9)
    ranks[0].ask(f"{OWN}2.1")
    for rank in ranks:
        assert "rank 0 stands at step 0 since the last request" in rank.ack(f"{OWN}2.1", "aborted")["reason"]
    ranks[0].thread.start()
    while ranks[0].gate.step < 1:
        ranks[0].halt.wait(0.001)
    ranks[0].ask(f"{OWN}3.1")
    assert {rank.ack(f"{OWN}3.1", "saved", "aborted", "failed")["what"] for rank in ranks} == {"saved"}


def test_ranks_that_stand_at_different_steps_save_nothing(ranks: list[Rank]) -> None:
    """One has skipped a step by a load: its part would be of another step than the tag says."""
    for number, rank in enumerate(ranks):
        rank.strides = itertools.cycle((2,)) if number else itertools.chain((3,), itertools.repeat(2))
    start(ranks)
    ranks[0].ask("halt-1")
    for rank in ranks:
        assert "stands at step" in rank.ack("halt-1", "saved", "failed", "aborted")["reason"]
        assert rank.saver.steps == []


def test_a_checkpoint_is_of_the_moment_that_was_saved_and_not_of_when_it_was_written(ranks: list[Rank]) -> None:
    """A halt waits as long as the work that is unsaved took. What was trained during the writing was not counted."""
    for rank in ranks:
        rank.saver.is_pending = True
    start(ranks)
    ranks[0].ask(f"{OWN}1.1")
    while not all(rank.saver.steps for rank in ranks):
        ranks[0].halt.wait(0.001)
    taken_ns = time.monotonic_ns()
    for rank in ranks:
        rank.saver.is_pending = False
    assert all(rank.ack(f"{OWN}1.1", "saved")["checkpoint"]["mono_ns"] <= taken_ns for rank in ranks)


def test_one_rank_that_never_reaches_the_step_releases_all_at_the_deadline(ranks: list[Rank], tmp_path: Path) -> None:
    start(ranks, training=range(1, RANKS))
    ranks[3].ask("i", grace_s=0.5)
    for rank in ranks:
        assert "time ran out before step" in rank.ack("i", "aborted")["reason"]
    assert list(tmp_path.iterdir()) == [], "nothing of the trial is left"
    before = [rank.gate.step for rank in ranks]
    ranks[0].thread.start()
    ranks[2].ask("again")
    steps = {rank.ack("again", "saved")["step"] for rank in ranks}
    assert len(steps) == 1
    assert steps.pop() > max(before)


def test_whether_a_save_waits_for_an_evaluation_is_decided_for_all_by_the_rank_that_takes_longest(
    ranks: list[Rank],
) -> None:
    for rank in ranks:
        rank.progress.longest_ns["eval"] = 10**9
    ranks[5].progress.longest_ns["eval"] = 100 * 10**9
    start(ranks)
    for number, waits in ((0, False), (1, True)):
        ranks[0].ask(f"halt-{number}", grace_s=60.0)
        assert {rank.ack(f"halt-{number}", "saved", "failed", "aborted")["what"] for rank in ranks} == {"saved"}
        store = ranks[0].agreement._store
        assert store is not None
        assert json.loads(store.get(f"{number}/ready/verdict") or "")["waits"] is waits
        ranks[5].progress.longest_ns["eval"] = 10**9


@pytest.mark.parametrize(
    ("suspect", "waits", "order_waits"), [(False, True, True), (False, False, False), (True, True, False)]
)
def test_a_rank_waits_as_the_verdict_says_and_never_with_what_is_suspect(
    ranks: list[Rank], suspect: bool, waits: bool, order_waits: bool
) -> None:
    """Its own times do not count: one rank that evaluates first would be waited for in a save."""
    for rank in ranks[:2]:
        rank.progress.longest_ns["eval"] = 10**9 if rank is ranks[0] else 10**15
        rank.ask("i")
        order = rank.agreement._ordered({"step": 3, "suspect": suspect, "exit": None, "waits": waits})
        assert order.waits is order_waits
