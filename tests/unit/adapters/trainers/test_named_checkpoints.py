"""Whether a checkpoint that was named as good is still there, and what samples of its weights show: by real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from governor.adapters.trainers import checkpoint_reader
from governor.adapters.trainers.checkpoint_reader import Answer, Progress
from governor.adapters.trainers.checkpoints import DiskCheckpoints
from tests.unit.shim.test_checkpoint import written
from tests.unit.shim.weights_files import COUNT, NAN, ONE, distcp, safetensors, torch_zip
from trainer_shim.saving import checkpoint


def find(path: Path) -> Answer:
    with open(os.devnull, "wb") as nowhere:
        return checkpoint_reader.find(str(path), Progress(nowhere.fileno()))


def test_a_checkpoint_is_there_gone_or_not_to_be_seen(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    assert find(path).whole is True
    (path / checkpoint.MANIFEST).unlink()
    assert find(path) == Answer(False, 4, 0, "has lost its manifest")
    other = tmp_path / "checkpoint-20"
    assert find(other) == Answer(False, 0, 0, "is no longer there")
    assert find(tmp_path / "mount" / "checkpoint-20") == Answer(None, 0, 0, "not visible here")
    for path in ("a\0b", "\ud800"):
        assert find(tmp_path / path) == Answer(None, 0, 0, "its path names no file")
    other.mkdir()
    assert find(other) == Answer(False, 0, 0, "is empty")
    (other / "model.safetensors").touch()
    assert find(other).whole is True, "a framework's own has no manifest of ours"
    single = tmp_path / "epoch=0-step=30.ckpt"
    single.touch()
    assert find(single) == Answer(False, 0, 0, "is empty")
    single.write_text("weights")
    assert find(single) == Answer(True, 1, 0, "is there", unsampled="most of its bytes: epoch=0-step=30.ckpt"), (
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
    assert (found.whole, found.reason, found.unsampled) == (True, "is there", None)
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
        ({"tokenizer.json": 9_000, "optimizer.pt": None}, None),
        ({"model.safetensors": 90_000, "optimizer.pt": None}, "most of its bytes: model.safetensors"),
    ],
    ids=["unknown", "mostly unknown", "little unknown", "not what it says"],
)
def test_what_is_not_looked_into_is_named(tmp_path: Path, files: dict[str, int | None], left: str | None) -> None:
    for name, size in files.items():
        if size is None:
            torch_zip(tmp_path / name, "F32", ONE["F32"] * COUNT)
        else:
            (tmp_path / name).write_bytes(bytes(size))
    assert (find(tmp_path).nonfinite, find(tmp_path).unsampled) == (None, left)


def test_a_link_to_a_folder_and_a_pipe_are_not_looked_into(tmp_path: Path) -> None:
    path = own(tmp_path / "checkpoint-30", "safetensors")
    os.mkfifo(path / "pipe.pt")
    assert find(path).unsampled is None, "a pipe holds no weights"
    (path / "more").symlink_to(own(tmp_path / "elsewhere", "bin", NAN["F32"]))
    assert (find(path).nonfinite, find(path).unsampled) == (None, "more")


def test_eight_bit_weights_are_not_called_looked_into(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", {"w": ("F8_E4M3", bytes(900_000)), "norm": ("F32", ONE["F32"] * 100)})
    assert find(tmp_path).unsampled == "most of its bytes: model.safetensors"
