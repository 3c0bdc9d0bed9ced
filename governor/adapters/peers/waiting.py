"""`remote_ports.Peers` while another program has our port: it is tried again, and nobody is told until we have it."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from governor.adapters.peers.udp import PeersUnavailable
from governor.core.base.units import NS_PER_S, BootNs
from governor.core.events.peers import NodeTold
from governor.ports import Clock
from governor.remote_ports import Peers

AGAIN_NS: Final = 10 * NS_PER_S
MET_MAX: Final = 128  # Hosts of launches that are asked for when the port is had.


class WaitingPeers:
    """`begin` opens them or raises PeersUnavailable. Its descriptor is the same before and after the port is had."""

    def __init__(self, begin: Callable[[], Peers], clock: Clock) -> None:
        self._begin = begin
        self._clock = clock
        self._peers: Peers | None = None
        self._met: dict[str, None] = {}
        self._tried_at: BootNs = clock.boot()
        self._ready = select.epoll()

    def try_again(self) -> bool:
        """Whether the port is had now, and was not before. At most one try in ten seconds."""
        now = self._clock.boot()
        if self._peers is not None or now - self._tried_at < AGAIN_NS:
            return False
        self._tried_at = now
        try:
            self._peers = self._begin()
        except PeersUnavailable:
            return False
        self._ready.register(self._peers.fileno(), select.EPOLLIN)
        for host in self._met:
            self._peers.meet(host)
        self._met.clear()
        return True

    def fileno(self) -> int:
        return self._ready.fileno()

    def receive(self) -> Sequence[NodeTold]:
        return self._peers.receive() if self._peers is not None else ()

    def tell(self, told: NodeTold) -> None:
        if self._peers is not None:
            self._peers.tell(told)

    def meet(self, host: str) -> None:
        if self._peers is not None:
            self._peers.meet(host)
        elif len(self._met) < MET_MAX:
            self._met[host] = None

    def document(self) -> Mapping[str, Any]:
        return self._peers.document() if self._peers is not None else {}

    def close(self) -> None:
        self._ready.close()
        if self._peers is not None:
            self._peers.close()
