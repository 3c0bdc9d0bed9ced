"""Cells of the table that no other drill has: a NaN under a real governor, the halt, and its resume command."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from pathlib import Path

import pytest

from governor.adapters.trainers.checkpoints import DiskCheckpoints
from tests.drills.shim_engines.conftest import Warm
from tests.drills.trainers.harness import bench
from tests.drills.trainers.registry import TRAINERS
from trainer_shim.saving.weights_formats import Budget, of_distcp

STEPS = 60
# At 40 the framework itself saves the NaN, and makes room for it. A loop of one's own has just saved by 38.
CELLS = {"nanogpt-ddp": 38, "fsdp2": 38, "accelerate-naming": 40, "lightning-ddp": 40, "trl-sft": 34}


def lacking(name: str) -> list[str]:
    return [package for package in TRAINERS[name].packages if importlib.util.find_spec(package) is None]


WARM = tuple(dict.fromkeys(part for name in CELLS if not lacking(name) for part in TRAINERS[name].imports()))


@pytest.mark.parametrize("name", CELLS)
def test_a_nan_is_halted_and_the_resume_command_goes_on_bit_for_bit(name: str, warm: Warm, tmp_path: Path) -> None:
    """fsdp2: the NaN weights of the halt lie in .distcp files, and are found there; so is a file that is cut."""
    if lacking(name):
        pytest.skip(f"needs {lacking(name)[0]}")
    with bench(TRAINERS[name], STEPS, CELLS[name], warm) as played:
        cell = played.cell("nan")
        dcp = tmp_path / "dcp"
        for saved in sorted(played.work.glob("**/cg_*/.metadata"))[:1]:
            shutil.copytree(saved.parent, dcp, ignore=shutil.ignore_patterns("costgov_*"))
    assert cell.ok, "\n".join([str(cell.as_json()), *(text[-3000:] for text in cell.outputs)])
    if name == "fsdp2":
        assert any(moment["detail"].get("nonfinite") for moment in cell.incident["timeline"])
        assert torn(dcp) is None
        with (dcp / "__1_0.distcp").open("r+b") as file:  # By what torch has written for a rank of two.
            begins = {piece.name for piece in of_distcp(file, Budget(lambda: None, until=time.monotonic() + 60))}
            file.truncate(max(int(name.rpartition(" ")[2]) for name in begins if name.startswith("archive")))
        assert str(torn(dcp)).endswith(" that .metadata names")
        (dcp / "__1_0.distcp").unlink()
        assert torn(dcp) == "__1_0.distcp is missing, which .metadata names"


def torn(path: Path) -> str | None:
    (found,) = DiskCheckpoints().find([str(path)], uid=os.getuid(), gid=None)
    return found.torn
