"""The addresses of other governors: configured, met in a launch, senders of messages, or told by others.

What a stranger could fill has bounds. Whoever answers stays; an address that nobody has answered from for an hour is
forgotten, unless it is configured. Time is an argument.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

from governor.adapters.peers.envelope import ADDRESSES_TOLD_MAX, NONCE_USABLE_NS, Address
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S
from governor.core.events.peers import NODES_MAX

FORGOTTEN_NS: Final = 60 * NS_PER_MINUTE
# Told to others: who has answered just now. So addresses of nodes that are gone die out.
TOLD_ON_NS: Final = 60 * NS_PER_S
# Of those that a launch has named. Each user may name some: the others' must not go for them.
MET_MAX: Final = 256
SHOWN_MAX: Final = 64


T = TypeVar("T")


class Source(IntEnum):
    """Who gave the address. Of two the larger one counts."""

    TOLD = 1
    MET = 2
    ANSWERED = 3
    CONFIGURED = 4


@dataclass(slots=True)
class _Known:
    source: Source
    added_ns: int
    answered_ns: int | None = None
    nonce: bytes = b""
    usable_ns: int = NONCE_USABLE_NS
    node: str = ""

    @property
    def last_ns(self) -> int:
        return self.added_ns if self.answered_ns is None else self.answered_ns


class Addresses:
    """`is_ours` tells whether an address is this governor's own, which is not kept."""

    def __init__(self, is_ours: Callable[[Address], bool], most: int = NODES_MAX) -> None:
        self._is_ours = is_ours
        self._most = most
        self._known: dict[Address, _Known] = {}
        self._named: dict[str, tuple[Address, ...]] = {}  # By configured name; as many as there are in the file.
        self._turn = 0
        self.refused_total = 0  # No room, or nobody can be there.

    def add(self, address: Address, source: Source, now_ns: int) -> None:
        """Know of an address. What is there already keeps what is known of it."""
        known = self._known.get(address)
        if known is not None:
            known.source = max(known.source, source)
            if source is Source.MET and known.answered_ns is None:
                known.added_ns = now_ns  # A new launch has named it: another hour.
            return
        if not _may_be_a_governor(address):
            self.refused_total += 1
        elif not self._is_ours(address):
            if self._makes_room(source, now_ns):
                self._known[address] = _Known(source, now_ns)
            else:
                self.refused_total += 1

    def add_named(self, host: str, addresses: Sequence[Address], now_ns: int) -> None:
        """What a configured name stands for now. What it stood for before may be forgotten from here on."""
        for address in set(self._named.get(host, ())) - set(addresses):
            known = self._known.get(address)
            if known is not None:
                known.source, known.added_ns = Source.MET, now_ns
        self._named[host] = tuple(addresses)
        for address in addresses:
            self.add(address, Source.CONFIGURED, now_ns)

    def add_told(self, addresses: Iterable[Address], by: Address, now_ns: int) -> None:
        """Another governor knows these. Its own loopback is not ours, unless it is on this machine."""
        is_here = ipaddress.ip_address(by.ip).is_loopback
        for address in addresses:
            if address in self._known:
                continue
            ip = ipaddress.ip_address(address.ip)
            if not ip.is_link_local and (is_here or not ip.is_loopback):
                self.add(address, Source.TOLD, now_ns)

    def answered(
        self, address: Address, node: str, nonce: bytes, now_ns: int, usable_ns: int = NONCE_USABLE_NS
    ) -> None:
        """A signed message of now came from there, and gave this number out. It may be repeated for so long."""
        self.add(address, Source.ANSWERED, now_ns)
        known = self._known.get(address)
        if known is not None:
            known.answered_ns, known.nonce, known.node, known.usable_ns = now_ns, nonce, node, usable_ns

    def forget(self, now_ns: int) -> None:
        """Drop those that nobody has answered from for an hour."""
        gone = [
            address
            for address, known in self._known.items()
            if known.source is not Source.CONFIGURED and now_ns - known.last_ns > FORGOTTEN_NS
        ]
        for address in gone:
            del self._known[address]

    def split(self, now_ns: int) -> tuple[list[tuple[Address, bytes]], list[Address]]:
        """Whom a message counts with, each with the number to repeat; and who has to give us one first."""
        usable: list[tuple[Address, bytes]] = []
        silent: list[Address] = []
        for address, known in self._known.items():
            if known.answered_ns is not None and now_ns - known.answered_ns <= known.usable_ns:
                usable.append((address, known.nonce))
            else:
                silent.append(address)
        return usable, silent

    def to_tell(self, now_ns: int) -> list[Address]:
        """Those that others should know: as many as one envelope takes, others each time."""
        live = [
            address
            for address, known in self._known.items()
            if known.answered_ns is not None and now_ns - known.answered_ns <= TOLD_ON_NS and not address.scope
        ]
        self._turn += 1
        return rotated(live, self._turn * ADDRESSES_TOLD_MAX)[:ADDRESSES_TOLD_MAX]

    def document(self, now_ns: int) -> list[dict[str, Any]]:
        """For `status`: those that answered last first, at most SHOWN_MAX."""
        latest = sorted(self._known.items(), key=lambda one: -(one[1].answered_ns or 0))[:SHOWN_MAX]
        return [
            {
                "address": str(address),
                "from": known.source.name.lower(),
                "node": known.node or None,
                "answered_s_ago": None
                if known.answered_ns is None
                else round((now_ns - known.answered_ns) / NS_PER_S, 1),
            }
            for address, known in latest
        ]

    def __len__(self) -> int:
        return len(self._known)

    def _makes_room(self, source: Source, now_ns: int) -> bool:
        """Whether there is a place for one from this source. What is worth less goes for it."""
        if source is Source.MET:
            met = [address for address, known in self._known.items() if known.source is Source.MET]
            if len(met) >= MET_MAX:
                del self._known[min(met, key=lambda address: self._known[address].added_ns)]
        if len(self._known) < self._most:
            return True
        worst = min(self._known, key=lambda address: _worth(self._known[address], now_ns))
        if _worth(self._known[worst], now_ns)[0] >= source:
            return False
        del self._known[worst]
        return True


def _worth(known: _Known, now_ns: int) -> tuple[int, int]:
    """By whom it is known first; of these who was silent for longest goes."""
    is_silent = known.source is Source.ANSWERED and now_ns - known.last_ns > TOLD_ON_NS
    return int(Source.TOLD if is_silent else known.source), known.last_ns


def rotated(found: list[T], turn: int) -> list[T]:
    """Another one first: so none is always the one for whom a bound leaves nothing."""
    at = turn % len(found) if found else 0
    return found[at:] + found[:at]


def _may_be_a_governor(address: Address) -> bool:
    """Whether an address can be one machine's."""
    ip = ipaddress.ip_address(address.ip)
    return not (ip.is_multicast or ip.is_unspecified or address.ip == "255.255.255.255") and 0 < address.port <= 65_535
