"""`remote_ports.Peers` over UDP: one socket, nothing that blocks, bounded work a call."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from governor.adapters.peers.addresses import Addresses, Source, rotated
from governor.adapters.peers.envelope import (
    EPOCH_BYTES,
    NO_ECHO,
    USABLE_BEATS,
    Address,
    Answers,
    Message,
    Nonces,
    Senders,
    Unsigned,
    is_signed,
    packed,
    parse,
    unpacked,
)
from governor.adapters.peers.lookups import Lookups, Resolver, address, address_of, resolve
from governor.adapters.peers.udp import bound, is_anywhere, is_local, place_of
from governor.core.base.units import NS_PER_S, BootNs
from governor.core.events.peers import BEAT_NS, NODE_BYTES_MAX, NODES_MAX, NodeTold
from governor.ports import Clock
from governor.settings.peers import PEERS_PORT, HostPort, read_host
from governor.wire.fleet.told import DATAGRAM_BYTES_MAX, body, parts, read

# A millisecond or two. What is left makes the socket readable again, and ranks have their turn before.
DATAGRAMS_PER_RECEIVE: Final = 128
# Of these, so many signatures of what repeats none of our numbers: strangers can send no other.
STRANGERS_PER_RECEIVE: Final = 16
SENDS_PER_TELL: Final = NODES_MAX  # Some 15 ms.
PROBES_PER_TELL: Final = 256
RESENDS_PER_RECEIVE: Final = 128
LOOKED_UP_EVERY_NS: Final = 60 * NS_PER_S


class UdpPeers:
    """Signed datagrams. Raises PeersUnavailable if `listen` cannot be bound.

    `key` is `envelope.key_of(secret)`. `addresses` are the configured hosts; names among them are looked up on a
    worker, from the first tell() on and each minute. `node` is this node's name, and the one of every message told.
    The clock is CLOCK_BOOTTIME: what was recorded before a suspend is not of now after it.
    """

    def __init__(
        self, node: str, key: bytes, listen: HostPort, addresses: Sequence[HostPort], clock: Clock, *,
        random_bytes: Callable[[int], bytes] = os.urandom, resolver: Resolver = resolve,
    ) -> None:  # fmt: skip
        assert 0 < len(node.encode()) <= NODE_BYTES_MAX, "the settings refuse such a name"
        self._node = node
        self._key = key
        self._clock = clock
        self._hosts = tuple(addresses)
        self._sock = bound(listen)
        self._is_anywhere = is_anywhere(listen)
        self._own = place_of(self._sock)
        self._nonces = Nonces(random_bytes)
        self._epoch = random_bytes(EPOCH_BYTES)
        self._seq = 0
        self._senders = Senders()
        self._answers = Answers()
        self._addresses = Addresses(self._is_ours)
        self._local: dict[str, bool] = {}
        self._lookups = Lookups(resolver)
        self._looked_up_ns: int | None = None
        self._met: dict[HostPort, int] = {}
        self._beat = b""
        self._beat_ns = BEAT_NS
        self._bodies: list[bytes] = []
        self._turn = 0
        self._received = self._sent = 0
        self._refused: Counter[str] = Counter()
        self._not_sent: Counter[str] = Counter()
        for host in self._hosts:
            literal = address_of(host)
            if literal is not None:
                self._addresses.add(literal, Source.CONFIGURED, clock.boot())

    def __repr__(self) -> str:
        return f"UdpPeers({self._own})"

    @property
    def address(self) -> Address:
        """Where it listens; the port is the one that the kernel gave for 0."""
        return self._own

    def fileno(self) -> int:
        return self._sock.fileno()

    # --- receiving

    def receive(self) -> Sequence[NodeTold]:
        now = self._clock.boot()
        found: list[NodeTold] = []
        strangers = STRANGERS_PER_RECEIVE
        resends = RESENDS_PER_RECEIVE
        for _ in range(DATAGRAMS_PER_RECEIVE):
            try:
                data, place = self._sock.recvfrom(DATAGRAM_BYTES_MAX + 1)
            except OSError:  # None is left, or the kernel lacks memory: what follows arrives later.
                break
            self._received += 1
            message = self._parsed(data)
            if message is None:
                continue
            source = address(place[0], place[1], place[3] if len(place) == 4 else 0)
            is_fresh = self._nonces.is_fresh(message.echo, now)
            strangers -= not is_fresh
            if not self._counts(data, message, source, now, is_fresh=is_fresh, has_turn=strangers >= 0):
                continue
            told = self._read(message) if message.body.strip() else []
            usable_ns = USABLE_BEATS * (told[0].beat_ns if told else BEAT_NS)
            self._addresses.answered(source, message.node, message.nonce, now, usable_ns)
            self._addresses.add_told(unpacked(message.told), source, now)
            if message.is_answer and resends > 0:
                resends -= self._tell_again(source, message.nonce, now)
            found += told
        return found

    def _parsed(self, data: bytes) -> Message | None:
        """Cheap checks: nothing is computed for a flood of strangers."""
        message = parse(data)
        if isinstance(message, str):
            self._refused[message] += 1
        elif message.epoch == self._epoch:
            self._refused["from_ourselves"] += 1
        elif message.node == self._node:
            self._refused["our_name"] += 1  # Two nodes of one name; or our own past, which is not of now either.
        else:
            return message
        return None

    def _counts(
        self, data: bytes, message: Message, source: Address, now: BootNs, *, is_fresh: bool, has_turn: bool
    ) -> bool:
        if not is_fresh and not has_turn:
            reason: str | None = "stale"
        elif not is_signed(data, self._key):
            reason = "bad_signature"
        elif not is_fresh:
            reason = "stale"
            if not message.is_answer and self._answers.may(source, now):
                self._answer(source, message, len(data), now)
        else:
            counts_ns = self._nonces.counts_ns(now)
            reason = self._senders.admit(message.node, message.epoch, message.seq, now, counts_ns)
        if reason is not None:
            self._refused[reason] += 1
        return reason is None

    def _answer(self, source: Address, message: Message, bytes_max: int, now: BootNs) -> None:
        """One beat that repeats their number: they have ours then, and what they say counts. Never more than came."""
        for content in (self._beat, b""):
            data = self._unsigned(content, b"", now, is_answer=True).signed(self._key, message.nonce)
            if len(data) <= bytes_max:
                self._send(data, source)
                return

    def _read(self, message: Message) -> list[NodeTold]:
        told = read(message.body)
        if isinstance(told, str) or told.node != message.node:
            self._refused["unreadable"] += 1
            return []
        return [told]

    # --- telling

    def tell(self, told: NodeTold) -> None:
        now = self._clock.boot()
        self._take_names(now)
        self._addresses.forget(now)
        self._beat_ns = told.beat_ns
        self._beat = self._fitting(replace(told, runs=()))
        halts: list[bytes] = []
        calm: list[bytes] = []
        for part in parts(told):
            content = self._fitting(part)
            if content:
                (halts if part.runs and part.runs[0].halt is not None else calm).append(content)
        self._bodies = [*halts, *calm]
        usable, silent = self._addresses.split(now)
        usable = rotated(usable, self._turn)
        told_on = packed(self._addresses.to_tell(now))
        left = SENDS_PER_TELL
        for number, content in enumerate(halts):
            left -= self._tell_all(content, b"" if number else told_on, usable[: max(0, left)], now)
        probed = rotated(silent, self._turn)[: max(0, min(left, PROBES_PER_TELL))]
        left -= self._tell_all(b"", b"", [(address, NO_ECHO) for address in probed], now)
        for number, content in enumerate(rotated(calm, self._turn)):
            left -= self._tell_all(content, b"" if number or halts else told_on, usable[: max(0, left)], now)
        missing = (len(halts) + len(calm)) * len(usable) + len(silent) - (SENDS_PER_TELL - left)
        self._not_sent["bound"] += max(0, missing)
        self._turn += max(1, SENDS_PER_TELL - left) if missing > 0 else 1

    def _tell_all(self, content: bytes, told_on: bytes, to: Sequence[tuple[Address, bytes]], now: BootNs) -> int:
        if not to:
            return 0
        unsigned = self._unsigned(content, told_on, now)
        for place, (target, echo) in enumerate(to):
            if not self._send(unsigned.signed(self._key, echo), target):
                self._not_sent["full"] += len(to) - place
                break
        return len(to)

    def _tell_again(self, target: Address, echo: bytes, now: BootNs) -> int:
        """What was told last did not count there: we repeated none of its numbers. Now we can."""
        for content in self._bodies:
            self._send(self._unsigned(content, b"", now).signed(self._key, echo), target)
        return len(self._bodies)

    def _fitting(self, part: NodeTold) -> bytes:
        """Nothing for what others would refuse: our own node's or run's name is too long, or not printable."""
        try:
            return body(part)
        except ValueError:
            self._not_sent["unfit"] += 1
            return b""

    def _unsigned(self, content: bytes, told_on: bytes, now: BootNs, *, is_answer: bool = False) -> Unsigned:
        self._seq += 1
        nonce = self._nonces.current(now, self._beat_ns)
        message = Message(self._node, self._epoch, self._seq, nonce, NO_ECHO, is_answer, told_on, content)
        return Unsigned(message, is_padded=not is_answer)

    def _send(self, data: bytes, target: Address) -> bool:
        """False: the socket is full, and so it is for whoever comes next."""
        try:
            self._sock.sendto(data, self._sockaddr(target))
        except BlockingIOError:
            return False
        except (OSError, OverflowError):  # No route, a firewall of our own, an address of the other family.
            self._not_sent["unreachable"] += 1
        else:
            self._sent += 1
        return True

    def _sockaddr(self, target: Address) -> tuple[str, int] | tuple[str, int, int, int]:
        if self._sock.family == socket.AF_INET:
            return target.ip, target.port
        ip = target.ip if ":" in target.ip else f"::ffff:{target.ip}"
        return ip, target.port, 0, target.scope

    # --- addresses

    def meet(self, host: str) -> None:
        try:
            found = read_host(host, self._own.port or PEERS_PORT)
        except ValueError:
            self._refused["no_host"] += 1
            return
        now = self._clock.boot()
        literal = address_of(found)
        if literal is not None:
            self._addresses.add(literal, Source.MET, now)
            return
        was_asked = now - self._met.get(found, now - LOOKED_UP_EVERY_NS) < LOOKED_UP_EVERY_NS
        if not was_asked and self._lookups.ask(found, Source.MET):
            self._met[found] = now
            if len(self._met) > NODES_MAX:
                del self._met[next(iter(self._met))]

    def _take_names(self, now: BootNs) -> None:
        for host, source, addresses in self._lookups.take():
            if not addresses:
                self._refused["no_such_name"] += 1
            elif source is Source.CONFIGURED:
                self._addresses.add_named(str(host), addresses, now)
            else:
                for one in addresses:
                    self._addresses.add(one, source, now)
        if self._looked_up_ns is None or now - self._looked_up_ns >= LOOKED_UP_EVERY_NS:
            self._looked_up_ns = now
            self._local.clear()
            for host in self._hosts:
                if not host.is_literal:
                    self._lookups.ask(host, Source.CONFIGURED)

    def _is_ours(self, one: Address) -> bool:
        if one.port != self._own.port:
            return False
        if not self._is_anywhere:
            return one.ip == self._own.ip
        if one.ip not in self._local:
            if len(self._local) > 4 * NODES_MAX:
                self._local.clear()
            self._local[one.ip] = is_local(one)
        return self._local[one.ip]

    # --- the rest

    def document(self) -> Mapping[str, Any]:
        now = self._clock.boot()
        return {
            "listen": str(self._own),
            "known": len(self._addresses),
            "addresses": self._addresses.document(now),
            "received": self._received,
            "sent": self._sent,
            "refused": dict(sorted(self._refused.items())),
            "addresses_refused": self._addresses.refused_total,
            "not_sent": {name: count for name, count in sorted(self._not_sent.items()) if count},
        }

    def close(self) -> None:
        self._lookups.close()
        self._sock.close()
