"""What cuts a growing file into records, and which of its values are news of training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from governor.wire.jsonl import TIMES
from governor.wire.records import is_aside

Read = Callable[[int, int], bytes]  # Count, offset -> what stands there now, at most so many bytes.

RECORD_BYTES_MAX: Final = 1024 * 1024  # A larger unit is a picture, a graph, a configuration: it is left out.
# The first bytes reveal a file that was emptied and grew past our offset between two looks.
HEAD_BYTES: Final = 64
NAME_CHARS_MAX: Final = 200
VALUES_MAX: Final = 512  # In one record. Trainers log tens.
TEXT_CHARS_MAX: Final = 200  # Of a value that is text: a phase, a date, "NaN".
# Fields that say nothing of training by themselves.
_PLACES: Final = ("step", "attempt_step", "line_steps", "t")


class Cutter(Protocol):
    """Cuts one file after the other. It is given a file's bytes in their order, in pieces of any size.

    Nothing here fails: what cannot be read is counted or is a problem.
    """

    head_bytes: int  # A file whose first bytes have changed, so many of them, was written again.
    problem: str | None  # Why nothing behind this place can be read: without the file's name.

    @property
    def faulty(self) -> int:
        """How many units could not be read so far."""
        ...

    @property
    def behind(self) -> int:
        """How many bytes were given whose records are not told: who goes on later begins before them."""
        ...

    @property
    def ahead(self) -> int:
        """How many of the next bytes are of no use, and need not be given: call `leave_out`."""
        ...

    @property
    def is_past(self) -> bool:
        """Whether history or a unit too long is being passed: nothing of it is told, so more may be given at once."""
        ...

    @property
    def holds(self) -> bool:
        """Whether something is told in a moment even if nothing else comes: what was given is not all told yet."""
        ...

    @property
    def wants_begin(self) -> bool:
        """Whether the file must be given from its begin: call `anew` again."""
        ...

    def begin(self, end: int, read: Read) -> int:
        """The file's first `end` bytes are history. Returns from where to give it."""
        ...

    def anew(self) -> None:
        """What is given next is the begin of a file: another one, or this one emptied or written again."""
        ...

    def give(self, data: bytes) -> list[bytes]:
        """The records that end with these bytes."""
        ...

    def leave_out(self, count: int) -> None: ...

    def drop(self) -> int:
        """Forget what is held of a unit that cannot be read. Returns how many bytes to give again."""
        ...

    def at_end(self, *, grew: bool) -> list[bytes]:
        """All that is there has been given. Called at each look; `grew`: something came with this one."""
        ...

    def rest(self) -> list[bytes]:
        """Nothing more comes of this file: what was held. A torn unit is counted."""
        ...

    def state(self) -> dict[str, Any] | None:
        """What the begin of the file has said, as plain JSON, for who goes on `behind` bytes before here."""
        ...

    def go_on(self, offset: int, state: Mapping[str, Any], read: Read) -> int:
        """A reader with this `state`, which may hold anything, has stopped at `offset`. Returns from where to give.

        Where it was one of another format, what stands before that is history.
        """
        ...


class Known:
    """The names that say something of training."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._measured = frozenset(name for field, names in fields.items() if field not in _PLACES for name in names)
        self._steps = frozenset(fields["step"])
        self._all = frozenset(name for names in fields.values() for name in names) | TIMES

    def is_measured(self, name: str) -> bool:
        return name in self._measured or is_aside(name)

    def is_step(self, name: str) -> bool:
        return name in self._steps

    def is_kept(self, name: str) -> bool:
        """Also steps, times and epochs: of use beside a measurement."""
        return name in self._all or "epoch" in name or is_aside(name)


def line_of(record: Mapping[str, Any]) -> bytes:
    """The record as a line of JSON. NaN and infinities stand bare, as trainers write them."""
    return json.dumps(record).encode("ascii")
