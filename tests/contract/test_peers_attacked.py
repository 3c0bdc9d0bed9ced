"""Whoever can record, change and send datagrams has nobody hear what was not just said, and has nobody send more."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from governor.adapters.peers.datagrams import DATAGRAMS_PER_RECEIVE, UdpPeers
from governor.adapters.peers.envelope import CONTACT_BYTES, NO_ECHO, Message, Unsigned, key_of, parse
from governor.core.base.units import NS_PER_S
from governor.core.events.peers import NodeTold
from governor.settings.peers import HostPort
from governor.wire.fleet.told import DATAGRAM_BYTES_MAX, body
from tests.contract.fakes import FakeClock
from tests.contract.test_peers import CALM, HALTED, KEY, settled, told

SAFETY_S = 30
OTHER_KEY = key_of(b"another secret of thirty-two bytes, or more")


class Wire:
    """A way between governors on which somebody listens: a socket of his, which each takes for the other one."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.a, self.b = self.governor("node-a"), self.governor("node-b")
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.settimeout(SAFETY_S)
        self.place = f"127.0.0.1:{self.sock.getsockname()[1]}"

    def governor(self, node: str, key: bytes = KEY) -> UdpPeers:
        return UdpPeers(node, key, HostPort("127.0.0.1", 0), (), self.clock)

    def send(self, data: bytes, to: UdpPeers) -> None:
        self.sock.sendto(data, ("127.0.0.1", to.address.port))

    def caught(self) -> list[bytes]:
        found = []
        while select.select([self.sock], [], [], 0)[0]:
            found.append(self.sock.recv(65_536))
        return found

    def pass_on(self) -> None:
        """Both know only the listener, who hands each datagram to the other one: first contact through him."""
        self.a.meet(self.place)
        self.a.tell(told("node-a"))
        for data in self.caught():
            self.send(data, self.b)
        settled(self.b)
        for data in self.caught():
            self.send(data, self.a)
        settled(self.a)
        self.caught()

    def recorded(self) -> list[bytes]:
        """What node-a says to node-b; it was not handed over."""
        self.a.tell(told("node-a", HALTED))
        return self.caught()

    def close(self) -> None:
        self.a.close()
        self.b.close()
        self.sock.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    wire.pass_on()
    yield wire
    wire.close()


def refused(peers: UdpPeers) -> dict[str, int]:
    found: dict[str, int] = peers.document()["refused"]
    return found


def test_what_was_just_said_is_heard_once(wire: Wire) -> None:
    """The rig itself: without this the tests below would prove nothing."""
    [data] = wire.recorded()
    for _ in range(3):
        wire.send(data, wire.b)
    assert settled(wire.b) == [[told("node-a", HALTED)]]
    assert refused(wire.b)["again_or_late"] == 2


def test_a_recorded_message_is_worth_nothing_later(wire: Wire) -> None:
    [data] = wire.recorded()
    wire.clock.advance(8 * NS_PER_S)
    wire.send(data, wire.b)
    assert settled(wire.b) == [[]]
    assert refused(wire.b)["stale"] >= 1


def test_a_message_of_before_a_suspend_is_worth_nothing(wire: Wire) -> None:
    [data] = wire.recorded()
    wire.clock.suspend(8 * NS_PER_S)
    wire.send(data, wire.b)
    assert settled(wire.b) == [[]]


def test_an_older_message_of_the_same_start_is_not_heard_after_a_newer_one(wire: Wire) -> None:
    [older] = wire.recorded()
    [newer] = wire.recorded()
    wire.send(newer, wire.b)
    wire.send(older, wire.b)
    assert settled(wire.b) == [[told("node-a", HALTED)]]
    assert refused(wire.b)["again_or_late"] == 1


def test_a_message_of_an_earlier_start_is_not_heard_after_one_of_a_later(wire: Wire) -> None:
    [first] = wire.recorded()
    [earlier] = wire.recorded()
    wire.send(first, wire.b)
    settled(wire.b)
    wire.clock.advance(NS_PER_S)
    wire.a.close()
    wire.a = wire.governor("node-a")
    wire.pass_on()
    [later] = wire.recorded()
    wire.send(later, wire.b)
    wire.send(earlier, wire.b)
    assert settled(wire.b) == [[told("node-a", HALTED)]]
    assert refused(wire.b)["earlier_start"] == 1


def test_a_message_to_another_receiver_is_not_heard(wire: Wire) -> None:
    [data] = wire.recorded()
    third = wire.governor("node-c")
    wire.send(data, third)
    assert settled(third) == [[]]
    assert refused(third) == {"stale": 1}
    third.close()


def test_a_message_that_comes_back_to_its_sender_is_not_heard(wire: Wire) -> None:
    [data] = wire.recorded()
    wire.send(data, wire.a)
    assert settled(wire.a) == [[]]
    assert refused(wire.a) == {"from_ourselves": 1}


def test_a_changed_message_is_not_heard(wire: Wire) -> None:
    """Each byte of it, by one bit."""
    [data] = wire.recorded()
    random = Random(1)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << random.randrange(8)
        wire.send(bytes(changed), wire.b)
        assert settled(wire.b) == [[]], place
    wire.send(data, wire.b)
    assert settled(wire.b) == [[told("node-a", HALTED)]]


def test_a_part_of_a_message_is_not_heard(wire: Wire) -> None:
    [data] = wire.recorded()
    for size in range(len(data)):
        wire.send(data[:size], wire.b)
        assert settled(wire.b) == [[]], size
    wire.send(data + b" ", wire.b)
    assert settled(wire.b) == [[]]


