"""Every Peers: what is told is heard once and in order, addresses spread by themselves, nothing blocks or raises."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Protocol

import pytest

from governor.adapters.peers.datagrams import DATAGRAMS_PER_RECEIVE, UdpPeers
from governor.adapters.peers.envelope import Address, key_of
from governor.adapters.peers.udp import is_local
from governor.core.base.units import NS_PER_MINUTE, NS_PER_S
from governor.core.events.peers import NodeTold, ToldHalt, ToldRun
from governor.remote_ports import Peers
from governor.settings.peers import HostPort
from tests.contract.fakes import FakeClock
from tests.contract.fakes_peers import FakeNetwork, FakePeers

KEY = key_of(b"a secret of thirty-two bytes, or more")
HALT = ToldHalt("llama.node-a.1", "node-a", "nan", "nonfinite", "loss_nan", "loss is NaN at step 7", "suspect", "ASKED")
CALM = ToldRun("qwen", "job-2", 1001, True, 8, step=70, spend_usd_micros=7_000_000)
HALTED = ToldRun("llama", "job-1", 1000, True, 8, step=7, halt=HALT)


def told(node: str, *runs: ToldRun) -> NodeTold:
    return NodeTold(node, f"boot-of-{node}", runs=runs)


class World(Protocol):
    clock: FakeClock

    def start(self, node: str) -> Peers: ...
    def host(self, node: str) -> str: ...
    def close(self) -> None: ...


class RealWorld:
    """Each governor is a socket on loopback, at a port of the kernel's."""

    listens_at, reached_at = "127.0.0.1", "127.0.0.1"

    def __init__(self) -> None:
        self.clock = FakeClock()
        self._by_node: dict[str, UdpPeers] = {}

    def start(self, node: str) -> Peers:
        before = self._by_node.pop(node, None)
        port = 0 if before is None else before.address.port
        if before is not None:
            before.close()
        self._by_node[node] = UdpPeers(node, KEY, HostPort(self.listens_at, port), (), self.clock)
        return self._by_node[node]

    def host(self, node: str) -> str:
        return str(HostPort(self.reached_at, self._by_node[node].address.port))

    def close(self) -> None:
        for peers in self._by_node.values():
            peers.close()


class EveryInterfaceWorld(RealWorld):
    """As by default: IPv4 arrives on a socket of both families."""

    listens_at = ""


class SixWorld(RealWorld):
    listens_at = reached_at = "::1"


class FakeWorld:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self._network = FakeNetwork(self.clock)
        self._by_node: dict[str, Peers] = {}

    def start(self, node: str) -> Peers:
        before = self._by_node.pop(node, None)
        if before is not None:
            before.close()
        self._by_node[node] = self._network.join(node)
        return self._by_node[node]

    def host(self, node: str) -> str:
        return node

    def close(self) -> None:
        for peers in self._by_node.values():
            peers.close()


@pytest.fixture(params=[RealWorld, EveryInterfaceWorld, SixWorld, FakeWorld])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    make: Callable[[], World] = request.param
    if make is SixWorld and not is_local(Address("::1", 0)):
        pytest.skip("this machine's loopback has no IPv6")
    world = make()
    yield world
    world.close()


def is_readable(peers: Peers) -> bool:
    return bool(select.select([peers.fileno()], [], [], 0)[0])


def settled(*all_peers: Peers) -> list[list[NodeTold]]:
    """What each hears until nothing is under way: on loopback a datagram has arrived when it is sent."""
    heard: list[list[NodeTold]] = [[] for _ in all_peers]
    while any(is_readable(peers) for peers in all_peers):
        for place, peers in enumerate(all_peers):
            heard[place] += peers.receive()
    return heard


def met(world: World) -> tuple[Peers, Peers]:
    """Two governors that know each other."""
    a, b = world.start("node-a"), world.start("node-b")
    a.meet(world.host("node-b"))
    a.tell(told("node-a"))
    settled(a, b)
    b.tell(told("node-b"))
    settled(a, b)
    return a, b


