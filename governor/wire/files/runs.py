"""W&B's local log of a run, run-ID.wandb: records in the framing of LevelDB's log, each a protobuf message.

A file is blocks of 32 KiB. A block has pieces of records: a checksum, a length, and whether the piece is a whole
record, its first, a middle or its last one. So behind a damaged place reading goes on with the next block.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

from governor.wire.files.cutter import (
    HEAD_BYTES,
    NAME_CHARS_MAX,
    RECORD_BYTES_MAX,
    TEXT_CHARS_MAX,
    VALUES_MAX,
    Known,
    Read,
    line_of,
)
from governor.wire.files.protobuf import BYTES, FIXED64, VARINT, NoMessageError, double, fields, signed, text

_MAGIC: Final = b":W&B"
_BEGIN: Final = 7  # The magic, and a version that all releases since 2020 have written alike.
_BLOCK: Final = 32 * 1024
_PIECE: Final = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_JSON_BYTES_MAX: Final = 256  # Of a number. A larger value is a histogram or a table.
UNKNOWN_TOLD_MAX: Final = 1_000
# A power cut damages one. So many in a row are of another format, or of a version to come.
BLOCKS_LOST_MAX: Final = 4


class Runs:
    """`Cutter` of W&B's local logs. The SDK writes its file every 15 s, and after each 32 KiB."""

    head_bytes = HEAD_BYTES
    ahead = 0
    is_past = wants_begin = holds = False

    def __init__(self, known: Known) -> None:
        self.faulty = 0
        self.problem: str | None = None
        self._known = known
        self._buffer = b""
        self._at = 0  # Where the buffer begins in the file.
        self._record = b""  # Of the record that goes on in the next piece.
        self._record_at: int | None = None  # Where its first piece begins. None: outside of any record.
        self._is_dropped = False  # That record is too large, or a piece of it is lost.
        self._unknown = 0
        self._lost = 0  # Damaged blocks in a row.

    @property
    def behind(self) -> int:
        end = self._at + len(self._buffer)
        return end - (self._at if self._record_at is None else self._record_at)

    def begin(self, end: int, read: Read) -> int:
        """A record's begin is known in each block. The end may lie inside one."""
        self.anew()
        if end < _BEGIN or read(len(_MAGIC), 0) != _MAGIC:
            return 0
        self._at = max(_BEGIN, end // _BLOCK * _BLOCK)
        at = self._at
        while (length := self._length(read(_PIECE.size, at), at, end)) is not None:
            at += length
        self._at = at
        return at

    def _length(self, header: bytes, at: int, end: int) -> int | None:
        """Of a piece of history with its header. None for one that ends later."""
        left = _BLOCK - at % _BLOCK
        if left < _PIECE.size:
            return left if at + left <= end else None
        if len(header) < _PIECE.size:
            return None
        length = _PIECE.size + int(_PIECE.unpack(header)[1])
        return length if length <= left and at + length <= end else None

    def anew(self) -> None:
        self.problem = None
        self._buffer, self._at, self._unknown, self._lost = b"", 0, 0, 0
        self._forget()

    def _forget(self) -> None:
        self._record, self._record_at, self._is_dropped = b"", None, False

    def give(self, data: bytes) -> list[bytes]:
        self._buffer += data
        self.problem = None if self._lost < BLOCKS_LOST_MAX else self.problem
        if self._at == 0:
            if len(self._buffer) < _BEGIN:
                return []
            if not self._buffer.startswith(_MAGIC):
                self.problem = "no W&B log: it does not begin with :W&B"
                return []
            self._buffer, self._at = self._buffer[_BEGIN:], _BEGIN
        told: list[bytes] = []
        at, size = 0, len(self._buffer)
        while True:
            place = self._at + at
            left = _BLOCK - place % _BLOCK
            if left < _PIECE.size:  # Zeros up to the next block.
                if size - at < left:
                    break
                at += left
                continue
            if size - at < _PIECE.size:
                break
            checksum, length, kind = _PIECE.unpack_from(self._buffer, at)
            end = at + _PIECE.size + length
            piece = self._buffer[at + _PIECE.size : end]
            if length <= left - _PIECE.size and kind <= _LAST and end <= size and _checksum(kind, piece) == checksum:
                told += self._see(place, kind, piece)
                at, self._lost = end, 0
                continue
            # It may be on its way. Once the next block has begun, it is damaged, or was never filled.
            if size - at < left:
                break
            self.faulty += 1
            self._lost += 1
            self._is_dropped = self._record_at is not None
            if self._lost >= BLOCKS_LOST_MAX:
                self.problem = (
                    f"no W&B log that is understood: {BLOCKS_LOST_MAX} blocks in a row, up to byte {place}, are none"
                )
                break
            at += left
        self._buffer, self._at = self._buffer[at:], self._at + at
        return told

    def leave_out(self, count: int) -> None:
        assert count == 0

    def drop(self) -> int:
        count, self._buffer = len(self._buffer), b""
        return count

    def at_end(self, *, grew: bool) -> list[bytes]:
        return []

    def rest(self) -> list[bytes]:
        self.faulty += bool(self.behind)
        self.anew()
        return []

    def state(self) -> dict[str, Any]:
        return {"is_run": True}

    def go_on(self, offset: int, state: Mapping[str, Any], read: Read) -> int:
        if state.get("is_run") is not True:
            return self.begin(offset, read)
        self.anew()
        self._at = offset
        return offset

    def _see(self, place: int, kind: int, piece: bytes) -> list[bytes]:
        if kind in (_WHOLE, _FIRST):
            self._forget()
            self._record_at = place
        elif self._record_at is None:
            return []  # Of a record that began in history, or in a block that is lost.
        if len(self._record) + len(piece) > RECORD_BYTES_MAX:
            self._record, self._is_dropped = b"", True
        if not self._is_dropped:
            self._record += piece
        elif place - self._record_at > RECORD_BYTES_MAX:
            self._record_at = place  # Who goes on from here finds no begin of it, and leaves it out, too.
        if kind not in (_WHOLE, _LAST):
            return []
        record, is_dropped = self._record, self._is_dropped
        self._forget()
        return [] if is_dropped else self._told(record)

    def _told(self, record: bytes) -> list[bytes]:
        try:
            items = history_of(record)
        except NoMessageError:
            self.faulty += 1
            return []
        if items is None:
            return []
        if any(self._known.is_measured(name) for name in items):
            self._unknown = UNKNOWN_TOLD_MAX  # It is known what this log is.
            return [line_of(items)]
        # What is not known has no step, so a log of it alone is not taken for training.
        unknown = {name: value for name, value in items.items() if not self._known.is_kept(name)}
        if not unknown or self._unknown >= UNKNOWN_TOLD_MAX:
            return []
        self._unknown += 1
        return [line_of(unknown)]


def _checksum(kind: int, piece: bytes) -> int:
    return zlib.crc32(piece, zlib.crc32(bytes((kind,))))


def history_of(record: bytes) -> dict[str, Any] | None:
    """The values of a row of the history that are numbers or short texts. None for another record. NoMessageError."""
    for number, kind, value in fields(record):
        if (number, kind) == (2, BYTES) and isinstance(value, bytes):
            found: dict[str, Any] = {}
            for field, field_kind, item in fields(value):
                if (field, field_kind) == (1, BYTES) and isinstance(item, bytes) and len(found) < VALUES_MAX:
                    name, read = _item(item)
                    if name and read is not None:
                        found[name[:NAME_CHARS_MAX]] = read
                elif (field, field_kind) == (2, BYTES) and isinstance(item, bytes):
                    step = next((signed(one) for _, _, one in fields(item) if isinstance(one, int)), 0)
                    found.setdefault("_step", step)
            return found
    return None


def _item(item: bytes) -> tuple[str, Any]:
    """The name and value of a HistoryItem, of the releases that write JSON and of those that write types."""
    name, path = "", list[str]()
    read: Any = None
    for number, kind, value in fields(item):
        if number == 1:
            name = text(value)
        elif number == 2 and len(path) < VALUES_MAX:
            path.append(text(value))
        elif number == 4 and kind == VARINT:
            read = bool(value)
        elif number == 5 and isinstance(value, int):
            read = (value >> 1) ^ -(value & 1)  # A sint64.
        elif (number, kind) == (6, FIXED64):
            read = double(value)
        elif number == 7 and isinstance(value, bytes) and len(value) <= TEXT_CHARS_MAX:
            read = text(value)
        elif number in (8, 16) and isinstance(value, bytes) and len(value) <= _JSON_BYTES_MAX:
            read = _json(value)
    return name or ".".join(path), read


def _json(value: bytes) -> float | str | bool | None:
    try:
        read = json.loads(value)  # The stdlib's reads bare NaN and Infinity.
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, int | float | str) and (not isinstance(read, int) or abs(read) < 2**63) else None
