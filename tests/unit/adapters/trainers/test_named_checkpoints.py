"""Whether a checkpoint that was named as good is still there, and what samples of its weights show: by real files."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from governor.adapters.trainers import checkpoint_reader
from governor.adapters.trainers.checkpoint_reader import Answer, FindAnswer, Progress
from governor.adapters.trainers.checkpoints import DiskCheckpoints
from tests.opened import opened_in
from tests.unit.shim.test_checkpoint import written
from tests.unit.shim.test_resuming import Loader
from tests.unit.shim.weights_files import COUNT, NAN, ONE, dcp, distcp, safetensors, text, torch_zip
from trainer_shim.saving import checkpoint
from trainer_shim.saving.manifest import TornError, open_regular
from trainer_shim.saving.resuming import harm_of, resume_at
from trainer_shim.saving.store import MemoryStore


def find(path: Path) -> FindAnswer:
    with open(os.devnull, "wb") as nowhere:
        return checkpoint_reader.find(str(path), Progress(nowhere.fileno()))


def look(path: Path) -> Answer:
    with open(os.devnull, "wb") as nowhere:
        return checkpoint_reader.look(str(path), Progress(nowhere.fileno()))


def commit(path: Path) -> None:
    """Write the manifest of what is there now, whatever that is."""
    far_ns = time.monotonic_ns() + 3_600 * 10**9
    parts = checkpoint.secure(str(path), 0, 1, 0, 1, far_ns)
    checkpoint.commit(str(path), parts, {"step": 5, "kind": "good", "world_size": 1}, move_latest=False)


def test_a_checkpoint_is_there_gone_or_not_to_be_seen(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    assert find(path).there is True
    (path / checkpoint.MANIFEST).unlink()
    assert find(path) == FindAnswer(False, "has lost its manifest")
    other = tmp_path / "checkpoint-20"
    assert find(other) == FindAnswer(False, "is no longer there")
    assert find(tmp_path / "mount" / "checkpoint-20") == FindAnswer(None, "not visible here")
    for path in ("a\0b", "\ud800"):
        assert find(tmp_path / path) == FindAnswer(None, "its path names no file")
    other.mkdir()
    assert find(other) == FindAnswer(False, "is empty")
    safetensors(other / "model.safetensors", {"w": ("F32", ONE["F32"] * COUNT)})
    assert find(other) == FindAnswer(True, "is there"), "a framework's own has no manifest of ours"
    single = tmp_path / "epoch=0-step=30.ckpt"
    single.touch()
    assert find(single) == FindAnswer(False, "is empty")
    single.write_text("weights")
    assert find(single) == FindAnswer(True, "is there", unsampled="most of its bytes: epoch=0-step=30.ckpt"), (
        "Lightning's are single files"
    )
    found = DiskCheckpoints().find([str(tmp_path / "checkpoint-30"), str(other), "/"], uid=os.getuid(), gid=None)
    assert [(look.there, look.reason) for look in found] == [(False, "is no longer there"), (True, "is there")]


def own(directory: Path, kind: str, harm: bytes = b"") -> Path:
    """As Trainer, Accelerate, Lightning and DCP lay out what they save by themselves."""
    raw = ONE["F32"] * (COUNT - 1) + (harm or ONE["F32"])
    directory.mkdir(parents=True)
    if kind == "ckpt":
        torch_zip(directory / "step=30.ckpt", "F32", raw)
        return directory / "step=30.ckpt"
    if kind == "safetensors":
        torch_zip(directory / "optimizer.pt", "F32", ONE["F32"] * COUNT)
        safetensors(directory / "model.safetensors", {"wte": ("F32", ONE["F32"] * COUNT), "lm_head": ("F32", raw)})
    elif kind == "bin":
        (directory / "global_step30").mkdir()
        torch_zip(directory / "global_step30" / "optim_states.pt", "F32", raw)
    else:
        distcp(directory / "__0_0.distcp", "F32", raw)
    (directory / "trainer_state.json").write_text("{}")
    return directory


KINDS = ("safetensors", "bin", "ckpt", "distcp")


@pytest.mark.parametrize("kind", KINDS)
def test_a_frameworks_own_with_weights_that_are_not_finite_is_named_with_file_and_tensor(
    tmp_path: Path, kind: str
) -> None:
    assert (find(own(tmp_path / "fine", kind)).nonfinite, find(tmp_path / "fine").unsampled) == (None, None)
    found = find(own(tmp_path / "harmed", kind, NAN["F32"]))
    assert (found.there, found.reason, found.unsampled) == (True, "is there", None)
    assert found.nonfinite is not None
    assert found.nonfinite.partition(": ")[0] in {
        "model.safetensors", "global_step30/optim_states.pt", "step=30.ckpt", "__0_0.distcp",
    }  # fmt: skip


def test_the_next_is_looked_at_where_one_is_not_finite(tmp_path: Path) -> None:
    """By real readers, of three formats."""
    paths = [own(tmp_path / "3", "safetensors", NAN["F32"]), own(tmp_path / "2", "distcp", NAN["F32"])]
    paths += [own(tmp_path / "1", "ckpt"), own(tmp_path / "0", "bin")]
    found = DiskCheckpoints().find([str(path) for path in paths], uid=os.getuid(), gid=None)
    assert [look.nonfinite for look in found] == ["model.safetensors: lm_head", "__0_0.distcp: archive at byte 0", None]
    assert [look.is_fit for look in found] == [False, False, True]


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"model.npz": 9_000, "config.json": 10}, "no file of a format that is sampled"),
        ({"model.npz": 90_000, "optimizer.pt": None}, "most of its bytes: model.npz"),
        ({"tokenizer.json": 9_000, "model.pt": None}, None),
        ({"pytorch_model.bin": 90_000, "optimizer.pt": None}, "most of its bytes: pytorch_model.bin"),
        ({"pytorch_model.bin": 900, "model.pt": None}, "pytorch_model.bin"),
        ({"model.npz": 900, "model.pt": None}, "model.npz"),
        ({"model.tensors": 9_000, "optimizer.pt": None}, "most of its bytes: model.tensors"),
        ({"rng_state.pth": 900, "scheduler.pt": 900, "model.pt": None}, None),
    ],
    ids=[
        "unknown",
        "mostly unknown",
        "little unknown",
        "not what it says",
        "little not what it says",
        "weights of another format",
        "unknown beside an optimizer",
        "no weights",
    ],
)
def test_what_is_not_looked_into_is_named(tmp_path: Path, files: dict[str, int | None], left: str | None) -> None:
    for name, size in files.items():
        if size is None:
            torch_zip(tmp_path / name, "F32", ONE["F32"] * COUNT)
        else:
            (tmp_path / name).write_bytes(bytes(size))
    assert (find(tmp_path).nonfinite, find(tmp_path).unsampled) == (None, left)
    commit(tmp_path)
    assert (look(tmp_path).whole, look(tmp_path).nonfinite, look(tmp_path).unsampled) == (True, None, left)


def test_a_link_to_a_folder_and_a_pipe_are_not_looked_into(tmp_path: Path) -> None:
    path = own(tmp_path / "checkpoint-30", "safetensors")
    os.mkfifo(path / "pipe.pt")
    assert find(path).unsampled is None, "a pipe holds no weights"
    (path / "more").symlink_to(own(tmp_path / "elsewhere", "bin", NAN["F32"]))
    assert (find(path).nonfinite, find(path).unsampled) == (None, "more")


def test_nothing_but_regular_files_is_opened(tmp_path: Path) -> None:
    """Whether a pipe stands there or a link leads to one: its writer would go on, and a device might act."""
    names = (checkpoint.MANIFEST, "model.safetensors.index.json", "model.safetensors", "optimizer.pt", "weights.bin")
    pipes, links = tmp_path / "pipes", tmp_path / "links"
    for folder in (pipes, links):
        folder.mkdir()
    for name in names:
        os.mkfifo(pipes / name)
        (links / name).symlink_to(pipes / name)
    with opened_in(pipes) as opened:
        for folder in (pipes, links):
            find(folder)
            look(folder)
            for name in names:
                with contextlib.suppress(OSError, TornError):
                    os.close(open_regular(str(folder / name))[0])
    assert opened == []


def test_eight_bit_weights_are_not_called_looked_into(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"w": ("F8_E4M3", bytes(900_000)), "norm": ("F32", ONE["F32"] * 100)})
    assert find(tmp_path).unsampled == "most of its bytes: model.safetensors"


def test_a_file_that_holds_names_alone_hides_no_weights(tmp_path: Path) -> None:
    """As ZeRO-3's model states are: the shapes of parameters whose partitions are elsewhere."""
    torch_zip(tmp_path / "zero_pp_rank_0_mp_rank_00_optim_states.pt", "F32", ONE["F32"] * COUNT)
    with zipfile.ZipFile(tmp_path / "zero_pp_rank_0_mp_rank_00_model_states.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + text(b"layer" * 50_000) + b".")
    assert find(tmp_path) == FindAnswer(True, "is there")
    with zipfile.ZipFile(tmp_path / "zero_pp_rank_0_mp_rank_00_model_states.pt", "a") as archive:
        archive.writestr("archive/data/0", bytes(1 << 20))
    assert str(find(tmp_path).unsampled).endswith("zero_pp_rank_0_mp_rank_00_model_states.pt")


def test_weights_of_a_later_pickle_protocol_are_looked_into(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", ONE["F32"] * COUNT)})
    torch_zip(tmp_path / "pytorch_model.bin", "F32", NAN["F32"] * COUNT, protocol=4)
    assert find(tmp_path).nonfinite == "pytorch_model.bin: the tensor that is data/0 in it"


def _cut(path: Path, share: float = 0.6) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def _garbage(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"\xa5" * (path.stat().st_size // 2))


@pytest.mark.parametrize(
    ("name", "harm", "torn"),
    [
        ("model.safetensors", lambda path: os.truncate(path, 0), "model.safetensors is empty"),
        ("model.safetensors", _cut, "model.safetensors has "),
        ("model.safetensors", lambda path: os.truncate(path, 40), "model.safetensors ends in its header"),
        ("model.safetensors", _garbage, "model.safetensors ends in its header"),
        ("model.safetensors", Path.unlink, "no weights are beside optimizer.pt"),
        ("pytorch_model.bin", lambda path: os.truncate(path, 0), "pytorch_model.bin is empty"),
        ("pytorch_model.bin", _cut, "pytorch_model.bin is a zip that ends too early"),
        ("pytorch_model.bin", _garbage, "pytorch_model.bin is a zip whose contents are not where they should be"),
        ("__0_0.distcp", lambda path: os.truncate(path, 0), "__0_0.distcp has 0 bytes of the "),
        ("__0_0.distcp", _cut, "__0_0.distcp has "),
    ],
)
def test_what_is_cut_short_or_removed_beside_a_healthy_optimizer_is_torn(
    tmp_path: Path, name: str, harm: Callable[[Path], None], torn: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """To the look for a named one, to the halt's own, and to resume()."""
    torch_zip(tmp_path / "optimizer.pt", "F32", ONE["F32"] * 5 * COUNT)
    (tmp_path / "trainer_state.json").write_text("{}")
    raw = ONE["F32"] * COUNT
    if name.endswith(".safetensors"):
        safetensors(tmp_path / name, {"w": ("F32", raw)})
    elif name.endswith(".distcp"):
        dcp(tmp_path, {name: (raw, raw)})
    else:
        torch_zip(tmp_path / name, "F32", raw)
    assert (find(tmp_path).torn, find(tmp_path).unsampled) == (None, None)
    harm(tmp_path / name)
    assert str(find(tmp_path).torn).startswith(torn)
    (found,) = DiskCheckpoints().find([str(tmp_path)], uid=os.getuid(), gid=None)
    assert (found.there, found.is_fit) == (True, False)
    commit(tmp_path)
    read = DiskCheckpoints().read(str(tmp_path), "", uid=os.getuid(), gid=None)
    assert (read.whole, read.reason) == (False, found.torn), "a manifest proves that nothing was cut after the save"
    loader = Loader()
    assert resume_at(loader, str(tmp_path), None, 0, MemoryStore(), 1) is not None, "it was named"
    assert f"is not whole: {found.torn}: going on" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["train.bin", "tokens_0.bin", "tokenizer.bin", "training_args.bin", "merges.bin"])
@pytest.mark.parametrize("raw", [b"", b"\0", bytes(range(256)) * 9], ids=["empty", "tiny", "tokens"])
def test_what_frameworks_name_no_weights_so_is_passed_over_beside_whole_ones(
    tmp_path: Path, name: str, raw: bytes
) -> None:
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", ONE["F32"] * COUNT)})
    (tmp_path / name).write_bytes(raw)
    assert find(tmp_path) == FindAnswer(True, "is there")
    commit(tmp_path)
    assert (look(tmp_path).whole, look(tmp_path).unsampled) == (True, None)
    assert harm_of({"path": str(tmp_path), "step": 9}, 0, 1) is None


def test_what_torch_has_saved_under_any_name_is_looked_into_and_never_torn(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", ONE["F32"] * COUNT)})
    torch_zip(tmp_path / "ema.bin", "F32", NAN["F32"] * COUNT)
    assert find(tmp_path).nonfinite == "ema.bin: the tensor that is data/0 in it"
    _cut(tmp_path / "ema.bin")
    assert find(tmp_path) == FindAnswer(True, "is there", unsampled="ema.bin")
    (tmp_path / "ema.bin").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    assert find(tmp_path) == FindAnswer(True, "is there", unsampled="ema.bin"), "a pickle of older torch"
    torch_zip(tmp_path / "training_args.bin", "F32", ONE["F32"])
    _cut(tmp_path / "training_args.bin")
    assert find(tmp_path).unsampled == "ema.bin", "nothing loads the other"
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "ema.bin"}}))
    (tmp_path / "ema.bin").write_bytes(b"")
    assert find(tmp_path).torn == "ema.bin is empty", "an index names it"


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model_fsdp.bin", "model.bin",
     "adapter_model.bin", "diffusion_pytorch_model.fp16.bin", "optimizer.bin"],
)  # fmt: skip
def test_weights_and_states_as_frameworks_name_them_are_torn_where_they_are_cut(tmp_path: Path, name: str) -> None:
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", ONE["F32"] * COUNT)})
    torch_zip(tmp_path / name, "F32", ONE["F32"] * COUNT)
    _cut(tmp_path / name)
    assert find(tmp_path).torn == f"{name} is a zip that ends too early"


