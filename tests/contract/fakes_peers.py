"""A network of governors in memory, for simulations: it loses, doubles, delays, and is parted.

Like datagrams, a message is one run's. What makes a real one count (signature, number, sequence) is here its age, its
sender's start and its sequence. test_peers.py plays this and the real sockets alike.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from governor.adapters.peers.addresses import FORGOTTEN_NS
from governor.adapters.peers.datagrams import DATAGRAMS_PER_RECEIVE
from governor.adapters.peers.envelope import NONCE_COUNTS_NS
from governor.core.events.peers import NODES_MAX, NodeTold
from governor.ports import Clock
from governor.wire.fleet.told import body, parts, read

CHARS_MAX: Final = 253  # Of a host's name.


@dataclass(order=True)
class _Datagram:
    due_ns: int
    number: int
    to: str = field(compare=False)
    source: str = field(compare=False)
    start: int = field(compare=False)
    seq: int = field(compare=False)
    sent_ns: int = field(compare=False)
    told: NodeTold = field(compare=False)
    known: tuple[str, ...] = field(compare=False)  # Hosts that the sender has heard of.


class FakeNetwork:
    """Hosts by name. The chances are of one datagram; `late_ns` is the most that one is delayed by."""

    def __init__(
        self, clock: Clock, random: Random | None = None, *, lost: float = 0.0, doubled: float = 0.0, late_ns: int = 0
    ) -> None:
        self.clock = clock
        self.lost, self.doubled, self.late_ns = lost, doubled, late_ns
        self._random = random or Random(0)
        self._under_way: list[_Datagram] = []
        self._numbers = itertools.count()
        self._cut: set[frozenset[str]] = set()
        self._hosts: dict[str, FakePeers] = {}

    def join(self, node: str) -> FakePeers:
        """A governor starts on this host. Another start of the same one is told from the one before."""
        self._hosts[node] = FakePeers(self, node, next(self._numbers))
        return self._hosts[node]

    def part(self, one: str, other: str) -> None:
        """No datagram passes between these two hosts, in neither direction."""
        self._cut.add(frozenset((one, other)))

    def heal(self) -> None:
        self._cut.clear()

    def leave(self, peers: FakePeers) -> None:
        if self._hosts.get(peers.node) is peers:
            del self._hosts[peers.node]

    def send(self, sent: _Datagram) -> None:
        """A datagram leaves. What becomes of it is drawn here."""
        if frozenset((sent.source, sent.to)) in self._cut or self._random.random() < self.lost:
            return
        for _ in range(2 if self._random.random() < self.doubled else 1):
            delay_ns = self._random.randrange(self.late_ns + 1)
            copy = _Datagram(
                sent.sent_ns + delay_ns, next(self._numbers), sent.to, sent.source, sent.start, sent.seq, sent.sent_ns,
                sent.told, sent.known,
            )  # fmt: skip
            heapq.heappush(self._under_way, copy)
        self.deliver()

    def deliver(self) -> None:
        """Hand over what has arrived by now. Call it when the clock has moved."""
        while self._under_way and self._under_way[0].due_ns <= self.clock.mono():
            found = heapq.heappop(self._under_way)
            host = self._hosts.get(found.to)
            if host is not None:
                host.arrived(found)


class FakePeers:
    """`remote_ports.Peers`. `fileno` is a real descriptor, so a selector can wait on it."""

    def __init__(self, network: FakeNetwork, node: str, start: int) -> None:
        self.node = node
        self._network = network
        self._start = start
        self._seq = 0
        self._known: dict[str, int] = {}  # When it was heard, or met.
        self._heard: dict[str, tuple[int, int]] = {}  # By node: its start and its last sequence number.
        self._queue: deque[_Datagram] = deque()
        self._refused: Counter[str] = Counter()
        self._received = self._sent = 0
        self._is_closed = False
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._event_fd

    def arrived(self, datagram: _Datagram) -> None:
        self._queue.append(datagram)
        os.eventfd_write(self._event_fd, 1)

    def receive(self) -> Sequence[NodeTold]:
        found = []
        for _ in range(min(DATAGRAMS_PER_RECEIVE, len(self._queue))):
            one = self._queue.popleft()
            self._received += 1
            reason = self._refusal(one)
            if reason is not None:
                self._refused[reason] += 1
                continue
            self._heard[one.source] = one.start, one.seq
            self._know(one.source, is_new=True)
            for host in one.known:
                self._know(host, is_new=False)
            found.append(one.told)
        if not self._queue:
            with contextlib.suppress(BlockingIOError):  # Nobody has written since.
                os.eventfd_read(self._event_fd)
        return found

    def tell(self, told: NodeTold) -> None:
        now = self._network.clock.mono()
        self._known = {host: at for host, at in self._known.items() if now - at <= FORGOTTEN_NS}
        known = tuple(host for host in self._known if host in self._heard)
        for part in parts(told):
            try:
                as_read = read(body(part))
            except ValueError:
                continue
            assert isinstance(as_read, NodeTold)
            self._seq += 1
            for host in list(self._known):
                self._sent += 1
                sent = _Datagram(now, 0, host, self.node, self._start, self._seq, now, as_read, known)
                self._network.send(sent)

    def meet(self, host: str) -> None:
        if host.isprintable() and 0 < len(host) <= CHARS_MAX and " " not in host:
            self._know(host, is_new=True)
        else:
            self._refused["no_host"] += 1

    def document(self) -> Mapping[str, Any]:
        now = self._network.clock.mono()
        addresses = [
            {"address": host, "node": host if host in self._heard else None, "answered_s_ago": (now - at) / 1e9}
            for host, at in self._known.items()
        ]
        return {
            "listen": self.node, "known": len(self._known), "addresses": addresses, "received": self._received,
            "sent": self._sent, "refused": dict(self._refused), "not_sent": {},
        }  # fmt: skip

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._network.leave(self)
            os.close(self._event_fd)

    def _refusal(self, one: _Datagram) -> str | None:
        if one.source == self.node:
            return "from_ourselves"
        if self._network.clock.mono() - one.sent_ns > NONCE_COUNTS_NS:
            return "stale"
        start, seq = self._heard.get(one.source, (-1, -1))
        if one.start < start:
            return "earlier_start"
        return "again_or_late" if one.start == start and one.seq <= seq else None

    def _know(self, host: str, *, is_new: bool) -> None:
        if host != self.node and (host in self._known or len(self._known) < NODES_MAX):
            now = self._network.clock.mono()
            self._known[host] = now if is_new else self._known.get(host, now)
