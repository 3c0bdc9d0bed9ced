"""An envelope's parts at their bounds, the numbers given out, and whose message is new."""

from __future__ import annotations

from itertools import count

import pytest

from governor.adapters.peers.envelope import (
    ADDRESSES_TOLD_MAX,
    CONTACT_BYTES,
    NO_ECHO,
    NONCE_COUNTS_NS,
    NONCE_GIVEN_NS,
    NONCE_USABLE_NS,
    Address,
    Answers,
    Message,
    Nonces,
    Senders,
    Unsigned,
    is_signed,
    key_of,
    packed,
    parse,
    unpacked,
)
from governor.core.base.units import NS_PER_S
from governor.core.events.peers import NODE_BYTES_MAX
from governor.wire.fleet.told import BODY_BYTES_MAX, DATAGRAM_BYTES_MAX

KEY = key_of(b"a secret of thirty-two bytes, or more")
ECHO = b"e" * 16
V4, V6 = Address("10.0.0.5", 9479), Address("fd00::5", 65_535)


def message(body: bytes = b"{}", node: str = "node-a", told: bytes = b"", *, is_answer: bool = False) -> Message:
    return Message(node, b"start-of", 7, b"n" * 16, ECHO, is_answer, told, body)


def test_an_envelope_says_what_was_put_into_it() -> None:
    sent = message(told=packed([V4, V6]), is_answer=True)
    data = Unsigned(sent, is_padded=False).signed(KEY, ECHO)
    assert parse(data) == sent
    assert is_signed(data, KEY)
    assert unpacked(sent.told) == [V4, V6]


def test_the_number_that_is_repeated_is_signed_too() -> None:
    one, other = (Unsigned(message()).signed(KEY, echo) for echo in (ECHO, NO_ECHO))
    assert one[:-32].replace(ECHO, NO_ECHO) == other[:-32]
    assert one[-32:] != other[-32:]
    assert not is_signed(one[:-32] + other[-32:], KEY)


def test_whatever_may_be_answered_is_long_enough() -> None:
    """An answer without a body is shorter, whatever the node is called."""
    assert len(Unsigned(message(b"")).signed(KEY, ECHO)) == CONTACT_BYTES
    answer = message(b"", "n" * NODE_BYTES_MAX, is_answer=True)
    assert len(Unsigned(answer, is_padded=False).signed(KEY, ECHO)) <= CONTACT_BYTES


def test_the_largest_parts_fit_into_a_datagram() -> None:
    told = packed([Address(f"fd00::{number:x}", 9479) for number in range(ADDRESSES_TOLD_MAX + 1)])
    data = Unsigned(message(b"x" * BODY_BYTES_MAX, "n" * NODE_BYTES_MAX, told)).signed(KEY, ECHO)
    assert len(data) <= DATAGRAM_BYTES_MAX
    assert len(unpacked(told)) == ADDRESSES_TOLD_MAX


def test_what_is_no_envelope_has_a_reason() -> None:
    data = Unsigned(message(node="node-ä")).signed(KEY, ECHO)
    found = {
        cut if isinstance(cut := parse(data[:size]), str) else "still one" for size in range(len(data))
    }  # The body may be shorter: then the signature is another one.
    assert found <= {"malformed", "still one"}
    assert parse(b"") == parse(b"GET / HTTP/1.1\r\n" * 20) == "malformed"
    assert parse(b"cgv\x02" + data[4:]) == "other_version"
    assert parse(data + bytes(DATAGRAM_BYTES_MAX)) == "too_long"
    assert parse(data.replace("ä".encode(), b"\xff\xff")) == "malformed"
    assert parse(data.replace("ä".encode(), b"\x1b[")) == "malformed"


@pytest.mark.parametrize("told", [b"\x04", b"\x04\x01\x02\x03", b"\x05123456789", b"\x00\x00\x00", b"\xff" * 300])
def test_addresses_that_are_none_end_the_list(told: bytes) -> None:
    assert unpacked(packed([V4]) + told)[:1] == [V4]
    assert len(unpacked(packed([V4]) + told)) == 1


