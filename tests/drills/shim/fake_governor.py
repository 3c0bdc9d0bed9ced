"""The governor's end of the trainer socket, for tests: confirms what must be, keeps every frame, asks for checkpoints.

It has no thread: whoever waits pumps. Peers are told apart by the kernel's word for their pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import Signals
from typing import Any, TypeVar

from governor.adapters.trainers import checkpoint_reader
from trainer_shim import wire

Found = TypeVar("Found")
Frame = dict[str, Any]
SAFETY_S = 90.0  # A wait longer than this is a hang on any machine; no test measures time with it.


class FakeGovernor:
    def __init__(self, path: Path, confirms: bool = True) -> None:
        self.path = path
        self.confirms = confirms
        self.frames: list[Frame] = []
        self._pids: dict[int, int] = {}  # rank -> pid
        self._ranks: dict[int, int] = {}  # descriptor -> rank
        self._peers: dict[int, socket.socket] = {}
        self._server = self._listen()

    def __enter__(self) -> FakeGovernor:
        return self

    def __exit__(self, *_: object) -> None:
        self.vanish()

    def vanish(self) -> None:
        """Die as a killed governor does: listener and connections go, the socket file stays."""
        self.hang_up()
        self._server.close()

    def hang_up(self) -> None:
        """Drop every connection, keep listening."""
        for sock in self._peers.values():
            sock.close()
        self._peers.clear()
        self._ranks.clear()

    def return_(self) -> None:
        """Come back after vanish()."""
        self._server = self._listen()

    def until(self, look: Callable[[], Found | None], what: str, safety_s: float = SAFETY_S) -> Found:
        """Pump until `look` returns something true."""
        deadline = time.monotonic() + safety_s
        while True:
            found = look()
            if found:
                return found
            left = deadline - time.monotonic()
            assert left > 0, f"never saw {what}; got {self.summary()}"
            self.pump(min(left, 0.5))

    def frame(self, kind: str, rank: int = 0, safety_s: float = SAFETY_S, **fields: Any) -> Frame:
        """Wait for the first frame of that kind, rank and content."""

        def look() -> Frame | None:
            return next((f for f in self.of(kind, rank) if fields.items() <= f.items()), None)

        return self.until(look, f"{kind} of rank {rank} with {fields}", safety_s)

    def of(self, kind: str, rank: int = 0) -> list[Frame]:
        return [f for f in self.frames if f["kind"] == kind and f["rank"] == rank]

    def acks(self, rank: int, incident: str) -> list[str]:
        return [f["what"] for f in self.of("ack", rank) if f["incident"] == incident]

    def pid(self, rank: int) -> int:
        return self._pids[rank]

    def peer(self, rank: int) -> socket.socket:
        return next(self._peers[fd] for fd, of in reversed(self._ranks.items()) if of == rank)

    def ask(
        self,
        rank: int,
        incident: str,
        checkpoint: str = "good",
        grace_s: float = 60.0,
        exit_after: bool = False,
        signals: bool = True,
    ) -> None:
        """Ask one rank for a checkpoint, then signal it, in this order."""
        request = {
            "v": 1,
            "kind": "letter",
            "incident": incident,
            "checkpoint": checkpoint,
            "deadline_mono_ns": time.monotonic_ns() + int(grace_s * 1e9),
            "exit_after": exit_after,
            "exit_code": wire.HALT_EXIT_CODE,
            "reason": "drill",
        }
        assert wire.faults(request, wire.GOVERNOR_FRAMES) == []
        self.peer(rank).send(json.dumps(request).encode())
        if signals:
            self.signal(rank)

    def signal(self, rank: int) -> None:
        number = self.of("hello", rank)[-1]["signal"]
        os.kill(self.pid(rank), Signals(number))

    def pump(self, timeout_s: float) -> None:
        """Accept and read what is there, waiting at most so long for the first of it."""
        poll = select.poll()
        poll.register(self._server, select.POLLIN)
        for descriptor in self._peers:
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(timeout_s * 1000):
            if descriptor == self._server.fileno():
                peer, _ = self._server.accept()
                self._peers[peer.fileno()] = peer
            else:
                self._read(self._peers[descriptor])

    def summary(self) -> list[str]:
        told = [
            " ".join(str(f[k]) for k in ("rank", "kind", "what", "phase", "step", "reason") if f.get(k) is not None)
            for f in self.frames
            if f["kind"] != "beat"
        ]
        return told[-40:]

    def _listen(self) -> socket.socket:
        if self.path.exists():
            self.path.unlink()
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(str(self.path))
        server.listen(64)
        return server

    def _read(self, peer: socket.socket) -> None:
        try:
            packet = peer.recv(wire.FRAME_BYTES_MAX)
        except ConnectionResetError:
            return
        if not packet:
            self._peers.pop(peer.fileno())
            self._ranks.pop(peer.fileno(), None)
            peer.close()
            return
        frame = json.loads(packet)
        assert wire.faults(frame, wire.FRAMES) == [], frame
        self.frames.append(frame)
        if frame["kind"] == "hello":
            pid, _, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self._pids[frame["rank"]] = pid
            self._ranks[peer.fileno()] = frame["rank"]
        if "seq" in frame and self.confirms:
            try:
                peer.send(json.dumps({"v": 1, "kind": "confirm", "seq": frame["seq"]}).encode())
            except BrokenPipeError:
                pass  # It ended after its last frame.


def assert_governor_counts(path: str) -> None:
    """The governor's reader finds the checkpoint whole, and knows from its manifest that the weights are in it."""
    with open(os.devnull, "wb") as nowhere:
        found = checkpoint_reader.look(path, checkpoint_reader.Progress(nowhere.fileno()))
    assert found.whole, found.reason
    assert found.counted is not None, "the manifest does not say what the parameters need"
    assert (found.nonfinite, found.unsampled) == (None, None)


@contextlib.contextmanager
def let_go(holds: Path, *names: str) -> Iterator[None]:
    """At the end of a test that failed, too, nobody waits for these files any more."""
    try:
        yield
    finally:
        for name in names:
            (holds / name).touch()


def saved_in_the_step_behind(governor: FakeGovernor, holds: Path, step: int, grace_s: float) -> Frame:
    """Ask while the next step waits for the file `step-STEP`, and return what is saved in that one."""
    governor.frame("step", step=step)
    incident = f"behind-{step}"
    governor.ask(0, incident, grace_s=grace_s)
    governor.frame("ack", incident=incident, what="agreed", step=step + 1)
    (holds / f"step-{step}").touch()
    record: Frame = governor.frame("ack", incident=incident, what="saved", safety_s=min(grace_s, SAFETY_S))[
        "checkpoint"
    ]
    return record
