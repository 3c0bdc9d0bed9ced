"""Which checkpoints that a Trainer has saved by itself are trusted. Its files are made here, without transformers."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.shim.weights_files import COUNT, NAN, ONE, torch_zip
from trainer_shim.engines.hf_checkpoints import TrainerSaver
from trainer_shim.engines.own_checkpoints import OwnCheckpoint, manifests
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.saving import checkpoint
from trainer_shim.tokens import TokenCount


@pytest.fixture
def saver(tmp_path: Path) -> TrainerSaver:
    meter = StepMeter(Progress(threading.get_ident()), TokenCount(None, None, 1))
    return TrainerSaver(meter, SimpleNamespace(args=SimpleNamespace(output_dir=str(tmp_path))))


def own(directory: Path, step: int, raw: bytes) -> None:
    """As a Trainer under ZeRO-3 saves: the weights are in the optimizer's partitions alone."""
    partitions = directory / f"checkpoint-{step}" / f"global_step{step}"
    partitions.mkdir(parents=True)
    for rank in range(2):
        torch_zip(partitions / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", "F32", ONE["F32"] * COUNT)
    torch_zip(partitions / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "F32", raw)
    (directory / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))


def suspect(directory: Path, step: int) -> None:
    path = directory / f"costgov-suspect-{step}"
    path.mkdir()
    checkpoint.commit(str(path), [], {"step": step, "kind": "suspect"}, move_latest=False)


def test_beside_a_suspect_one_partitions_of_zero3_with_a_nan_are_not_trusted(
    saver: TrainerSaver, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    own(tmp_path, 10, ONE["F32"] * COUNT)
    own(tmp_path, 20, NAN["F32"] * COUNT)
    suspect(tmp_path, 21)
    assert [found["step"] for found in saver.own_checkpoints(str(tmp_path))] == [10]
    said = capfd.readouterr().err
    assert f"passing over {tmp_path}/checkpoint-20: not finite: global_step20/bf16_zero_pp_rank_1_" in said


@pytest.mark.parametrize(
    ("later", "step", "is_finite", "is_taken", "is_looked_into"),
    [
        (None, 10, False, True, False),  # No NaN was ever seen: nothing is read that may be terabytes.
        (9, 10, False, True, False),
        (10, 10, True, True, True),
        (21, 10, True, True, True),
        (21, 10, False, False, True),
    ],
)
def test_a_framework_s_own_one_is_looked_into_where_a_later_one_of_ours_is_suspect(
    tmp_path: Path, later: int | None, step: int, is_finite: bool, is_taken: bool, is_looked_into: bool
) -> None:
    if later is not None:
        suspect(tmp_path, later)
    (last_file := tmp_path / "last").touch()
    looked: list[int] = []

    def look() -> bool:
        looked.append(step)
        return is_finite

    found = manifests(str(tmp_path), [OwnCheckpoint(step, str(tmp_path / "own"), str(last_file), look)])
    told = {"step": step, "path": str(tmp_path / "own"), "kind": "good", "created_unix_s": last_file.stat().st_mtime}
    assert (found, bool(looked)) == ([told] if is_taken else [], is_looked_into)


def test_one_that_is_named_is_known_by_its_state_whatever_its_directory_is_called(
    saver: TrainerSaver, tmp_path: Path
) -> None:
    own(tmp_path, 70, ONE["F32"] * COUNT)
    moved = (tmp_path / "checkpoint-70").rename(tmp_path / "kept")
    found = saver.named_checkpoint(str(moved))
    assert found is not None
    assert (found["step"], found["path"]) == (70, str(moved))
    assert saver.named_checkpoint(str(tmp_path)) is None
