"""The fields of a protobuf message. The few messages that we read need no schema, and no library in the daemon."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
_VARINT_BYTES_MAX: Final = 10
_FIXED: Final = {FIXED64: 8, FIXED32: 4}

Field = tuple[int, int, int | bytes]  # Number, wire type, value: an int for VARINT, the bytes of all others.


class NoMessageError(ValueError):
    """The bytes are no message."""


def fields(message: bytes) -> Iterator[Field]:
    """The fields in their order, one after the other, so that as much is read as is wanted. NoMessageError."""
    at, size = 0, len(message)
    while at < size:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise NoMessageError("a field without a number")
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = _varint(message, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise NoMessageError(f"wire type {kind}")
        if length > size - at:
            raise NoMessageError("a field beyond its message")
        yield number, kind, message[at : at + length]
        at += length


def signed(value: int) -> int:
    """An int64 from its varint."""
    return value - 2**64 if value >= 2**63 else value


def varints(packed: bytes) -> Iterator[int]:
    """The numbers of a packed field. NoMessageError."""
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at)
        yield value


def double(value: int | bytes) -> float:
    """Of a FIXED64 field. NoMessageError for another one."""
    if not isinstance(value, bytes) or len(value) != 8:
        raise NoMessageError("no double")
    return float(struct.unpack("<d", value)[0])


def text(value: int | bytes) -> str:
    if not isinstance(value, bytes):
        raise NoMessageError("no text")
    return value.decode("utf-8", "replace")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_VARINT_BYTES_MAX):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise NoMessageError("a number that does not end")
