"""attach() of megatron-core's own schedules and optimizers in two gloo ranks: frames, identical numbers, no hook left.

What megatron-core allocates on `cuda` is redirected to the CPU: megatron_rig.py says how, and what that leaves out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.drills.components import needs

needs("torch", "megatron")  # The package megatron-core: in the extra `megatron`.

WARM = ("torch", "megatron.core.models.gpt.gpt_layer_specs", "megatron.core.optimizer")
STEPS, MICRO_BATCHES, BATCH, LENGTH = 6, 2, 4, 16
OWN_TOKENS = MICRO_BATCHES * BATCH * LENGTH
PARTS = ("data_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s", "eval_s", "bubble_s")
LAYOUTS: dict[str, dict[str, Any]] = {
    "data-parallel": {},
    "data-parallel, its optimizer sharded": {"shards": True},
    "tensor-parallel": {"tp": 2},
    "two stages": {"pp": 2},
    "two stages that free their outputs": {"pp": 2, "deallocates": True, "sums": True},
}


def told(directory: Path, **more: object) -> str:
    return json.dumps({"attached": True, "directory": str(directory), **more})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_frames_tell_what_happened_and_change_nothing(run_ranks, tmp_path: Path, layout: str) -> None:
    given = LAYOUTS[layout]
    bare = run_ranks("megatron_loop.py", told(tmp_path, attached=False, **given), ranks=2)
    seen = run_ranks("megatron_loop.py", told(tmp_path, **given), ranks=2)
    splits = "tp" in given or "pp" in given
    for rank, (before, report) in enumerate(zip(bare, seen, strict=True)):
        assert [before[name] for name in ("losses", "results")] == [report[name] for name in ("losses", "results")]
        assert before["weights"] == report["weights"]
        frames = report["frames"]
        assert [frame["step"] for frame in frames] == list(range(1, STEPS + 1)) == report["boundaries"]
        assert [frame["applied"] for frame in frames] == [True] * STEPS
        assert [[True, frame["grad_norm"]] for frame in frames] == report["results"]
        # What ranks are fed alike counts once: a replica's ranks have one place among the replicas.
        assert {frame["tokens"] for frame in frames} == {OWN_TOKENS if splits else 2 * OWN_TOKENS}
        assert report["hello"].get("data_parallel_rank") == (None if splits else rank)
        losses = [frame.get("loss") for frame in frames]
        assert losses == (pytest.approx(report["losses"]) if report["is_last"] else [None] * STEPS)
        assert [frame["loss_expected"] for frame in frames] == [report["is_last"]] * STEPS
        for frame in frames:
            assert min(frame[part] for part in PARTS[:4]) > 0
            assert sum(frame.get(part, 0.0) for part in PARTS) <= frame["step_s"] * 1.001
            assert ("bubble_s" in frame) == ("pp" in given)
        assert [frame["step"] for frame in frames if "eval_s" in frame] == [4]
        assert report["hello"]["framework"] == ("pipeline" if "pp" in given else "megatron")
        assert ("parameters" in report["hello"]) is not splits
        assert report["harmed"][0] == ""
        assert report["harmed"][1].startswith("module.")
        assert (report["left"], report["frames_after"]) == ([], STEPS), "close() has taken every hook off"


@pytest.mark.parametrize("given", [{}, {"pp": 2}], ids=["data-parallel", "two stages"])
def test_a_checkpoint_is_saved_on_all_ranks_behind_what_the_loop_does_after_a_step(
    run_ranks, tmp_path: Path, given: dict[str, int]
) -> None:
    for report in run_ranks("megatron_loop.py", told(tmp_path, **given), ranks=2):
        assert report["saved"] == [[[True, "cg_drill", 4]] * 2]


def test_a_step_that_the_loss_scale_skips_is_not_applied(run_ranks, tmp_path: Path) -> None:
    for report in run_ranks("megatron_loop.py", told(tmp_path, half=True, scale=2**22), ranks=2):
        frames = report["frames"]
        applied = [applied for applied, _ in report["results"]]
        assert {True, False} == set(applied)
        assert [frame["applied"] for frame in frames] == applied
        assert [frame.get("grad_norm") for frame in frames] == [norm for _, norm in report["results"]]
        skipped = [applied[: step + 1].count(False) for step in range(STEPS)]
        assert [frame["skipped_steps"] for frame in frames] == skipped
        assert [frame["loss"] for frame in frames] == pytest.approx(report["losses"]), "not the scaled one"


def test_an_optimizer_that_computes_no_norm_has_a_sample_of_its_gradient(run_ranks, tmp_path: Path) -> None:
    given = {"unchained": True, "clip": 0.0, "told": True}
    for report in run_ranks("megatron_loop.py", told(tmp_path, **given), ranks=2):
        assert not any("grad_norm" in frame for frame in report["frames"])
        assert report["frames"][0]["grad_finite"] is True
        assert [frame["loss"] for frame in report["frames"]] == pytest.approx(report["losses"]), "counted once"


def test_rank_0_says_once_that_it_needs_a_save_fn(run_ranks, tmp_path: Path) -> None:
    first, second = run_ranks("megatron_loop.py", told(tmp_path, bare=True, tp=2), ranks=2)
    assert first["log"].count("cannot save a checkpoint when asked: each rank of Megatron's") == 1
    assert [report["hello"].get("checkpoint_dir") for report in (first, second)] == [None, None]
    assert len(first["frames"]) == STEPS
