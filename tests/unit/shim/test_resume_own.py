"""Checkpoints of frameworks that save without us: they have no manifest, and are looked into all the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.shim.test_resuming import RANKS, Loader, on_ranks
from tests.unit.shim.weights_files import COUNT, NAN, ONE, safetensors, torch_zip
from trainer_shim.engines import base
from trainer_shim.saving.resuming import resume_from
from trainer_shim.saving.store import MemoryStore


class OwnLoader(Loader):
    """Of a framework that saves without us: its checkpoints have no manifest."""

    def own_checkpoints(self, directory: str) -> list[dict[str, Any]]:
        paths = sorted(Path(directory).iterdir())
        return [base.own_manifest(int(path.stem), str(path), str(path)) for path in reversed(paths)]


@pytest.mark.parametrize("harm", ["cut short", "empty", "missing"])
def test_a_frameworks_own_checkpoint_that_is_torn_is_passed_over(harm: str, tmp_path: Path) -> None:
    """The governor names the same one: a crash or a full disk leaves it, and no suspect one beside it."""
    for step in ("50", "99"):
        (tmp_path / step).mkdir()
        safetensors(tmp_path / step / "model.safetensors", {"w": ("F32", ONE["F32"] * COUNT)})
        (tmp_path / step / "optimizer.pt").write_bytes(b"state")
        (tmp_path / step / "trainer_state.json").write_text("{}")
    weights = tmp_path / "99" / "model.safetensors"
    if harm == "missing":
        weights.unlink()
    else:
        os.truncate(weights, 0 if harm == "empty" else weights.stat().st_size // 2)
    resumed = resume_from(OwnLoader(), str(tmp_path), 0, MemoryStore(), 1)
    assert resumed is not None
    assert resumed.step == 50


@pytest.mark.parametrize("harm", ["not finite", "cut short"])
def test_one_that_is_a_single_file_is_looked_into_too(
    harm: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As Lightning's own are. Of the ranks one looks, and all go by it."""
    torch_zip(tmp_path / "50.ckpt", "F32", ONE["F32"] * COUNT)
    torch_zip(tmp_path / "99.ckpt", "F32", (NAN if harm == "not finite" else ONE)["F32"] * COUNT)
    if harm == "cut short":
        os.truncate(tmp_path / "99.ckpt", (tmp_path / "99.ckpt").stat().st_size // 2)
    store = MemoryStore()
    resumed = on_ranks(RANKS, lambda rank: resume_from(OwnLoader(), str(tmp_path), rank, store, RANKS))
    assert [one.step for one in resumed if one is not None] == [50] * RANKS
    what = "not finite" if harm == "not finite" else "not whole"
    assert f"passing over {tmp_path}/99.ckpt: {what}: 99.ckpt" in capfd.readouterr().err
