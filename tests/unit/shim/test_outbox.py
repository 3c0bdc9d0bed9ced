"""Frames that wait for their confirm, driven from a list."""

from __future__ import annotations

import json

import pytest

from trainer_shim import wire
from trainer_shim.connection.outbox import RESEND_NS, Outbox


def kinds(outbox: Outbox) -> list[str]:
    return [slot.kind for slot in outbox.slots()]


def numbers(outbox: Outbox) -> list[int]:
    return [json.loads(slot.packet)["seq"] for slot in outbox.slots()]


def test_a_frame_stays_until_its_own_number_is_confirmed() -> None:
    outbox = Outbox(3)
    outbox.add("ack", {"incident": "i", "what": "received"}, 5)
    outbox.add("bye", {"reason": "done"}, 6)
    outbox.confirm(2)
    outbox.confirm(2)
    assert kinds(outbox) == ["ack"]
    frame = json.loads(outbox.slots()[0].packet)
    assert (frame["rank"], frame["mono_ns"], frame["seq"], frame["what"]) == (3, 5, 1, "received")


def test_it_is_sent_again_after_the_resend_time_and_not_before() -> None:
    outbox = Outbox(0)
    outbox.add("bye", {}, 0)
    (slot,) = outbox.slots()
    assert slot.is_due(0)
    slot.sent_ns = 10
    assert not slot.is_due(10 + RESEND_NS - 1)
    assert slot.is_due(10 + RESEND_NS)


def test_a_new_connection_begins_with_one_new_hello_and_sends_everything_again() -> None:
    outbox = Outbox(0)
    outbox.reconnected({"run": "r"}, 0)
    outbox.add("ack", {"incident": "i", "what": "received"}, 1)
    for slot in outbox.slots():
        slot.sent_ns = 1
    outbox.reconnected({"run": "r", "open_incident": None}, 2)
    assert kinds(outbox) == ["hello", "ack"]
    assert numbers(outbox) == [3, 2], "the first hello is replaced"
    assert all(slot.is_due(2) for slot in outbox.slots())


def test_it_is_bounded_and_keeps_the_newest() -> None:
    outbox = Outbox(0)
    for number in range(wire.OUTBOX_SLOTS + 3):
        outbox.add("ack", {"incident": str(number), "what": "received"}, 0)
    assert len(outbox) == wire.OUTBOX_SLOTS
    assert outbox.dropped == 3
    assert numbers(outbox)[-1] == wire.OUTBOX_SLOTS + 3


def test_what_no_packet_can_carry_is_refused_and_not_kept() -> None:
    outbox = Outbox(0)
    with pytest.raises(ValueError, match="exceeds"):
        outbox.add("bye", {"reason": "x" * wire.FRAME_BYTES_MAX}, 0)
    assert len(outbox) == 0
