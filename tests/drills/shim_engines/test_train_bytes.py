"""The demonstration's training script really breaks in the way that each --fault names, as a governor would see it."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.components import needs

needs("deepspeed")

SCRIPT = Path(__file__).parents[3] / "examples" / "train_bytes.py"
FAULT_AT = 12
SEEN_LIMIT_S = 240  # Safety only: on an idle machine the whole drill takes ten seconds.
_CREDENTIALS = struct.Struct("3i")


class Listener:
    """A governor's ear: accepts ranks, keeps every frame, answers nothing."""

    def __init__(self, path: str) -> None:
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server.bind(path)
        self.server.listen(8)
        self.connections: list[socket.socket] = []
        self.pids: set[int] = set()
        self.frames: list[dict[str, Any]] = []

    def until(self, seen: Callable[[], bool]) -> None:
        """Listen until `seen()`, checked after each frame."""
        give_up_s = time.monotonic() + SEEN_LIMIT_S
        while not seen():
            left_s = give_up_s - time.monotonic()
            assert left_s > 0, [frame for frame in self.frames if frame["kind"] != "beat"][-6:]
            readable, _, _ = select.select([self.server, *self.connections], [], [], left_s)
            for ready in readable:
                self._read(ready)

    def of(self, kind: str, rank: int) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame["kind"] == kind and frame["rank"] == rank]

    def _read(self, ready: socket.socket) -> None:
        if ready is self.server:
            connection, _ = self.server.accept()
            self.connections.append(connection)
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self.pids.add(_CREDENTIALS.unpack(raw)[0])
            return
        try:
            packet = ready.recv(1 << 16)
        except ConnectionResetError:
            packet = b""
        if packet:
            self.frames.append(json.loads(packet))
        else:
            self.connections.remove(ready)
            ready.close()

    def close(self) -> None:
        for each in [self.server, *self.connections]:
            each.close()


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Callable[[str], Listener]]:
    """Return start(fault): the listener of a two-rank training that will break at FAULT_AT."""
    listener = Listener(str(tmp_path / "trainer.sock"))
    agents: list[subprocess.Popen[bytes]] = []

    def start(fault: str) -> Listener:
        arguments = ["--fault", fault, "--fault-at", str(FAULT_AT), "--fault-mark", str(tmp_path / "mark")]
        arguments += ["--steps", "2000", "--checkpoint-dir", str(tmp_path / "checkpoints")]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore"}
        environ["PYTHONPATH"] = str(SCRIPT.parents[1])  # These sources, whatever else is installed.
        environ["COSTGOV_SOCKET"] = str(tmp_path / "trainer.sock")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        with (tmp_path / "log").open("wb") as log:
            agents.append(subprocess.Popen([*launcher, str(SCRIPT), *arguments], env=environ, stdout=log, stderr=log))
        return listener

    yield start
    for agent in agents:
        agent.kill()
        agent.wait()
    for pid in listener.pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    listener.close()


def marked(tmp_path: Path) -> int:
    return int((tmp_path / "mark").read_text())


def test_nan_is_on_one_rank_and_at_its_step(broken, tmp_path: Path) -> None:
    seen = broken("nan")
    seen.until(lambda: any(frame.get("loss") == "nan" for frame in seen.of("step", 1)))
    seen.until(lambda: len(seen.of("step", 0)) >= FAULT_AT)

    first = next(frame for frame in seen.of("step", 1) if frame["loss"] == "nan")
    assert first["step"] == FAULT_AT
    assert first["mono_ns"] > marked(tmp_path)
    assert isinstance(seen.of("step", 0)[FAULT_AT - 1]["loss"], float)


def test_hang_stands_still_inside_a_step_while_the_other_rank_waits_in_a_collective(broken) -> None:
    seen = broken("hang")

    def stands_still() -> bool:
        return all(len({beat["progress_seq"] for beat in seen.of("beat", rank)[-3:]}) == 1 for rank in (0, 1))

    seen.until(lambda: all(len(seen.of("step", rank)) == FAULT_AT - 1 for rank in (0, 1)))
    seen.until(lambda: len(seen.of("beat", 0)) > 3 and stands_still() and seen.of("beat", 0)[-1]["in_step"])
    assert seen.of("beat", 1)[-1]["in_step"]
    assert seen.of("beat", 1)[-1]["last_hook"] == "forward"
    assert seen.of("beat", 0)[-1]["collective"]["done"] is False


def test_deaf_reports_a_nan_and_then_survives_every_polite_signal(broken) -> None:
    seen = broken("deaf")
    seen.until(lambda: any(frame.get("loss") == "nan" for frame in seen.of("step", 1)))
    for pid in seen.pids:
        os.kill(pid, signal.SIGUSR1)
        os.kill(pid, signal.SIGTERM)
    beats = {rank: len(seen.of("beat", rank)) for rank in (0, 1)}
    seen.until(lambda: all(len(seen.of("beat", rank)) >= beats[rank] + 3 for rank in (0, 1)))
    assert seen.of("step", 1)[-1]["step"] == FAULT_AT, "no boundary is reached any more"


@pytest.mark.parametrize("fault", ["collapse", "starve"])
def test_slow_faults_slow_the_part_that_they_name(broken, fault: str) -> None:
    seen = broken(fault)
    seen.until(lambda: all(len(seen.of("step", rank)) >= FAULT_AT + 4 for rank in (0, 1)))
    frames = seen.of("step", 0)
    before = statistics.median(frame["step_s"] for frame in frames[1 : FAULT_AT - 1])
    after = frames[FAULT_AT + 1 : FAULT_AT + 4]

    slower = sum(frame["step_s"] for frame in after) / len(after) / before
    waiting = sum(frame["data_s"] for frame in after) / sum(frame["step_s"] for frame in after)
    assert slower > 3
    assert waiting > 0.5 if fault == "starve" else waiting < 0.2
