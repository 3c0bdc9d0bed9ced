"""One governor's verdict, until all others of the run have it: `python -m benchmarks.scale.bench_verdict [--quick]`.

Real `UdpPeers` objects on loopback: the one that has decided in this process, all others in a second one, which takes
their turns on one core. So the last of n is also n times what one datagram costs its receiver: on machines of their
own each pays that once. Milliseconds from the call that tells to the verdict in the hands of the last one, and of each.
They learn of each other and tell each other too, as governors do: a mesh of more than some 128 one core cannot play.
What a governor makes of it then, a letter and a signal, is in bench_nodes: another node's verdict to our letter.

The peer is bare: as many datagrams of the same bytes to as many sockets, and recv with json.loads.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.scale.others import HALT, KEY, RUN, told_of
from benchmarks.scale.quick import program
from benchmarks.service import ROOT, end
from benchmarks.table import Row, row
from governor.adapters.machine.clock import SystemClock
from governor.adapters.peers.datagrams import UdpPeers
from governor.core.base.units import DurationNs
from governor.core.events.peers import NodeTold
from governor.settings.peers import HostPort

SIZES: Final = (8, 32, 64, 128)
QUICK_SIZES: Final = (8, 32)
VERDICTS: Final = 20
QUICK_VERDICTS: Final = 5
BEAT_S: Final = 2.0  # Of the hearers, so that each has a number that counts.
HEARD_S: Final = 30.0
ANYWHERE: Final = HostPort("127.0.0.1", 0)


def told_by(node: str, number: int | None = None) -> NodeTold:
    halt = None if number is None else replace(HALT, incident_id=f"run-0.other-1.{number}")
    run = replace(RUN, halt=halt)
    return NodeTold(node, "boot-1", "aws", "i-0123456789abcdef0", "us-east-1", (run,), DurationNs(int(BEAT_S * 1e9)))


# --- those that hear -----------------------------------------------------------------------------------------


def hear(count: int, port: int) -> None:
    """Print "ready", then for each verdict a list of the moments at which each had it, in nanoseconds."""
    place = HostPort("127.0.0.1", port)
    all_of_them = [UdpPeers(f"hears-{number}", KEY, ANYWHERE, [place], SystemClock()) for number in range(count)]
    by_fd = {one.fileno(): (number, one) for number, one in enumerate(all_of_them)}
    poll = select.epoll()
    poll.register(0, select.EPOLLIN)
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    due = [time.monotonic() + BEAT_S * number / count for number in range(count)]
    heard: set[int] = set()
    had: dict[str, dict[int, int]] = {}
    place_of = 0
    while True:
        for fd, _ in poll.poll(max(0.0, due[place_of] - time.monotonic()), 256):
            if fd == 0:
                return
            number, one = by_fd[fd]
            for told in one.receive():
                heard.add(number)
                halt = told.runs[0].halt if told.runs else None
                if halt is not None:
                    had.setdefault(halt.incident_id, {}).setdefault(number, time.monotonic_ns())
        if len(heard) == count and heard:
            print("ready", flush=True)
            heard.add(-1)
        for incident in [name for name, moments in had.items() if len(moments) == count]:
            print(json.dumps([incident, sorted(had.pop(incident).values())]), flush=True)
        if due[place_of] <= time.monotonic():
            all_of_them[place_of].tell(told_by(f"hears-{place_of}"))
            due[place_of] += BEAT_S
            place_of = (place_of + 1) % count


# --- the one that tells --------------------------------------------------------------------------------------


class Decider:
    """The governor that has decided, and the process of the others."""

    def __init__(self, count: int) -> None:
        self._us = UdpPeers("other-1", KEY, ANYWHERE, (), SystemClock())
        argv = [
            sys.executable,
            "-m",
            "benchmarks.scale.bench_verdict",
            "--hear",
            str(count),
            str(self._us.address.port),
        ]
        self._process = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._next_s = time.monotonic()
        self._told = told_by("other-1")  # Told each second, a verdict too.
        while self._line() != b"ready\n":
            pass

    def _line(self) -> bytes:
        """The next line of theirs; our own beats go on meanwhile."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + HEARD_S
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self._process.stdout, self._us.fileno()], [], [], 0.05)
            if self._us.fileno() in ready:
                self._us.receive()
            if self._process.stdout in ready:
                return bytes(self._process.stdout.readline())
            if time.monotonic() >= self._next_s:
                self._us.tell(self._told)
                self._next_s += 1.0
        raise RuntimeError(f"not all had it within {HEARD_S:.0f} s")

    def decide(self, number: int) -> tuple[list[float], float]:
        """Milliseconds until each had it, and until our call had returned."""
        self._told = told_by("other-1", number)
        begun = time.monotonic_ns()
        self._us.tell(self._told)
        sent = time.monotonic_ns()
        while True:
            found = json.loads(self._line())
            if found[0].endswith(f".{number}"):
                return [(at - begun) / 1e6 for at in found[1]], (sent - begun) / 1e6

    def close(self) -> None:
        self._us.close()
        end(self._process)


def bare_ms(count: int) -> float:
    """As many bare datagrams, sent and then taken by one process: until the last one is parsed."""
    content = told_of("other-1", 0, True, 1.0)
    socks = []
    for _ in range(count):
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        socks.append(sock)
    begun = time.monotonic()
    for sock in socks:
        socks[0].sendto(content, sock.getsockname())
    for sock in socks:
        json.loads(sock.recv(65_536))
    took = (time.monotonic() - begun) * 1e3
    for sock in socks:
        sock.close()
    return took


def measure_one(count: int, verdicts: int) -> list[Row]:
    decider = Decider(count)
    try:
        last, each, told, bare = [], [], [], []
        for number in range(verdicts):
            moments, sent_ms = decider.decide(number)
            last.append(moments[-1])
            each += moments
            told.append(sent_ms)
            bare.append(bare_ms(count))
    finally:
        decider.close()
    what = f"verdict told to {count:,} governors"
    return [
        row(f"{what}: the last one has it", "ms", last, aim="p99 < 1000", peer="bare, on one core", peer_samples=bare),
        row(f"{what}: each has it", "ms", each),
        row(f"{what}: the call that tells", "ms", told),
    ]


def measure(quick: bool, _svg: Path | None) -> list[Row]:
    sizes, verdicts = (QUICK_SIZES, QUICK_VERDICTS) if quick else (SIZES, VERDICTS)
    return [one for count in sizes for one in measure_one(count, verdicts)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--hear"]:
        hear(int(sys.argv[2]), int(sys.argv[3]))
    else:
        program(__doc__, measure)
