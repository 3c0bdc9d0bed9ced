"""The frames that must arrive: hello, ack and bye wait here until the governor confirms their number.

Driven from a list: no socket, no clock, no lock. GovernorSocket calls it under its own lock. That lock is reentrant,
so a script's signal handler may come in between any two lines here, and is served like any other caller.
"""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, Optional

from trainer_shim import wire

RESEND_NS = 2_000_000_000  # Unconfirmed after that: the governor may have died between reading and journal.


class Slot:
    """One frame that waits for its confirm. `sent_ns`: when it last left on the present connection."""

    __slots__ = ("kind", "packet", "sent_ns", "seq")

    def __init__(self, seq: int, kind: str, packet: bytes) -> None:
        self.seq = seq
        self.kind = kind
        self.packet = packet
        self.sent_ns: Optional[int] = None

    def is_due(self, now_ns: int) -> bool:
        """Whether it is to be sent, for the first time or again."""
        return self.sent_ns is None or now_ns - self.sent_ns >= RESEND_NS

    def left(self, now_ns: int) -> None:
        """It has left on the present connection."""
        self.sent_ns = now_ns


class Outbox:
    """At most OUTBOX_SLOTS frames, in the order in which they are to arrive."""

    def __init__(self, rank: int) -> None:
        self.dropped = 0
        self._rank = rank
        self._slots: List[Slot] = []
        self._numbers = itertools.count(1)  # One call in C: a handler in between takes the next one.

    def __len__(self) -> int:
        return len(self._slots)

    def slots(self) -> List[Slot]:
        """Return a copy: the list changes while its frames are sent."""
        return list(self._slots)

    def add(self, kind: str, fields: Dict[str, Any], mono_ns: int, first: bool = False) -> None:
        """Number a frame and keep it. A hello replaces the one before. ValueError when no packet can carry it."""
        seq = next(self._numbers)
        frame = wire.head(kind, self._rank, mono_ns)
        frame.update(fields)
        frame["seq"] = seq
        slot = Slot(seq, kind, wire.encode(frame))
        if kind == "hello":
            self._remove([other for other in self._slots if other.kind == "hello"])
        while len(self._slots) >= wire.OUTBOX_SLOTS:
            self._slots.pop(0)  # The newest ack is the present state, the oldest is history.
            self.dropped += 1
        self._slots.insert(0 if first else len(self._slots), slot)

    def reconnected(self, hello: Dict[str, Any], mono_ns: int) -> None:
        """A new connection: everything is sent again, behind a new hello."""
        for slot in self._slots:
            slot.sent_ns = None
        self.add("hello", hello, mono_ns, first=True)

    def confirm(self, seq: int) -> None:
        """Let the frame of that number go."""
        self._remove([slot for slot in self._slots if slot.seq == seq])

    def _remove(self, slots: List[Slot]) -> None:
        # One by one: a new list would lose what a signal handler puts into the old one meanwhile.
        for slot in slots:
            self._slots.remove(slot)
