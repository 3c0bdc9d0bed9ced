"""The number in a TensorProto of one element, as TensorFlow 2, Keras and JAX write scalars."""

from __future__ import annotations

import struct
from typing import Final

from governor.wire.files.protobuf import BYTES, FIXED32, FIXED64, VARINT, fields, signed, varints

_BFLOAT16: Final = 14
_HALF: Final = 19
_UINT64: Final = 23
# TensorFlow's DataType -> how its bytes are read. Of other types (texts, complex numbers) no trainer logs a loss.
_FORMATS: Final = {
    1: "<f", 2: "<d", 3: "<i", 4: "<B", 5: "<h", 6: "<b", 9: "<q", _BFLOAT16: "<H", 17: "<H", _HALF: "<e", 22: "<I",
    _UINT64: "<Q",
}  # fmt: skip
_CONTENT: Final = 4
# The fields that hold an element by its type: float_val, double_val, int_val, int64_val, half_val, uint32_val,
# uint64_val.
_FLOATS: Final = {5: ("<f", FIXED32), 6: ("<d", FIXED64)}
_INTEGERS: Final = frozenset((7, 10, 13, 16, 17))


def scalar_of(tensor: bytes) -> float | None:
    """The tensor's only element. None for more elements or another type. NoMessageError."""
    kind, number, element = 0, None, None
    for field, wire_type, value in fields(tensor):
        if (field, wire_type) == (1, VARINT) and isinstance(value, int):
            kind = value
        elif field == 2 and isinstance(value, bytes) and not _is_of_one(value):
            return None
        elif field == _CONTENT and isinstance(value, bytes):
            number = _content(kind, value)
        elif field in _FLOATS and isinstance(value, bytes):
            form = _FLOATS[field][0]
            if len(value) == struct.calcsize(form):  # Packed or not, one element has as many bytes.
                (number,) = struct.unpack(form, value)
        elif field in _INTEGERS:
            found = [value] if isinstance(value, int) else list(varints(value[:16])) if wire_type == BYTES else []
            element = found[0] if len(found) == 1 else None
    if number is None and element is not None and kind in _FORMATS:
        if kind in (_BFLOAT16, _HALF):
            return _of_bits(kind, element)
        return float(element if kind == _UINT64 else signed(element))
    return number if kind in _FORMATS else None


def _is_of_one(shape: bytes) -> bool:
    for field, kind, dim in fields(shape):
        if (field, kind) == (2, BYTES) and isinstance(dim, bytes):
            size = next((value for number, _, value in fields(dim) if number == 1), 0)
            if size != 1:
                return False
    return True


def _content(kind: int, value: bytes) -> float | None:
    form = _FORMATS.get(kind)
    if form is None or len(value) != struct.calcsize(form):
        return None
    (number,) = struct.unpack(form, value)
    return _of_bits(kind, number) if kind == _BFLOAT16 else float(number)


def _of_bits(kind: int, bits: int) -> float:
    """A bfloat16 is the upper half of a float."""
    packed = struct.pack("<I", (bits & 0xFFFF) << 16) if kind == _BFLOAT16 else struct.pack("<H", bits & 0xFFFF)
    return float(struct.unpack("<f" if kind == _BFLOAT16 else "<e", packed)[0])
