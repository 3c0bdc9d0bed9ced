"""The governors of a run's other nodes, played by one process: `python -m benchmarks.scale.others COUNT PORT`.

Each has a socket, a name and true signatures, and repeats the number that the governor at PORT gave it last. Lines on
stdin: `beat SECONDS` (each tells of run 0 so often), `halted` (from now on with a halt), `halt N` (one of them tells of
run N's halt at once; the answer is when), `count` (the answer is what was heard and sent since the last one).
"""

from __future__ import annotations

import heapq
import json
import os
import select
import socket
import sys
import time
from dataclasses import replace
from typing import Final

from governor.adapters.peers.envelope import NO_ECHO, Message, Unsigned, key_of, parse
from governor.core.base.units import DurationNs
from governor.core.events.peers import NodeTold, ToldHalt, ToldRun
from governor.wire.fleet.told import body

SECRET: Final = b"a secret of thirty-two bytes, or more: 0123456789"
KEY: Final = key_of(SECRET)
RUN: Final = ToldRun(
    "run-0", "job-0", os.geteuid(), True, 8, step=12_345, spend_usd_micros=98_320_000,
    rate_usd_micros_per_hour=98_320_000,
)  # fmt: skip
HALT: Final = ToldHalt(
    "run-0.other-1.1", "other-1", "default/nan", "nonfinite", "loss_nan", "loss is NaN at step 12345", "good", "ASKED"
)


def told_of(node: str, number: int, halted: bool, beat_s: float) -> bytes:
    halt = replace(HALT, incident_id=f"run-{number}.other-1.1") if halted else None
    run = replace(RUN, run=f"run-{number}", job=f"job-{number}", halt=halt)
    return body(
        NodeTold(node, "boot-1", "aws", "i-0123456789abcdef0", "us-east-1", (run,), DurationNs(int(beat_s * 1e9)))
    )


class Other:
    def __init__(self, number: int, place: tuple[str, int]) -> None:
        self.name = f"other-{number}"
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.connect(place)
        self._epoch, self._seq, self._echo = number.to_bytes(8, "big"), 0, NO_ECHO

    def hear(self) -> int:
        try:
            data = self.sock.recv(65_536)
        except OSError:
            return 0
        found = parse(data)
        if isinstance(found, Message):
            self._echo = found.nonce
        return len(data)

    def send(self, content: bytes) -> int:
        self._seq += 1
        told = content if self._echo != NO_ECHO else b""  # It counts with nobody: who answers gives a number.
        message = Message(self.name, self._epoch, self._seq, b"n" * 16, self._echo, False, b"", told)
        try:
            return self.sock.send(Unsigned(message).signed(KEY, self._echo))
        except OSError:
            return 0


class Others:
    """All of them, and when each is to tell next."""

    def __init__(self, count: int, port: int) -> None:
        self.all = [Other(number, ("127.0.0.1", port)) for number in range(1, count + 1)]
        self._beat_s, self._halted = 1.0, False
        self._by_fd = {one.sock.fileno(): one for one in self.all}
        self._poll = select.epoll()
        self._poll.register(0, select.EPOLLIN)
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)
        self._bodies: dict[str, bytes] = {}
        self._due: list[tuple[float, int]] = []
        self.counted = {"heard": 0, "heard_bytes": 0, "sent": 0, "sent_bytes": 0}
        self._plan()

    def _plan(self) -> None:
        now_s = time.monotonic()
        beat_s, count = self._beat_s, len(self.all)
        self._bodies = {one.name: told_of(one.name, 0, self._halted, max(1.0, beat_s)) for one in self.all}
        self._due = [(now_s + beat_s * place / count, place) for place in range(count)]

    def run(self) -> None:
        while True:
            wait_s = max(0.0, self._due[0][0] - time.monotonic())
            for fd, _ in self._poll.poll(wait_s, 256):
                if fd == 0:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    print(json.dumps(self._obey(*line.split())), flush=True)
                    continue
                size = self._by_fd[fd].hear()
                self.counted["heard"] += size > 0
                self.counted["heard_bytes"] += size
            for _ in range(64):
                if self._due[0][0] > time.monotonic():
                    break
                at_s, place = heapq.heappop(self._due)
                heapq.heappush(self._due, (at_s + self._beat_s, place))
                size = self.all[place].send(self._bodies[self.all[place].name])
                self.counted["sent"] += size > 0
                self.counted["sent_bytes"] += size

    def _obey(self, order: str, word: str = "") -> object:
        if order == "beat":
            self._beat_s = float(word)
            self._plan()
        elif order == "halted":
            self._halted = True
            self._plan()
        elif order == "halt":
            one = self.all[0]
            content = told_of(one.name, int(word), True, max(1.0, self._beat_s))
            at_ns = time.monotonic_ns()
            one.send(content)
            return at_ns
        elif order == "count":
            found, self.counted = self.counted, dict.fromkeys(self.counted, 0)
            return found
        return None


if __name__ == "__main__":
    Others(int(sys.argv[1]), int(sys.argv[2])).run()