def test_a_number_counts_for_six_seconds_after_it_was_given_out() -> None:
    numbers = count(1)
    nonces = Nonces(lambda size: next(numbers).to_bytes(size, "big"))
    first = nonces.current(0)
    assert nonces.current(NONCE_GIVEN_NS - 1) == first
    second = nonces.current(NONCE_GIVEN_NS)
    assert second != first
    assert nonces.is_fresh(first, NONCE_GIVEN_NS + NONCE_COUNTS_NS)
    assert not nonces.is_fresh(first, NONCE_GIVEN_NS + NONCE_COUNTS_NS + 1)
    assert nonces.is_fresh(second, NONCE_GIVEN_NS + NONCE_COUNTS_NS + 1)
    assert not nonces.is_fresh(NO_ECHO, 0)
    assert NONCE_USABLE_NS < NONCE_COUNTS_NS, "what a sender still repeats has to count when it arrives"


def test_a_number_of_a_slow_governor_counts_for_six_of_its_beats() -> None:
    numbers = count(1)
    nonces = Nonces(lambda size: next(numbers).to_bytes(size, "big"))
    slow = nonces.current(0, 4 * NS_PER_S)
    fast = nonces.current(NONCE_GIVEN_NS)
    assert nonces.is_fresh(slow, NONCE_GIVEN_NS + 24 * NS_PER_S), "a halt, whose beats are short, takes nothing back"
    assert not nonces.is_fresh(slow, NONCE_GIVEN_NS + 24 * NS_PER_S + 1)
    assert not nonces.is_fresh(fast, 2 * NONCE_GIVEN_NS + NONCE_COUNTS_NS + 1)


def test_an_earlier_start_is_closed_for_as_long_as_a_number_counts() -> None:
    nonces, senders = Nonces(bytes), Senders()
    nonces.current(0, 4 * NS_PER_S)
    assert senders.admit("a", b"1", 5, 0, nonces.counts_ns(0)) is None
    assert senders.admit("a", b"2", 1, 0, nonces.counts_ns(0)) is None
    assert senders.admit("a", b"1", 6, 25 * NS_PER_S, nonces.counts_ns(25 * NS_PER_S)) == "earlier_start"
    assert senders.admit("a", b"1", 6, 25 * NS_PER_S + 1, nonces.counts_ns(25 * NS_PER_S + 1)) is None


def test_of_a_sender_only_what_is_newer_counts() -> None:
    senders = Senders()
    assert senders.admit("a", b"1", 5, 0) is None
    assert senders.admit("a", b"1", 5, 1) == "again_or_late"
    assert senders.admit("a", b"1", 4, 2) == "again_or_late"
    assert senders.admit("a", b"1", 6, 3) is None
    assert senders.admit("b", b"1", 1, 4) is None


def test_an_earlier_start_does_not_count_while_a_recorded_message_of_it_could() -> None:
    senders = Senders()
    assert senders.admit("a", b"1", 5, 0) is None
    assert senders.admit("a", b"2", 1, NS_PER_S) is None
    assert senders.admit("a", b"1", 6, NS_PER_S + NONCE_GIVEN_NS + NONCE_COUNTS_NS) == "earlier_start"
    # Two governors of one name, by turns: neither is shut out for good.
    assert senders.admit("a", b"1", 7, NS_PER_S + NONCE_GIVEN_NS + NONCE_COUNTS_NS + 1) is None


def test_starts_of_one_sender_are_bounded() -> None:
    senders = Senders()
    found = [senders.admit("a", bytes([number]), 1, number) for number in range(40)]
    assert found[:17] == [None] * 17
    assert set(found[17:]) == {"too_many"}


def test_senders_are_bounded_and_who_was_silent_goes_first() -> None:
    senders = Senders(most=2)
    assert senders.admit("a", b"1", 1, 0) is None
    assert senders.admit("b", b"1", 1, 1) is None
    assert senders.admit("c", b"1", 1, 2) == "too_many"
    later = 2 + NONCE_GIVEN_NS + NONCE_COUNTS_NS
    assert senders.admit("a", b"1", 2, later) is None
    assert senders.admit("c", b"1", 1, later) is None
    assert senders.admit("a", b"1", 2, later) == "again_or_late"


def test_an_address_is_answered_once_a_second() -> None:
    answers = Answers()
    assert answers.may(V4, 10 * NS_PER_S)
    assert not answers.may(V4, 11 * NS_PER_S - 1)
    assert answers.may(V6, 11 * NS_PER_S - 1)
    assert answers.may(V4, 11 * NS_PER_S)
    many = [answers.may(Address("10.0.0.1", port), 12 * NS_PER_S) for port in range(1, 1_000)]
    assert many.count(True) == Answers.AT_ONCE_MAX
