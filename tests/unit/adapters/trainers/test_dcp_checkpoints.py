"""Checkpoints of torch.distributed.checkpoint: what their .metadata names is there in full length, or they are torn.

As the look for a named one, the halt's own and resume() see them, by files made without torch.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from governor.adapters.trainers.checkpoint_reader import FindAnswer
from tests.unit.adapters.trainers.test_named_checkpoints import commit, find, look
from tests.unit.shim.weights_files import (
    COUNT,
    MINUS_INF,
    NAN,
    ONE,
    dcp,
    dcp_metadata,
    distcp,
    distcp_safetensors,
    safetensors,
)  # fmt: skip
from trainer_shim.saving import checkpoint
from trainer_shim.saving.resuming import harm_of

RAW = ONE["F32"] * COUNT
WHOLE = FindAnswer(True, "is there")


def torn(path: Path) -> str | None:
    """What all three say, the manifest being of what is there now."""
    (path / checkpoint.MANIFEST).unlink(missing_ok=True)
    found = find(path).torn
    listed = {"path": str(path), "step": 9}
    harms = {harm_of(listed, rank, 2) for rank in range(2)} - {None}
    assert harms == ({f"not whole: {found}"} if found else set())
    commit(path)
    assert (look(path).whole, find(path).torn) == (found is None, found)
    assert found is None or look(path).reason == found
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """By two ranks, of which each has a part, and a number beside each moment."""
    of_rank = (ONE["F32"], RAW, ONE["F32"], RAW)
    dcp(tmp_path, {"__0_0.distcp": of_rank, "__1_0.distcp": of_rank})
    return tmp_path


def test_a_whole_one_is_whole(saved: Path) -> None:
    assert torn(saved) is None
    assert (find(saved), look(saved).unsampled) == (WHOLE, None)


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_file_that_is_cut_between_two_of_its_zips_is_torn(tmp_path: Path, number: int) -> None:
    places = dcp(tmp_path, {"__0_0.distcp": (RAW,), "__1_0.distcp": (ONE["F32"], RAW, ONE["F32"], RAW)})
    begin = places["__1_0.distcp"][number][0]
    size = (tmp_path / "__1_0.distcp").stat().st_size
    os.truncate(tmp_path / "__1_0.distcp", begin)
    assert torn(tmp_path) == f"__1_0.distcp has {begin} bytes of the {size} that .metadata names"


def test_a_file_that_is_missing_is_torn(saved: Path) -> None:
    (saved / "__1_0.distcp").unlink()
    assert torn(saved) == "__1_0.distcp is missing, which .metadata names"
    (saved / "__0_0.distcp").unlink()
    assert torn(saved) == "__0_0.distcp is missing, which .metadata names", "and all of them"
    (saved / "__0_0.distcp").mkdir()
    assert torn(saved) == "__0_0.distcp is no file, which .metadata names"


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("__1_0.distcp", "__1_0.distcp is missing, which .metadata names"),
        (".metadata", ".metadata is missing beside __0_0.distcp"),
    ],
)
def test_what_is_linked_is_there_if_its_contents_are(
    saved: Path, tmp_path_factory: pytest.TempPathFactory, name: str, missing: str
) -> None:
    blob = tmp_path_factory.mktemp("blobs") / "1"
    (saved / name).rename(blob)
    (saved / name).symlink_to(blob)
    assert torn(saved) is None
    blob.unlink()
    assert torn(saved) == missing


@pytest.mark.parametrize("raw", [b"", b"\x80\x04}.", b"{}", dcp_metadata({"../x": [(0, 9)]})])
def test_an_index_that_cannot_be_read_is_named_and_tears_nothing(saved: Path, raw: bytes) -> None:
    (saved / ".metadata").write_bytes(raw)
    (saved / "__1_0.distcp").unlink()
    assert torn(saved) is None
    assert (find(saved).unsampled, look(saved).unsampled) == (".metadata", ".metadata")
    (saved / ".metadata").write_bytes(bytes(100_000))
    assert find(saved).torn == f".metadata has 100000 bytes instead of {len(raw)}"
    (saved / checkpoint.MANIFEST).unlink()
    assert find(saved).unsampled == ".metadata", "no bytes of weights that nobody looked into"


def test_the_index_of_a_small_model_is_not_most_of_its_bytes_that_nobody_looked_into(tmp_path: Path) -> None:
    distcp(tmp_path / "__0_0.distcp", "F32", ONE["F32"] * 100)
    (tmp_path / ".metadata").write_bytes(dcp_metadata({"__0_0.distcp": [(0, 9)] * 200}))
    assert (torn(tmp_path), find(tmp_path)) == (None, WHOLE)


def test_what_is_called_so_beside_other_weights_is_none_of_ours(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", RAW)})
    (tmp_path / ".metadata").write_text("{}")
    assert (torn(tmp_path), find(tmp_path)) == (None, WHOLE)


def test_what_another_save_has_left_in_the_same_place_tears_nothing(saved: Path) -> None:
    distcp(saved / "__2_0.distcp", "F32", RAW)
    os.truncate(saved / "__2_0.distcp", 5_000)
    (saved / "__3_0.distcp").touch()
    assert torn(saved) is None
    assert find(saved).unsampled == "__2_0.distcp, __3_0.distcp"
    (saved / ".metadata").unlink()
    assert torn(saved) == ".metadata is missing beside __0_0.distcp"
    (saved / checkpoint.MANIFEST).unlink()
    (saved / "__0_0.distcp").unlink()
    assert find(saved).torn == "__2_0.distcp ends in one of its zips", "nothing says that it is of another one"


def test_without_its_index_none_of_it_can_be_read(saved: Path) -> None:
    """It is written last: a save that was interrupted has none."""
    (saved / ".metadata").unlink()
    assert torn(saved) == ".metadata is missing beside __0_0.distcp"
    (saved / "pytorch_model_fsdp_0").mkdir()
    for name in ("__0_0.distcp", "__1_0.distcp"):
        (saved / name).rename(saved / "pytorch_model_fsdp_0" / name)
    assert torn(saved) == "pytorch_model_fsdp_0/.metadata is missing beside __0_0.distcp"


def test_of_ranks_that_save_alone_each_has_its_index(saved: Path) -> None:
    """As use_collectives=False has it."""
    for rank in range(2):
        (saved / f"__{rank}.metadata").write_bytes((saved / ".metadata").read_bytes())
    (saved / ".metadata").unlink()
    assert torn(saved) is None
    (saved / "__1.metadata").unlink()
    assert torn(saved) == "__1.metadata is missing beside __1_0.distcp"
    (saved / "__0.metadata").unlink()
    assert torn(saved) == ".metadata is missing beside __0_0.distcp"


def test_a_node_with_a_disk_of_its_own_need_not_have_the_index(tmp_path: Path) -> None:
    """Rank 0 writes it. What the node has is looked into all the same."""
    path = tmp_path / "__1_0.distcp"
    distcp(path, "F32", RAW, RAW)
    assert (find(tmp_path), torn(tmp_path)) == (FindAnswer(True, "is there", unsampled=".metadata"), None)
    (tmp_path / checkpoint.MANIFEST).unlink()
    os.truncate(path, path.stat().st_size * 6 // 10)
    assert find(tmp_path).torn == "__1_0.distcp ends in one of its zips"
    os.truncate(path, 0)
    assert find(tmp_path).torn == "__1_0.distcp is empty"


def test_more_bytes_than_are_named_are_no_harm(saved: Path) -> None:
    """Such as safetensors have: their header is in no item."""
    with (saved / "__1_0.distcp").open("ab") as file:
        file.write(b"PK\x03\x04" + bytes(70_000))
    assert torn(saved) is None


# --- SerializationFormat.SAFETENSORS ---


@pytest.mark.parametrize("items", [0, 1, 9])
@pytest.mark.parametrize("count", [100, 30_000], ids=["small", "large"])
@pytest.mark.parametrize("has_metadata", [True, False])
def test_safetensors_in_a_distcp_file_are_looked_into(
    tmp_path: Path, items: int, count: int, has_metadata: bool
) -> None:
    path = tmp_path / ("__0_0.distcp" if has_metadata else "__1_0.distcp")  # A rank's of another node.
    distcp_safetensors(path, "F32", ONE["F32"] * count, MINUS_INF["F32"] * count, items=items)
    size = path.stat().st_size
    if has_metadata:  # As it is written: each tensor begins where safetensors do.
        begin = path.read_bytes().rfind(b'{"__metadata__') - 8
        (tmp_path / ".metadata").write_bytes(dcp_metadata({path.name: [(begin, 4 * count), (begin, 4 * count)]}))
    assert (torn(tmp_path), find(tmp_path)) == (None, WHOLE if has_metadata else WHOLE._replace(unsampled=".metadata"))
    os.truncate(path, size - 1)
    assert torn(tmp_path) == f"{path.name} has {size - 1} bytes instead of {size}"
    distcp_safetensors(path, "F32", ONE["F32"] * count, NAN["F32"] * count, items=items)
    (tmp_path / checkpoint.MANIFEST).unlink()
    assert find(tmp_path).nonfinite == f"{path.name}: w1"


def test_safetensors_under_their_own_name_that_dcp_names_must_be_there(tmp_path: Path) -> None:
    for rank in range(2):
        safetensors(tmp_path / f"shard-{rank}.safetensors", {"w": ("F32", RAW)})
    places = {f"shard-{rank}.safetensors": [(0, 4 * COUNT)] for rank in range(2)}
    (tmp_path / ".metadata").write_bytes(dcp_metadata(places))
    assert (torn(tmp_path), find(tmp_path)) == (None, WHOLE)
    (tmp_path / "shard-1.safetensors").unlink()
    assert torn(tmp_path) == "shard-1.safetensors is missing, which .metadata names"


def test_what_stands_before_safetensors_too_far_from_them_is_not_torn(tmp_path: Path) -> None:
    """And a length of a header that no file has is none."""
    path = tmp_path / "__0_0.distcp"
    distcp(path, "F32", RAW)
    raw = path.read_bytes() + struct.pack("<Q", 1 << 40) + b'{"a"' + bytes(100_000)
    path.write_bytes(raw)
    (tmp_path / ".metadata").write_bytes(dcp_metadata({path.name: [(0, len(raw))]}))
    assert (torn(tmp_path), find(tmp_path).unsampled) == (None, "most of its bytes: __0_0.distcp")


# --- nodes that have a directory each ---


def test_what_other_nodes_have_is_compared_by_the_manifest_alone(saved: Path) -> None:
    commit(saved)
    manifest = json.loads((saved / checkpoint.MANIFEST).read_text())
    entry = next(one for one in manifest["files"] if one["path"] == "__1_0.distcp")
    entry["node"] = "another"
    (saved / "__1_0.distcp").unlink()
    (saved / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    assert (find(saved), look(saved).whole) == (WHOLE, True)
    entry["bytes"] -= 1
    (saved / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    assert str(find(saved).torn).startswith("__1_0.distcp has ")
    assert look(saved).whole is False
