"""Two real ranks that are not where one would like them: apart, frozen, asked twice at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.drills.components import needs
from tests.drills.shim.fake_governor import FakeGovernor
from tests.unit.shim.test_checkpoint import whole

needs("deepspeed")

RANKS = (0, 1)
FOREVER = 10**6


def set_pace(place: Path, rank: int, pace_s: str) -> None:
    """Atomically: the rank reads it before each step."""
    fresh = place / f"pace.{rank}.new"
    fresh.write_text(pace_s)
    fresh.replace(place / f"pace.{rank}")


def test_ranks_far_apart_meet_at_one_step(launch, governor: FakeGovernor, tmp_path: Path) -> None:
    """No collective keeps them together: the fast one waits for the slow one at the agreed step, then both go on."""
    set_pace(tmp_path, 0, "0.002")
    set_pace(tmp_path, 1, "0.05")
    launch(kind="drift", steps=FOREVER)
    for rank in RANKS:
        governor.frame("step", rank, step=5)
    governor.until(
        lambda: governor.of("step", 0)[-1]["step"] > governor.of("step", 1)[-1]["step"] + 10, "a rank that is ahead"
    )
    set_pace(tmp_path, 1, "0.002")
    governor.ask(1, "i")
    steps = [governor.frame("ack", rank, incident="i", what="saved")["step"] for rank in RANKS]
    assert steps[0] == steps[1]
    for rank in RANKS:
        governor.frame("step", rank, step=steps[0] + 3)


def test_two_incidents_at_once_become_one(launch, governor: FakeGovernor) -> None:
    launch(kind="zero2", steps=FOREVER)
    for rank in RANKS:
        governor.frame("step", rank, step=3)
    governor.ask(0, "zero")
    governor.ask(1, "one", checkpoint="suspect")
    merged = governor.until(
        lambda: [f for rank in RANKS for f in governor.of("ack", rank) if f["what"] == "merged"], "a merge"
    )
    open_one, other = merged[0]["merged_into"], merged[0]["incident"]
    assert {open_one, other} == {"zero", "one"}
    saved = [governor.frame("ack", rank, incident=open_one, what="saved") for rank in RANKS]
    assert saved[0]["step"] == saved[1]["step"]
    of_all = [{**ack["checkpoint"], "mono_ns": None} for ack in saved]  # Each was there at its own moment.
    assert of_all[0] == of_all[1]
    for rank in RANKS:
        governor.frame("step", rank, step=saved[0]["step"] + 3)


@pytest.mark.parametrize(
    ("launcher", "frozen"),
    [("torchrun", 1), ("deepspeed", 0)],
    ids=["a rank", "the rank that hosts the store"],
)
def test_a_frozen_rank_makes_the_others_give_up_and_train_on(
    launcher: str, frozen: int, launch, governor: FakeGovernor
) -> None:
    launch(launcher, kind="zero2", steps=FOREVER)
    for rank in RANKS:
        governor.frame("step", rank, step=3)
    asked = 1 - frozen
    os.kill(governor.pid(frozen), signal.SIGSTOP)
    governor.ask(asked, "i", grace_s=2, exit_after=True)
    governor.frame("ack", asked, incident="i", what="received")
    # Beats go on whatever hangs; four of them are longer than its grace.
    beats = len(governor.of("beat", asked))
    governor.until(lambda: len(governor.of("beat", asked)) >= beats + 4, "beats of the rank that is not frozen")
    beat = governor.of("beat", asked)[-1]
    # Where the freeze catches it decides which collective it is: an asynchronous one is waited for by name, a
    # synchronous one waits inside.
    waits = beat.get("device_wait") in ("wait", "item", "barrier") or beat["collective"]["done"] is False
    assert waits, f"it should sit in a collective, waiting for the frozen one: {beat}"
    if frozen == 1:
        aborted = governor.frame("ack", asked, incident="i", what="aborted")
        assert "no answer from rank 1" in aborted["reason"]
    os.kill(governor.pid(frozen), signal.SIGCONT)
    for rank in RANKS:
        governor.frame("ack", rank, incident="i", what="aborted")
        last = governor.of("step", rank)[-1]["step"]
        governor.frame("step", rank, step=last + 3)
    # The next one finds both ranks in the same generation.
    governor.ask(frozen, "again")
    steps = [governor.frame("ack", rank, incident="again", what="saved")["step"] for rank in RANKS]
    assert steps[0] == steps[1]


def test_a_rank_that_fails_inside_the_save_is_told_at_once_by_all(
    launch, governor: FakeGovernor, tmp_path: Path
) -> None:
    """The other rank sits in the save's barrier and would know nothing until the process group's timeout."""
    launch(kind="zero2", steps=FOREVER, pace_s=0.1)
    for step in range(1, 300):
        (tmp_path / "checkpoints" / f"cg_{step}" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").mkdir(parents=True)
    for rank in RANKS:
        governor.frame("step", rank, step=3)
    governor.ask(0, "i", exit_after=True)
    for rank in RANKS:
        failed = governor.frame("ack", rank, incident="i", what="failed")
        assert failed["reason"].startswith("rank 1: ")
        assert governor.acks(rank, "i") == ["received", "agreed", "saving", "failed"]
    governor.frame("phase", 1, phase="idle")
    assert not (tmp_path / "checkpoints" / "latest").exists()
    assert whole(tmp_path / "checkpoints") == []
