"""The governors of other nodes, built from [peers]: how they are told, and what is said of it where they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from governor.adapters.peers.opening import open_peers
from governor.adapters.peers.udp import PeersUnavailable
from governor.adapters.peers.waiting import WaitingPeers
from governor.core.base.units import MonoNs
from governor.core.events.effects import Alarm
from governor.core.events.inputs import Event
from governor.core.events.machine import SourceTrouble
from governor.ports import Clock
from governor.remote_ports import Peers
from governor.settings.peers import Peers as Settings


class PeersPart:
    """`problem`: why no other node is told. The start continues without them.

    The service tries a port again that another program has. `costgov run` beside it leaves the port to the service.
    """

    def __init__(self, settings: Settings, node: str, clock: Clock, *, is_run: bool) -> None:
        self._is_run = is_run
        self._waiting: WaitingPeers | None = None
        self.peers: Peers | None = None
        self.problem: str | None = None
        try:
            self.peers = open_peers(settings, node, clock)
        except PeersUnavailable as error:
            self.problem = f"peers: {error}; a halt of this node tells no other node"
            if error.may_pass and not is_run:
                begin = lambda: _opened(settings, node, clock)  # noqa: E731
                self.peers = self._waiting = WaitingPeers(begin, clock)

    def alarms(self) -> list[Alarm]:
        """For the start."""
        return [Alarm("peers_off", None, self.problem)] if self.problem and not self._is_run else []

    def poll(self, at: MonoNs) -> Sequence[Event]:
        """A source of the loop: try again, and tell once that others are told from now on."""
        if self._waiting is None or not self._waiting.try_again():
            return ()
        self.problem = None
        text = f"UDP {self._waiting.document()['listen']} is ours now: the governors of other nodes are told"
        return (SourceTrouble(at, None, "peers_again", text),)

    def document(self) -> Mapping[str, Any] | str | None:
        """For `status`."""
        return self.problem if self.problem is not None or self.peers is None else self.peers.document()

    def close(self) -> None:
        if self.peers is not None:
            self.peers.close()


def _opened(settings: Settings, node: str, clock: Clock) -> Peers:
    found = open_peers(settings, node, clock)
    assert found is not None, "it was enabled at the start"
    return found
