"""One rank's disk fails in the middle of a save that is collective: all ranks learn it, none is left in a barrier."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.drills.components import needs
from tests.drills.shim.fake_governor import FakeGovernor
from trainer_shim.saving import checkpoint

needs("deepspeed")

RANKS = (0, 1)
# The trial before the save (generator states, some 20 kB) still fits, the optimizer's shard (100 kB and more) does not.
FILE_BYTES_MAX = 40_000


@pytest.mark.parametrize(("kind", "broken"), [("zero2", 1), ("zero3", 0), ("pipe", 1)])
def test_a_rank_that_cannot_write_leaves_nobody_in_a_barrier(
    kind: str, broken: int, launch, governor: FakeGovernor, tmp_path: Path
) -> None:
    launch(kind=kind, steps=10**6)
    for rank in RANKS:
        governor.frame("step", rank, step=3)

    # A write past the limit fails with EFBIG, at the same place where a full disk says ENOSPC.
    process = psutil.Process(governor.pid(broken))
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (FILE_BYTES_MAX, before[1]))
    governor.ask(0, "full")
    failed = [governor.frame("ack", rank, incident="full", what="failed") for rank in RANKS]
    for ack in failed:
        assert f"rank {broken}:" in ack["reason"], ack
    process.rlimit(psutil.RLIMIT_FSIZE, before)
    torn = tmp_path / "checkpoints" / f"cg_{failed[0]['step']}"
    assert checkpoint.read_manifest(str(torn)) is None
    assert not (tmp_path / "checkpoints" / "latest").exists()

    for rank in RANKS:
        governor.frame("step", rank, step=failed[rank]["step"] + 3)
    governor.ask(1, "space")
    saved = [governor.frame("ack", rank, incident="space", what="saved") for rank in RANKS]
    assert checkpoint.verify_manifest(saved[0]["checkpoint"]["path"], hashes=True) == []