def test_nobody_hears_who_knows_nobody(world: World) -> None:
    a, b = world.start("node-a"), world.start("node-b")
    a.tell(told("node-a", CALM))
    assert settled(a, b) == [[], []]
    assert not is_readable(b)


def test_the_first_message_to_a_met_governor_is_heard(world: World) -> None:
    a, b = world.start("node-a"), world.start("node-b")
    a.meet(world.host("node-b"))
    a.tell(told("node-a", CALM))
    heard = settled(a, b)[1]
    assert heard == [told("node-a", CALM)]


def test_each_run_comes_alone_and_a_halt_first(world: World) -> None:
    a, b = met(world)
    a.tell(told("node-a", CALM, HALTED))
    assert settled(a, b)[1] == [told("node-a", HALTED), told("node-a", CALM)]


def test_a_node_without_runs_is_heard(world: World) -> None:
    a, b = met(world)
    a.tell(told("node-a"))
    assert settled(a, b)[1] == [told("node-a")]


def test_who_was_heard_can_be_told(world: World) -> None:
    """Only one of the two was named by a launch."""
    a, b = met(world)
    b.tell(told("node-b", CALM))
    assert settled(a, b)[0] == [told("node-b", CALM)]


def test_governors_tell_each_other_of_a_third(world: World) -> None:
    a, b = met(world)
    c = world.start("node-c")
    a.meet(world.host("node-c"))
    heard: list[NodeTold] = []
    for _ in range(4):
        world.clock.advance(NS_PER_S)
        for node, peers in (("node-a", a), ("node-b", b), ("node-c", c)):
            peers.tell(told(node))
            heard += settled(a, b, c)[1]
    assert told("node-c") in heard


def test_nobody_hears_itself(world: World) -> None:
    a = world.start("node-a")
    a.meet(world.host("node-a"))
    a.tell(told("node-a", CALM))
    assert settled(a) == [[]]


def test_a_governor_that_starts_again_is_heard(world: World) -> None:
    a, _ = met(world)
    b = world.start("node-b")
    b.meet(world.host("node-a"))
    b.tell(told("node-b", CALM))
    assert told("node-b", CALM) in settled(a, b)[0]


def test_a_governor_that_starts_again_hears_who_knew_it(world: World) -> None:
    """Nobody has named the others to it since."""
    a, _ = met(world)
    b = world.start("node-b")
    world.clock.advance(NS_PER_S)
    a.tell(told("node-a", CALM))
    assert settled(a, b)[1] == [told("node-a", CALM)]


def test_after_a_long_silence_the_next_message_is_heard(world: World) -> None:
    a, b = met(world)
    for _ in range(3):
        world.clock.advance(20 * NS_PER_S)
        a.tell(told("node-a", HALTED))
        assert settled(a, b)[1] == [told("node-a", HALTED)]


def test_to_tell_who_is_gone_raises_nothing(world: World) -> None:
    a, _ = met(world)
    again = world.start("node-b")
    again.close()
    again.close()
    for _ in range(3):
        a.tell(told("node-a", CALM))
    assert settled(a) == [[]]


def test_the_descriptor_is_readable_while_there_is_something(world: World) -> None:
    a, b = met(world)
    assert not is_readable(b)
    a.tell(told("node-a", CALM))
    assert is_readable(b)
    b.receive()
    assert not is_readable(b)
    assert b.receive() == []


def test_a_flood_is_taken_in_turns(world: World) -> None:
    a, b = met(world)
    for step in range(DATAGRAMS_PER_RECEIVE + 5):
        a.tell(told("node-a", replace(CALM, step=step)))
    first = b.receive()
    assert len(first) == DATAGRAMS_PER_RECEIVE
    assert is_readable(b)
    steps = [one.runs[0].step for one in (*first, *b.receive())]
    assert steps == list(range(DATAGRAMS_PER_RECEIVE + 5))


