"""Names of hosts become addresses on one thread of their own: a resolver may hang for half a minute."""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from governor.adapters.peers.addresses import Source
from governor.adapters.peers.envelope import Address
from governor.settings.peers import HostPort

WAITING_MAX: Final = 64  # Names that nobody has looked up yet; more are asked for again later.
ADDRESSES_OF_A_NAME_MAX: Final = 8
_MAPPED: Final = "::ffff:"

Resolver = Callable[[str, int], Sequence[Address]]


class Found(NamedTuple):
    host: HostPort
    source: Source
    addresses: tuple[Address, ...]


def address_of(host: HostPort) -> Address | None:
    """The address, if the host is written as one."""
    return address(host.host, host.port) if host.is_literal else None


def address(ip: str, port: int, scope: int = 0) -> Address:
    """In the one form that each address has: no IPv4 within IPv6."""
    if ip.startswith(_MAPPED) and "." in ip:
        return Address(ip.removeprefix(_MAPPED), port)
    if ":" not in ip:
        return Address(ip, port)
    plain, _, zone = ip.partition("%")
    found = ipaddress.IPv6Address(plain)
    if found.ipv4_mapped is not None:
        return Address(str(found.ipv4_mapped), port)
    return Address(str(found), port, scope or (_index(zone) if zone else 0))


def _index(zone: str) -> int:
    try:
        return socket.if_nametoindex(zone)
    except OSError:
        return 0


def resolve(host: str, port: int) -> list[Address]:
    """Ask the system's resolver. Blocks; OSError or UnicodeError if there is no such name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    return [address(str(place[0]), port, int(place[3]) if len(place) == 4 else 0) for *_, place in found]


class Lookups:
    """Bounded: what does not fit is dropped. A thread that hangs in a resolver ends with the process."""

    def __init__(self, resolver: Resolver = resolve) -> None:
        self._resolver = resolver
        self._asked: queue.Queue[tuple[HostPort, Source] | None] = queue.Queue(WAITING_MAX)
        self._found: queue.SimpleQueue[Found] = queue.SimpleQueue()
        self._waiting: set[HostPort] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def ask(self, host: HostPort, source: Source) -> bool:
        """Have a name looked up. False: it is being looked up, or too many wait."""
        if self._is_closed or host in self._waiting:
            return False
        try:
            self._asked.put_nowait((host, source))
        except queue.Full:
            return False
        self._waiting.add(host)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="costgov-peers-names", daemon=True)
            self._thread.start()
        return True

    def take(self) -> list[Found]:
        """What was found since the last call; a name that nobody knows has no addresses."""
        found = []
        while not self._found.empty():
            one = self._found.get_nowait()
            self._waiting.discard(one.host)
            found.append(one)
        return found

    def close(self) -> None:
        """Does not wait for the thread: it may be in a resolver."""
        self._is_closed = True
        if self._thread is not None:
            while not self._asked.empty():
                try:
                    self._asked.get_nowait()
                except queue.Empty:
                    break
            self._asked.put_nowait(None)

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            host, source = asked
            try:
                found = tuple(dict.fromkeys(self._resolver(host.host, host.port)))[:ADDRESSES_OF_A_NAME_MAX]
            except (OSError, UnicodeError):  # A name that no resolver takes, such as one of 64 letters in a label.
                found = ()
            self._found.put(Found(host, source, found))
