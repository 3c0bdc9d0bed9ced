"""Samples of a checkpoint's weights: does any hold NaN? For the process that reads it (checkpoint_reader).

Nothing is unpickled and no library is asked: of a safetensors file the header is read, of a torch zip the directory and
the opcodes of data.pkl, which name the type of each storage. Other files are not looked into. A sample proves harm, not
health: a NaN spreads over all weights within a step or two, so that a few kilobytes of some tensors show it.
"""

from __future__ import annotations

import json
import os
import pickletools
import struct
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

# Of a disk that gives 50 MB/s: no longer than the sizes of a large manifest take.
READ_BYTES_MAX: Final = 64 << 20
TIME_MAX_S: Final = 2.0
FILES_MAX: Final = 64
TENSORS_PER_FILE_MAX: Final = 64
SAMPLE_BYTES: Final = 4096
HEADER_BYTES_MAX: Final = 8 << 20  # The format allows 100 MB. 100,000 tensors have 8.
PICKLE_BYTES_MAX: Final = 8 << 20
# Counters, scales and the best loss so far are no weights, and some of them begin as NaN.
ELEMENTS_MIN: Final = 64
# Width, exponent, and negative infinity, which is no harm: masks that some models keep are filled with it.
_BITS: Final = {
    "F64": ("Q", 0x7FF0000000000000, 0xFFF0000000000000),
    "F32": ("I", 0x7F800000, 0xFF800000),
    "BF16": ("H", 0x7F80, 0xFF80),
    "F16": ("H", 0x7C00, 0xFC00),
}
_STORAGES: Final = {
    "torch DoubleStorage": "F64",
    "torch FloatStorage": "F32",
    "torch BFloat16Storage": "BF16",
    "torch HalfStorage": "F16",
}
_LOCAL_HEADER: Final = struct.Struct("<26xHH")  # Lengths of the name and of the extra field.


class UnusableError(Exception):
    """The file is not what its name says, or larger than is read. It says nothing about the weights."""


