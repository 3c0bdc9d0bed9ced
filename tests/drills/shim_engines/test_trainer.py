"""transformers.Trainer, with and without DeepSpeed, on two gloo ranks and on one."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.drills.components import needs

needs("transformers", "accelerate")

WARM = ("torch", "transformers.trainer", "transformers.models.llama.modeling_llama")

PARTS = ("data_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s")
STEPS, TOKENS = 6, 4 * 16 * 2


@pytest.mark.parametrize(("deepspeed", "ranks"), [(False, 1), (True, 2)])
def test_frames_tell_what_happened_and_change_nothing(run_ranks, tmp_path: Path, deepspeed: bool, ranks: int) -> None:
    chosen = {"deepspeed": deepspeed, "output_dir": str(tmp_path / "out")}
    bare = run_ranks("trainer_loop.py", json.dumps({**chosen, "attached": False}), ranks=ranks)
    seen = run_ranks("trainer_loop.py", json.dumps({**chosen, "save_at": 4}), ranks=ranks)

    for rank in range(ranks):
        assert bare[rank]["weights"] == seen[rank]["weights"]
        assert bare[rank]["logged"] == seen[rank]["logged"]
        frames = seen[rank]["frames"]
        assert [frame["step"] for frame in frames] == list(range(1, STEPS + 1)) == seen[rank]["boundaries"]
        for frame in frames:
            assert frame["tokens"] == TOKENS * ranks
            assert frame["loss_expected"]
            assert frame["lr"] >= 0
            assert sum(frame[part] for part in PARTS) <= frame["step_s"] * 1.001
            assert ("grad_norm" in frame) == deepspeed
        # Of the step that was disturbed least: what the machine takes away between two parts, nothing can explain.
        assert max(sum(frame[part] for part in PARTS) / frame["step_s"] for frame in frames[1:]) >= 0.95
        assert frames[4]["checkpoint_s"] > 0
        # Every rank saved at the same agreed step, by the Trainer's own means.
        path = tmp_path / "out" / "checkpoint-4"
        assert seen[rank]["delegated"] == [[str(path), None]]
        assert (path / "trainer_state.json").exists()
        assert seen[rank]["hello"]["framework"] == "hf"
        assert seen[rank]["hello"]["total_steps"] == STEPS
        assert seen[rank]["finished"] == [["train_end", True]]
        assert "checkpoint" in seen[rank]["phases"]
    mean = [sum(seen[rank]["frames"][step]["loss"] for rank in range(ranks)) / ranks for step in range(STEPS)]
    assert mean == pytest.approx(seen[0]["logged"], abs=2e-4), "the Trainer logs four digits"


def test_a_resumed_trainer_goes_on_at_its_step(run_ranks, tmp_path: Path) -> None:
    chosen = {"output_dir": str(tmp_path / "out")}
    run_ranks("trainer_loop.py", json.dumps({**chosen, "save_at": 4}))
    resumed = run_ranks("trainer_loop.py", json.dumps({**chosen, "resume": str(tmp_path / "out" / "checkpoint-4")}))[0]

    assert [frame["step"] for frame in resumed["frames"]] == [5, 6]
    assert [frame["attempt_step"] for frame in resumed["frames"]] == [1, 2]
    assert resumed["hello"]["resumed_step"] == 4
    assert resumed["frames"][0]["tokens_total"] == 5 * TOKENS, "counted over the run, not since launch"


def test_evaluation_is_a_phase(run_ranks, tmp_path: Path) -> None:
    chosen = {"output_dir": str(tmp_path / "out"), "evaluate": True}
    seen = run_ranks("trainer_loop.py", json.dumps(chosen))[0]

    told = [phase for phase, _ in itertools.groupby(seen["phases"])]
    assert told == ["compile", "train", "eval", "train", "compile", "train", "eval", "train"]
    assert [frame["tokens"] for frame in seen["frames"]] == [TOKENS] * STEPS
