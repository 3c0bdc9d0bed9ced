"""One rank, a real socket and real signals: every way in which a letter can arrive, end, or find nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.shim.letterbox import SAFETY_S, Letterbox
from trainer_shim import checkpoint, wire

HERE = Path(__file__).parent
FOREVER = 10**9

Train = Callable[..., subprocess.Popen]


@pytest.fixture
def train(tmp_path: Path, short_tmp: Path) -> Iterator[Train]:
    children: list[subprocess.Popen] = []

    def start(environ: dict[str, str] | None = None, **options: Any) -> subprocess.Popen:
        told = {"place": str(tmp_path), "steps": FOREVER, **options}
        children.append(
            subprocess.Popen(
                [sys.executable, str(HERE / "train_alone.py")],
                env={
                    **os.environ,
                    "COSTGOV_SOCKET": str(short_tmp / "s"),
                    "DRILL": json.dumps(told),
                    "PYTHONPATH": str(HERE.parents[2]),
                    **(environ or {}),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return children[-1]

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=SAFETY_S)


def said(child: subprocess.Popen) -> str:
    """What it printed until its end."""
    return child.communicate(timeout=SAFETY_S)[0]


def test_a_letter_is_received_agreed_saved_and_training_goes_on(train: Train, box: Letterbox, tmp_path: Path) -> None:
    train()
    box.frame("step", step=3)
    box.letter(0, "i")
    saved = box.frame("ack", incident="i", what="saved")
    assert box.acks(0, "i") == ["received", "agreed", "saving", "saved"]
    assert saved["checkpoint"]["tokens_total"] == 10 * saved["step"]
    assert checkpoint.verify_manifest(saved["checkpoint"]["path"], hashes=True) == []
    box.frame("step", step=saved["step"] + 3)
    assert box.frame("hello", 0)["open_incident"] is None
    assert box.until(lambda: box.of("hello")[-1].get("last_good"), "last_good")["step"] == saved["step"]
    # Repeated, it is answered from memory; nothing is saved a second time.
    box.letter(0, "i")
    box.until(lambda: box.acks(0, "i").count("saved") == 2, "the repeated answer")
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [f"cg_{saved['step']}", "latest"]


def test_a_stuck_main_thread_acknowledges_at_once_and_the_step_is_not_reached(train: Train, box: Letterbox) -> None:
    child = train(stuck_at=3)
    box.frame("step", step=3)
    box.letter(0, "i", grace_s=2)
    box.frame("ack", incident="i", what="received")
    aborted = box.frame("ack", incident="i", what="aborted")
    assert "not reached in time" in aborted["reason"]
    assert child.stdin is not None
    child.stdin.write("x")
    child.stdin.flush()
    box.frame("step", step=6)
    assert box.acks(0, "i")[-1] == "aborted"


def test_an_exit_letter_parks_until_the_process_is_ended(train: Train, box: Letterbox) -> None:
    child = train()
    box.frame("step", step=3)
    box.letter(0, "halt", exit_after=True)
    step = box.frame("ack", incident="halt", what="saved")["step"]
    box.frame("phase", phase="idle", step=step)
    beats = len(box.of("beat"))
    box.until(lambda: len(box.of("beat")) >= beats + 2, "beats of a parked rank")
    assert box.of("step")[-1]["step"] == step
    assert box.of("beat")[-1]["phase"] == "idle"
    assert child.poll() is None


def test_without_a_governor_a_parked_rank_ends_itself(train: Train, box: Letterbox) -> None:
    """It takes GONE_NS: half a minute of a node is the price of not training on after a halt."""
    child = train()
    box.frame("step", step=3)
    box.letter(0, "halt", exit_after=True)
    box.frame("phase", phase="idle")
    box.vanish()
    assert "nobody left to end this rank" in said(child)
    assert child.returncode == wire.HALT_EXIT_CODE


def test_no_checkpoint_asked_parks_at_the_next_boundary(train: Train, box: Letterbox, tmp_path: Path) -> None:
    train()
    box.frame("step", step=3)
    box.letter(0, "halt", checkpoint="none", exit_after=True)
    box.frame("ack", incident="halt", what="declined")
    box.frame("phase", phase="idle")
    assert not (tmp_path / "checkpoints").exists()


def test_a_loop_that_cannot_save_says_so_and_still_parks(train: Train, box: Letterbox) -> None:
    train(saves=False)
    hello = box.frame("hello")
    assert "ask" not in hello["capabilities"]
    box.frame("step", step=3)
    box.letter(0, "halt", exit_after=True)
    assert "no way to save" in box.frame("ack", incident="halt", what="declined")["reason"]
    box.frame("phase", phase="idle")


def test_a_failed_save_is_told_and_training_goes_on(train: Train, box: Letterbox) -> None:
    train(save_fails=True)
    box.frame("step", step=3)
    box.letter(0, "i")
    failed = box.frame("ack", incident="i", what="failed")
    assert "the array is degraded" in failed["reason"]
    box.frame("step", step=failed["step"] + 3)
    box.letter(0, "next")
    box.frame("ack", incident="next", what="failed")


def test_a_directory_that_cannot_be_written_is_found_before_the_save(
    train: Train, box: Letterbox, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").write_text("a file where the directory should be")
    train()
    box.frame("step", step=3)
    box.letter(0, "i")
    assert "cannot write" in box.frame("ack", incident="i", what="failed")["reason"]
    assert "saving" not in box.acks(0, "i")


def test_a_second_incident_merges_into_the_open_one(train: Train, box: Letterbox) -> None:
    child = train(stuck_at=3)
    box.frame("step", step=3)
    box.letter(0, "first")
    box.frame("ack", incident="first", what="agreed")
    box.letter(0, "second", checkpoint="suspect", exit_after=True)
    assert box.frame("ack", incident="second", what="merged")["merged_into"] == "first"
    assert child.stdin is not None
    child.stdin.write("x")
    child.stdin.flush()
    saved = box.frame("ack", incident="first", what="saved")
    assert saved["checkpoint"]["kind"] == "suspect"
    box.frame("phase", phase="idle", step=saved["step"])


def test_the_letter_alone_obliges_when_the_handler_was_stolen(train: Train, box: Letterbox) -> None:
    train(steal=True)
    box.until(lambda: box.of("hello") and box.of("hello")[-1]["signal"] == 0, "the hello that takes the bell away")
    box.letter(0, "i", ring=False)
    box.frame("ack", incident="i", what="saved")


def test_a_bare_ring_makes_it_reconnect_and_ask(train: Train, box: Letterbox) -> None:
    train()
    box.frame("step", step=3)
    first = box.peer(0)
    box.ring(0)
    box.until(lambda: len(box.of("hello")) >= 2 and box.peer(0) is not first, "a new connection")


def test_a_restarted_governor_hears_of_the_open_incident(train: Train, box: Letterbox) -> None:
    child = train(stuck_at=3)
    box.frame("step", step=3)
    box.letter(0, "i")
    step = box.frame("ack", incident="i", what="agreed")["step"]
    box.vanish()
    box.frames.clear()
    box.return_()
    assert box.frame("hello")["open_incident"] == {"incident": "i", "what": "agreed", "step": step}
    assert child.stdin is not None
    child.stdin.write("x")
    child.stdin.flush()
    box.frame("ack", incident="i", what="saved")
    box.frame("step", step=step + 2)


def test_what_was_not_confirmed_comes_again(train: Train, short_tmp: Path) -> None:
    with Letterbox(short_tmp / "s", confirms=False) as box:
        train()
        box.until(lambda: len(box.of("hello")) >= 2, "hello again")
        assert box.of("hello")[0]["seq"] == box.of("hello")[1]["seq"]


def test_nobody_listening_is_said_once_and_training_runs(train: Train) -> None:
    child = train(steps=20)
    assert said(child).count("UNWATCHED: no governor at") == 1
    assert child.returncode == 0


def test_required_refuses_to_train_unwatched(train: Train) -> None:
    child = train(environ={"COSTGOV_REQUIRED": "1"})
    printed = said(child)
    assert "UNWATCHED" in printed
    assert "Traceback" not in printed
    assert child.returncode == 1


def test_required_trains_when_somebody_confirms(train: Train, box: Letterbox) -> None:
    train(environ={"COSTGOV_REQUIRED": "1"})
    box.frame("step", step=3)


def test_a_framework_saves_by_itself_when_told(train: Train, box: Letterbox, tmp_path: Path) -> None:
    train(delegate=True, saves=False)
    assert "ask" not in box.frame("hello")["capabilities"], "nobody knows yet who saves"
    box.until(lambda: "ask" in box.of("hello")[-1]["capabilities"], "the hello that says that it can be asked")
    box.letter(0, "i", exit_after=True)
    saved = box.frame("ack", incident="i", what="saved")
    assert saved["checkpoint"]["path"] == str(tmp_path / "theirs" / f"checkpoint-{saved['step']}")
    assert checkpoint.verify_manifest(saved["checkpoint"]["path"]) == []
    assert not (tmp_path / "theirs" / "latest").exists(), "the framework has a way of its own to find it"
    box.frame("phase", phase="idle", step=saved["step"])


def test_resume_takes_the_newest_whole_one(train: Train, box: Letterbox, tmp_path: Path) -> None:
    train()
    steps = []
    for incident in ("one", "two"):
        box.frame("step", step=(steps[-1] if steps else 0) + 3)
        box.letter(0, incident)
        steps.append(box.frame("ack", incident=incident, what="saved")["step"])
    os.truncate(tmp_path / "checkpoints" / f"cg_{steps[1]}" / "model.json", 3)
    again = train(resume=True, steps=steps[0] + 2)
    printed = said(again)
    assert f"resumed at {steps[0]}, {10 * steps[0]} tokens" in printed
    assert f"passing over {tmp_path}/checkpoints/cg_{steps[1]}: model.json has 3 bytes" in printed


def test_the_end_says_bye_and_is_confirmed(train: Train, box: Letterbox) -> None:
    child = train(steps=5)
    bye = box.frame("bye")
    assert (bye["reason"], bye["completed"], bye["step"]) == ("done", True, 5)
    assert child.wait(SAFETY_S) == 0


def test_a_second_training_in_the_same_process_is_watched_again(train: Train, box: Letterbox) -> None:
    child = train(steps=5, again=True, close=True)
    box.frame("bye", reason="done again", step=6)
    box.until(lambda: box.of("hello")[-1]["seq"] > box.frame("bye", reason="done")["seq"], "hello after bye")
    assert child.wait(SAFETY_S) == 0, said(child)
