"""What of the watcher needs no training: that it starts whole or not at all, and what a script may request of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from governor.core.base.units import MonoNs
from governor.core.events.inputs import BadHello
from governor.wire.frames import FrameReader, refuse_packet
from tests.unit.shim.test_resuming import Loader, write
from tests.unit.wire.test_frames import Parcel
from trainer_shim import wire
from trainer_shim.progress import Progress
from trainer_shim.saving import checkpoint, rng
from trainer_shim.saving.resuming import DATA_ANEW
from trainer_shim.watcher import Watcher


def watcher(listener: socket.socket, **hello: Any) -> Watcher:
    return watcher_in({}, listener, **hello)


def watcher_in(environ: dict[str, str], listener: socket.socket, **hello: Any) -> Watcher:
    environ = {"COSTGOV_SOCKET": listener.getsockname(), **environ}
    return Watcher({"run": "r", "attempt": "a", **hello}, Progress(threading.get_ident()), None, environ=environ)


def test_what_cannot_start_raises_and_leaves_nothing_behind(listener: socket.socket) -> None:
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    broken = watcher(listener, stage=object())
    with pytest.raises(TypeError):
        broken.start()
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    broken.step_frame({"step": 1})
    broken.close()


def test_a_count_that_nobody_knows_any_more_is_in_no_checkpoint(listener: socket.socket) -> None:
    """Training goes on from a checkpoint of the script's own, which does not say what went before it."""
    watch = watcher(listener)
    watch.step_frame({"step": 60, "tokens": 10, "tokens_total": 600})
    assert watch._save_at_step.tokens_total == 600
    watch.step_frame({"step": 41, "tokens": 10})
    assert watch._save_at_step.tokens_total is None
    watch._let_go()


@pytest.mark.parametrize(
    ("position", "says"),
    [({"step": 3, "loaders": []}, True), ({"step": 3, "loaders": [{"epoch": 0, "batches": 3}]}, False), (None, False)],
    ids=["no loader", "a loader", "unknown"],
)
def test_a_resumed_loop_learns_that_its_data_begins_anew(
    position: dict[str, Any] | None,
    says: bool,
    listener: socket.socket,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path, 3)
    checkpoint.write_rank_file(str(path), 0, {"v": 1, "rng": rng.capture(), "position": position})
    parts = checkpoint.secure(str(path), 0, 1, 0, 1, time.monotonic_ns() + 10**12)
    checkpoint.commit(str(path), parts, {"step": 3, "kind": "good"}, move_latest=True)
    loader = Loader()
    loader.directory = str(tmp_path)
    environ = {"COSTGOV_SOCKET": listener.getsockname()}
    watch = Watcher({"run": "r", "attempt": "a"}, Progress(threading.get_ident()), loader, environ=environ)
    resumed = watch.resume()
    watch._let_go()
    assert resumed is not None
    assert (DATA_ANEW in capfd.readouterr().err) is says


@pytest.mark.parametrize(
    ("environ", "hello"),
    [({"COSTGOV_SIGNAL": "15"}, {}), ({"RANK": "1"}, {}), ({}, {"run": "exp\n7"}), ({"WORLD_SIZE": "9" * 20}, {})],
)
def test_who_must_be_watched_and_is_refused_learns_why(
    environ: dict[str, str], hello: dict[str, Any], listener: socket.socket
) -> None:
    def refuse() -> None:
        peer, _ = listener.accept()
        with peer:
            (bad,) = FrameReader().read(Parcel(peer.recv(wire.FRAME_BYTES_MAX)), MonoNs(0))
            assert isinstance(bad, BadHello)
            peer.send(refuse_packet(bad.why))

    governor = threading.Thread(target=refuse)
    governor.start()
    with pytest.raises(SystemExit, match=r"refused: hello\..*not training"):
        watcher_in({"COSTGOV_REQUIRED": "true", **environ}, listener, **hello).start()
    governor.join()


def test_a_script_that_asks_at_every_step_opens_one_incident(listener: socket.socket) -> None:
    # Of two ranks without a process group, so that the first request stays open.
    started = watcher(listener, world_size=2)
    started.start()
    for _ in range(100):
        started.checkpoint()
    peer, _ = listener.accept()
    with peer:
        peer.settimeout(10)
        started.close()
        frames = [json.loads(packet) for packet in iter(lambda: peer.recv(wire.FRAME_BYTES_MAX), b"")]
    assert {frame["incident"] for frame in frames if frame["kind"] == "ack"} == {"own.0.1"}


