"""The governor's own look at a checkpoint: whole, torn, or not for its eyes, which is no verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from governor.adapters.trainers.checkpoints import DiskCheckpoints
from governor.core.events.checkpoints import CheckpointLook
from tests.unit.shim.test_checkpoint import written
from trainer_shim.saving import checkpoint


def look(path: Path) -> CheckpointLook:
    return DiskCheckpoints().read(str(path), str(path / checkpoint.MANIFEST), uid=os.getuid(), gid=os.getgid())


def test_a_whole_one_has_every_file_with_its_hash(tmp_path: Path) -> None:
    reason, left = "every file is there with its size and hash", "most of its bytes: shard_1.pt"
    assert look(written(tmp_path, 7)) == CheckpointLook(True, 4, 4, reason, unsampled=left)


def test_a_changed_byte_is_seen_although_the_size_is_right(tmp_path: Path) -> None:
    path = written(tmp_path, 7)
    shard = path / "shard_1.pt"
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    found = look(path)
    assert (found.whole, found.files, found.hashed) == (False, 4, 0)
    assert "shard_1.pt" in found.reason


@pytest.mark.parametrize(
    ("manifest", "whole", "reason"),
    [
        (None, None, "not readable by the governor"),
        ("{", False, "the manifest cannot be parsed"),
        ('{"v": 1}', False, "the manifest cannot be parsed"),
    ],
)
def test_without_a_manifest_nobody_knows_and_a_torn_one_is_torn(
    tmp_path: Path, manifest: str | None, whole: bool | None, reason: str
) -> None:
    path = written(tmp_path, 7)
    (path / checkpoint.MANIFEST).unlink()
    if manifest is not None:
        (path / checkpoint.MANIFEST).write_text(manifest)
    assert look(path) == CheckpointLook(whole, 0, 0, reason)


def test_a_directory_that_is_not_mounted_here_is_not_torn(tmp_path: Path) -> None:
    assert look(tmp_path / "elsewhere" / "cg_7") == CheckpointLook(None, 0, 0, "not visible here")
