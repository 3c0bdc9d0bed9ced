"""A user's own loop around an Accelerator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills.components import needs

needs("accelerate")

WARM = ("torch", "accelerate")


def test_an_accelerate_loop_is_seen_saved_and_not_changed(run_ranks, tmp_path: Path) -> None:
    bare = run_ranks("accelerate_loop.py", "bare")[0]
    seen = run_ranks("accelerate_loop.py", str(tmp_path / "checkpoints"))[0]

    assert bare["losses"] == seen["losses"]
    assert bare["weights"] == seen["weights"]
    frames = seen["frames"]
    assert [frame["step"] for frame in frames] == [1, 2, 3, 4, 5, 6, 5, 6], "steps 5 and 6 once more after resume"
    for index, frame in enumerate(frames[:6]):
        assert frame["loss"] == pytest.approx(sum(seen["losses"][2 * index : 2 * index + 2]) / 2)
        assert frame["tokens"] == 2 * 4 * 16
        assert frame["backward_s"] > 0
    assert frames[4]["checkpoint_s"] > 0
    assert seen["again"] == seen["losses"][8:], "accelerator.load_state() and the data position, at step 4"
    assert not seen["left_behind"]
