"""attach(trainer) of Composer: frames, identical numbers, a NaN that is seen, checkpoints that resume.

Composer itself asks for an older torch, so most machines play its stand-in alone.
"""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest

from tests.drills.components import needs

needs("torch")

WARM = ("torch",)
STEPS = 8
REAL = importlib.util.find_spec("composer") is not None
SKIPPED = pytest.mark.skipif(not REAL, reason="needs composer: the stand-in was played")
PLAYED = pytest.mark.parametrize("standin", [True, pytest.param(False, marks=SKIPPED)], ids=["a stand-in", "composer"])


def told(directory: Path, standin: bool, **more: object) -> str:
    return json.dumps({"attached": True, "steps": STEPS, "directory": str(directory), "standin": standin, **more})


@PLAYED
def test_frames_tell_what_happened_and_change_nothing(run_ranks, tmp_path: Path, standin: bool) -> None:
    bare = run_ranks("composer_loop.py", told(tmp_path / "bare", standin, attached=False))[0]
    seen = run_ranks("composer_loop.py", told(tmp_path / "seen", standin))[0]
    assert (bare["losses"], bare["weights"]) == (seen["losses"], seen["weights"])
    frames = seen["frames"]
    assert [frame["step"] for frame in frames] == list(range(1, STEPS + 1)) == seen["boundaries"]
    for index, frame in enumerate(frames):
        assert frame["loss"] == pytest.approx(sum(seen["losses"][2 * index : 2 * index + 2]) / 2)
        assert frame["tokens"] == 2 * 4 * 16
        assert frame["lr"] == 1e-2
        assert min(frame[part] for part in ("data_s", "forward_s", "backward_s", "optimizer_s")) > 0
        assert sum(frame[part] for part in frame if part in PARTS) <= frame["step_s"] * 1.001
    evaluated = [frame["step"] for frame in frames if frame.get("eval_s")]
    saved = [frame["step"] for frame in frames if frame.get("checkpoint_s")]
    assert evaluated == saved == [5], "behind step 4; those behind step 8 come after the last frame"
    assert frames[0]["grad_finite"]
    assert seen["phases"].count("eval") == 2
    assert (seen["hello"]["framework"], seen["hello"]["total_steps"]) == ("composer", STEPS)
    assert seen["hello"]["last_good"]["path"] == str(tmp_path / "seen" / "own" / "ep0-ba8-rank0.pt")
    assert seen["fetches"]["outside"] == 0 < seen["fetches"]["inside"]
    assert seen["finished"][0] == ["train_end", True]


PARTS = ("data_s", "loop_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s", "eval_s")


@PLAYED
def test_a_nan_is_seen_at_its_step_and_its_save_is_no_good_one(run_ranks, tmp_path: Path, standin: bool) -> None:
    seen = run_ranks("composer_loop.py", told(tmp_path, standin, broken=6))[0]
    assert [math.isfinite(frame["loss"]) for frame in seen["frames"]] == [True] * 5 + [False] * 3
    assert seen["hello"]["last_good"]["step"] == 4


@PLAYED
@pytest.mark.parametrize("path", ["own/costgov/cg_drill", "own/ep0-ba4-rank0.pt"], ids=["asked for", "its own"])
def test_a_checkpoint_resumes_with_the_same_losses(run_ranks, tmp_path: Path, standin: bool, path: str) -> None:
    whole = run_ranks("composer_loop.py", told(tmp_path, standin, save_at=4))[0]
    path = str(tmp_path / path)
    if path.endswith("drill"):
        (Path(path) / "costgov_manifest.json").write_text("{}")
    resumed = run_ranks("composer_loop.py", told(tmp_path, standin, resume=path))[0]
    assert resumed["losses"] == whole["losses"][8:]
    assert [frame["step"] for frame in resumed["frames"]] == list(range(5, STEPS + 1))
    assert resumed["weights"] == whole["weights"]
