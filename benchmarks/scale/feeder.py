"""Ranks of one node, spoken for by one process: `python -m benchmarks.scale.feeder UID WORLD FIRST LAST SOCKET …`.

Each rank sends ten steps and a beat a second, kept back for the multiples of 250 ms on which the shim sends. What is
sent to the first socket is sent to the others too. UID: whose ranks they are.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.bench_frames import BEAT, STEP
from trainer_shim.wire import FRAME_BYTES_MAX, encode, head

STEPS_PER_S: Final = 10
STEP_NS: Final = 1_000_000_000 // STEPS_PER_S
GRID_NS: Final = 250_000_000
RANKS_OF_A_RUN: Final = 64  # Of one node: the product's limit.


class Rank:
    """One rank's connections, and its frames."""

    def __init__(self, number: int, world: int, paths: Sequence[str], who: str = "") -> None:
        """`number`: of all ranks of the node; `who`: part of the run's name, where several users have runs."""
        run, self.rank = divmod(number, RANKS_OF_A_RUN)
        hello = {
            **head("hello", self.rank, time.monotonic_ns()), "seq": 1, "run": f"bench{who}-{run}", "attempt": "1",
            "local_rank": self.rank, "world_size": min(world, RANKS_OF_A_RUN), "signal": 0, "tokens_per_step": 524_288,
            "capabilities": ["beat", "ask"],
        }  # fmt: skip
        self.seq = 1
        self.socks = [_connected(path, hello) for path in paths]

    def send(self, packet: bytes) -> None:
        for sock in self.socks:
            sock.send(packet)

    def step(self, step: int, at_ns: int, **changed: Any) -> bytes:
        own = {"step": step, "attempt_step": step, "tokens_total": step * 524_288, "progress_seq": step * 40}
        return encode({**STEP, **head("step", self.rank, at_ns), **own, "step_s": 0.1, **changed})

    def beat(self, step: int, at_ns: int) -> bytes:
        own = {"step": step, "progress_seq": step * 40 + 7, "phase_since_ns": 1}
        return encode({**BEAT, **head("beat", self.rank, at_ns), **own})

    def decline(self, incident: str) -> None:
        """The answer of a rank that cannot save: the next letter is a new one."""
        self.seq += 1
        told = {"seq": self.seq, "incident": incident, "what": "declined", "reason": "a benchmark"}
        self.socks[0].send(encode({**head("ack", self.rank, time.monotonic_ns()), **told}))

    def close(self) -> None:
        for sock in self.socks:
            sock.close()


def _connected(path: str, hello: dict[str, Any]) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(30)
    sock.connect(path)
    sock.send(encode(hello))
    answer = sock.recv(FRAME_BYTES_MAX)
    if b'"refuse"' in answer or not answer:
        raise ConnectionRefusedError(answer.decode() or "closed")
    return sock


def step_now(now_ns: int) -> int:
    """Which step all ranks are at: processes that feed one run agree."""
    return now_ns // STEP_NS % 1_000_000 + 1


def feed(ranks: Sequence[Rank]) -> None:
    """Speak for them until ended."""
    begun_ns = time.monotonic_ns() // GRID_NS * GRID_NS
    sent = step_now(begun_ns)
    for turn in itertools.count(1):
        due_ns = begun_ns + turn * GRID_NS
        newest = step_now(due_ns)
        packets = []  # Encoded before it is time: a rank does so as its steps end.
        for place, rank in enumerate(ranks):
            for step in range(sent + 1, newest + 1):
                packets.append((rank, rank.step(step, due_ns - (newest - step) * STEP_NS)))
                if step % STEPS_PER_S == place % STEPS_PER_S:
                    packets.append((rank, rank.beat(step, due_ns)))
        sent = newest
        time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
        for rank, packet in packets:
            rank.send(packet)


def main() -> None:
    uid, world, first, last, *paths = sys.argv[1:]
    who = ""
    if int(uid) != os.geteuid():  # Only now: that user may not be able to read the interpreter.
        os.setresuid(int(uid), int(uid), int(uid))
        who = f"-{uid}"
    ranks = []
    try:
        for number in range(int(first), int(last)):
            ranks.append(Rank(number, int(world), paths, who))
    except (ConnectionRefusedError, BrokenPipeError, ConnectionResetError) as refusal:
        print(f"{len(ranks)} {refusal}", flush=True)
    print(f"{len(ranks)} connected", flush=True)
    feed(ranks)


if __name__ == "__main__":
    main()
