"""The governor's end of the trainer socket, played by a test: listen, read a frame, answer."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

from trainer_shim import wire
from trainer_shim.governor_socket import GovernorSocket


class Server:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(10)

    def accept(self) -> socket.socket:
        peer, _ = self.listener.accept()
        peer.settimeout(10)
        return peer

    def close(self) -> None:
        self.listener.close()
        self.path.unlink(missing_ok=True)


def hello() -> dict:
    return {"run": "r", "attempt": "a", "local_rank": 0, "world_size": 1, "signal": 0}


def read(peer: socket.socket) -> dict:
    frame = json.loads(peer.recv(wire.FRAME_BYTES_MAX))
    assert wire.faults(frame, wire.FRAMES) == []
    return frame


def read_now(peer: socket.socket) -> dict | None:
    """The next frame that is there already; None when none is."""
    peer.setblocking(False)
    try:
        return read(peer)
    except BlockingIOError:
        return None
    finally:
        peer.settimeout(10)


Ends = tuple[GovernorSocket, socket.socket]


def connected(server: Server) -> Ends:
    governor = GovernorSocket([str(server.path)], 3, hello)
    assert governor.connect(time.monotonic_ns())
    return governor, server.accept()


def send(peer: socket.socket, **frame: object) -> None:
    peer.send(json.dumps({"v": 1, **frame}).encode())
