"""What of the watcher needs no training: that it starts whole or not at all, and what a script may ask of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer_shim import wire
from trainer_shim.progress import Progress
from trainer_shim.watcher import Watcher


@pytest.fixture
def listener(short_tmp: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(short_tmp / "s"))
        server.listen()
        yield server


def watcher(listener: socket.socket, **hello: Any) -> Watcher:
    environ = {"COSTGOV_SOCKET": listener.getsockname()}
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
