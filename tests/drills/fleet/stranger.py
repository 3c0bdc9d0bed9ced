"""Somebody on the nodes' network without their secret: it hears what governors tell, and sends what it likes."""

from __future__ import annotations

import ctypes
import select
import socket
import struct
from collections.abc import Sequence

from governor.adapters.peers.envelope import Message, Unsigned, key_of, parse
from governor.settings.peers import PEERS_PORT
from tests.drills.fleet.nodes import Node

IP, UDP = 0x0800, 17
SO_ATTACH_FILTER = 26
HEADERS = 14 + 20 + 8  # Of Ethernet, IPv4 without options and UDP.
# Classic BPF, as tcpdump compiles "udp dst port 9479": the ranks' traffic must not fill the buffer.
FILTER = (
    (0x28, 0, 0, 12), (0x15, 0, 5, IP), (0x30, 0, 0, 23), (0x15, 0, 3, UDP), (0x28, 0, 0, 36),
    (0x15, 0, 1, PEERS_PORT), (0x06, 0, 0, 65535), (0x06, 0, 0, 0),
)  # fmt: skip


class Stranger:
    """Listens at a node's card, and sends from that node by a port of its own. Use it as a context manager."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.heard: list[Message] = []
        self.raw: list[bytes] = []

    def __enter__(self) -> Stranger:
        self._tap, self._sock = self.node.inside(_sockets)
        return self

    def __exit__(self, *_: object) -> None:
        self._tap.close()
        self._sock.close()

    def listen(self) -> None:
        """Take all that has passed since the last call, both ways."""
        while select.select([self._tap], [], [], 0)[0]:
            data = self._tap.recv(65535)[HEADERS:]
            message = parse(data)
            if isinstance(message, Message):
                self.raw.append(data)
                self.heard.append(message)

    def halts(self) -> list[int]:
        """The places of those that tell of a halt: nothing of them is hidden."""
        return [place for place, message in enumerate(self.heard) if b'"halt"' in message.body]

    def send(self, data: bytes, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._sock.sendto(data, (node.address, PEERS_PORT))

    def forge(self, like: Message, to: Message) -> bytes:
        """Every word is right, and so is the number that its receiver gave out; but the secret is a guess."""
        forged = like._replace(seq=to.seq + 1_000_000)
        return Unsigned(forged).signed(key_of(b"0123456789abcdef0123456789abcdef"), to.nonce)


def _sockets() -> tuple[socket.socket, socket.socket]:
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(IP))
    program = b"".join(struct.pack("HBBI", *order) for order in FILTER)
    held = ctypes.create_string_buffer(program, len(program))
    tap.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", len(FILTER), ctypes.addressof(held)))
    tap.bind(("eth0", IP))
    return tap, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