@pytest.mark.parametrize(
    ("saved_by", "is_told"), [("alpha", True), ("alp\x1bha", True), ("beta", False), (None, False)]
)
def test_one_run_goes_on_from_what_another_has_saved_and_says_so(
    listener: socket.socket, tmp_path: Path, saved_by: str | None, is_told: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two runs, one after the other, with one checkpoint_dir."""
    file = write(tmp_path, 41) / checkpoint.MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), **({"run": saved_by} if saved_by else {})}))
    saver = Loader()
    saver.directory = str(tmp_path)
    environ = {"COSTGOV_SOCKET": listener.getsockname()}
    watch = Watcher({"run": "beta", "attempt": "a"}, Progress(threading.get_ident()), saver, environ=environ)
    resumed = watch.resume()
    watch._let_go()
    assert resumed is not None
    assert resumed.step == 41
    said = capfd.readouterr().err
    assert (f"that one was saved by run {saved_by!r}, and this is run 'beta'" in said) == is_told
    assert ("that one was saved" in said) == is_told


def test_resume_says_why_nothing_was_saved_where_a_directory_is_not_what_is_missing(
    listener: socket.socket, capfd: pytest.CaptureFixture[str]
) -> None:
    saver = Loader()
    saver.directory, saver.cannot_load = None, "resume(): the model is sharded"
    environ = {"COSTGOV_SOCKET": listener.getsockname()}
    watch = Watcher({"run": "beta"}, Progress(threading.get_ident()), saver, environ=environ)
    assert watch.resume() is None
    watch._let_go()
    assert capfd.readouterr().err == "costgov: resume(): the model is sharded\n"


@pytest.mark.parametrize("is_known", [True, False])
def test_who_calls_resume_where_no_directory_is_known_is_told_again_after_a_halt(
    listener: socket.socket, tmp_path: Path, is_known: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """DeepSpeed learns the directory at the script's first save: the next launch does not know it either."""
    saver = Loader()
    environ = {"COSTGOV_SOCKET": listener.getsockname()}
    watch = Watcher({"run": "beta"}, Progress(threading.get_ident()), saver, environ=environ)
    saver.directory = str(tmp_path) if is_known else None
    assert watch.resume() is None
    watch._let_go()
    assert watch._hello_fields()["resume_called"] is is_known
    assert ("resume(): no directory is known" in capfd.readouterr().err) is not is_known


@pytest.mark.parametrize(
    ("called", "loaded_from", "saved_in", "sought_in"),
    [
        ("", None, "ours", None),
        ("", None, "more", None),
        ("", None, "theirs", "ours"),
        ("theirs", None, "theirs", None),
        ("theirs/step_1", None, "theirs", "theirs/step_1"),
        (None, "theirs", "theirs", None),
        (None, "theirs", "ours", "theirs"),
        (None, None, "theirs", None),
    ],
)
def test_a_checkpoint_that_the_next_launch_does_not_look_for_is_named_with_where_it_looks(
    listener: socket.socket, tmp_path: Path,
    called: str | None, loaded_from: str | None, saved_in: str, sought_in: str | None,
) -> None:  # fmt: skip
    """The script gave checkpoint_dir=ours. What it saves itself, and loads perhaps, may be elsewhere."""

    class Places(Loader):
        def __init__(self) -> None:
            super().__init__()
            self.directory = str(tmp_path / "ours")
            self.loaded_from = str(tmp_path / loaded_from) if loaded_from else None

        def resume_places(self) -> list[str]:
            return [str(tmp_path / "more")]

    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    named = write(tmp_path / "theirs", 1).rename(tmp_path / "theirs" / "step_1")
    (tmp_path / "link").symlink_to(tmp_path)
    environ = {"COSTGOV_SOCKET": listener.getsockname()}
    watch = Watcher({"run": "r", "attempt": "a"}, Progress(threading.get_ident()), Places(), environ=environ)
    if called is not None:
        watch.resume(str(tmp_path / called) if called else None)
    assert named.is_dir()
    watch.hello_field("last_good", {"step": 40, "path": str(tmp_path / "link" / saved_in / "cg_40")})
    watch._let_go()
    told = watch._hello_fields()["last_good"]
    assert told.get("sought_in") == (None if sought_in is None else str(tmp_path / sought_in))


def test_a_place_that_is_made_after_resume_is_one_where_the_next_launch_looks(
    listener: socket.socket, tmp_path: Path
) -> None:
    """A logger numbers its directory when the training begins."""
    numbered: list[str] = []

    class Numbers(Loader):
        def __init__(self) -> None:
            super().__init__()
            self.directory = str(tmp_path)

        def resume_places(self) -> list[str]:
            return numbered

    environ = {"COSTGOV_SOCKET": listener.getsockname()}
    watch = Watcher({"run": "r", "attempt": "a"}, Progress(threading.get_ident()), Numbers(), environ=environ)
    watch.resume(None)
    numbered.append(str(tmp_path / "version_0"))
    watch.hello_field("last_good", {"step": 40, "path": str(tmp_path / "version_0" / "40.ckpt")})
    watch._let_go()
    assert "sought_in" not in watch._hello_fields()["last_good"]


@pytest.mark.parametrize("said", [{}, {"trained_finite": False}, {"trained_finite": True}])
def test_what_all_ranks_have_seen_of_their_parameters_is_told_with_the_checkpoint(
    said: dict[str, Any], tmp_path: Path, listener: socket.socket
) -> None:
    environ = {"COSTGOV_SOCKET": listener.getsockname()}
    watch = Watcher({"run": "r", "attempt": "a"}, Progress(threading.get_ident()), None, environ=environ)
    watch._note_last_good({"kind": "good", "path": str(tmp_path / "cg_40"), "mono_ns": 7, **said}, 40)
    watch._let_go()
    told = watch._hello_fields()["last_good"]
    assert (told["step"], told["mono_ns"]) == (40, 7), "of the moment that was saved, however long it was written"
    assert told.get("trained_finite") is (True if said.get("trained_finite") else None)


def test_the_end_of_training_is_a_phase_and_then_a_bye(listener: socket.socket) -> None:
    """What comes behind the last step is bounded: its evaluation and save have their phases, and then it is over."""
    kinds: list[tuple[str, Any]] = []

    def hear() -> None:
        peer, _ = listener.accept()
        with peer:
            while packet := peer.recv(wire.FRAME_BYTES_MAX):
                frame = json.loads(packet)
                kinds.append((frame["kind"], frame.get("phase")))

    governor = threading.Thread(target=hear)
    governor.start()
    started = watcher(listener)
    started.start()
    started.finish("exit", True)
    started.close()
    governor.join()
    ends = [one for one in kinds if one[0] != "beat"]
    assert ends.index(("phase", "finish")) < ends.index(("bye", None))
