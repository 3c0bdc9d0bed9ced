"""TensorBoard: one event file in DIR/RUN, written here. Neither TensorBoard nor torch is needed for it.

Figures are scalars by step, with the wall time at which they were told. Events are texts, of the tag `events/NAME`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from governor.core.base.units import NS_PER_S
from governor.exports.form import Of, Written
from governor.exports.owned import OwnFiles, own_files
from governor.exports.series import Happened, Item, Point
from governor.wire.files.events import masked
from governor.wire.files.protobuf import BYTES, FIXED32, FIXED64, VARINT

NAME: Final = "tensorboard"
TARGET: Final = "DIR"
MEANING: Final = "An event file in DIR/RUN, for `tensorboard --logdir DIR`."

# TensorBoard looks for this in a name. The same name each time: an export takes the place of the one before.
FILE: Final = "events.out.tfevents.0000000000.costgov"
_VERSION: Final = "brain.Event:2"  # Of every event file's first event.
_DT_STRING: Final = 7
_FLOAT32_MAX: Final = 3.4028234e38


class EventFile:
    """`forms.Form`."""

    def __init__(self, own: OwnFiles) -> None:
        self._own = own
        self._is_begun = False

    def put(self, item: Item) -> None:
        wall = item.wall / NS_PER_S
        if not self._is_begun:
            self._is_begun = True
            self._frame(_double(1, wall) + _bytes(3, _VERSION.encode()))
        if item.step is None:
            return
        if isinstance(item, Happened):
            values = _bytes(1, _text(f"events/{item.name}", item.text))
        else:
            told = item.values if isinstance(item, Point) else item.values()
            values = b"".join(_bytes(1, _scalar(name, value)) for name, value in told.items())
        if values:
            self._frame(_double(1, wall) + _number(2, item.step) + _bytes(5, values))

    def _frame(self, event: bytes) -> None:
        head = struct.pack("<Q", len(event))
        checks = (struct.pack("<I", masked(part)) for part in (head, event))
        self._own.files[FILE].write(b"".join((head, next(checks), event, next(checks))))

    def finish(self, summary: Mapping[str, Any]) -> Written:
        return self._own.commit()


def _scalar(tag: str, value: float) -> bytes:
    """Summary.Value with a simple_value. A float32 has no larger numbers than its largest."""
    is_beyond = abs(value) > _FLOAT32_MAX
    told = float("inf") * (1 if value > 0 else -1) if is_beyond else value
    return _bytes(1, tag.encode()) + _varint(2 << 3 | FIXED32) + struct.pack("<f", told)


def _text(tag: str, text: str) -> bytes:
    """Summary.Value of the text plugin: a tensor of one string, and the plugin's name."""
    tensor = _number(1, _DT_STRING) + _bytes(2, _bytes(2, _number(1, 1))) + _bytes(8, text.encode("utf-8", "replace"))
    plugin = _bytes(1, _bytes(1, b"text"))
    return _bytes(1, tag.encode("utf-8", "replace")) + _bytes(8, tensor) + _bytes(9, plugin)


def _bytes(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(data)) + data


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | FIXED64) + struct.pack("<d", value)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    assert value >= 0
    told = bytearray()
    while value > 0x7F:
        told.append(value & 0x7F | 0x80)
        value >>= 7
    told.append(value)
    return bytes(told)


@contextmanager
def open(target: str, of: Of) -> Iterator[EventFile]:  # noqa: A001 - what every form calls it.
    with own_files(Path(target, of.run), of.run, (FILE,)) as own:
        yield EventFile(own)
