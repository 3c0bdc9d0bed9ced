"""TensorBoard's event files: TFRecord frames, each with one event. The scalars of a step are one record.

A frame is its length (8 bytes), a checksum of that, the event, and a checksum of it. There are no marks to find the
next frame by, so behind a damaged length nothing can be read. As in replay, validation has records of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from governor.wire.files.cutter import HEAD_BYTES, NAME_CHARS_MAX, RECORD_BYTES_MAX, VALUES_MAX, Known, Read, line_of
from governor.wire.files.protobuf import BYTES, FIXED32, FIXED64, VARINT, NoMessageError, double, fields, signed, text
from governor.wire.files.tensors import scalar_of
from governor.wire.records import is_aside

_HEADER: Final = struct.Struct("<QI")
_CHECKSUM: Final = struct.Struct("<I")
_CHECKED_BYTES_MAX: Final = 4_096  # An event of scalars has less. The checksum of a larger one would cost more than it.
_LENGTH_MAX: Final = 2**31  # Protobuf's own limit.
# Looks without news, a quarter of a second apart, after which a step is complete: nothing else may ever come.
QUIET_LOOKS: Final = 2
# An event file with pictures has its scalars far apart.
UNKNOWN_TOLD_MAX: Final = 1_000

Scalars = tuple[float, int, list[tuple[str, float]]]  # Seconds since 1970, step, tags and values.


class Events:
    """`Cutter` of event files."""

    head_bytes = HEAD_BYTES
    wants_begin = False

    def __init__(self, known: Known) -> None:
        self.faulty = 0
        self.problem: str | None = None
        self.ahead = 0
        self._known = known
        self._buffer = b""
        self._at = 0  # Where the buffer begins in the file.
        self._until = 0  # Frames that begin before are history.
        self._joined: dict[str, float] = {}
        self._place: tuple[int, bool, float] = (0, False, 0.0)  # Step of the joined, whether aside, and wall time.
        self._joined_at = 0  # Where their first frame begins.
        self._quiet = self._unknown = 0

    @property
    def behind(self) -> int:
        end = self._at + len(self._buffer)
        return end - self._joined_at if self._joined else len(self._buffer)

    @property
    def holds(self) -> bool:
        return bool(self._joined)

    @property
    def is_past(self) -> bool:
        return self._at < self._until

    def begin(self, end: int, read: Read) -> int:
        """The end may lie inside a frame, so all frames before it are passed."""
        self.anew()
        self._until = end
        return 0

    def anew(self) -> None:
        self.problem = None
        self._buffer, self._at, self._until, self.ahead = b"", 0, 0, 0
        self._joined = {}
        self._quiet = self._unknown = 0

    def give(self, data: bytes) -> list[bytes]:
        self._buffer += data
        told: list[bytes] = []
        at, size = 0, len(self._buffer)
        self.problem = None
        while size - at >= _HEADER.size:
            length, checksum = _HEADER.unpack_from(self._buffer, at)
            is_past = self._at + at < self._until
            # All frames of history would cost seconds. A wrong length leads to one that is not right either.
            if length > _LENGTH_MAX or (not is_past and masked(self._buffer[at : at + 8]) != checksum):
                self.problem = self._damage(at)
                break
            end = at + _HEADER.size + length + _CHECKSUM.size
            if is_past or length > RECORD_BYTES_MAX:
                self.ahead = max(0, end - size)
                at = min(end, size)
                continue
            if end > size or (end == size and not self._is_whole(at, length)):
                break
            if self._is_whole(at, length):
                told += self._see(at, self._buffer[at + _HEADER.size : end - _CHECKSUM.size])
            else:
                self.faulty += 1
            at = end
        self._buffer, self._at = self._buffer[at:], self._at + at
        return told

    def _is_whole(self, at: int, length: int) -> bool:
        """Whether the frame is as it was written. One of which a part has not arrived yet is zeros."""
        if length > _CHECKED_BYTES_MAX:
            return True
        begin = at + _HEADER.size
        told = self._buffer[begin + length : begin + length + _CHECKSUM.size]
        return masked(self._buffer[begin : begin + length]) == int.from_bytes(told, "little")

    def _damage(self, at: int) -> str:
        place = self._at + at
        if place == 0:
            return "no TensorBoard event file: it does not begin with an event"
        return f"damaged at byte {place}, and nothing behind that can be read; a new event file is followed"

    def leave_out(self, count: int) -> None:
        assert not count or not self._buffer
        assert count <= self.ahead
        self.ahead -= count
        self._at += count

    def drop(self) -> int:
        count, self._buffer = len(self._buffer), b""
        return count

    def at_end(self, *, grew: bool) -> list[bytes]:
        self._quiet = 0 if grew else self._quiet + 1
        return self._done() if self._quiet >= QUIET_LOOKS else []

    def rest(self) -> list[bytes]:
        told = self._done()
        self.faulty += bool(self._buffer or self.ahead)
        self.anew()
        return told

    def state(self) -> dict[str, Any] | None:
        return {"until": self._until}

    def go_on(self, offset: int, state: Mapping[str, Any], read: Read) -> int:
        until = state.get("until")
        if type(until) is not int:
            return self.begin(offset, read)
        self.anew()
        self._at, self._until = offset, until
        return offset

    def _see(self, at: int, event: bytes) -> list[bytes]:
        try:
            wall, step, values = scalars_of(event)
        except NoMessageError:
            self.faulty += 1
            return []
        told: list[bytes] = []
        unknown: dict[str, Any] = {}
        for tag, value in values:
            if self._known.is_measured(tag) or self._known.is_step(tag):
                told += self._join(at, wall, step, tag, value)
            elif not self._known.is_kept(tag):
                unknown[tag] = value
        # What is not known has no step, so a log of it alone is not taken for training.
        if unknown and self._unknown < UNKNOWN_TOLD_MAX:
            self._unknown += 1
            told.append(line_of(unknown))
        return told

    def _join(self, at: int, wall: float, step: int, tag: str, value: float) -> list[bytes]:
        """Add a scalar. Tells what was joined before when this one does not belong to it."""
        aside, told = is_aside(tag), []
        if self._joined and (self._place[:2] != (step, aside) or tag in self._joined or len(self._joined) > VALUES_MAX):
            told = self._done()
        if not self._joined:
            self._joined_at = self._at + at
        self._joined[tag] = value
        self._place = step, aside, wall
        return told

    def _done(self) -> list[bytes]:
        joined, self._joined = self._joined, {}
        if not any(self._known.is_measured(tag) for tag in joined):
            return []
        self._unknown = UNKNOWN_TOLD_MAX  # It is known what this log is.
        step, _, wall = self._place
        return [line_of(joined | {"step": step, "timestamp": wall})]


def scalars_of(event: bytes) -> Scalars:
    """The scalars of an event, each of one value. NoMessageError for what is no event."""
    wall, step, values = 0.0, 0, list[tuple[str, float]]()
    for number, kind, value in fields(event):
        if (number, kind) == (1, FIXED64):
            wall = double(value)
        elif (number, kind) == (2, VARINT):
            step = signed(int(value)) if isinstance(value, int) else 0
        elif (number, kind) == (5, BYTES) and isinstance(value, bytes):
            for one, one_kind, told in fields(value):
                if (one, one_kind) == (1, BYTES) and isinstance(told, bytes) and len(values) < VALUES_MAX:
                    found = _value(told)
                    if found is not None:
                        values.append(found)
    return wall, step, values


def _value(value: bytes) -> tuple[str, float] | None:
    """Tag and number of a Summary.Value. None for pictures, histograms and texts."""
    tag, number = "", None
    for field, kind, found in fields(value):
        if (field, kind) == (1, BYTES):
            tag = text(found)
        elif (field, kind) == (2, FIXED32) and isinstance(found, bytes):
            (number,) = struct.unpack("<f", found)
        elif (field, kind) == (8, BYTES) and isinstance(found, bytes):
            number = scalar_of(found)
    return (tag[:NAME_CHARS_MAX], number) if tag and number is not None else None


_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, reflected (RFC 3720).
_MASK_DELTA: Final = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h


def _crc_table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return tuple(found)


_CRC_TABLE: Final = _crc_table()


def masked(data: bytes) -> int:
    """CRC-32C, masked as TFRecord stores it. Some 50 ns a byte."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
