"""Files with weights as frameworks write them: which tensors are where, by their names, sizes and numbers alone.

Nothing is unpickled and no library is asked: of a safetensors file the header is read, of a torch zip the directory and
the opcodes of data.pkl, which name the type of each storage. A .distcp file is torch zips one after another; where each
begins stands at its end. One that ends before its contents do is torn (TornError).
"""

from __future__ import annotations

import io
import json
import os
import pickletools
import re
import struct
import time
import zipfile
from typing import IO, Any, Callable, Dict, Final, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .manifest import TornError

PICKLE_BYTES_MAX: Final = 64 << 20  # Of words, counters and names. Those of 18,000 experts have 8 MiB.
# Of samples as many again. From a disk that gives 50 MB/s: no longer than the sizes of a large manifest take.
READ_BYTES_MAX: Final = (64 << 20) + PICKLE_BYTES_MAX
TENSORS_PER_FILE_MAX: Final = 64
HEADER_BYTES_MAX: Final = 8 << 20  # The format allows 100 MB. 100,000 tensors have 8.
ITEMS_BYTES_MAX: Final = 1 << 20  # Before the safetensors of a .distcp file: 800 items that are no tensors.
DIRECTORY_BYTES_MAX: Final = 8 << 20  # Of a zip: 100,000 storages.
ARCHIVES_MAX: Final = 16_384  # In one .distcp file. A rank of a model of 70B parameters writes 3,000.
NUMBER_BYTES_MAX: Final = 2048  # A zip of torch with one number has 1,577; one with 64 of the widest has 2,089.
GAP_BYTES_MAX: Final = 1 << 16  # Between two archives: something else that was written, and is not looked into.
# Width, exponent, and negative infinity, which is no harm: masks that some models keep are filled with it.
BITS: Final = {
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
_MEMBER: Final = b"PK\x03\x04"  # How each member of a zip begins, and so the zip.
_END: Final = struct.Struct("<4s8xIIH")  # Of a zip: signature, size and offset of its directory, length of a comment.
_END_64: Final = struct.Struct("<4s36xQQ")


class UnusableError(Exception):
    """The file is not what its name says, or larger than is read. It says nothing about the weights."""


# What reading made-up files raises. RuntimeError: zipfile's for what is encrypted or unknown to it, and deep JSON.
# ArithmeticError: an offset beyond every integer of the kernel's.
MADE_UP: Final = (
    UnusableError, OSError, ValueError, ArithmeticError, TypeError, LookupError, AttributeError, EOFError, RuntimeError,
    zipfile.BadZipFile, struct.error,
)  # fmt: skip


class Piece(NamedTuple):
    """One tensor, or one storage of several: where its bytes are. Of a dtype that BITS has not: not to be sampled."""

    name: str
    dtype: str
    begin: int
    size: int


class Budget:
    """What a look at one checkpoint may cost."""

    def __init__(self, step: Callable[[], None], until: float, tensors_per_file: int = TENSORS_PER_FILE_MAX) -> None:
        self._step = step
        self.until = until
        self.tensors_per_file = tensors_per_file
        self._bytes_left = READ_BYTES_MAX

    @property
    def is_spent(self) -> bool:
        return self._bytes_left <= 0 or time.monotonic() > self.until

    def read(self, file: IO[bytes], begin: int, size: int) -> bytes:
        self._step()
        self._bytes_left -= size
        return os.pread(file.fileno(), size, begin)


def width_of(piece: Piece) -> int:
    return struct.calcsize(BITS[piece.dtype][0])


def spread(items: Sequence[Any], most: int) -> Sequence[Any]:
    """At most so many, over the whole length: first and last layers differ."""
    if len(items) <= most:
        return items
    return [items[index * (len(items) - 1) // (most - 1)] for index in range(most)]


# --- safetensors: eight bytes of length, a header in JSON, the data ------------------------------------------------


def _of_safetensors(file: IO[bytes], budget: Budget, start: int = 0) -> Iterator[Piece]:
    size = os.fstat(file.fileno()).st_size
    head = budget.read(file, start, 8)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
    data = start + 8 + length
    if data > size:
        raise TornError("ends in its header")
    if length > HEADER_BYTES_MAX:
        raise UnusableError
    needed = 0
    for name, tensor in _header(budget.read(file, start + 8, length)).items():
        if name == "__metadata__":
            continue
        try:
            dtype, (begin, end) = tensor["dtype"], (int(offset) for offset in tensor["data_offsets"])
        except (ValueError, TypeError, LookupError) as error:
            raise TornError(_UNREADABLE) from error
        needed = max(needed, end)
        if 0 <= begin <= end:
            yield Piece(str(name), str(dtype), data + begin, end - begin)
    if data + needed > size:
        raise TornError("has %d bytes instead of %d" % (size, data + needed))


_UNREADABLE: Final = "has a header that cannot be read"


def _header(raw: bytes) -> Dict[str, Any]:
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise TornError(_UNREADABLE) from error
    if not isinstance(header, dict):
        raise TornError(_UNREADABLE)
    return header


# --- torch.save: a zip whose data.pkl names the storages, each a member as it lies in memory -----------------------


class Part(io.RawIOBase):
    """The bytes from `begin` to `end` of a file, as a file of their own."""

    def __init__(self, file: IO[bytes], begin: int, end: int, budget: Budget) -> None:
        super().__init__()
        self._file, self._begin, self._size, self._budget = file, begin, end - begin, budget
        self._at = 0
        self.read_max = DIRECTORY_BYTES_MAX

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
        if wanted > self.read_max:
            raise UnusableError  # Nothing that is read whole is that long.
        found = self._budget.read(self._file, self._begin + self._at, wanted)
        self._at += len(found)
        return found


_ELSEWHERE: Final = "is a zip whose contents are not where they should be"


def _of_torch(file: IO[bytes], budget: Budget) -> Iterator[Piece]:
    try:
        yield from _of_archive(file, 0, os.fstat(file.fileno()).st_size, budget)
    except zipfile.BadZipFile as error:
        if budget.read(file, 0, 4) != _MEMBER:
            raise  # Of older torch, or of something else.
        raise TornError("is a zip that ends too early") from error


def _of_archive(file: IO[bytes], start: int, end: int, budget: Budget) -> Iterator[Piece]:
    part = Part(file, start, end, budget)
    with zipfile.ZipFile(part) as archive:
        members = {member.filename: member for member in archive.infolist()}
        if any(member.header_offset + member.compress_size > end - start for member in members.values()):
            raise TornError("is a zip that ends too early")
        pickled = _pickled(archive)
        root = pickled.filename[: -len(_PICKLE)]
        opcodes = _read_whole(archive, pickled, part)
        blind = sum(member.file_size for member in members.values()) - pickled.file_size
        for key, dtype in dict(storages(opcodes, budget)).items():
            member = members.get("%sdata/%s" % (root, key))
            if member is not None and member.compress_type == zipfile.ZIP_STORED:
                header = budget.read(file, start + member.header_offset, 30)
                if header[:4] != _MEMBER:
                    raise TornError(_ELSEWHERE)
                begin = start + member.header_offset + 30 + sum(_LOCAL_HEADER.unpack(header))
                yield Piece("the tensor that is data/%s in it" % key, dtype, begin, member.file_size)
                blind -= member.file_size
        yield Piece("other members", "", start, max(0, blind))


_PICKLE: Final = "data.pkl"


def _pickled(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    member = next((one for one in archive.infolist() if one.filename.endswith(_PICKLE)), None)
    if member is None or member.file_size > PICKLE_BYTES_MAX or member.compress_type != zipfile.ZIP_STORED:
        raise UnusableError
    if member.CRC == 0:  # torch was told to compute none: set_crc32_options(False).
        del member.CRC
    return member


def _read_whole(archive: zipfile.ZipFile, member: zipfile.ZipInfo, part: Part) -> bytes:
    part.read_max = PICKLE_BYTES_MAX
    try:
        return archive.read(member)
    except zipfile.BadZipFile as error:
        raise TornError(_ELSEWHERE) from error


def pickle_in(file: IO[bytes], budget: Budget) -> bytes:
    """The pickle in a file of torch. Raises one of MADE_UP, or TornError."""
    part = Part(file, 0, os.fstat(file.fileno()).st_size, budget)
    with zipfile.ZipFile(part) as archive:
        return _read_whole(archive, _pickled(archive), part)


_PUT, _GET = rb"(?:q.|r.{4})", rb"(?:h.|j.{4})"
# As torch has pickled the persistent id of a storage from its first zips on. A class is told once, and then got.
_STORAGE: Final = re.compile(
    rb"\((?:X\x07\0\0\0storage" + _PUT + rb"|" + _GET + rb")"
    rb"(?:c(torch)\n(\w+)\n(" + _PUT + rb")|(" + _GET + rb"))X[\x01-\x14]\0\0\0(\d{1,20})",
    re.DOTALL,
)


def storages(pickled: bytes, budget: Budget) -> Iterator[Tuple[str, str]]:
    """Key and dtype of each storage that a pickle names. Nothing of it is run.

    A storage is the persistent id ("storage", its class, its key, its device, its length). Of the protocol that torch
    writes it is looked for as it stands: opcode by opcode two seconds are over after 4 MB.
    """
    if not pickled.startswith(b"\x80\x02"):
        yield from _storages_by_opcodes(pickled, budget)
        return
    told: Dict[bytes, str] = {}
    for match in _STORAGE.finditer(pickled):
        if budget.is_spent:
            return
        module, name, put, got, key = match.groups()
        if name is not None:
            told[put[1:]] = "%s %s" % (module.decode(), name.decode())
        dtype = _STORAGES.get(told.get(put[1:] if got is None else got[1:], ""))
        if dtype is not None:
            yield key.decode(), dtype


def _storages_by_opcodes(pickled: bytes, budget: Budget) -> Iterator[Tuple[str, str]]:
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
        elif name == "STACK_GLOBAL":  # Protocol 4: the module and the class were pushed before.
            pushed[-2:] = ["%s %s" % tuple(pushed[-2:])] if len(pushed) > 1 else [None]
        elif name == "BINPERSID":
            # A tuple is pushed last, as None: what it was made of comes before.
            kind, storage, key, _, _ = pushed[-6:-1]
            if kind == "storage" and storage in _STORAGES and isinstance(key, str):
                yield key, _STORAGES[str(storage)]
            pushed = [None]
        elif name not in ("MARK", "PROTO", "STOP", "FRAME"):
            pushed.append(argument)
        if len(pushed) > 16:
            del pushed[:-8]


# --- torch.distributed.checkpoint: such zips one after another, or safetensors after those of what is no tensor ------


CUT_IN_A_ZIP: Final = "ends in one of its zips"


def of_distcp(file: IO[bytes], budget: Budget) -> Iterator[Piece]:
    archives = _archives(file, budget)
    last = archives[-1][1] if archives else 0
    start = _safetensors_in(file, budget, last)
    if start is not None:
        yield from _of_safetensors(file, budget, start)
        return
    if len(archives) > budget.tensors_per_file:
        # A third or more are step counts. What is larger is a weight, or what its optimizer knows of it.
        archives = [archive for archive in archives if archive[1] - archive[0] > NUMBER_BYTES_MAX] or archives
    for begin, end in spread(archives, budget.tensors_per_file):
        try:
            for piece in _of_archive(file, begin, end, budget):
                yield piece._replace(name="archive at byte %d" % begin)
        except TornError as error:  # What looks like an archive may be none.
            raise UnusableError from error
    if not budget.is_spent and budget.read(file, last, 4) == _MEMBER:
        raise TornError(CUT_IN_A_ZIP)


# After the end of a zip or at once: the length of a header, and how it begins.
_SAFETENSORS: Final = re.compile(rb"(?:\A|PK\x05\x06.{16}\0\0)(.{4}\0{4}\{\")", re.DOTALL)


def _safetensors_in(file: IO[bytes], budget: Budget, last: int) -> Optional[int]:
    """Where in a .distcp file safetensors begin. `last`: 0 where no zip was found from the end, as one before them."""
    found = _SAFETENSORS.search(budget.read(file, last, 16 if last else ITEMS_BYTES_MAX))
    return None if found is None else last + found.start(1)


def _archives(file: IO[bytes], budget: Budget) -> List[Tuple[int, int]]:
    """Where each zip begins and ends. From the end of the file on: what a zip holds, and how long it is, it says last.

    It takes half of the time that is left: the rest is for a look into them. The last is looked for in any case: a file
    that ends with one is whole, however late it is.
    """
    found: List[Tuple[int, int]] = []
    until = (time.monotonic() + budget.until) / 2
    end = os.fstat(file.fileno()).st_size
    while end > _END.size and len(found) < ARCHIVES_MAX and (not found or time.monotonic() < until):
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


PIECES_OF: Final[Dict[str, Callable[[IO[bytes], Budget], Iterator[Piece]]]] = {
    ".safetensors": _of_safetensors,
    ".pt": _of_torch,
    ".pth": _of_torch,
    ".bin": _of_torch,
    ".ckpt": _of_torch,
    ".distcp": of_distcp,
}
