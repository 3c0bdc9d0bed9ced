"""Datagrams of governors: the body as somebody with the secret may write it, the envelope as anybody may send it."""

from __future__ import annotations

import json
import select
import socket
from pathlib import Path
from random import Random
from typing import Any

from governor.adapters.peers.datagrams import UdpPeers
from governor.adapters.peers.envelope import Message, Unsigned, key_of, packed, parse
from governor.adapters.peers.lookups import address
from governor.core.base.units import NS_PER_S
from governor.core.events.peers import NodeTold, ToldHalt, ToldRun
from governor.settings.peers import HostPort
from governor.wire.fleet.told import BODY_BYTES_MAX, body, parts, read
from tests.contract.fakes import FakeClock
from tests.fuzz import mutate

KEY = key_of(b"a secret of thirty-two bytes, or more")
ROOM = 6_600  # What a body may take beside the largest envelope.
HALT = ToldHalt(
    "llama.node-a.1", "node-a", "nan", "nonfinite", "loss_nan", "loss is NaN", "suspect", "SAVING", False, True, None
)
TOLD = NodeTold(
    "node-a", "boot-1", "aws", "i-0abc", "us-east-1",
    (
        ToldRun(
            "llama", "job-1", 1000, True, 8, has_first=True, step=7, spend_usd_micros=5_000_000, still_ns=5,
            rate_usd_micros_per_hour=22_000_000, halt=HALT, left=(("node-c", 40), ("node-d", 5)),
        ),
    ),
)  # fmt: skip
HOSTS = ("node-2", "10.0.0.5:9", "[fd00::1]:5", "127.0.0.1", "::1", "0.0.0.0", "255.255.255.255", *mutate.TEXTS)


class Datagrams:
    """An input is one datagram to a governor, whose answers are read; or a host of a launch, or time that passes."""

    name = "peers"
    share = 0.1
    block = 2_000

    def begin(self, work: Path) -> None:
        self._clock = FakeClock()
        self._governor = UdpPeers("node-b", KEY, HostPort("127.0.0.1", 0), (), self._clock, resolver=_nowhere)
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sock.bind(("127.0.0.1", 0))
        self._nonce = bytes(16)
        self._seq = 0

    def draw(self, random: Random) -> Any:
        draw = random.random()
        if draw < 0.02:
            return "time", random.choice((NS_PER_S // 4, NS_PER_S, 7 * NS_PER_S, 4_000 * NS_PER_S))
        if draw < 0.05:
            return "meet", random.choice(HOSTS)
        if draw < 0.1:
            return "tell", None
        found: Any = json.loads(body(TOLD))
        if random.random() < 0.8:
            found = mutate.broken(random, found, random.choice((1, 1, 2, 4)))
        content = mutate.damaged(random, mutate.encoded(random, found), 0.2)[:ROOM]
        told = mutate.damaged(random, packed([address("10.0.0.5", 9479), address("fd00::5", 1)]), 0.3)[:1_000]
        node = random.choice(("node-a", "node-a", "node-b", "node-c", "n" * 253))
        damage = random.random() < 0.3
        return "send", (content, told, node, random.random() < 0.2, random.random() < 0.7, damage, random.random())

    def play(self, one: Any) -> None:
        what, detail = one
        if what == "time":
            self._clock.advance(detail)
        elif what == "meet":
            self._governor.meet(detail)
        elif what == "tell":
            self._governor.tell(NodeTold("node-b", "boot-2"))
        else:
            self._send(*detail)
        for told in self._governor.receive():
            _judge(told)
        self._read_answers()
        json.dumps(self._governor.document()).encode()

    def _send(
        self, content: bytes, told: bytes, node: str, is_answer: bool, is_fresh: bool, is_damaged: bool, draw: float
    ) -> None:
        found = read(content)
        if isinstance(found, NodeTold):
            _judge(found)
        else:
            assert found.isprintable(), found
        self._seq += 1
        echo = self._nonce if is_fresh else bytes(16)
        message = Message(node, node[:8].ljust(8).encode(), self._seq, b"n" * 16, echo, is_answer, told, content)
        data = Unsigned(message).signed(KEY, echo)
        if is_damaged:
            data = mutate.damaged(Random(draw), data, 1.0)[:65_000]
        parse(data)
        self._sock.sendto(data, ("127.0.0.1", self._governor.address.port))

    def _read_answers(self) -> None:
        while select.select([self._sock], [], [], 0)[0]:
            answer = parse(self._sock.recv(65_536))
            assert isinstance(answer, Message), answer
            self._nonce = answer.nonce

    def end(self) -> None:
        self._governor.close()
        self._sock.close()


def _nowhere(_host: str, _port: int) -> list[Any]:
    return []


def _judge(told: NodeTold) -> None:
    """What is taken is what could be told again, so nothing in it is more than its bound."""
    for part in parts(told):
        again = body(part)
        assert len(again) <= BODY_BYTES_MAX
        assert isinstance(read(again), NodeTold)
