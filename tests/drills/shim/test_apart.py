"""Two real ranks that are not where one would like them: apart, frozen, asked twice at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.drills.shim.letterbox import Letterbox
from trainer_shim import checkpoint

pytest.importorskip("deepspeed", reason="needs deepspeed")

RANKS = (0, 1)
FOREVER = 10**6


def set_pace(place: Path, rank: int, pace_s: str) -> None:
    """Atomically: the rank reads it before each step."""
    fresh = place / f"pace.{rank}.new"
    fresh.write_text(pace_s)
    fresh.replace(place / f"pace.{rank}")


def test_ranks_far_apart_meet_at_one_step(launch, box: Letterbox, tmp_path: Path) -> None:
    """No collective keeps them together: the fast one waits for the slow one at the agreed step, then both go on."""
    set_pace(tmp_path, 0, "0.002")
    set_pace(tmp_path, 1, "0.05")
    launch(kind="drift", steps=FOREVER)
    for rank in RANKS:
        box.frame("step", rank, step=5)
    box.until(lambda: box.of("step", 0)[-1]["step"] > box.of("step", 1)[-1]["step"] + 10, "a rank that is ahead")
    set_pace(tmp_path, 1, "0.002")
    box.letter(1, "i")
    steps = [box.frame("ack", rank, incident="i", what="saved")["step"] for rank in RANKS]
    assert steps[0] == steps[1]
    for rank in RANKS:
        box.frame("step", rank, step=steps[0] + 3)


def test_two_incidents_at_once_become_one(launch, box: Letterbox) -> None:
    launch(kind="zero2", steps=FOREVER)
    for rank in RANKS:
        box.frame("step", rank, step=3)
    box.letter(0, "zero")
    box.letter(1, "one", checkpoint="suspect")
    merged = box.until(lambda: [f for rank in RANKS for f in box.of("ack", rank) if f["what"] == "merged"], "a merge")
    open_one, other = merged[0]["merged_into"], merged[0]["incident"]
    assert {open_one, other} == {"zero", "one"}
    saved = [box.frame("ack", rank, incident=open_one, what="saved") for rank in RANKS]
    assert saved[0]["step"] == saved[1]["step"]
    assert saved[0]["checkpoint"] == saved[1]["checkpoint"]
    for rank in RANKS:
        box.frame("step", rank, step=saved[0]["step"] + 3)


@pytest.mark.parametrize(
    ("launcher", "frozen"),
    [("torchrun", 1), ("deepspeed", 0)],
    ids=["a rank", "the rank that hosts the store"],
)
def test_a_frozen_rank_makes_the_others_give_up_and_train_on(
    launcher: str, frozen: int, launch, box: Letterbox
) -> None:
    launch(launcher, kind="zero2", steps=FOREVER)
    for rank in RANKS:
        box.frame("step", rank, step=3)
    asked = 1 - frozen
    os.kill(box.pid(frozen), signal.SIGSTOP)
    box.letter(asked, "i", grace_s=2, exit_after=True)
    box.frame("ack", asked, incident="i", what="received")
    # Beats go on whatever hangs; four of them are longer than the letter's grace.
    beats = len(box.of("beat", asked))
    box.until(lambda: len(box.of("beat", asked)) >= beats + 4, "beats of the rank that is not frozen")
    beat = box.of("beat", asked)[-1]
    # Where the freeze catches it decides which collective it is: an asynchronous one is waited for by name, a
    # synchronous one waits inside.
    waits = beat.get("device_wait") in ("wait", "item", "barrier") or beat["collective"]["done"] is False
    assert waits, f"it should sit in a collective, waiting for the frozen one: {beat}"
    if frozen == 1:
        aborted = box.frame("ack", asked, incident="i", what="aborted")
        assert "no answer from rank 1" in aborted["reason"]
    os.kill(box.pid(frozen), signal.SIGCONT)
    for rank in RANKS:
        box.frame("ack", rank, incident="i", what="aborted")
        last = box.of("step", rank)[-1]["step"]
        box.frame("step", rank, step=last + 3)
    # The next one finds both ranks in the same generation.
    box.letter(frozen, "again")
    steps = [box.frame("ack", rank, incident="again", what="saved")["step"] for rank in RANKS]
    assert steps[0] == steps[1]


def test_a_rank_that_fails_inside_the_save_is_told_at_once_by_all(launch, box: Letterbox, tmp_path: Path) -> None:
    """The other rank sits in the save's barrier and would know nothing until the process group's timeout."""
    launch(kind="zero2", steps=FOREVER, pace_s=0.1)
    for step in range(1, 300):
        (tmp_path / "checkpoints" / f"cg_{step}" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").mkdir(parents=True)
    for rank in RANKS:
        box.frame("step", rank, step=3)
    box.letter(0, "i", exit_after=True)
    for rank in RANKS:
        failed = box.frame("ack", rank, incident="i", what="failed")
        assert failed["reason"].startswith("rank 1: ")
        assert box.acks(rank, "i") == ["received", "agreed", "saving", "failed"]
    box.frame("phase", 1, phase="idle")
    assert not (tmp_path / "checkpoints" / "latest").exists()
    assert checkpoint.find_last_good(str(tmp_path / "checkpoints")) is None
