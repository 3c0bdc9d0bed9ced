"""Real DeepSpeed on two gloo ranks: what the frames say is what happened, and training is the same without us."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.drills.components import needs

needs("deepspeed")

WARM = ("torch", "deepspeed")

PARTS = ("data_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s", "eval_s", "loop_s")
STEPS, BATCH, LENGTH, RANKS = 6, 4, 16, 2


def options(**chosen: object) -> str:
    return json.dumps(chosen)


def shares(frames: list[dict]) -> float:
    """How much of a step's wall time the parts explain: of the step after the first that was disturbed least.

    Where the machine takes the processor away between two parts, nothing of ours can tell what for.
    """
    return max(sum(frame.get(part, 0.0) for part in PARTS) / frame["step_s"] for frame in frames[1:])


@pytest.mark.parametrize(
    ("stage", "gas", "precision"), [(0, 1, "fp32"), (1, 4, "bf16"), (2, 4, "fp32"), (3, 1, "bf16"), (3, 4, "fp32")]
)
def test_frames_tell_what_happened_and_change_nothing(run_ranks, stage: int, gas: int, precision: str) -> None:
    chosen = {"stage": stage, "gas": gas, "precision": precision}
    bare = run_ranks("deepspeed_loop.py", options(**chosen, attached=False), ranks=RANKS)
    seen = run_ranks("deepspeed_loop.py", options(**chosen), ranks=RANKS)

    for rank in range(RANKS):
        assert bare[rank]["losses"] == seen[rank]["losses"], "bit-identical losses"
        assert bare[rank]["weights"] == seen[rank]["weights"], "bit-identical weights"
        frames = seen[rank]["frames"]
        assert list(range(1, STEPS + 1)) == [frame["step"] for frame in frames]
        assert list(range(1, STEPS + 1)) == seen[rank]["boundaries"]
        for index, frame in enumerate(frames):
            micro = seen[rank]["losses"][index * gas : (index + 1) * gas]
            assert frame["loss"] == pytest.approx(sum(micro) / gas, rel=1e-6)
            assert frame["loss_expected"]
            assert frame["applied"]
            assert frame["skipped_steps"] == 0
            assert frame["lr"] == 0.01
            assert frame["tokens"] == BATCH * LENGTH * gas * RANKS
            assert frame["tokens_total"] == frame["tokens"] * frame["step"]
            # Stage 0 in fp32 never computes one: absent, not zero.
            assert ("grad_norm" in frame) == (stage > 0)
            assert sum(frame.get(part, 0.0) for part in PARTS) <= frame["step_s"] * 1.001
            assert frame["comm_s"] > 0
        assert shares(frames) >= 0.95
        assert seen[rank]["phases"] == ["compile", "train"]
        assert seen[rank]["hello"]["zero_stage"] == stage
        assert seen[rank]["hello"]["parameters"] == 256 * 32 * 2 + 32 * 32 + 32, "whole, under ZeRO-3 too"
        assert seen[rank]["collectives_total"] > 0
        assert seen[rank]["collective"][2], "no collective is open at the end"
        assert seen[rank]["left_behind"] == []
        assert seen[rank]["fetches"]["outside"] == 0 < seen[rank]["fetches"]["inside"]
    assert seen[0]["hello"]["run"] == seen[1]["hello"]["run"]
    assert seen[0]["hello"]["attempt"] == seen[1]["hello"]["attempt"]


def test_with_no_governor_training_is_the_same_and_one_rank_says_so(run_ranks, tmp_path: Path) -> None:
    bare = run_ranks("deepspeed_loop.py", options(stage=2, gas=2, attached=False), ranks=RANKS)
    absent = {"COSTGOV_SOCKET": str(tmp_path / "absent.sock")}
    alone = run_ranks("deepspeed_loop.py", options(stage=2, gas=2, unwatched=True), ranks=RANKS, env=absent)

    for rank in range(RANKS):
        assert bare[rank]["losses"] == alone[rank]["losses"]
        assert bare[rank]["weights"] == alone[rank]["weights"]
    assert alone[0]["log"].count("UNWATCHED") == 1


@pytest.mark.parametrize(("stage", "precision"), [(0, "fp32"), (1, "bf16"), (2, "fp16"), (3, "fp32")])
def test_a_nan_on_one_rank_is_told_as_it_was(run_ranks, stage: int, precision: str) -> None:
    chosen = {"stage": stage, "precision": precision, "nan_at": 3}
    sick, well = run_ranks("deepspeed_loop.py", options(**chosen), ranks=RANKS)

    assert [frame["loss"] != frame["loss"] for frame in sick["frames"][:3]] == [False, False, True]
    assert well["frames"][2]["loss"] == well["frames"][2]["loss"], "the other rank's own loss is finite"
    masked = not (stage == 0 and precision == "fp32")
    for rank in (sick, well):
        frame = rank["frames"][2]
        # DeepSpeed skips the update on every rank, but only where it has an overflow flag.
        assert frame["applied"] is not masked
        assert frame["skipped_steps"] == (1 if masked else 0)
        assert "grad_norm" not in frame, "on overflow it is stale, -1 or inf, depending on version"
        assert rank["frames"][3]["skipped_steps"] == frame["skipped_steps"]
        if precision == "fp16":
            assert [rank["frames"][1]["loss_scale"], rank["frames"][2]["loss_scale"]] == [256.0, 128.0]


def test_loss_backward_called_directly_is_seen(run_ranks) -> None:
    seen = run_ranks("deepspeed_loop.py", options(stage=2, direct_backward=True))[0]

    assert seen["losses"] == pytest.approx([frame["loss"] for frame in seen["frames"]])
    assert all(frame["backward_s"] > 0 for frame in seen["frames"])
    assert shares(seen["frames"]) >= 0.95


def test_evaluation_is_a_phase_and_the_step_after_it_is_as_the_others(run_ranks) -> None:
    seen = run_ranks("deepspeed_loop.py", options(stage=2, evaluate=True))[0]

    assert seen["phases"] == ["compile", "train", "eval", "train"]
    assert seen["eval_frame"]["step"] == STEPS + 1
    assert seen["eval_frame"]["tokens"] == BATCH * LENGTH, "evaluation tokens are not trained on"


def test_the_scripts_own_checkpoint_is_a_phase_and_a_last_good(run_ranks, tmp_path: Path) -> None:
    seen = run_ranks("deepspeed_loop.py", options(stage=2, own_save=str(tmp_path / "own")))[0]

    assert seen["phases"] == ["compile", "train", "checkpoint", "train"]
    assert seen["hello"]["last_good"]["step"] == STEPS
    assert seen["hello"]["last_good"]["path"] == str(tmp_path / "own" / "mine")
    assert seen["hello"]["checkpoint_dir"] == str(tmp_path / "own"), "where to save when asked, learned from the script"


@pytest.mark.parametrize(("stage", "gas"), [(2, 4), (3, 1)])
def test_a_checkpoint_resumes_with_the_same_losses(run_ranks, tmp_path: Path, stage: int, gas: int) -> None:
    directory = str(tmp_path / "checkpoints")
    chosen = {"stage": stage, "gas": gas, "save_at": 3, "checkpoint_dir": directory}
    for seen in run_ranks("deepspeed_loop.py", options(**chosen), ranks=RANKS):
        assert seen["losses"][3 * gas :] == seen["again"]
        assert {"step": 3, "tokens_total": 3 * gas * BATCH * LENGTH * RANKS} == seen["position"]
        assert [frame["step"] for frame in seen["again_frames"]] == [4, 5, 6]
        assert 4 * gas * BATCH * LENGTH * RANKS == seen["again_frames"][0]["tokens_total"]
        assert seen["client_state"]["note"] == "drill"
        assert seen["frames"][3]["checkpoint_s"] > 0
    assert not (Path(directory) / "latest").exists(), "DeepSpeed's own pointer stays where it is"