def test_the_largest_datagram_there_is(wire: Wire) -> None:
    [data] = wire.recorded()
    wire.send(data + bytes(65_000 - len(data)), wire.b)
    wire.send(data[: DATAGRAM_BYTES_MAX // 2].ljust(DATAGRAM_BYTES_MAX + 1), wire.b)
    assert settled(wire.b) == [[]]
    assert refused(wire.b)["too_long"] == 2


@pytest.mark.parametrize("node", ["node-a", "node-x"])
def test_who_has_another_secret_is_not_heard(wire: Wire, node: str) -> None:
    """It knows all that was ever on the wire, the numbers too."""
    [data] = wire.recorded()
    seen = parse(data)
    assert isinstance(seen, Message)
    forged = replace(told(node, HALTED))
    message = seen._replace(node=node, seq=seen.seq + 1, body=body(forged))
    wire.send(Unsigned(message).signed(OTHER_KEY, seen.echo), wire.b)
    assert settled(wire.b) == [[]]
    assert refused(wire.b)["bad_signature"] == 1
    assert wire.caught() == []


def test_a_signed_message_in_anothers_name_is_not_heard(wire: Wire) -> None:
    """A governor that has the secret signs for its own name: the body must say the same."""
    [data] = wire.recorded()
    seen = parse(data)
    assert isinstance(seen, Message)
    message = seen._replace(node="node-x", body=body(told("node-y", HALTED)))
    wire.send(Unsigned(message).signed(KEY, seen.echo), wire.b)
    assert settled(wire.b) == [[]]
    assert refused(wire.b)["unreadable"] == 1


@pytest.mark.parametrize("content", [b"\xff", b"{}", b"[" * 5_000, b'{"node":"node-a","boot_id":7}'])
def test_a_signed_body_that_is_none_is_not_heard(wire: Wire, content: bytes) -> None:
    [data] = wire.recorded()
    seen = parse(data)
    assert isinstance(seen, Message)
    wire.send(Unsigned(seen._replace(body=content)).signed(KEY, seen.echo), wire.b)
    assert settled(wire.b) == [[]]
    assert refused(wire.b)["unreadable"] == 1


def test_what_has_our_name_is_not_heard(wire: Wire) -> None:
    """Two nodes of one name in a configuration: neither takes the other's state for its own."""
    twin = wire.governor("node-b")
    twin.meet(str(wire.b.address))
    twin.tell(told("node-b", HALTED))
    assert settled(wire.b, twin) == [[], []]
    assert refused(wire.b)["our_name"] == 1
    twin.close()


def test_no_answer_is_longer_or_more_than_what_came(wire: Wire) -> None:
    """Sent from a spoofed place, a recorded message has the victim get one answer a second, which is no longer."""
    wire.b.tell(NodeTold("node-b", "b" * 60, "c" * 60, "i" * 200, "r" * 60, (CALM,)))
    wire.clock.advance(60 * NS_PER_S)
    [data] = wire.recorded()  # Node-b was silent: it is asked for a number, in as few bytes as there may be.
    assert len(data) == CONTACT_BYTES
    for _ in range(50):
        wire.send(data, wire.b)
    settled(wire.b)
    answers = wire.caught()
    assert len(answers) == 1
    assert len(answers[0]) <= len(data)
    wire.clock.advance(NS_PER_S)
    wire.send(data, wire.b)
    settled(wire.b)
    assert len(wire.caught()) == 1


@pytest.mark.parametrize(("size", "answers"), [(0, 0), (20, 1), (200, 1)])
def test_a_short_message_has_a_short_answer_or_none(wire: Wire, size: int, answers: int) -> None:
    """No governor sends so short a one."""
    message = Message("n", b"start-of", 1, b"n" * 16, NO_ECHO, False, b"", b" " * size)
    data = Unsigned(message, is_padded=False).signed(KEY, NO_ECHO)
    wire.b.tell(told("node-b", CALM))
    wire.caught()
    wire.clock.advance(2 * NS_PER_S)
    wire.send(data, wire.b)
    settled(wire.b)
    found = wire.caught()
    assert len(found) == answers
    assert all(len(answer) <= len(data) < CONTACT_BYTES for answer in found)


def test_no_answer_is_answered(wire: Wire) -> None:
    """Two governors whose clocks stand still would answer each other for ever."""
    wire.clock.advance(2 * NS_PER_S)
    message = Message("node-x", b"start-of", 1, b"n" * 16, NO_ECHO, True, b"", b"")
    wire.send(Unsigned(message).signed(KEY, NO_ECHO), wire.b)
    settled(wire.b)
    assert wire.caught() == []
    wire.send(Unsigned(message._replace(is_answer=False)).signed(KEY, NO_ECHO), wire.b)
    settled(wire.b)
    assert len(wire.caught()) == 1


def test_a_recorded_message_from_a_spoofed_place_makes_that_place_no_governors(wire: Wire) -> None:
    [data] = wire.recorded()
    wire.clock.advance(60 * NS_PER_S)
    known = wire.b.document()["known"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as elsewhere:
        elsewhere.sendto(data, ("127.0.0.1", wire.b.address.port))
        settled(wire.b)
    assert wire.b.document()["known"] == known


def test_a_flood_of_strangers_costs_few_signatures_and_hides_nobody(wire: Wire) -> None:
    """One receive() takes its bound, and who is known is heard behind it."""
    [data] = wire.recorded()
    stranger = Unsigned(Message("node-x", b"start-of", 1, b"n" * 16, NO_ECHO, False, b"", b"")).signed(
        OTHER_KEY, NO_ECHO
    )
    for _ in range(2 * DATAGRAMS_PER_RECEIVE):
        wire.send(stranger, wire.b)
    wire.send(data, wire.b)
    assert [wire.b.receive() for _ in range(3)] == [[], [], [told("node-a", HALTED)]]
    assert refused(wire.b)["stale"] > refused(wire.b)["bad_signature"] > 0
