"""Names that become addresses, and the bounds of one tell(). What is heard is in tests/contract/test_peers.py."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from governor.adapters.peers.datagrams import PROBES_PER_TELL, SENDS_PER_TELL, UdpPeers
from governor.adapters.peers.envelope import Address, Message, Unsigned, key_of, parse
from governor.core.base.units import NS_PER_S
from governor.core.events.peers import NodeTold, ToldHalt, ToldRun
from governor.settings.peers import HostPort
from governor.wire.fleet.told import read
from tests.contract.fakes import FakeClock

KEY = key_of(b"a secret of thirty-two bytes, or more")
US = NodeTold("node-a", "boot-1")
HALT = ToldHalt("halted.node-a.1", "node-a", "nan", "nonfinite", "loss_nan", "", "good", "ASKED")


class Listener:
    """A socket that another governor could have."""

    def __init__(self, stack: ExitStack) -> None:
        self.sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.sock.bind(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self.sock.getsockname()[1])

    def messages(self) -> list[Message]:
        found = []
        while select.select([self.sock], [], [], 0)[0]:
            message = parse(self.sock.recv(65_536))
            assert isinstance(message, Message)
            found.append(message)
        return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def governor(
    stack: ExitStack, hosts: Sequence[HostPort], resolver: Callable[[str, int], Sequence[Address]] | None = None
) -> tuple[UdpPeers, FakeClock]:
    clock = FakeClock()
    found = UdpPeers("node-a", KEY, HostPort("127.0.0.1", 0), hosts, clock, resolver=resolver or (lambda *_: []))
    stack.callback(found.close)
    return found, clock


def told_until(peers: UdpPeers, listener: Listener) -> None:
    """A look-up is over some time after it was asked for."""
    while not listener.messages():
        peers.tell(US)
        os.sched_yield()


def test_a_configured_name_is_looked_up_and_again_each_minute(stack: ExitStack) -> None:
    first, second = Listener(stack), Listener(stack)
    answers = [[first.address], [second.address]]
    peers, clock = governor(stack, [HostPort("node-b", 9479)], lambda *_: answers.pop(0) if answers else [])
    told_until(peers, first)
    clock.advance(59 * NS_PER_S)
    peers.tell(US)
    assert (len(answers), second.messages()) == (1, [])
    clock.advance(NS_PER_S)
    told_until(peers, second)


def test_a_met_name_is_looked_up_once_a_minute(stack: ExitStack) -> None:
    asked: list[str] = []
    listener = Listener(stack)

    def resolver(host: str, _port: int) -> Sequence[Address]:
        asked.append(host)
        return [listener.address]

    peers, clock = governor(stack, [], resolver)
    for _ in range(100):
        peers.meet("node-b")
    told_until(peers, listener)
    for _ in range(100):
        peers.meet("node-b")
    told_until(peers, listener)
    assert asked == ["node-b"]
    clock.advance(60 * NS_PER_S)
    peers.meet("node-b")
    while asked != ["node-b", "node-b"]:
        os.sched_yield()


def test_a_name_that_nobody_knows_is_counted(stack: ExitStack) -> None:
    peers, _ = governor(stack, [HostPort("nobody", 9479)])
    while not peers.document()["refused"]:
        peers.tell(US)
        os.sched_yield()
    assert peers.document()["refused"] == {"no_such_name": 1}


def test_who_has_not_answered_is_only_asked(stack: ExitStack) -> None:
    """What it was told could not count: it is told when it has answered."""
    listener = Listener(stack)
    peers, _ = governor(stack, [HostPort(*listener.sock.getsockname())])
    peers.tell(NodeTold("node-a", "boot-1", runs=(ToldRun("calm", "job", 1, True, 1),)))
    [message] = listener.messages()
    assert message.body.strip() == b""


def test_of_too_many_silent_addresses_others_are_asked_each_time(stack: ExitStack) -> None:
    listeners = [Listener(stack) for _ in range(PROBES_PER_TELL + 50)]
    peers, _ = governor(stack, [HostPort(*one.sock.getsockname()) for one in listeners])
    peers.tell(US)
    assert sum(len(one.messages()) for one in listeners) == PROBES_PER_TELL
    reached: set[Address] = set()
    for _ in range(3):
        peers.tell(US)
        reached |= {one.address for one in listeners if one.messages()}
    assert len(reached) == len(listeners)


def test_a_tell_has_a_bound_and_a_halt_reaches_all_before_it(stack: ExitStack) -> None:
    listeners = [Listener(stack) for _ in range(SENDS_PER_TELL // 3)]
    peers, _ = governor(stack, [HostPort(*one.sock.getsockname()) for one in listeners])
    _have_answered(peers, listeners)
    calm = tuple(ToldRun(f"calm-{number}", "job", 1, True, 1) for number in range(9))
    runs = (*calm, ToldRun("halted", "job", 1, True, 1, halt=HALT))
    before = peers.document()["sent"]
    peers.tell(NodeTold("node-a", "boot-1", runs=runs))
    assert peers.document()["sent"] - before == SENDS_PER_TELL
    assert peers.document()["not_sent"]["bound"] > 0
    for listener in listeners:
        first = read(listener.messages()[0].body)
        assert isinstance(first, NodeTold)
        assert first.runs[0].halt == HALT
    _all_runs_come_in_time(peers, listeners[0], runs)


def _have_answered(peers: UdpPeers, listeners: Sequence[Listener]) -> None:
    """Each sends a message of now, so that what is told counts with it."""
    numbers: list[bytes] = []
    while not numbers:
        peers.tell(US)
        numbers = [message.nonce for one in listeners for message in one.messages()]
    for place, one in enumerate(listeners):
        message = Message(f"node-{place}", place.to_bytes(8, "big"), 1, b"n" * 16, numbers[0], False, b"", b"")
        one.sock.sendto(Unsigned(message).signed(KEY, numbers[0]), ("127.0.0.1", peers.address.port))
        peers.receive()


def _all_runs_come_in_time(peers: UdpPeers, listener: Listener, runs: tuple[ToldRun, ...]) -> None:
    seen: set[str] = set()
    for _ in range(10 * len(runs)):
        peers.tell(NodeTold("node-a", "boot-1", runs=runs))
        for message in listener.messages():
            told = read(message.body)
            assert isinstance(told, NodeTold)
            seen |= {run.run for run in told.runs}
    assert seen == {run.run for run in runs}
