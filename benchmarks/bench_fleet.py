"""What a governor's datagrams cost beside bare sockets, for 1, 32 and 1,000 peers: `python -m benchmarks.bench_fleet`.

Told: a run with a halt is encoded once, signed for each peer, and sent on loopback. Received: one such datagram of each
peer is taken, verified and decoded. The bare socket sends and takes the same bytes, and has json.loads when it takes
them. Microseconds of processor a datagram; p99 is the slowest repeat.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable

from benchmarks.table import Row, program, row
from governor.adapters.machine.clock import SystemClock
from governor.adapters.peers.datagrams import UdpPeers
from governor.adapters.peers.envelope import Message, Unsigned, key_of, parse
from governor.adapters.peers.udp import BUFFER_BYTES
from governor.core.events.peers import NodeTold, ToldHalt, ToldRun
from governor.settings.peers import HostPort
from governor.wire.fleet.told import body

PEERS = (1, 32, 1_000)
REPEATS = 15
DATAGRAMS_PER_REPEAT = 1_000  # Of one peer as many as of a thousand.
KEY = key_of(b"a secret of thirty-two bytes, or more")
HALT = ToldHalt(
    "llama.node-1.1", "node-1", "default/nan", "nonfinite", "loss_nan", "loss is NaN at step 12345", "good", "SAVING"
)
RUN = ToldRun(
    "llama", "job-0123456789abcdef", 1000, True, 8, has_first=True, step=12_345, spend_usd_micros=98_320_000,
    rate_usd_micros_per_hour=98_320_000, halt=HALT,
)  # fmt: skip


class World:
    """One governor, and others that are sockets: each has sent a message of now."""

    def __init__(self, count: int) -> None:
        self.socks = [_socket() for _ in range(count)]
        hosts = [HostPort(*sock.getsockname()) for sock in self.socks]
        self.us = UdpPeers("node-0", KEY, HostPort("127.0.0.1", 0), hosts, SystemClock())
        self.place = self.us.address.ip, self.us.address.port
        self.told = NodeTold("node-0", "boot-0", "aws", "i-0123456789abcdef0", "us-east-1", (RUN,))
        self.seq = 0

    def number(self) -> bytes:
        """The number that the governor gives out now."""
        self.drain()
        found = None
        while found is None:
            self.us.tell(self.told)  # It probes a part of those that are silent: not always the first.
            if select.select([self.socks[0]], [], [], 0)[0]:
                found = parse(self.socks[0].recv(65_536))
        assert isinstance(found, Message)
        return found.nonce

    def messages(self) -> list[bytes]:
        """One of each other, that counts now."""
        echo = self.number()
        self.seq += 1
        return [
            Unsigned(Message(
                f"node-{place + 1}", place.to_bytes(8, "big"), self.seq, b"n" * 16, echo, False, b"",
                body(NodeTold(f"node-{place + 1}", "boot-1", runs=(RUN,))),
            )).signed(KEY, echo)
            for place in range(len(self.socks))
        ]  # fmt: skip

    def arrive(self, messages: list[bytes]) -> None:
        for sock, data in zip(self.socks, messages, strict=True):
            sock.sendto(data, self.place)

    def receive(self) -> int:
        found = 0
        while select.select([self.us.fileno()], [], [], 0)[0]:
            found += len(self.us.receive())
        return found

    def drain(self) -> None:
        for sock in self.socks:
            _drained(sock)

    def close(self) -> None:
        self.us.close()
        for sock in self.socks:
            sock.close()


def _socket() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.bind(("127.0.0.1", 0))
    return sock


def _drained(sock: socket.socket) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(sock.recv(65_536))
        except BlockingIOError:
            return found


def _cost_us(call: Callable[[], object]) -> float:
    begun = time.process_time()
    call()
    return (time.process_time() - begun) * 1e6


def measure_one(count: int) -> list[Row]:
    world = World(count)
    rounds = max(1, DATAGRAMS_PER_REPEAT // count)
    telling, sending, hearing, taking = [], [], [], []
    size = 0
    for _ in range(REPEATS):
        told_us = sent_us = heard_us = taken_us = 0.0
        for _ in range(rounds):
            messages = world.messages()
            size = len(messages[0])
            world.arrive(messages)
            found: list[int] = []
            heard_us += _cost_us(lambda found=found: found.append(world.receive()))
            assert found == [count], "a datagram was lost, or did not count"
            world.drain()
            told_us += _cost_us(lambda: world.us.tell(world.told))
            sent_us += _cost_us(lambda size=size: _sent_bare(world, bytes(size)))
            taken_us += _taken_us(world, messages)
        for samples, us in ((telling, told_us), (sending, sent_us), (hearing, heard_us), (taking, taken_us)):
            samples.append(us / rounds / count)
    world.close()
    peers = f"{count:,} peer{'s' if count > 1 else ''}, {size} bytes"
    return [
        row(f"told, {peers}", "us", telling, peer="bare sendto", peer_samples=sending),
        row(f"received, {peers}", "us", hearing, peer="recv, json.loads", peer_samples=taking),
    ]


def _sent_bare(world: World, data: bytes) -> None:
    for sock in world.socks:
        world.socks[0].sendto(data, sock.getsockname())


def _taken_us(world: World, messages: list[bytes]) -> float:
    """A bare socket with the governor's buffer takes the same datagrams."""
    with _socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        for own, data in zip(world.socks, messages, strict=True):
            own.sendto(data, sock.getsockname())
        return _cost_us(lambda: [_json(data) for data in _drained(sock)])


def _json(data: bytes) -> object:
    at = data.index(b'{"node"')
    return json.loads(data[at:-32])


def measure() -> list[Row]:
    return [one for count in PEERS for one in measure_one(count)]


if __name__ == "__main__":
    program(__doc__, measure)
