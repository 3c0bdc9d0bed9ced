"""The envelope of a datagram between governors: who sends it, that it is signed, and that it is of now.

A message counts if it repeats a number that its receiver gave out in the last seconds. So a recorded one is worth
nothing, to another receiver neither; no two clocks are compared. Nothing here reads a clock or a socket.

    magic and version 4 | flags 1 | sender's start 8 | sequence 8 | own number 16 | repeated number 16
    | bytes of the node's name 1, of addresses 2 | name | addresses | body | HMAC-SHA-256 over all of it, 32
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from governor.core.base.units import NS_PER_S
from governor.core.events.peers import BEAT_NS, NODE_BYTES_MAX, NODES_MAX
from governor.wire.fleet.told import DATAGRAM_BYTES_MAX

MAGIC: Final = b"cgv"
VERSION: Final = 1
_HEAD: Final = struct.Struct("!3sBB8sQ16s16sBH")
_ECHO_AT: Final = 37
_TAG_BYTES: Final = hashlib.sha256().digest_size
NONCE_BYTES: Final = 16
EPOCH_BYTES: Final = 8
NO_ECHO: Final = bytes(NONCE_BYTES)
ADDRESSES_TOLD_MAX: Final = 64
# A datagram that may be answered is at least so long, and no answer is longer: spoofed senders amplify nothing.
CONTACT_BYTES: Final = 512
_ANSWER: Final = 1  # Flag: it answers a message that was signed and not of now.

NONCE_GIVEN_NS: Final = NS_PER_S  # So long one number is given out.
COUNTS_BEATS: Final = 6  # So many of its giver's beats after that it counts.
NONCE_COUNTS_NS: Final = COUNTS_BEATS * BEAT_NS
# So long after it was heard, a number may be repeated: it counts when it arrives, a second on the way included. The
# message that gave it has told the beat.
USABLE_BEATS: Final = 5
NONCE_USABLE_NS: Final = USABLE_BEATS * BEAT_NS
# An earlier start of a sender is not believed again while a recorded message of it could count.
_CLOSED_NS: Final = NONCE_GIVEN_NS + NONCE_COUNTS_NS
_STARTS_REMEMBERED_MAX: Final = 16  # A governor that starts oftener within these seconds is not heard.


class Address(NamedTuple):
    """Where a governor is. `ip` is IPv4 or IPv6 in its shortest form; `scope`: the interface of a link-local one."""

    ip: str
    port: int
    scope: int = 0

    def __str__(self) -> str:
        scope = f"%{self.scope}" if self.scope else ""
        return f"[{self.ip}{scope}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


class Message(NamedTuple):
    """What an envelope says. Nothing of it counts before its signature was checked."""

    node: str
    epoch: bytes
    seq: int
    nonce: bytes
    echo: bytes
    is_answer: bool
    told: bytes  # Addresses of others, as `packed` has them.
    body: bytes


class Unsigned:
    """A message but for the number that it repeats: that, and so the signature, is another one for each receiver."""

    def __init__(self, message: Message, *, is_padded: bool = True) -> None:
        node = message.node.encode()
        head = _HEAD.pack(
            MAGIC, VERSION, _ANSWER if message.is_answer else 0, message.epoch, message.seq, message.nonce,
            message.echo, len(node), len(message.told),
        )  # fmt: skip
        data = head + node + message.told + message.body
        if is_padded:  # JSON ends before blanks.
            data = data.ljust(CONTACT_BYTES - _TAG_BYTES)
        self._before, self._after = data[:_ECHO_AT], data[_ECHO_AT + NONCE_BYTES :]
        assert len(data) + _TAG_BYTES <= DATAGRAM_BYTES_MAX, "the parts have bounds of their own"

    def signed(self, key: bytes, echo: bytes) -> bytes:
        data = self._before + echo + self._after
        return data + hmac.digest(key, data, "sha256")


def parse(data: bytes) -> Message | str:
    """What the envelope says, or the reason why it is none. Nothing is trusted yet."""
    if len(data) > DATAGRAM_BYTES_MAX:
        return "too_long"
    if len(data) < _HEAD.size + _TAG_BYTES or data[:3] != MAGIC:
        return "malformed"
    if data[3] != VERSION:
        return "other_version"
    _, _, flags, epoch, seq, nonce, echo, node_bytes, told_bytes = _HEAD.unpack_from(data)
    told_at = _HEAD.size + node_bytes
    body_at, end = told_at + told_bytes, len(data) - _TAG_BYTES
    if body_at > end or not 0 < node_bytes <= NODE_BYTES_MAX:
        return "malformed"
    try:
        node = data[_HEAD.size : told_at].decode()
    except UnicodeDecodeError:
        return "malformed"
    if not node.isprintable():
        return "malformed"
    told, body = data[told_at:body_at], data[body_at:end]
    return Message(node, epoch, seq, nonce, echo, bool(flags & _ANSWER), told, body)


def key_of(secret: bytes) -> bytes:
    """The key for this purpose alone: a secret that signs something else too is not weakened by either."""
    return hmac.digest(secret, b"costgov peers 1", "sha256")


def is_signed(data: bytes, key: bytes) -> bool:
    return hmac.compare_digest(hmac.digest(key, data[:-_TAG_BYTES], "sha256"), data[-_TAG_BYTES:])


def packed(addresses: Sequence[Address]) -> bytes:
    """At most ADDRESSES_TOLD_MAX of them, as an envelope has them."""
    return b"".join(map(_packed, addresses[:ADDRESSES_TOLD_MAX]))


@lru_cache(maxsize=NODES_MAX)
def _packed(address: Address) -> bytes:
    ip = ipaddress.ip_address(address.ip).packed
    return bytes((len(ip),)) + ip + address.port.to_bytes(2, "big")


def unpacked(told: bytes) -> list[Address]:
    """As many as there are and as are well-formed; only of a message that is signed."""
    found: list[Address] = []
    at = 0
    while at < len(told) and len(found) < ADDRESSES_TOLD_MAX:
        size = told[at]
        end = at + size + 3
        if size not in (4, 16) or end > len(told):
            break
        ip = ipaddress.ip_address(told[at + 1 : at + 1 + size])
        found.append(Address(str(ip), int.from_bytes(told[end - 2 : end], "big")))
        at = end
    return found


class Nonces:
    """The numbers that we give out: one a second, and each counts for six of our beats more."""

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._given_ns: int | None = None
        self._newest = b""
        self._until: dict[bytes, int] = {}
        self._last_until = 0

    def current(self, now_ns: int, beat_ns: int = BEAT_NS) -> bytes:
        """The number to give out now, in a message that tells this beat."""
        if self._given_ns is None or now_ns - self._given_ns >= NONCE_GIVEN_NS:
            self._given_ns, self._newest = now_ns, self._random_bytes(NONCE_BYTES)
            self._until = {nonce: until for nonce, until in self._until.items() if now_ns <= until}
        until = self._given_ns + NONCE_GIVEN_NS + COUNTS_BEATS * beat_ns
        self._until[self._newest] = max(until, self._until.get(self._newest, 0))
        self._last_until = max(until, self._last_until)
        return self._newest

    def is_fresh(self, echo: bytes, now_ns: int) -> bool:
        return now_ns <= self._until.get(echo, -1)

    def counts_ns(self, now_ns: int) -> int:
        """So long from now a message that was recorded until now could count, at most."""
        return max(_CLOSED_NS, self._last_until - now_ns)


@dataclass(slots=True)
class _Sender:
    epoch: bytes
    seq: int
    last_ns: int
    closed: dict[bytes, int] = field(default_factory=dict)  # Earlier starts, and until when they are.


class Senders:
    """Of each sender its start and its last sequence number: what comes again, or late, does not count.

    Bounded: whoever was silent for longest is forgotten first, and nobody before a recorded message of his is worth
    nothing.
    """

    def __init__(self, most: int = NODES_MAX) -> None:
        self._most = most
        self._by_node: dict[str, _Sender] = {}  # Who was silent for longest is first.

    def admit(self, node: str, epoch: bytes, seq: int, now_ns: int, counts_ns: int = _CLOSED_NS) -> str | None:
        """Note a message that is signed and of now. The reason, if it does not count. `counts_ns`: Nonces.counts_ns."""
        known = self._by_node.get(node)
        if known is None:
            if not self._has_room(now_ns, counts_ns):
                return "too_many"
            known = _Sender(epoch, seq, now_ns)
        elif known.epoch == epoch:
            if seq <= known.seq:
                return "again_or_late"
        elif now_ns <= known.closed.get(epoch, now_ns - 1):
            return "earlier_start"
        else:
            known.closed = {one: until for one, until in known.closed.items() if now_ns <= until}
            if len(known.closed) >= _STARTS_REMEMBERED_MAX:
                return "too_many"
            known.closed[known.epoch] = now_ns + counts_ns
            known.epoch = epoch
        known.seq, known.last_ns = seq, now_ns
        self._by_node.pop(node, None)
        self._by_node[node] = known
        return None

    def _has_room(self, now_ns: int, counts_ns: int) -> bool:
        if len(self._by_node) < self._most:
            return True
        oldest = next(iter(self._by_node))
        if now_ns - self._by_node[oldest].last_ns <= counts_ns:
            return False
        del self._by_node[oldest]
        return True


class Answers:
    """How often we answer what is signed and not of now: once a second an address, and a bound for all."""

    AT_ONCE_MAX: Final = 256

    def __init__(self) -> None:
        self._since_ns = 0
        self._answered: set[Address] = set()

    def may(self, address: Address, now_ns: int) -> bool:
        if now_ns - self._since_ns >= NS_PER_S:
            self._since_ns = now_ns
            self._answered.clear()
        if address in self._answered or len(self._answered) >= self.AT_ONCE_MAX:
            return False
        self._answered.add(address)
        return True
