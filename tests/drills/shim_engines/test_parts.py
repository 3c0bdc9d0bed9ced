"""Where a loop's time went, by its own timers and by the frames: the parts are a partition, each in its own place."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

WARM = ("torch", "deepspeed", "transformers", "lightning.pytorch")
PARTS = (
    "data_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s", "eval_s", "loop_s",
)  # fmt: skip
PLAIN = {"plain": 1, "headless": 1, "drawn": 1, "late": 1, "ddp": 2, "inner": 2}
KINDS = {**PLAIN, "deepspeed": 2, "hf": 1, "lightning": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_a_loop_are_a_partition_with_each_in_its_place(run_ranks, kind: str) -> None:
    for report in run_ranks("parts_loop.py", kind, ranks=KINDS[kind]):
        frames = report["frames"]
        assert len(frames) == 12
        total, truth = measured(frames)
        named_s = sum(total[part] for part in PARTS)
        for frame in frames:
            assert sum(frame.get(part, 0.0) for part in PARTS) <= frame["step_s"] + 1e-5
        assert total["step_s"] == pytest.approx(frames[-1]["at"] - frames[0]["at"], rel=0.01)
        assert named_s == pytest.approx(total["step_s"], rel=0.01), "what is left over is small"

        # No part is shorter than what the loop slept in it, and together they are the wall-clock: none has another's.
        # Within the frames are two evaluations and two saves: the third ones come behind the last step.
        slept = asleep()
        slept["loop"] += 2 * 0.08 if kind in PLAIN else 0.0  # Behind each evaluation: no part of it.
        assert total["eval_s"] >= slept["eval"]
        assert total["checkpoint_s"] >= slept["save"]
        assert total["forward_s"] >= truth["loss"]
        if kind == "drawn":
            assert all(frame["data_bound"] and "loop_s" not in frame for frame in frames)
            assert total["data_s"] >= slept["data"] + slept["loop"]
        else:
            assert not any(frame.get("data_bound") for frame in frames)
            assert total["data_s"] >= slept["data"]
            assert total["loop_s"] >= slept["loop"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_compiles_nothing_and_the_last_one_and_the_last_save_have_an_end(run_ranks, kind: str) -> None:
    for report in run_ranks("parts_loop.py", kind, ranks=KINDS[kind]):
        phases = report["phases"]
        phases = phases[: phases.index("finish") + 1]
        assert phases.count("compile") == 1
        shown = 6 if kind == "late" else 3  # Its saves are within the evaluation, which shows again behind them.
        assert (phases.count("eval"), phases.count("checkpoint")) == (shown, 3)
        assert phases[-1] == "finish"
        assert len(report["last_phase"]) == 1, "no phase is open at the end"


@pytest.mark.parametrize("kind", ["hf", "lightning"])
def test_what_is_saved_behind_the_training_is_a_checkpoint(run_ranks, kind: str) -> None:
    report = run_ranks("parts_loop.py", kind)[0]
    changes = report["changes"]
    begun = [name for _, name in changes].index("finish")
    behind = changes[begun:]
    saved = sum(ended - at for (at, name), (ended, _) in itertools.pairwise(behind) if name == "checkpoint")
    assert report["spent"]["last"] * 0.5 <= saved <= report["spent"]["last"]
    assert behind[-1][1] == "finish"


@pytest.mark.parametrize(("gas", "workers"), [(1, 0), (4, 2)])
@pytest.mark.parametrize("kind", ["plain", "ddp", "deepspeed", "hf", "lightning"])
def test_the_parts_add_up_whatever_the_loop(run_ranks, kind: str, gas: int, workers: int) -> None:
    for report in run_ranks("parts_loop.py", kind, str(gas), str(workers), ranks=KINDS[kind]):
        frames = report["frames"]
        assert len(frames) == 12
        total, _ = measured(frames)
        assert total["step_s"] == pytest.approx(frames[-1]["at"] - frames[0]["at"], rel=0.01)
        assert total["step_s"] * 0.98 <= sum(total[part] for part in PARTS) <= total["step_s"] + 1e-4
        assert total["eval_s"] > 0
        assert total["checkpoint_s"] >= 2 * 0.05


def measured(frames: list[dict[str, Any]]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by part, and by the script's timers, between the first frame and the last one."""
    total = {part: sum(frame.get(part, 0.0) for frame in frames[1:]) for part in (*PARTS, "step_s")}
    first, last = frames[0]["spent"], frames[-1]["spent"]
    return total, {part: last[part] - first[part] for part in last}


def asleep() -> dict[str, float]:
    """Seconds of each part between the first frame and the last one, as parts_loop.py has them."""
    steps, micro_steps, samples = 11, 2, 4
    evaluation = 2 * (0.03 + samples * 0.004)
    return {
        "data": steps * micro_steps * samples * 0.004,
        "loop": steps * 0.02,
        "save": 2 * 0.05,
        "eval": 2 * evaluation,
    }
