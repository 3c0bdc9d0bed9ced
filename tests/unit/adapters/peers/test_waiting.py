"""A port that another program has at the start: it is tried again at a pace, over real sockets."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from governor.adapters.peers.datagrams import UdpPeers
from governor.adapters.peers.envelope import key_of
from governor.adapters.peers.udp import PeersUnavailable, bound
from governor.adapters.peers.waiting import AGAIN_NS, MET_MAX, WaitingPeers
from governor.core.base.units import NS_PER_S
from governor.core.events.peers import NodeTold
from governor.settings.peers import HostPort
from tests.contract.fakes import FakeClock

KEY = key_of(b"a secret of thirty-two bytes, or more")


class Machine:
    """Loopback, a clock, and another program that has our port."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.taken = bound(HostPort("127.0.0.1", 0))
        self.port = self.taken.getsockname()[1]
        self.tries = 0
        self.ours = WaitingPeers(self._begin, self.clock)
        self.other = UdpPeers("node-b", KEY, HostPort("127.0.0.1", 0), (HostPort("127.0.0.1", self.port),), self.clock)

    def _begin(self) -> UdpPeers:
        self.tries += 1
        return UdpPeers("node-a", KEY, HostPort("127.0.0.1", self.port), (), self.clock)

    def close(self) -> None:
        for one in (self.ours, self.other, self.taken):
            one.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.close()


def test_a_port_that_is_taken_may_be_had_later(machine: Machine) -> None:
    with pytest.raises(PeersUnavailable) as caught:
        machine._begin()
    assert caught.value.may_pass
    with pytest.raises(PeersUnavailable) as caught:
        bound(HostPort("203.0.113.7", 9479))
    assert caught.value.may_pass, "an interface may get the address yet"


def test_it_is_tried_once_in_ten_seconds_and_told_once(machine: Machine) -> None:
    assert not any(machine.ours.try_again() for _ in range(9))
    assert not machine.tries, "the start has tried it"
    machine.clock.advance(AGAIN_NS)
    assert not any(machine.ours.try_again() for _ in range(9))
    assert machine.tries == 1
    machine.taken.close()
    machine.clock.advance(AGAIN_NS - 1)
    assert not machine.ours.try_again()
    machine.clock.advance(1)
    assert machine.ours.try_again()
    machine.clock.advance(AGAIN_NS)
    assert not machine.ours.try_again(), "it is no news any more"


def test_its_descriptor_is_the_same_and_what_comes_is_received(machine: Machine) -> None:
    watched = machine.ours.fileno()
    machine.ours.tell(NodeTold("node-a", "boot-a"))
    assert not machine.ours.receive()
    assert not machine.ours.document()
    machine.taken.close()
    machine.clock.advance(AGAIN_NS)
    assert machine.ours.try_again()
    found: list[NodeTold] = []
    for _ in range(4):  # A first contact is answered before it counts.
        machine.other.tell(NodeTold("node-b", "boot-b"))
        assert select.select([watched], [], [], 10)[0] == [watched]
        found += machine.ours.receive()
        machine.ours.tell(NodeTold("node-a", "boot-a"))
        assert select.select([machine.other.fileno()], [], [], 10)[0]
        machine.other.receive()
        machine.clock.advance(NS_PER_S)
    assert {one.node for one in found} == {"node-b"}
    assert machine.ours.document()["listen"] == f"127.0.0.1:{machine.port}"


def test_a_host_that_a_launch_has_named_meanwhile_is_asked(machine: Machine) -> None:
    for number in range(MET_MAX):
        machine.ours.meet(f"127.0.0.1:{machine.other.address.port}" if not number else f"127.0.0.{number}:9")
    machine.ours.meet("127.0.0.1:7")
    machine.taken.close()
    machine.clock.advance(AGAIN_NS)
    assert machine.ours.try_again()
    machine.ours.tell(NodeTold("node-a", "boot-a"))
    assert select.select([machine.other.fileno()], [], [], 10)[0], "and told"
    assert machine.ours.document()["known"] == MET_MAX, "of more than there may be, none is kept"


def test_what_waits_can_be_closed_before_the_port_is_had(machine: Machine) -> None:
    machine.ours.close()
    with pytest.raises(OSError, match="Address already in use"), socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", machine.port))