# What reading made-up files raises. RuntimeError: zipfile's for what is encrypted or unknown to it, and deep JSON.
_MADE_UP: Final = (
    UnusableError, OSError, ValueError, TypeError, LookupError, AttributeError, EOFError, RuntimeError,
    zipfile.BadZipFile, struct.error,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor, or one storage of several: where its bytes are."""

    name: str
    dtype: str
    begin: int
    size: int


@dataclass(slots=True)
class Budget:
    step: Callable[[], None]
    until: float
    bytes_left: int = READ_BYTES_MAX

    @property
    def is_spent(self) -> bool:
        return self.bytes_left <= 0 or time.monotonic() > self.until

    def read(self, file: IO[bytes], begin: int, size: int) -> bytes:
        self.step()
        self.bytes_left -= size
        return os.pread(file.fileno(), size, begin)


def nonfinite(path: str, names: Sequence[str], step: Callable[[], None], time_s: float = TIME_MAX_S) -> str | None:
    """The first sampled tensor with a NaN or an infinity, as "FILE: TENSOR". None: none was seen. Never raises."""
    budget = Budget(step, until=time.monotonic() + time_s)
    wanted = [name for name in names if name.endswith(tuple(_PIECES_OF))]
    for name in _spread(wanted, FILES_MAX):
        pieces_of = next(read for ending, read in _PIECES_OF.items() if name.endswith(ending))
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(os.path.join(path, name), flags), "rb", buffering=0) as file:
                large = [piece for piece in pieces_of(file, budget) if piece.size >= ELEMENTS_MIN * _width(piece)]
                for piece in _spread(large, TENSORS_PER_FILE_MAX):
                    if budget.is_spent:
                        return None
                    if _is_harmed(file, piece, budget):
                        return f"{name}: {piece.name}"
        except _MADE_UP:
            continue  # Cut short, or not what its name says. Sizes and hashes are the judges of that.
        except MemoryError:
            return None
    return None


def _width(piece: Piece) -> int:
    return struct.calcsize(_BITS[piece.dtype][0])


def _spread(items: Sequence[Any], most: int) -> Sequence[Any]:
    """At most so many, over the whole length: first and last layers differ."""
    if len(items) <= most:
        return items
    return [items[index * (len(items) - 1) // (most - 1)] for index in range(most)]


def _is_harmed(file: IO[bytes], piece: Piece, budget: Budget) -> bool:
    code, exponent, negative_infinity = _BITS[piece.dtype]
    width = _width(piece)
    last = max(0, piece.size - SAMPLE_BYTES) // width * width
    for offset in sorted({0, last // 2 // width * width, last}):
        raw = budget.read(file, piece.begin + offset, min(SAMPLE_BYTES, piece.size - offset))
        values = struct.unpack(f"<{len(raw) // width}{code}", raw[: len(raw) // width * width])
        if any(value & exponent == exponent and value != negative_infinity for value in values):
            return True
    return False


# --- safetensors: eight bytes of length, a header in JSON, the data ------------------------------------------------


def _of_safetensors(file: IO[bytes], budget: Budget) -> Iterator[Piece]:
    (length,) = struct.unpack("<Q", budget.read(file, 0, 8))
    if length > HEADER_BYTES_MAX:
        raise UnusableError
    header = json.loads(budget.read(file, 8, length))
    for name, tensor in header.items():
        if tensor.get("dtype") in _BITS:
            begin, end = (int(offset) for offset in tensor["data_offsets"])
            if 0 <= begin <= end:
                yield Piece(str(name), tensor["dtype"], 8 + length + begin, end - begin)


# --- torch.save: a zip whose data.pkl names the storages, each a member as it lies in memory -----------------------


def _of_torch(file: IO[bytes], budget: Budget) -> Iterator[Piece]:
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        pickled = next((name for name in members if name.endswith("data.pkl")), None)
        if (
            pickled is None
            or members[pickled].file_size > PICKLE_BYTES_MAX
            or members[pickled].compress_type != zipfile.ZIP_STORED
        ):
            raise UnusableError
        root = pickled[: -len("data.pkl")]
        for key, dtype in storages(archive.read(pickled), budget):
            member = members.get(f"{root}data/{key}")
            if member is not None and member.compress_type == zipfile.ZIP_STORED:
                header = budget.read(file, member.header_offset, 30)
                begin = member.header_offset + 30 + sum(_LOCAL_HEADER.unpack(header))
                yield Piece(f"storage {key}", dtype, begin, member.file_size)


def storages(pickled: bytes, budget: Budget) -> Iterator[tuple[str, str]]:
    """Key and dtype of each storage that a pickle names. It is read as opcodes: nothing of it is run.

    A storage is the persistent id ("storage", its class, its key, its device, its length).
    """
    memo: dict[object, object] = {}
    pushed: list[object] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if budget.is_spent:
            return
        name = opcode.name
        if name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = pushed[-1] if pushed else None
        elif name == "MEMOIZE":
            memo[len(memo)] = pushed[-1] if pushed else None
        elif name in ("BINGET", "LONG_BINGET"):
            pushed.append(memo.get(argument))
        elif name == "BINPERSID":
            # A tuple is pushed last, as None: what it was made of comes before.
            kind, storage, key, _, _ = pushed[-6:-1]
            if kind == "storage" and storage in _STORAGES and isinstance(key, str):
                yield key, _STORAGES[str(storage)]
            pushed = [None]
        elif name not in ("MARK", "PROTO", "STOP"):
            pushed.append(argument)
        if len(pushed) > 16:
            del pushed[:-8]


_PIECES_OF: Final[dict[str, Callable[[IO[bytes], Budget], Iterator[Piece]]]] = {
    ".safetensors": _of_safetensors,
    ".pt": _of_torch,
    ".pth": _of_torch,
    ".bin": _of_torch,
}
