"""Files with weights as frameworks write them, made without one."""

from __future__ import annotations

import json
import os
import select
import struct
import time
import zipfile
from pathlib import Path
from typing import Any

COUNT = 3000
ONE = {"F64": struct.pack("<d", 1.0), "F32": struct.pack("<f", 1.0), "BF16": b"\x80\x3f", "F16": b"\x00\x3c"}
NAN = {
    "F64": struct.pack("<d", float("nan")),
    "F32": struct.pack("<f", float("nan")),
    "BF16": b"\xc0\x7f",
    "F16": b"\x00\x7e",
}
INF = {
    "F64": struct.pack("<d", float("inf")),
    "F32": struct.pack("<f", float("inf")),
    "BF16": b"\x80\x7f",
    "F16": b"\x00\x7c",
}
MINUS_INF = {
    "F64": struct.pack("<d", float("-inf")), "F32": struct.pack("<f", float("-inf")),
    "BF16": b"\x80\xff", "F16": b"\x00\xfc",
}  # fmt: skip
CLASSES = {"F64": b"DoubleStorage", "F32": b"FloatStorage", "BF16": b"BFloat16Storage", "F16": b"HalfStorage"}


def hesitate(until: float) -> None:
    """As a disk does: nothing comes before this moment of the monotonic clock, and no processor is used."""
    reads, writes = os.pipe()
    try:
        while (left := until - time.monotonic()) > 0:
            select.select([reads], [], [], left)
    finally:
        os.close(reads)
        os.close(writes)


def safetensors(path: Path, tensors: dict[str, tuple[str, bytes]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, raw) in tensors.items():
        count = len(raw) // len(ONE.get(dtype, b"1"))
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def text(word: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word


def torch_zip(path: Path, dtype: str, *raws: bytes, protocol: int = 2, values: bytes = b"") -> None:
    """As torch.save writes it: each storage is a member, and words that were said before come from the memo.

    `values`: pickled before the tensors.
    """
    pickled = b"\x80\x02" if protocol < 4 else b"\x80\x04\x95" + struct.pack("<Q", 10_000)
    pickled += values
    for key, _ in enumerate(raws):
        kind = text(b"storage") + b"q\x00" if key == 0 else b"h\x00"
        storage = b"ctorch\n" + CLASSES[dtype] + b"\nq\x01" if key == 0 else b"h\x01"
        if protocol >= 4:
            storage = text(b"torch") + b"\x94" + text(CLASSES[dtype]) + b"\x94\x93\x94"
        pickled += b"(" + kind + storage + text(str(key).encode()) + text(b"cpu") + b"M\x10\x00" + b"tq\x02Q0"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled + b"N.")
        for key, raw in enumerate(raws):
            archive.writestr(f"archive/data/{key}", raw)


def with_zip64_end(raw: bytes) -> bytes:
    """As torch ends its zips, small ones too."""
    directory, end = raw[:-22], raw[-22:]
    count, size, offset = struct.unpack("<10xHII2x", end)
    long = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, size, offset)
    return directory + long + b"PK\x06\x07" + struct.pack("<IQI", 0, len(directory), 1) + end


def distcp(path: Path, dtype: str, *raws: bytes, between: bytes = b"") -> list[int]:
    """As torch.distributed.checkpoint writes it: a torch zip for each tensor. Returns where each begins."""
    begins = []
    file = b""
    for index, raw in enumerate(raws):
        torch_zip(path, dtype, raw)
        begins.append(len(file))
        file += with_zip64_end(path.read_bytes()) if index % 2 else path.read_bytes()
        file += between
    path.write_bytes(file)
    return begins


def distcp_safetensors(path: Path, dtype: str, *raws: bytes, items: int = 0) -> None:
    """As SerializationFormat.SAFETENSORS has it written: first what is no tensor, a torch zip for each."""
    safetensors(path, {f"w{number}": (dtype, raw) for number, raw in enumerate(raws)})
    tensors = path.read_bytes()
    if items:
        distcp(path, dtype, *[ONE[dtype]] * items)
        path.write_bytes(path.read_bytes() + tensors)


Places = dict[str, list[tuple[int, int]]]  # By file: offset and length of each item.


def dcp_metadata(places: Places, protocol: int = 4) -> bytes:
    """As torch pickles the Metadata of torch.distributed.checkpoint: words that were said before come from the memo."""
    memo: dict[bytes, int] = {}
    out = [b"\x80" + bytes([protocol])] + ([b"\x95" + bytes(8)] if protocol >= 4 else [])

    def keep(key: bytes) -> None:
        memo[key] = len(memo)
        out.append(b"\x94" if protocol >= 4 else b"r" + struct.pack("<I", memo[key]))

    def word(said: bytes) -> None:
        if said in memo:
            out.append(b"h" + bytes([memo[said]]) if memo[said] < 256 else b"j" + struct.pack("<I", memo[said]))
        else:
            out.append(b"\x8c" + bytes([len(said)]) + said if protocol >= 4 else text(said))
            keep(said)

    def begin(module: bytes, name: bytes) -> None:
        """An object, whose state follows."""
        module = b"torch.distributed.checkpoint." + module
        if protocol < 4:
            out.append(b"c" + module + b"\n" + name + b"\n")
        else:
            word(module)
            word(name)
            out.append(b"\x93")
        keep(b"class %d" % len(memo))
        out.append(b")\x81")
        keep(b"object %d" % len(memo))
        out.append(b"}")
        keep(b"state %d" % len(memo))
        out.append(b"(")

    def number(value: int) -> None:
        size = value.bit_length() // 8 + 1
        small = struct.pack("<BB", ord("K"), value) if 0 <= value < 256 else b""
        out.append(small or b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True))

    begin(b"metadata", b"Metadata")
    word(b"storage_data")
    out.append(b"}(")
    for file, its in places.items():
        for offset, length in its:
            begin(b"metadata", b"MetadataIndex")
            word(b"fqn")
            word(f"{file} {offset}".encode())
            word(b"offset")
            out.append(b"N")
            word(b"index")
            out.append(b"Nub")
            begin(b"filesystem", b"_StorageInfo")
            word(b"relative_path")
            word(file.encode())
            word(b"offset")
            number(offset)
            word(b"length")
            number(length)
            out.append(b"ub")
    return b"".join(out) + b"uub."


def dcp(directory: Path, files: dict[str, tuple[bytes, ...]]) -> Places:
    """A checkpoint of torch.distributed.checkpoint. Returns where its items lie."""
    places: Places = {}
    for name, raws in files.items():
        begins = distcp(directory / name, "F32", *raws)
        ends = [*begins[1:], (directory / name).stat().st_size]
        places[name] = [(begin, end - begin) for begin, end in zip(begins, ends, strict=True)]
    (directory / ".metadata").write_bytes(dcp_metadata(places))
    return places