def test_a_run_that_nobody_would_take_keeps_no_other_from_being_told(world: World) -> None:
    a, b = met(world)
    a.tell(told("node-a", replace(CALM, run="no name"), HALTED))
    assert settled(a, b)[1] == [told("node-a", HALTED)]


@pytest.mark.parametrize("host", ["", "a b", "x" * 300, "a\nb", "\ud800"])
def test_a_host_that_is_none_is_refused(world: World, host: str) -> None:
    a = world.start("node-a")
    a.meet(host)
    a.tell(told("node-a"))
    assert a.document()["refused"] == {"no_host": 1}
    assert a.document()["known"] == 0


def test_who_does_not_answer_for_an_hour_is_forgotten(world: World) -> None:
    a, b = met(world)
    assert a.document()["known"] == 1
    world.clock.advance(61 * NS_PER_MINUTE)
    a.tell(told("node-a"))
    assert a.document()["known"] == 0
    del b


def test_what_status_shows(world: World) -> None:
    a, b = met(world)
    a.tell(told("node-a", CALM))
    settled(a, b)
    shown = b.document()
    assert shown["known"] == 1
    assert shown["addresses"][0]["node"] == "node-a"
    assert shown["addresses"][0]["answered_s_ago"] == 0
    assert shown["received"] > 0
    assert shown["sent"] > 0


# --- the network in memory alone -------------------------------------------------------------------------


def met_in_memory(network: FakeNetwork) -> tuple[FakePeers, FakePeers]:
    a, b = network.join("node-a"), network.join("node-b")
    a.meet("node-b")
    b.meet("node-a")
    return a, b


def test_what_is_lost_is_not_heard() -> None:
    a, b = met_in_memory(FakeNetwork(FakeClock(), lost=1.0))
    a.tell(told("node-a", CALM))
    assert settled(a, b) == [[], []]
    a.close()
    b.close()


def test_what_comes_twice_is_heard_once() -> None:
    a, b = met_in_memory(FakeNetwork(FakeClock(), doubled=1.0))
    a.tell(told("node-a", CALM))
    assert settled(a, b) == [[], [told("node-a", CALM)]]
    assert b.document()["refused"] == {"again_or_late": 1}
    a.close()
    b.close()


def test_what_is_late_comes_when_it_is_due_and_never_behind_what_is_newer() -> None:
    clock = FakeClock()
    network = FakeNetwork(clock, Random(1), late_ns=NS_PER_S)
    a, b = met_in_memory(network)
    for step in range(20):
        a.tell(told("node-a", replace(CALM, step=step)))
    assert settled(b) == [[]]
    clock.advance(NS_PER_S)
    network.deliver()
    steps = [one.runs[0].step or 0 for one in settled(b)[0]]
    assert 1 < len(steps) < 20
    assert steps == sorted(steps)
    a.close()
    b.close()


def test_what_is_too_late_is_stale() -> None:
    clock = FakeClock()
    network = FakeNetwork(clock, Random(1), late_ns=60 * NS_PER_S)
    a, b = met_in_memory(network)
    for _ in range(20):
        a.tell(told("node-a"))
    clock.advance(60 * NS_PER_S)
    network.deliver()
    assert settled(b) == [[]]
    assert b.document()["refused"] == {"stale": 20}
    a.close()
    b.close()


def test_a_partition_and_its_end() -> None:
    network = FakeNetwork(FakeClock())
    a, b = met_in_memory(network)
    network.part("node-a", "node-b")
    a.tell(told("node-a", CALM))
    b.tell(told("node-b", CALM))
    assert settled(a, b) == [[], []]
    network.heal()
    a.tell(told("node-a", CALM))
    assert settled(a, b) == [[], [told("node-a", CALM)]]
    a.close()
    b.close()
