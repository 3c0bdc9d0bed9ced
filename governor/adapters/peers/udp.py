"""The UDP socket of a governor: where it is bound, and which addresses are this machine's own."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from typing import Final

from governor.adapters.peers.envelope import Address
from governor.adapters.peers.lookups import address
from governor.settings.peers import HostPort

BUFFER_BYTES: Final = 4 * 1024 * 1024  # A second of 1,000 nodes, as the kernel counts small datagrams.
_SNDBUFFORCE: Final = 32  # Beyond net.core.wmem_max, for root. Python's socket module lacks the constants.
_RCVBUFFORCE: Final = 33


class PeersUnavailable(Exception):  # noqa: N818 - as SocketUnavailable: a state of the world, and no fault of ours.
    """The port or the secret cannot be had: one line that says what to do.

    `may_pass`: another program has the port, or no interface has the address yet.
    """

    def __init__(self, text: str, *, may_pass: bool = False) -> None:
        super().__init__(text)
        self.may_pass = may_pass


def is_anywhere(listen: HostPort) -> bool:
    """Whether every interface is served."""
    return not listen.host or ipaddress.ip_address(listen.host).is_unspecified


def bound(listen: HostPort) -> socket.socket:
    """The socket, of both families where every interface is served and the kernel has both. PeersUnavailable."""
    try:
        if not listen.host:
            try:
                return _socket(socket.AF_INET6, ("::", listen.port))
            except OSError as error:  # Only where the kernel has no IPv6. A port that somebody has is one on IPv4 too.
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                    raise
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        return _socket(family, (listen.host, listen.port))
    except OSError as error:
        why = error.strerror or type(error).__name__
        text = f"peers.listen {listen}: {why}; end what has the port (ss -ulpn), or set another one on every node"
        raise PeersUnavailable(text, may_pass=error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL)) from None


def _socket(family: socket.AddressFamily, place: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for forced, plain in ((_RCVBUFFORCE, socket.SO_RCVBUF), (_SNDBUFFORCE, socket.SO_SNDBUF)):
            sock.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
        sock.bind(place)
    except OSError:
        sock.close()
        raise
    return sock


def place_of(sock: socket.socket) -> Address:
    """Where it is bound."""
    name = sock.getsockname()
    return address(name[0], name[1])


def is_local(one: Address) -> bool:
    """Whether an interface of this machine has the address: only then can it be bound."""
    family = socket.AF_INET6 if ":" in one.ip else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((one.ip, 0, 0, one.scope) if family == socket.AF_INET6 else (one.ip, 0))
    except OSError:
        return False
    return True