@pytest.mark.parametrize("name", ["weights.bin", "trained.bin"])
def test_nothing_but_an_empty_file_is_no_checkpoint_that_was_looked_into(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / "config.json").touch()
    left = find(tmp_path)
    assert (left.torn or str(left.unsampled)).startswith((f"{name} is empty", "most of its bytes: "))
    torch_zip(tmp_path / "optimizer.bin", "F32", ONE["F32"] * COUNT)
    assert find(tmp_path).torn in (f"{name} is empty", "no weights are beside optimizer.bin")


def test_our_own_files_are_no_weights_that_nobody_looked_into(tmp_path: Path) -> None:
    torch_zip(tmp_path / "state.pt", "F32", ONE["F32"] * COUNT)
    for rank in range(2):
        (tmp_path / checkpoint.rank_file(rank)).write_bytes(b" " * 2 * (tmp_path / "state.pt").stat().st_size)
    assert find(tmp_path).unsampled is None


def test_a_rank_that_had_nothing_to_save_tears_nothing(tmp_path: Path) -> None:
    dcp(tmp_path, {"__0_0.distcp": (ONE["F32"] * COUNT,)})
    (tmp_path / "__1_0.distcp").touch()
    assert find(tmp_path).torn is None
    commit(tmp_path)
    assert look(tmp_path).whole is True


