"""Samples of weights: a NaN is found in each format and width, and what is made up costs nothing and says nothing."""

from __future__ import annotations

import json
import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from governor.adapters.trainers.weights_sample import Budget, nonfinite, storages

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


def torch_zip(path: Path, dtype: str, *raws: bytes) -> None:
    """As torch.save writes it: each storage is a member, and words that were said before come from the memo."""
    pickled = b"\x80\x02"
    for key, _ in enumerate(raws):
        kind = text(b"storage") + b"q\x00" if key == 0 else b"h\x00"
        storage = b"ctorch\n" + CLASSES[dtype] + b"\nq\x01" if key == 0 else b"h\x01"
        pickled += b"(" + kind + storage + text(str(key).encode()) + text(b"cpu") + b"M\x10\x00" + b"tq\x02Q0"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled + b"N.")
        for key, raw in enumerate(raws):
            archive.writestr(f"archive/data/{key}", raw)


def sampled(path: Path) -> str | None:
    return nonfinite(str(path.parent), [path.name], lambda: None)


@pytest.mark.parametrize("dtype", ONE)
def test_a_nan_or_an_infinity_is_found_and_named(tmp_path: Path, dtype: str) -> None:
    healthy = ONE[dtype] * COUNT
    for harm in (NAN, INF):
        harmed = ONE[dtype] * (COUNT - 1) + harm[dtype]
        safetensors(tmp_path / "model.safetensors", {"wte": (dtype, healthy), "lm_head": (dtype, harmed)})
        assert sampled(tmp_path / "model.safetensors") == "model.safetensors: lm_head"
        torch_zip(tmp_path / "state.pt", dtype, healthy, harmed)
        assert sampled(tmp_path / "state.pt") == "state.pt: storage 1"


@pytest.mark.parametrize("dtype", ONE)
def test_healthy_weights_masks_and_a_few_numbers_are_not_suspected(tmp_path: Path, dtype: str) -> None:
    tensors = (ONE[dtype] * COUNT, MINUS_INF[dtype] * COUNT, NAN[dtype] * 8)
    safetensors(tmp_path / "model.safetensors", {str(key): (dtype, raw) for key, raw in enumerate(tensors)})
    torch_zip(tmp_path / "state.pt", dtype, *tensors)
    assert sampled(tmp_path / "model.safetensors") is None
    assert sampled(tmp_path / "state.pt") is None


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"\xff" * 8, struct.pack("<Q", 40) + b"{", struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 53) + b'{"a": {"dtype": "F32", "data_offsets": [9, -9223372]}}',
        struct.pack("<Q", 2_000_000) + b"[" * 2_000_000, b"PK\x03\x04", b"PK\x05\x06" + bytes(18),
    ],
    ids=["empty", "endless", "torn", "list", "number", "backwards", "nested", "half a zip", "empty zip"],
)  # fmt: skip
def test_what_is_made_up_says_nothing(tmp_path: Path, raw: bytes) -> None:
    for name in ("a.safetensors", "a.pt", "a.bin"):
        (tmp_path / name).write_bytes(raw)
        assert sampled(tmp_path / name) is None


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "was_run"
    code = b"cos\nsystem\n(" + text(b"touch " + str(mark).encode()) + b"tR."
    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + code)
    assert sampled(tmp_path / "evil.pt") is None
    assert not mark.exists()


def test_its_time_is_bounded(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"bad": ("F32", NAN["F32"] * COUNT)})
    assert sampled(tmp_path / "model.safetensors") is not None
    assert nonfinite(str(tmp_path), ["model.safetensors"], lambda: None, time_s=-1.0) is None
    spent = Budget(lambda: None, until=time.monotonic() - 1)
    assert list(storages(b"\x80\x02" + b"0" * 100 + b".", spent)) == []
