"""A real PipelineEngine, two stages on two gloo ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.drills.components import needs

needs("deepspeed")

WARM = ("torch", "deepspeed")

PARTS = ("data_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s", "bubble_s")
STEPS, BATCH, LENGTH, GAS = 6, 4, 16, 4


@pytest.mark.parametrize("zero", [0, 1])
def test_frames_tell_what_happened_and_change_nothing(run_ranks, zero: int) -> None:
    bare = run_ranks("pipeline_loop.py", json.dumps({"attached": False, "zero": zero}), ranks=2)
    seen = run_ranks("pipeline_loop.py", json.dumps({"zero": zero}), ranks=2)

    for rank in range(2):
        assert bare[rank]["losses"] == seen[rank]["losses"]
        assert bare[rank]["weights"] == seen[rank]["weights"]
        frames = seen[rank]["frames"]
        assert list(range(1, STEPS + 1)) == [frame["step"] for frame in frames] == seen[rank]["boundaries"]
        assert seen[rank]["losses"] == pytest.approx([frame["loss"] for frame in frames])
        for frame in frames:
            assert frame["tokens"] == BATCH * LENGTH * GAS, "both stages know: one loads inputs, one labels"
            for part in ("data_s", "forward_s", "backward_s", "optimizer_s", "bubble_s"):
                assert frame[part] > 0
            explained = sum(frame[part] for part in PARTS)
            assert explained <= frame["step_s"] * 1.001
        # Of the step that was disturbed least: what the machine takes away between two parts, nothing can explain.
        assert max(sum(frame[part] for part in PARTS) / frame["step_s"] for frame in frames[1:]) >= 0.8
        assert seen[rank]["phases"] == ["compile", "train"]
        assert seen[rank]["hello"]["framework"] == "pipeline"
        assert seen[rank]["fetches"]["outside"] == 0 < seen[rank]["fetches"]["inside"]
        assert seen[rank]["left_behind"] == []


def test_eval_batch_is_a_phase(run_ranks) -> None:
    seen = run_ranks("pipeline_loop.py", json.dumps({"evaluate": True}), ranks=2)[1]

    assert seen["phases"] == ["compile", "train", "eval", "train"]
    assert seen["frames"][-1]["tokens"] == BATCH * LENGTH * GAS


def test_a_checkpoint_resumes_with_the_same_losses(run_ranks, tmp_path: Path) -> None:
    chosen = json.dumps({"save_at": 3, "checkpoint_dir": str(tmp_path / "checkpoints")})
    for seen in run_ranks("pipeline_loop.py", chosen, ranks=2):
        assert seen["losses"][3:] == seen["again"]