def test_an_index_names_what_must_be_there(tmp_path: Path) -> None:
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name in names:
        safetensors(tmp_path / name, {"w": ("F32", ONE["F32"] * COUNT)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": names[0], "b": names[1], "c": "../x"}}))
    assert find(tmp_path) == FindAnswer(True, "is there")
    (tmp_path / names[1]).unlink()
    assert find(tmp_path).torn == f"{names[1]} is missing, which {index.name} names"
    (tmp_path / names[1]).symlink_to(tmp_path / "blobs" / "cleaned-up")
    assert find(tmp_path).torn == f"{names[1]} is missing, which {index.name} names"
    (tmp_path / names[1]).unlink()
    os.mkfifo(tmp_path / names[1])
    assert find(tmp_path).torn == f"{names[1]} is no file, which {index.name} names"
    (tmp_path / names[1]).unlink()
    safetensors(tmp_path / "cached", {"w": ("F32", ONE["F32"] * COUNT)})
    (tmp_path / names[1]).symlink_to(tmp_path / "cached")
    assert find(tmp_path) == FindAnswer(True, "is there")
    (tmp_path / names[1]).unlink()
    (tmp_path / names[1]).write_bytes(b"")
    assert find(tmp_path).torn == f"{names[1]} is empty"
    index.write_text("{")
    assert find(tmp_path).torn == f"{index.name} cannot be parsed"
    safetensors(tmp_path / "model.safetensors", {"w": ("F32", ONE["F32"] * COUNT)})
    (tmp_path / names[1]).unlink()
    index.write_text(json.dumps({"weight_map": {"a": names[1]}}))
    assert find(tmp_path).torn is None, "all in one file is what is loaded"


@pytest.mark.parametrize("shards", [1, 2])
def test_what_was_not_fetched_of_bin_files_tears_no_whole_safetensors(shards: int, tmp_path: Path) -> None:
    names = [f"model-0000{shard}-of-00002.safetensors" for shard in (1, 2)] if shards == 2 else ["model.safetensors"]
    for name in names:
        safetensors(tmp_path / name, {"w": ("F32", ONE["F32"] * COUNT)})
    if shards == 2:
        weight_map = json.dumps({"weight_map": dict(enumerate(names))})
        (tmp_path / "model.safetensors.index.json").write_text(weight_map)
    bins = json.dumps({"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}})
    (tmp_path / "pytorch_model.bin.index.json").write_text(bins)
    assert find(tmp_path).torn is None
    (tmp_path / names[0]).unlink()
    assert str(find(tmp_path).torn).endswith(" names"), "nothing is whole"


def test_weights_in_a_linked_directory_are_not_missing(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint-9"
    for folder in (saved, tmp_path / "elsewhere"):
        folder.mkdir()
    (saved / "optimizer.pt").write_bytes(b"state")
    (saved / "model").symlink_to(tmp_path / "elsewhere")
    assert harm_of({"path": str(saved), "step": 9}, 0, 1) is None
    (saved / "model").unlink()
    assert harm_of({"path": str(saved), "step": 9}, 0, 1) == "not whole: no weights are beside optimizer.pt"


def test_one_of_ours_has_the_files_of_its_manifest_in_full_size(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    assert find(path).torn is None
    name = next(entry.name for entry in sorted(path.iterdir()) if entry.name != checkpoint.MANIFEST)
    raw = (path / name).read_bytes()
    (path / name).write_bytes(raw + b"x")
    assert find(path).torn == f"{name} has {len(raw) + 1} bytes instead of {len(raw)}"
    (path / name).unlink()
    assert (find(path).there, find(path).torn) == (True, f"{name} is missing")


def test_what_other_nodes_have_is_neither_missing_nor_looked_for_here(tmp_path: Path) -> None:
    """Each node's directory has its own files. The manifest names all, and an index too."""
    here, other = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    safetensors(tmp_path / here, {"w": ("F32", ONE["F32"] * COUNT)})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": here, "b": other}}))
    commit(tmp_path)
    manifest = json.loads((tmp_path / checkpoint.MANIFEST).read_text())
    manifest["files"].append({"path": other, "bytes": 10**9, "sha256": None, "node": "another"})
    (tmp_path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    found = look(tmp_path)
    assert (found.whole, found.nonfinite, found.unsampled) == (True, None, None), found.reason
    assert find(tmp_path) == FindAnswer(True, "is there")
