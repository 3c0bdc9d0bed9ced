"""A NaN is seen in plain loops whose model does not return its loss alone, and nothing of them changes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from trainer_shim.progress import PASSES_MIN, Progress
from trainer_shim.sight.outputs import Outputs

WARM = ("torch",)
STEPS, NEVER = 20, 99
BROKEN = 10


def frames(report: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = report["frames"]
    return found


@pytest.mark.parametrize("how", ["tuple", "dict", "dataclass", "outside", "autograd", "scaler", "aux", "checkpoint"])
def test_a_loss_is_seen_wherever_it_is(run_ranks, tmp_path: Path, how: str) -> None:
    bare = run_ranks("loss_loop.py", how, str(NEVER), "bare")[0]
    seen = run_ranks("loss_loop.py", how, str(NEVER), "attached", str(tmp_path))[0]
    assert (bare["losses"], bare["weights"]) == (seen["losses"], seen["weights"])
    micro_steps = 2 if how in ("tuple", "scaler") else 1
    # What the model returned is the loss itself; what backward() began with is the loop's share of it.
    shown = 2 if how == "tuple" else 1
    for index, frame in enumerate(frames(seen)):
        of_step = seen["losses"][index * micro_steps : (index + 1) * micro_steps]
        assert frame["loss"] == pytest.approx(shown * sum(of_step) / micro_steps), frame["step"]
    assert len(frames(seen)) == STEPS

    broken = run_ranks("loss_loop.py", how, str(BROKEN), "attached", str(tmp_path))[0]
    if how == "scaler":  # It makes no step of a gradient that is not finite, and its weights stay sound.
        lost = [frame["step"] for frame in frames(broken) if not math.isfinite(frame["loss"])]
        assert lost == [frame["step"] for frame in frames(broken) if not frame["applied"]] == [BROKEN]
        assert [frame["step"] for frame in frames(broken)] == list(range(1, STEPS + 1))
    else:
        assert not math.isfinite(frames(broken)[BROKEN]["loss"]), "the step after the weights broke at the latest"


@pytest.mark.parametrize("how", ["tuple", "clip"])
def test_the_norm_by_which_a_loop_clips_is_its_gradient_norm(run_ranks, tmp_path: Path, how: str) -> None:
    seen = run_ranks("loss_loop.py", how, str(BROKEN), "attached", str(tmp_path))[0]
    shown = [frame["grad_norm"] for frame in frames(seen)]
    assert shown[: BROKEN - 1] == pytest.approx(seen["norms"][: BROKEN - 1])
    assert not math.isfinite(shown[BROKEN - 1])
    assert not any("grad_finite" in frame for frame in frames(seen))


def test_a_gradient_that_nobody_clips_is_sampled_and_shown_as_no_norm(run_ranks, tmp_path: Path) -> None:
    seen = run_ranks("loss_loop.py", "vector", str(BROKEN), "attached", str(tmp_path))[0]
    assert not any("grad_norm" in frame or "loss" in frame for frame in frames(seen))
    told = {frame["step"]: frame["grad_finite"] for frame in frames(seen) if "grad_finite" in frame}
    assert told[1]
    first = min(step for step, is_finite in told.items() if not is_finite)
    assert BROKEN <= first < BROKEN + 8
    assert [told.get(step) for step in range(first, STEPS + 1)] == [False] * (STEPS + 1 - first), (
        "each step, until it is finite"
    )


@pytest.mark.parametrize(("required", "steps"), [("0", 30), ("1", 20)])
def test_a_loop_of_which_nothing_is_seen_is_ended_only_where_that_was_asked_for(
    run_ranks, required: str, steps: int
) -> None:
    seen = run_ranks("blind_loop.py", env={"COSTGOV_REQUIRED": required})[0]
    assert len(frames(seen)) == steps
    assert (seen["ended"] is None) == (required == "0")
    if seen["ended"]:
        assert seen["ended"].startswith("costgov: neither loss nor gradient is seen in 20 steps")
        assert "\n" not in seen["ended"]


@pytest.mark.parametrize("kind", ["logits", "tuple", "loss", "padded"])
def test_outputs_are_looked_at_where_no_step_comes_of_them(kind: str) -> None:
    import torch

    def output(value: float) -> Any:
        logits = torch.full((4, 50), value)
        if kind == "tuple":
            return torch.zeros(4, dtype=torch.int64), logits
        if kind == "loss":  # The states have a mask, the loss has none.
            return {"states": torch.full((9,), math.inf), "loss": logits.mean()}
        if kind == "padded":
            logits[-1] = math.nan
        return logits

    progress = Progress(1)
    outputs = Outputs(progress)
    progress.forwards = 1
    outputs.after_forward(output(-math.inf))
    progress.end_passes()
    progress.forwards = PASSES_MIN
    outputs.after_forward(output(math.nan))
    assert progress.outputs_seen == 0
    progress.forwards += 1
    outputs.after_forward(output(math.nan))
    # What holds a NaN in health tells nothing by another one.
    assert (progress.outputs_seen, progress.outputs_nonfinite) == ((0, 0) if kind == "padded" else (1, 1))
