"""A model that FSDP shards: it is seen, and its owner learns at attach() that it cannot be saved as it stands."""

from __future__ import annotations

import math
from pathlib import Path

WARM = ("torch",)


def test_rank_0_says_once_that_a_sharded_model_needs_a_save_fn(run_ranks, tmp_path: Path) -> None:
    first, second = run_ranks("fsdp_loop.py", "bare", str(tmp_path / "checkpoints"), ranks=2)
    assert first["said"].count("\n") == 1
    assert "cannot save a checkpoint when asked" in first["said"]
    assert "save_fn=" in first["said"]
    assert second["said"] == ""
    assert [len(report["frames"]) for report in (first, second)] == [1, 1]
    assert first["directory"] is None


def test_with_a_save_fn_nothing_is_said(run_ranks, tmp_path: Path) -> None:
    for report in run_ranks("fsdp_loop.py", "save_fn", str(tmp_path / "checkpoints"), ranks=2):
        assert report["said"] == ""
        assert report["directory"] == str(tmp_path / "checkpoints")


def test_a_nan_of_a_loss_outside_the_model_is_seen_on_every_rank(run_ranks) -> None:
    for report in run_ranks("fsdp_nan_loop.py", ranks=2):
        frames = report["frames"]
        assert [frame["loss"] for frame in frames[:3]] == report["losses"][:3]
        assert [math.isfinite(frame["loss"]) for frame in frames] == [True] * 3 + [False] * 3
        # The norm of this rank's shards is not the gradient's: that one takes a collective.
        assert not any("grad_norm" in frame for frame in frames)
        assert [frame["grad_finite"] for frame in frames] == [True] * 3 + [False] * 3


def test_a_state_that_torchs_zero_redundancy_optimizer_has_in_parts_is_saved_whole(run_ranks, tmp_path: Path) -> None:
    for report in run_ranks("zero_loop.py", str(tmp_path / "checkpoints"), ranks=2):
        assert report["resumed"] == report["losses"]
