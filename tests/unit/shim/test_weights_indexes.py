"""The .metadata of torch.distributed.checkpoint is read as opcodes: what it names must be there; nothing of it runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.unit.shim.weights_files import COUNT, ONE, Places, dcp_metadata, hesitate, safetensors, text
from trainer_shim.saving.weights_indexes import METADATA_BYTES_MAX, OPCODES_PER_STEP, Stored, indexed, needed, stored
from trainer_shim.saving.weights_sample import sample

# What torch 2.13 has written for {"w": torch.ones(80), "step": 3}.
OF_TORCH = (
    b"\x80\x04\x95z\x03\x00\x00\x00\x00\x00\x00\x8c%torch.distributed.checkpoint.metadata\x94"
    b"\x8c\x08Metadata\x94\x93\x94)\x81\x94}\x94(\x8c\x13state_dict_metadata\x94}\x94(\x8c\x01w\x94h\x00"
    b"\x8c\x15TensorStorageMetadata\x94\x93\x94)\x81\x94}\x94(\x8c\nproperties\x94h\x00"
    b"\x8c\x10TensorProperties\x94\x93\x94)\x81\x94(\x8c\x05torch\x94\x8c\x07float32\x94\x93\x94"
    b"\x8c\x13torch.serialization\x94\x8c\x0b_get_layout\x94\x93\x94\x8c\rtorch.strided\x94\x85\x94R\x94\x89h\x00"
    b"\x8c\x14_MEM_FORMAT_ENCODING\x94\x93\x94K\x00\x85\x94R\x94\x89t\x94b\x8c\x04size\x94\x8c\x05torch\x94"
    b"\x8c\x04Size\x94\x93\x94KP\x85\x94\x85\x94R\x94\x8c\x06chunks\x94]\x94h\x00"
    b"\x8c\x14ChunkStorageMetadata\x94\x93\x94)\x81\x94}\x94(\x8c\x07offsets\x94h!K\x00\x85\x94\x85\x94R\x94"
    b"\x8c\x05sizes\x94h!KP\x85\x94\x85\x94R\x94ubaub\x8c\x04step\x94h\x00"
    b"\x8c\x14BytesStorageMetadata\x94\x93\x94)\x81\x94u"
    b"\x8c\x0cplanner_data\x94}\x94(h\x07h\x07\x85\x94h3h3\x85\x94u\x8c\x0cstorage_data\x94}\x94(h\x00"
    b"\x8c\rMetadataIndex\x94\x93\x94)\x81\x94}\x94(\x8c\x03fqn\x94h3\x8c\x05index\x94Nub"
    b"\x8c'torch.distributed.checkpoint.filesystem\x94\x8c\x0c_StorageInfo\x94\x93\x94)\x81\x94}\x94("
    b"\x8c\rrelative_path\x94\x8c\x0c__0_0.distcp\x94\x8c\x06offset\x94K\x00"
    b"\x8c\x06length\x94M\xed\x04ubh>)\x81\x94}\x94(hAh\x07hBK\x00hJh!K\x00\x85\x94\x85\x94R\x94ub"
    b"hE)\x81\x94}\x94(hHhIhJM\xed\x04hKMi\x07ubu"
    b"\x8c\x0cstorage_meta\x94h\x00\x8c\x0bStorageMeta\x94\x93\x94)\x81\x94}\x94(\x8c\rcheckpoint_id\x94"
    b"\x8c\x07pathlib\x94\x8c\tPosixPath\x94\x93\x94\x8c\x04tiny\x94\x85\x94R\x94\x8c\x07save_id\x94"
    b"\x8c$140ec1b9-495c-4f70-a903-710323b7391b\x94\x8c\x07load_id\x94N\x8c\x07modules\x94]\x94ub"
    b"\x8c\x07version\x94\x8c\x051.0.0\x94ub."
)
ITEM = text(b"offset") + b"K\x00" + text(b"length") + b"K\x09"
PLACES: Places = {"__0_0.distcp": [(0, 200), (200, 5 << 32)], "__1_0.distcp": [(300, 7), (0, 300)]}
NEEDED = {"__0_0.distcp": 200 + (5 << 32), "__1_0.distcp": 307}


def quick() -> float:
    return time.monotonic() + 3_600


def told(directory: Path, sizes: dict[str, int]) -> Stored:
    return stored(str(directory), sorted(sizes.items()), lambda: None, 3_600.0)


def test_the_last_byte_of_each_file_is_known() -> None:
    assert needed(OF_TORCH, lambda: None, quick()) == {"__0_0.distcp": 0x4ED + 0x769}
    framed = OF_TORCH.replace(b"\x8c\x06length", b"\x95" + bytes(8) + b"\x8c\x06length")
    assert needed(framed, lambda: None, quick()) == {"__0_0.distcp": 0x4ED + 0x769}, "a long one has many frames"
    for protocol in (2, 3, 4, 5):
        assert needed(dcp_metadata(PLACES, protocol), lambda: None, quick()) == NEEDED
    many = {f"__{rank}_0.distcp": [(rank, 300)] for rank in range(200)}
    assert needed(dcp_metadata(many), lambda: None, quick()) == {
        f"__{rank}_0.distcp": rank + 300 for rank in range(200)
    }


@pytest.mark.parametrize("protocol", [2, 4])
def test_one_that_is_cut_anywhere_says_nothing(tmp_path: Path, protocol: int) -> None:
    whole = dcp_metadata(PLACES, protocol)
    for length in {*range(0, len(whole), 23), len(whole) - 1}:
        (tmp_path / ".metadata").write_bytes(whole[:length])
        assert told(tmp_path, {".metadata": length}) == Stored(set(), set(), [".metadata"], set(), None)


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"\x80\x04}.",
        dcp_metadata({}),
        dcp_metadata({"../../etc/passwd": [(0, 9)]}),
        dcp_metadata({"/etc/passwd": [(0, 9)]}),
        dcp_metadata({"a": [(-1, 9)]}),
        dcp_metadata({"a": [(0, -9)]}),
        dcp_metadata({"a": [(1 << 63, 9)]}),
        OF_TORCH.replace(b"\x06offset", b"\x06offsex"),
        OF_TORCH.replace(b"K\x00\x8c\x06length", b"N\x8c\x06length"),
        OF_TORCH.replace(b"\x03fqn", b"\rrelative_path"),
        b"\x80\x02}(" + text(b"relative_path") + text(b"a") + text(b"relative_path") + text(b"b") + ITEM + b"u.",
        b"\x80\x02}(" + text(b"relative_path") + text(b"a") + ITEM + text(b"relative_path") + b"u.",
        b"\x80\x04X\xff\xff\xff\xff.",
        b"\x80\x04\x8d" + b"\xff" * 8 + b".",
        b"r\xff\xff\xff\x7f" * 9 + b".",
        b"I" + b"9" * 5000 + b"\n.",
    ],
    ids=[
        "json", "empty", "no item", "above", "absolute", "before the file", "backwards", "beyond disks", "other fields",
        "no offset", "words alone", "half an item", "half an item at last",
        "a long word", "a longer word", "a long memo", "a long number",
    ],
)  # fmt: skip
def test_what_is_no_index_of_dcp_says_nothing(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(raw)
    assert told(tmp_path, {".metadata": len(raw)}) == Stored(set(), set(), [".metadata"], set(), None)


def test_nothing_of_it_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "was_run"
    raw = dcp_metadata({"a": [(0, 9)]}, 2)[:-1] + b"0cos\nsystem\n(" + text(b"touch " + str(mark).encode()) + b"tR."
    (tmp_path / ".metadata").write_bytes(raw)
    assert told(tmp_path, {".metadata": len(raw)}).torn == "a is missing, which .metadata names"
    assert not mark.exists()


def test_its_time_and_its_bytes_are_bounded(tmp_path: Path) -> None:
    raw = dcp_metadata(PLACES)
    assert needed(raw, lambda: None, time.monotonic() - 1) is None
    steps: list[int] = []
    many = dcp_metadata({f"__{rank}_0.distcp": [(0, 300)] for rank in range(1000)})
    needed(many, lambda: steps.append(1), quick())
    assert len(steps) > len(many) // (16 * OPCODES_PER_STEP), "the governor hears that its reader gets on"
    (tmp_path / ".metadata").write_bytes(raw)
    os.truncate(tmp_path / ".metadata", METADATA_BYTES_MAX)
    assert not told(tmp_path, {".metadata": METADATA_BYTES_MAX}).unread
    os.truncate(tmp_path / ".metadata", METADATA_BYTES_MAX + 1)
    assert told(tmp_path, {".metadata": METADATA_BYTES_MAX + 1}).unread == [".metadata"]


def test_what_it_names_is_looked_for_beside_it(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".metadata").write_bytes(dcp_metadata({"__0_0.distcp": [(0, 9)], "__1_0.distcp": [(0, 9)]}))
    sizes = {"model/.metadata": 1, "model/__0_0.distcp": 9, "model/__1_0.distcp": 10}
    names = {"model/__0_0.distcp", "model/__1_0.distcp"}
    assert told(tmp_path, sizes) == Stored(names, {"model/.metadata"}, [], {"model"}, None)
    short = told(tmp_path, {**sizes, "model/__1_0.distcp": 8})
    assert short.torn == "model/__1_0.distcp has 8 bytes of the 9 that model/.metadata names"
    del sizes["model/__1_0.distcp"]
    assert told(tmp_path, sizes).torn == "model/__1_0.distcp is missing, which model/.metadata names"
    (tmp_path / "model" / "__1_0.distcp").write_bytes(bytes(9))
    assert told(tmp_path, sizes).torn is None, "nobody has listed it, and it is there"
    (tmp_path / "model" / "__1_0.distcp").write_bytes(bytes(8))
    assert str(told(tmp_path, sizes).torn).startswith("model/__1_0.distcp has 8 bytes")


def test_ranks_that_save_alone_have_one_each_which_counts_where_none_is_of_all(tmp_path: Path) -> None:
    sizes = {"__0.metadata": 1, "__1.metadata": 1, "__0_0.distcp": 9, "__1_0.distcp": 3}
    for rank in range(2):
        (tmp_path / f"__{rank}.metadata").write_bytes(dcp_metadata({f"__{rank}_0.distcp": [(0, 9)]}))
    assert told(tmp_path, sizes).torn == "__1_0.distcp has 3 bytes of the 9 that __1.metadata names"
    (tmp_path / ".metadata").write_bytes(dcp_metadata({"__1_0.distcp": [(0, 3)]}))
    assert told(tmp_path, {**sizes, ".metadata": 1}).torn is None, "a later save to the same place"


def test_json_indexes_are_read_no_longer_than_a_look_may_take(tmp_path: Path) -> None:
    """Forty of 7 MB took fifteen seconds."""
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", ONE["F32"] * COUNT)})
    for name in "abcde":
        (tmp_path / f"{name}.index.json").write_text(json.dumps({"weight_map": {"w": "model.safetensors"}}))
    sizes = [(one.name, one.stat().st_size) for one in sorted(tmp_path.iterdir())]
    names = [name for name, _ in sizes]
    assert indexed(str(tmp_path), names, lambda: None, 3_600.0) == ({"model.safetensors"}, None, [])
    until = time.monotonic() + 1.1
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 5:  # The third takes very long.
            hesitate(until)

    found = indexed(str(tmp_path), names, step, 1.0)
    assert found == ({"model.safetensors"}, None, ["c.index.json", "d.index.json", "e.index.json"])
    steps, until = 0, time.monotonic() + 1.1
    seen = sample(str(tmp_path), sizes, step, 1.0)
    assert (seen.harm, seen.torn, seen.unsampled) == (None, None, "c.index.json, d.index.json, e.index.json")
