"""Samples of a checkpoint's weights: does any hold NaN? For the governor's reader, and before the shim resumes.

Nothing is unpickled and no library is asked: of a safetensors file the header is read, of a torch zip the directory and
the opcodes of data.pkl, which name the type of each storage. A .distcp file is torch zips one after another; where each
begins stands at its end. Other files are not looked into. A sample proves harm, not health: a NaN spreads over all
weights within a step or two, so that a few kilobytes of some tensors show it.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickletools
import struct
import time
import zipfile
from typing import IO, Any, Callable, Dict, Final, Iterator, List, NamedTuple, Optional, Sequence, Tuple

# Of a disk that gives 50 MB/s: no longer than the sizes of a large manifest take.
READ_BYTES_MAX: Final = 64 << 20
TIME_MAX_S: Final = 2.0
FILES_MAX: Final = 64
TENSORS_PER_FILE_MAX: Final = 64
SAMPLES_PER_FILE: Final = 3 * TENSORS_PER_FILE_MAX
SAMPLE_BYTES: Final = 4096
HEADER_BYTES_MAX: Final = 8 << 20  # The format allows 100 MB. 100,000 tensors have 8.
PICKLE_BYTES_MAX: Final = 8 << 20
DIRECTORY_BYTES_MAX: Final = 8 << 20  # Of a zip: 100,000 storages.
ARCHIVES_MAX: Final = 16_384  # In one .distcp file. A rank of a model of 70B parameters writes 3,000.
OVERHEAD_BYTES: Final = 1 << 16  # Names, shapes and the zip of a file with few weights.
GAP_BYTES_MAX: Final = 1 << 16  # Between two archives: something else that was written, and is not looked into.
# Counters, scales and the best loss so far are no weights, and some of them begin as NaN.
ELEMENTS_MIN: Final = 64
# Width, exponent, and negative infinity, which is no harm: masks that some models keep are filled with it.
_BITS: Final = {
    "F64": ("Q", 0x7FF0000000000000, 0xFFF0000000000000),
    "F32": ("I", 0x7F800000, 0xFF800000),
    "BF16": ("H", 0x7F80, 0xFF80),
    "F16": ("H", 0x7C00, 0xFC00),
}
_FLOATS: Final = {"F64": "d", "F32": "f", "BF16": "f", "F16": "e"}  # BF16 is the upper half of an F32.
_STORAGES: Final = {
    "torch DoubleStorage": "F64",
    "torch FloatStorage": "F32",
    "torch BFloat16Storage": "BF16",
    "torch HalfStorage": "F16",
}
_LOCAL_HEADER: Final = struct.Struct("<26xHH")  # Lengths of the name and of the extra field.
_END: Final = struct.Struct("<4s8xIIH")  # Of a zip: signature, size and offset of its directory, length of a comment.
_END_64: Final = struct.Struct("<4s36xQQ")
_LOCATOR_64: Final = struct.Struct("<4s16x")


class UnusableError(Exception):
    """The file is not what its name says, or larger than is read. It says nothing about the weights."""


# What reading made-up files raises. RuntimeError: zipfile's for what is encrypted or unknown to it, and deep JSON.
# ArithmeticError: an offset beyond every integer of the kernel's.
_MADE_UP: Final = (
    UnusableError, OSError, ValueError, ArithmeticError, TypeError, LookupError, AttributeError, EOFError, RuntimeError,
    zipfile.BadZipFile, struct.error,
)  # fmt: skip


class Piece(NamedTuple):
    """One tensor, or one storage of several: where its bytes are."""

    name: str
    dtype: str
    begin: int
    size: int


class Sampled(NamedTuple):
    """What samples of some files have shown."""

    harm: Optional[str]  # The first tensor with a NaN or an infinity, as "FILE: TENSOR". None: none was seen.
    unsampled: Optional[str]  # What was not looked into, where that is too much. None: most bytes are in sampled files.


class Budget:
    """What a look at one checkpoint may cost."""

    def __init__(self, step: Callable[[], None], until: float) -> None:
        self._step = step
        self.until = until
        self._bytes_left = READ_BYTES_MAX

    @property
    def is_spent(self) -> bool:
        return self._bytes_left <= 0 or time.monotonic() > self.until

    def read(self, file: IO[bytes], begin: int, size: int) -> bytes:
        self._step()
        self._bytes_left -= size
        return os.pread(file.fileno(), size, begin)


def nonfinite(path: str, names: Sequence[str], step: Callable[[], None], time_s: float = TIME_MAX_S) -> Optional[str]:
    """The first sampled tensor with a NaN or an infinity, as "FILE: TENSOR". None: none was seen. Never raises."""
    return _harm(path, _wanted(names), Budget(step, until=time.monotonic() + time_s), [])


def sample(
    path: str, sizes: Sequence[Tuple[str, int]], step: Callable[[], None], time_s: float = TIME_MAX_S
) -> Sampled:
    """As nonfinite(), and whether enough was looked into. `sizes`: names and bytes of the files. Never raises."""
    budget = Budget(step, until=time.monotonic() + time_s)
    wanted = _wanted([name for name, _ in sizes])
    looked: List[str] = []
    harm = _harm(path, wanted, budget, looked)
    if harm is not None or not wanted:
        return Sampled(harm, None if harm else "no file of a format that is sampled")
    if budget.is_spent and len(looked) < len(wanted):
        return Sampled(None, "%d of %d files in the time and the bytes of a look" % (len(looked), len(wanted)))
    # Of very many files of one format some stand for the others.
    left = set(sizes) - {(name, size) for name, size in sizes if name in looked or _is_known(name)}
    left |= {(name, size) for name, size in sizes if name in wanted and name not in looked}
    if sum(size for _, size in left) > sum(size for name, size in sizes if name in looked):
        return Sampled(None, "most of its bytes: %s" % max(left, key=lambda one: one[1])[0])
    return Sampled(None, None)


def _wanted(names: Sequence[str]) -> Sequence[str]:
    return _spread([name for name in names if _is_known(name)], FILES_MAX)


def _is_known(name: str) -> bool:
    return name.endswith(tuple(_PIECES_OF))


def _harm(path: str, wanted: Sequence[str], budget: Budget, looked: List[str]) -> Optional[str]:
    """Sample the files. `looked` takes those most of which can be sampled, and was."""
    for name in wanted:
        pieces_of = next(read for ending, read in _PIECES_OF.items() if name.endswith(ending))
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(os.path.join(path, name), flags), "rb", buffering=0) as file:
                large = [piece for piece in pieces_of(file, budget) if piece.size >= ELEMENTS_MIN * _width(piece)]
                chosen = _spread(large, TENSORS_PER_FILE_MAX)
                for piece in chosen:
                    if budget.is_spent:
                        return None
                    if _is_harmed(file, piece, SAMPLES_PER_FILE // len(chosen), budget):
                        return "%s: %s" % (name, piece.name)
                # The pieces of a .distcp file are those of some of its archives.
                known = 2 * sum(piece.size for piece in large) + OVERHEAD_BYTES
                if chosen and (pieces_of is _of_distcp or known >= os.fstat(file.fileno()).st_size):
                    looked.append(name)
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


def _is_harmed(file: IO[bytes], piece: Piece, samples: int, budget: Budget) -> bool:
    """Look at the beginning, the end, and evenly between: a flat partition of ZeRO is the whole model in one piece."""
    code, exponent, negative_infinity = _BITS[piece.dtype]
    width = _width(piece)
    last = max(0, piece.size - SAMPLE_BYTES) // width * width
    for offset in sorted({last * index // (samples - 1) // width * width for index in range(samples)}):
        raw = budget.read(file, piece.begin + offset, min(SAMPLE_BYTES, piece.size - offset))
        raw = raw[: len(raw) // width * width]
        if math.isfinite(_sum(raw, piece.dtype)):
            continue  # One that is not finite would make the sum so.
        values = struct.unpack("<%d%s" % (len(raw) // width, code), raw)
        if any(value & exponent == exponent and value != negative_infinity for value in values):
            return True
    return False


def _sum(raw: bytes, dtype: str) -> float:
    if dtype == "BF16":
        widened = bytearray(2 * len(raw))
        widened[2::4], widened[3::4] = raw[0::2], raw[1::2]
        raw = bytes(widened)
    code = _FLOATS[dtype]
    return float(sum(struct.unpack("<%d%s" % (len(raw) // struct.calcsize("<" + code), code), raw)))


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


class Part(io.RawIOBase):
    """The bytes from `begin` to `end` of a file, as a file of their own."""

    def __init__(self, file: IO[bytes], begin: int, end: int, budget: Budget) -> None:
        super().__init__()
        self._file, self._begin, self._size, self._budget = file, begin, end - begin, budget
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence] + offset
        if at < 0:
            raise ValueError("before the beginning")
        self._at = at
        return at

    def read(self, size: Optional[int] = -1) -> bytes:
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > DIRECTORY_BYTES_MAX:
            raise UnusableError  # Nothing that is read whole is that long.
        found = self._budget.read(self._file, self._begin + self._at, wanted)
        self._at += len(found)
        return found


def _of_torch(file: IO[bytes], budget: Budget) -> Iterator[Piece]:
    return _of_archive(file, 0, os.fstat(file.fileno()).st_size, budget)


def _of_archive(file: IO[bytes], start: int, end: int, budget: Budget) -> Iterator[Piece]:
    with zipfile.ZipFile(Part(file, start, end, budget)) as archive:
        members = {member.filename: member for member in archive.infolist()}
        pickled = next((name for name in members if name.endswith("data.pkl")), None)
        if (
            pickled is None
            or members[pickled].file_size > PICKLE_BYTES_MAX
            or members[pickled].compress_type != zipfile.ZIP_STORED
        ):
            raise UnusableError
        root = pickled[: -len("data.pkl")]
        for key, dtype in dict(storages(archive.read(pickled), budget)).items():
            member = members.get("%sdata/%s" % (root, key))
            if member is not None and member.compress_type == zipfile.ZIP_STORED:
                header = budget.read(file, start + member.header_offset, 30)
                begin = start + member.header_offset + 30 + sum(_LOCAL_HEADER.unpack(header))
                yield Piece("the tensor that is data/%s in it" % key, dtype, begin, member.file_size)


def storages(pickled: bytes, budget: Budget) -> Iterator[Tuple[str, str]]:
    """Key and dtype of each storage that a pickle names. It is read as opcodes: nothing of it is run.

    A storage is the persistent id ("storage", its class, its key, its device, its length).
    """
    memo: Dict[object, object] = {}
    pushed: List[object] = []
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


# --- torch.distributed.checkpoint: such zips one after another, whose index is a pickle that we do not read ---------


def _of_distcp(file: IO[bytes], budget: Budget) -> Iterator[Piece]:
    archives = _archives(file, budget)
    if len(archives) > TENSORS_PER_FILE_MAX:
        # A third are step counts. Of the larger half each is a weight, or what its optimizer knows of it.
        median = sorted(end - begin for begin, end in archives)[len(archives) // 2]
        archives = [archive for archive in archives if archive[1] - archive[0] >= median]
    for begin, end in _spread(archives, TENSORS_PER_FILE_MAX):
        for piece in _of_archive(file, begin, end, budget):
            yield piece._replace(name="archive at byte %d" % begin)


def _archives(file: IO[bytes], budget: Budget) -> List[Tuple[int, int]]:
    """Where each zip begins and ends. From the end of the file on: what a zip holds, and how long it is, it says last.

    It takes half of the time that is left: the rest is for a look into them.
    """
    found: List[Tuple[int, int]] = []
    until = (time.monotonic() + budget.until) / 2
    end = os.fstat(file.fileno()).st_size
    while end > _END.size and len(found) < ARCHIVES_MAX and time.monotonic() < until:
        archive = _last_archive(file, end, 128, budget) or _last_archive(file, end, GAP_BYTES_MAX, budget)
        if archive is None:
            break
        found.append(archive)
        end = archive[0]
    return found[::-1]


def _last_archive(file: IO[bytes], end: int, length: int, budget: Budget) -> Optional[Tuple[int, int]]:
    """The last zip whose end record is in the `length` bytes before `end`."""
    tail = budget.read(file, max(0, end - length), min(length, end))
    at = tail.rfind(b"PK\x05\x06", 0, max(0, len(tail) - _END.size + 4))
    if at < 0:
        return None
    _, size, offset, comment = _END.unpack_from(tail, at)
    directory_end = at
    if at >= 76 and tail[at - 20 : at - 16] == b"PK\x06\x07":
        signature, size, offset = _END_64.unpack_from(tail, at - 76)
        directory_end = at - 76
        if signature != b"PK\x06\x06":
            return None
    position = end - len(tail)
    begin = position + directory_end - size - offset
    return (begin, position + at + _END.size + comment) if 0 <= begin < position + at else None


_PIECES_OF: Final[Dict[str, Callable[[IO[bytes], Budget], Iterator[Piece]]]] = {
    ".safetensors": _of_safetensors,
    ".pt": _of_torch,
    ".pth": _of_torch,
    ".bin": _of_torch,
    ".ckpt": _of_torch,
    ".distcp": _of_distcp,
}
