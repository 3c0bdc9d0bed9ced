"""Files with weights as frameworks write them, made without one."""

from __future__ import annotations

import json
import struct
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


def safetensors(path: Path, tensors: dict[str, tuple[str, bytes]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [len(raw)], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def text(word: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word


def torch_zip(path: Path, dtype: str, *raws: bytes, protocol: int = 2) -> None:
    """As torch.save writes it: each storage is a member, and words that were said before come from the memo."""
    pickled = b"\x80\x02" if protocol < 4 else b"\x80\x04\x95" + struct.pack("<Q", 10_000)
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
