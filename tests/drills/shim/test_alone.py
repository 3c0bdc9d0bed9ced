"""One rank, a real socket and real signals: every way in which a request can arrive, end, or find nobody."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.shim.fake_governor import SAFETY_S, FakeGovernor
from trainer_shim import wire
from trainer_shim.saving import checkpoint

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


def test_a_request_is_received_agreed_saved_and_training_goes_on(
    train: Train, governor: FakeGovernor, tmp_path: Path
) -> None:
    train()
    governor.frame("step", step=3)
    governor.ask(0, "i")
    saved = governor.frame("ack", incident="i", what="saved")
    assert governor.acks(0, "i") == ["received", "agreed", "saving", "saved"]
    assert saved["checkpoint"]["tokens_total"] == 10 * saved["step"]
    assert checkpoint.verify_manifest(saved["checkpoint"]["path"], hashes=True) == []
    governor.frame("step", step=saved["step"] + 3)
    assert governor.frame("hello", 0)["open_incident"] is None
    assert governor.until(lambda: governor.of("hello")[-1].get("last_good"), "last_good")["step"] == saved["step"]
    # Repeated, it is answered from memory; nothing is saved a second time.
    governor.ask(0, "i")
    governor.until(lambda: governor.acks(0, "i").count("saved") == 2, "the repeated answer")
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [f"cg_{saved['step']}", "latest"]


def test_a_stuck_main_thread_acknowledges_at_once_and_the_step_is_not_reached(
    train: Train, governor: FakeGovernor
) -> None:
    child = train(stuck_at=3)
    governor.frame("step", step=3)
    governor.ask(0, "i", grace_s=2)
    governor.frame("ack", incident="i", what="received")
    aborted = governor.frame("ack", incident="i", what="aborted")
    assert "time ran out before step" in aborted["reason"]
    assert child.stdin is not None
    child.stdin.write("x")
    child.stdin.flush()
    governor.frame("step", step=6)
    assert governor.acks(0, "i")[-1] == "aborted"


def test_an_exit_request_parks_until_the_process_is_ended(train: Train, governor: FakeGovernor) -> None:
    child = train()
    governor.frame("step", step=3)
    governor.ask(0, "halt", exit_after=True)
    step = governor.frame("ack", incident="halt", what="saved")["step"]
    governor.frame("phase", phase="idle", step=step)
    beats = len(governor.of("beat"))
    governor.until(lambda: len(governor.of("beat")) >= beats + 2, "beats of a parked rank")
    assert governor.of("step")[-1]["step"] == step
    assert governor.of("beat")[-1]["phase"] == "idle"
    assert child.poll() is None


def test_a_parked_rank_ends_by_sigterm_although_a_framework_has_a_handler_for_it(
    train: Train, governor: FakeGovernor
) -> None:
    child = train(keeps_term=True)
    governor.frame("step", step=3)
    os.kill(child.pid, signal.SIGTERM)
    assert child.stdout is not None
    assert child.stdout.readline() == "received 15\n"  # It trains on, as Lightning does.
    governor.ask(0, "halt", exit_after=True)
    governor.frame("ack", incident="halt", what="saved")
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait(SAFETY_S) == -signal.SIGTERM


def test_without_a_governor_a_parked_rank_ends_itself(train: Train, governor: FakeGovernor) -> None:
    """It takes GONE_NS: half a minute of a node is the price of not training on after a halt."""
    child = train()
    governor.frame("step", step=3)
    governor.ask(0, "halt", exit_after=True)
    governor.frame("phase", phase="idle")
    governor.vanish()
    assert "nobody left to end this rank" in said(child)
    assert child.returncode == wire.HALT_EXIT_CODE


def test_no_checkpoint_asked_parks_at_the_next_boundary(train: Train, governor: FakeGovernor, tmp_path: Path) -> None:
    train()
    governor.frame("step", step=3)
    governor.ask(0, "halt", checkpoint="none", exit_after=True)
    governor.frame("ack", incident="halt", what="declined")
    governor.frame("phase", phase="idle")
    assert not (tmp_path / "checkpoints").exists()


def test_a_loop_that_cannot_save_says_so_and_still_parks(train: Train, governor: FakeGovernor) -> None:
    train(saves=False)
    hello = governor.frame("hello")
    assert "ask" not in hello["capabilities"]
    governor.frame("step", step=3)
    governor.ask(0, "halt", exit_after=True)
    assert "no way to save" in governor.frame("ack", incident="halt", what="declined")["reason"]
    governor.frame("phase", phase="idle")


def test_a_failed_save_is_told_and_training_goes_on(train: Train, governor: FakeGovernor) -> None:
    train(save_fails=True)
    governor.frame("step", step=3)
    governor.ask(0, "i")
    failed = governor.frame("ack", incident="i", what="failed")
    assert "the array is degraded" in failed["reason"]
    governor.frame("step", step=failed["step"] + 3)
    governor.ask(0, "next")
    governor.frame("ack", incident="next", what="failed")


def test_a_directory_that_cannot_be_written_is_found_before_the_save(
    train: Train, governor: FakeGovernor, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").write_text("a file where the directory should be")
    train()
    governor.frame("step", step=3)
    governor.ask(0, "i")
    assert "cannot write" in governor.frame("ack", incident="i", what="failed")["reason"]
    assert "saving" not in governor.acks(0, "i")


def test_a_second_incident_merges_into_the_open_one(train: Train, governor: FakeGovernor) -> None:
    child = train(stuck_at=3)
    governor.frame("step", step=3)
    governor.ask(0, "first")
    governor.frame("ack", incident="first", what="agreed")
    governor.ask(0, "second", checkpoint="suspect", exit_after=True)
    assert governor.frame("ack", incident="second", what="merged")["merged_into"] == "first"
    assert child.stdin is not None
    child.stdin.write("x")
    child.stdin.flush()
    saved = governor.frame("ack", incident="first", what="saved")
    assert saved["checkpoint"]["kind"] == "suspect"
    governor.frame("phase", phase="idle", step=saved["step"])


def test_the_request_alone_obliges_when_the_handler_was_replaced(train: Train, governor: FakeGovernor) -> None:
    train(steal=True)
    governor.until(
        lambda: governor.of("hello") and governor.of("hello")[-1]["signal"] == 0, "the hello that takes the signal away"
    )
    governor.ask(0, "i", signals=False)
    governor.frame("ack", incident="i", what="saved")


def test_a_bare_signal_makes_it_reconnect_and_ask(train: Train, governor: FakeGovernor) -> None:
    train()
    governor.frame("step", step=3)
    first = governor.peer(0)
    governor.signal(0)
    governor.until(lambda: len(governor.of("hello")) >= 2 and governor.peer(0) is not first, "a new connection")


def test_a_restarted_governor_hears_of_the_open_incident(train: Train, governor: FakeGovernor) -> None:
    child = train(stuck_at=3)
    governor.frame("step", step=3)
    governor.ask(0, "i")
    step = governor.frame("ack", incident="i", what="agreed")["step"]
    governor.vanish()
    governor.frames.clear()
    governor.return_()
    assert governor.frame("hello")["open_incident"] == {"incident": "i", "what": "agreed", "step": step}
    assert child.stdin is not None
    child.stdin.write("x")
    child.stdin.flush()
    governor.frame("ack", incident="i", what="saved")
    governor.frame("step", step=step + 2)


def test_what_was_not_confirmed_comes_again(train: Train, short_tmp: Path) -> None:
    with FakeGovernor(short_tmp / "s", confirms=False) as governor:
        train()
        governor.until(lambda: len(governor.of("hello")) >= 2, "hello again")
        assert governor.of("hello")[0]["seq"] == governor.of("hello")[1]["seq"]


def test_nobody_listening_is_said_once_and_training_runs(train: Train) -> None:
    child = train(steps=20)
    assert said(child).count("UNWATCHED: no governor at") == 1
    assert child.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("required", ["0", "1"])
def test_a_stranger_who_listens_where_a_governor_may_is_told_and_not_heard(
    train: Train, short_tmp: Path, required: str
) -> None:
    """In an $XDG_RUNTIME_DIR that others may write: its letter with exit_after parked a trainer of root."""
    (short_tmp / "costgov").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as fake:
        fake.bind(str(short_tmp / "costgov/trainer.sock"))
        os.seteuid(12_345)
        fake.listen()
        os.seteuid(0)
        away = {"COSTGOV_SOCKET": "", "XDG_RUNTIME_DIR": str(short_tmp), "COSTGOV_REQUIRED": required}
        child = train(environ=away, steps=20)
        told = said(child)
        assert told.count("it is uid 12345's") == 1, told
        assert f"COSTGOV_SOCKET={short_tmp}/costgov/trainer.sock" in told
        assert (child.returncode == 0) is (required == "0")
        peer, _ = fake.accept()
        assert peer.recv(wire.FRAME_BYTES_MAX) == b""
        peer.close()


def test_required_refuses_to_train_unwatched(train: Train) -> None:
    child = train(environ={"COSTGOV_REQUIRED": "1"})
    printed = said(child)
    assert "UNWATCHED" in printed
    assert "Traceback" not in printed
    assert child.returncode == 1


def test_required_trains_when_somebody_confirms(train: Train, governor: FakeGovernor) -> None:
    train(environ={"COSTGOV_REQUIRED": "1"})
    governor.frame("step", step=3)


def test_a_framework_saves_by_itself_when_told(train: Train, governor: FakeGovernor, tmp_path: Path) -> None:
    train(delegate=True, saves=False)
    assert "ask" not in governor.frame("hello")["capabilities"], "nobody knows yet who saves"
    governor.until(
        lambda: "ask" in governor.of("hello")[-1]["capabilities"], "the hello that says that it can be asked"
    )
    governor.ask(0, "i", exit_after=True)
    saved = governor.frame("ack", incident="i", what="saved")
    assert saved["checkpoint"]["path"] == str(tmp_path / "theirs" / f"checkpoint-{saved['step']}")
    assert checkpoint.verify_manifest(saved["checkpoint"]["path"]) == []
    assert not (tmp_path / "theirs" / "latest").exists(), "the framework has a way of its own to find it"
    governor.frame("phase", phase="idle", step=saved["step"])


def test_resume_takes_the_newest_whole_one(train: Train, governor: FakeGovernor, tmp_path: Path) -> None:
    train()
    steps = []
    for incident in ("one", "two"):
        governor.frame("step", step=(steps[-1] if steps else 0) + 3)
        governor.ask(0, incident)
        steps.append(governor.frame("ack", incident=incident, what="saved")["step"])
    os.truncate(tmp_path / "checkpoints" / f"cg_{steps[1]}" / "model.json", 3)
    again = train(resume=True, steps=steps[0] + 2)
    printed = said(again)
    assert f"resumed at {steps[0]}, {10 * steps[0]} tokens" in printed
    assert f"passing over {tmp_path}/checkpoints/cg_{steps[1]}: model.json has 3 bytes" in printed
    assert f"resume(): goes on from step {steps[0]}: {tmp_path}/checkpoints/cg_{steps[0]}" in printed
    assert governor.of("hello")[0]["resume_called"] is False
    governor.until(lambda: governor.of("hello")[-1]["resume_called"], "the hello of a script that resumes")


def test_the_end_says_bye_and_is_confirmed(train: Train, governor: FakeGovernor) -> None:
    child = train(steps=5)
    bye = governor.frame("bye")
    assert (bye["reason"], bye["completed"], bye["step"]) == ("done", True, 5)
    assert child.wait(SAFETY_S) == 0


def test_a_second_training_in_the_same_process_is_watched_again(train: Train, governor: FakeGovernor) -> None:
    child = train(steps=5, again=True, close=True)
    governor.frame("bye", reason="done again", step=6)
    governor.until(
        lambda: governor.of("hello")[-1]["seq"] > governor.frame("bye", reason="done")["seq"], "hello after bye"
    )
    assert child.wait(SAFETY_S) == 0, said(child)
