"""What a file is called says what it holds only where a framework spells it so: the bytes decide."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from governor.adapters.trainers.checkpoint_reader import FindAnswer
from tests.unit.adapters.trainers.test_named_checkpoints import commit, find, look
from tests.unit.shim.weights_files import COUNT, NAN, ONE, dcp_metadata, distcp, safetensors, torch_zip
from trainer_shim.saving.resuming import harm_of
from trainer_shim.saving.weights_sample import sample

RAW = ONE["F32"] * COUNT
WHOLE = FindAnswer(True, "is there")


def write(path: Path, raw: bytes = RAW) -> None:
    if path.suffix == ".safetensors":
        safetensors(path, {"w": ("F32", raw)})
    else:
        torch_zip(path, "F32", raw)


def torn(path: Path) -> str | None:
    """What the look for a named one, and resume(), say."""
    found = find(path).torn
    assert harm_of({"path": str(path), "step": 9}, 0, 1) == (found and f"not whole: {found}")
    return found


MODELS = ["tokenizer.safetensors", "sampler_net.safetensors", "vocab_head.pt", "scheduler_net.pt", "tokenizer.ckpt"]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_may_be_called_as_what_stands_beside_models(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    torch_zip(tmp_path / "optimizer.pt", "F32", RAW * 2)
    assert torn(tmp_path) is None
    assert find(tmp_path) == WHOLE
    commit(tmp_path)
    assert (look(tmp_path).whole, look(tmp_path).unsampled) == (True, None)
    (tmp_path / "costgov_manifest.json").unlink(missing_ok=True)
    os.truncate(tmp_path / name, (tmp_path / name).stat().st_size // 2)
    assert str(torn(tmp_path)).startswith(name)


@pytest.mark.parametrize("name", ["optimizer_and_model.pt", "optimizer_state.pt", "optimizers.pt"])
def test_a_file_that_may_hold_more_than_an_optimizer_is_no_optimizer_without_weights(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    assert torn(tmp_path) is None
    write(tmp_path / name, NAN["F32"] * COUNT)
    assert find(tmp_path).nonfinite == f"{name}: the tensor that is data/0 in it"


@pytest.mark.parametrize("name", ["optimizer.pt", "optimizer.bin", "optimizer_1.bin"])
def test_an_optimizer_as_frameworks_name_it_has_weights_beside_it(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    for beside in ("tokenizer.json", "tokenizer.model", "vocab.txt", "scheduler.pt", "training_args.bin", "scaler.pt",
                   "rng_state_0.pth", "random_states_0.pkl"):  # fmt: skip
        (tmp_path / beside).write_bytes(b"x" * 900)
    assert torn(tmp_path) == f"no weights are beside {name}"


@pytest.mark.parametrize("name", ["optimizer.pt", "optimizer.bin", "scheduler.pt", "rng_state_1.pth", "scaler.pt"])
def test_what_is_loaded_with_the_weights_is_not_empty(tmp_path: Path, name: str) -> None:
    write(tmp_path / "model.safetensors")
    (tmp_path / name).touch()
    assert torn(tmp_path) == f"{name} is empty"


@pytest.mark.parametrize(
    "name", ["done.pt", "lock.pt", "step_40.done.pt", "save-complete.bin", "ready.npz", "sub/ok.pth"]
)
def test_an_empty_mark_beside_weights_tears_nothing(tmp_path: Path, name: str) -> None:
    write(tmp_path / "model.safetensors")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert (torn(tmp_path), find(tmp_path)) == (None, WHOLE)
    (tmp_path / "model.safetensors").unlink()
    assert find(tmp_path) != WHOLE, "a mark alone is no checkpoint"


def test_an_empty_file_of_which_nobody_knows_what_it_is_is_named(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors")
    (tmp_path / "synced.pt").touch()
    assert (torn(tmp_path), find(tmp_path).unsampled) == (None, "synced.pt")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "synced.pt"}}')
    (tmp_path / "model.safetensors").rename(tmp_path / "model-1.safetensors")
    assert torn(tmp_path) == "synced.pt is empty", "an index names it"


@pytest.mark.parametrize(
    "name", ["rank_3.pt", "model_ema.pt", "weights.done.pt", "mp_rank_01_model_states.pt", "ckpt.pth"]
)
def test_an_empty_part_of_a_checkpoint_tears_it(tmp_path: Path, name: str) -> None:
    for filled in ("rank_0.pt", "rank_1.pt"):
        write(tmp_path / filled)
    (tmp_path / name).touch()
    assert torn(tmp_path) == f"{name} is empty"


BASE = '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'


def test_beside_an_adapter_the_index_of_its_base_names_what_is_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "adapter_model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(BASE)
    assert (torn(tmp_path), find(tmp_path)) == (None, WHOLE)
    write(tmp_path / "model-00001-of-00002.safetensors")
    missing = "model-00002-of-00002.safetensors is missing, which model.safetensors.index.json names"
    assert torn(tmp_path) == missing
    for name in ("model-00001-of-00002.safetensors", "adapter_model.safetensors"):
        (tmp_path / name).unlink()
    write(tmp_path / "optimizer.pt")
    assert str(torn(tmp_path)).startswith("model-00001-of-00002.safetensors is missing")


def test_where_not_all_files_are_known_no_weights_are_missing(tmp_path: Path) -> None:
    write(tmp_path / "optimizer.pt")
    sizes = [("optimizer.pt", (tmp_path / "optimizer.pt").stat().st_size)]
    assert sample(str(tmp_path), sizes, lambda: None).torn == "no weights are beside optimizer.pt"
    assert sample(str(tmp_path), sizes, lambda: None, are_all=False).torn is None


def test_what_is_torn_and_not_finite_is_said_to_be_both(tmp_path: Path) -> None:
    write(tmp_path / "model-1.safetensors", NAN["F32"] * COUNT)
    (tmp_path / "model-2.safetensors").touch()
    found = find(tmp_path)
    assert (found.torn, found.nonfinite) == ("model-2.safetensors is empty", "model-1.safetensors: w")


def test_of_many_that_nobody_looked_into_the_others_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "model.pt", RAW * 9)
    for number in range(5):
        (tmp_path / f"part_{number}.npz").write_bytes(bytes(90))
    assert find(tmp_path).unsampled == "part_0.npz, part_1.npz, part_2.npz, 2 more"


def test_eight_bit_weights_of_dcp_are_not_called_looked_into(tmp_path: Path) -> None:
    path = tmp_path / "__0_0.distcp"
    distcp(path, "F32", RAW)
    norm = path.read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
        archive.writestr("archive/data/0", bytes(1 << 20))
    path.write_bytes(norm + path.read_bytes())
    (tmp_path / ".metadata").write_bytes(dcp_metadata({path.name: [(0, path.stat().st_size)]}))
    assert find(tmp_path).unsampled == "most of its bytes: __0_0.distcp"
