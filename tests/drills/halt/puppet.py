"""A rank that says what a drill tells it, frame by frame. A process of its own: a halt ends it and not the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_shim import wire

SAFETY_S = 90.0

# Sends each line of its standard input; what comes back for a hello is printed. Then it prints what it is sent.
RANK = """
import socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect(sys.argv[1])
for line in sys.stdin:
    sock.send(line.strip().encode())
    if '"hello"' in line:
        print(sock.recv(65536).decode(), flush=True)
while letter := sock.recv(65536):
    print(letter.decode(), flush=True)
"""


class Puppet:
    """One rank of world size 1. `prefix` is a command that starts the interpreter, such as setpriv.

    `program`: how the interpreter finds RANK. `arguments`: more than RANK looks at.
    """

    def __init__(
        self, socket_path: Path, *, prefix: Sequence[str] = (sys.executable,), program: Sequence[str] = ("-c", RANK),
        arguments: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.process = subprocess.Popen(
            [*prefix, "-S", *program, str(socket_path), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pidfd = os.pidfd_open(self.process.pid)

    def say(self, *frames: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(json.dumps(frame) + "\n" for frame in frames))
        self.process.stdin.flush()

    def hello(self, run: str = "drill", attempt: str = "a", **changes: Any) -> dict[str, Any]:
        """Announce itself; returns the governor's answer."""
        frame = {
            **wire.head("hello", 0, 1), "seq": 1, "run": run, "attempt": attempt, "local_rank": 0, "world_size": 1,
            "signal": 0, **changes,
        }  # fmt: skip
        self.say(frame)
        assert self.process.stdout is not None
        return dict(json.loads(self.process.stdout.readline()))

    def steps(self, first: int, last: int, loss: float | str = 2.0, *, tokens: int | None = None) -> None:
        """`tokens` of each step; None: it does not say."""
        self.say(
            *(
                {
                    **wire.head("step", 0, n),
                    "step": n,
                    "attempt_step": n,
                    "loss": loss,
                    "loss_expected": True,
                    **({} if tokens is None else {"tokens": tokens, "tokens_total": tokens * n}),
                }
                for n in range(first, last + 1)
            )
        )

    def letter(self) -> dict[str, Any]:
        """Say nothing more, and wait for what the governor says next."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdin = None  # Or communicate() would flush it.
        return dict(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=SAFETY_S)
        os.close(self.pidfd)
