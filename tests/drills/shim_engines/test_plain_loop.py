"""A plain PyTorch loop: frames, identical numbers, saving and resuming."""

from __future__ import annotations

from pathlib import Path

import pytest

WARM = ("torch",)
PARTS = ("data_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s", "eval_s", "loop_s")


@pytest.mark.parametrize("how", ["returned", "told"])
def test_a_plain_loop_is_seen_and_not_changed(run_ranks, tmp_path: Path, how: str) -> None:
    bare = run_ranks("plain_loop.py", "bare")[0]
    seen = run_ranks("plain_loop.py", how, str(tmp_path / "checkpoints"))[0]

    assert bare["losses"] == seen["losses"]
    assert bare["weights"] == seen["weights"]
    frames = seen["frames"]
    assert [frame["step"] for frame in frames[:8]] == [1, 2, 3, 4, 5, 6, 7, 8]
    for index, frame in enumerate(frames[:8]):
        # Mean over the two micro-steps, of what the loop itself called its loss where it told, else of the output.
        told = sum(seen["losses"][2 * index : 2 * index + 2]) / 2
        assert frame["loss"] == pytest.approx(told if how == "told" else 2 * told)
        assert frame["loss_expected"]
        assert frame["applied"]
        assert frame["tokens"] == 2 * 4 * 16
        assert sum(frame.get(part, 0.0) for part in PARTS) <= frame["step_s"] * 1.001
    assert frames[7]["tokens_total"] == 8 * 2 * 4 * 16
    assert [round(frame["lr"], 6) for frame in frames[:3]] == [0.01, 0.01, 0.005]
    assert seen["phases"][:2] == ["compile", "train"]
    assert seen["hello"]["framework"] == "torch"
    assert seen["copies_counted"] == 0
    assert seen["fetches"]["outside"] == 0 < seen["fetches"]["inside"]


def test_a_saved_plain_loop_resumes_with_the_same_losses(run_ranks, tmp_path: Path) -> None:
    seen = run_ranks("plain_loop.py", "told", str(tmp_path / "checkpoints"))[0]

    assert seen["losses"][10:16] == seen["resumed_losses"], "steps 6 to 8, after the checkpoint at 5"
    assert seen["resumed_step"] == 6
    assert seen["resumed_tokens_total"] == 6 * 2 * 4 * 16
    assert seen["client_state"] == {"note": "drill"}
    assert seen["frames"][5]["checkpoint_s"] > 0
    assert seen["finished"] == [["closed", True]]
    last = seen["last_parameter"]
    assert seen["harmed"] == ["", "", last, last, "0 in group 1 of optimizer 0"], (
        "no buffer, no -inf, nothing that no optimizer holds or that began so; what one holds also without gradient"
    )
    assert seen["looks"] == [None, None, None, "harmed", "", ""], "nothing that nobody has looked at is finite"
    assert seen["eight_bits"] == [], "each byte of each kind is judged as the number that it is"
    assert seen["copied"] <= 2**20, "of 4,194,304 elements no whole copy in full precision is made"
    assert "parameter bound: not finite before the first step, so taken as meant" in seen["log"]


ODD = ("masters", "head", "adapter", "numbers", "name")  # What each trains, or keeps, beside a module's weights.


def test_all_that_the_optimizer_trains_is_saved_and_given_back(run_ranks, tmp_path: Path) -> None:
    seen = run_ranks("odd_loop.py", str(tmp_path / "checkpoints"), *ODD, "schedule", "object")[0]

    assert {kind: seen[kind]["resumed"] for kind in ODD} == {kind: seen[kind]["losses"] for kind in ODD}
    said = seen["log"].splitlines()
    outside = [line for line in said if "2 tensors (8x8, 8: 72 elements) outside of the attached module" in line]
    assert len(outside) == 4, "masters and head, each attached twice"
    assert sum("an LR scheduler drives the optimizer" in line for line in said) == 2
    assert any("the state of 'model'" in line and "Note, which resume() does not load" in line for line in said)
    assert "add_safe_globals" in seen["object"]["refused"]


def test_fetches_are_seen_with_workers_and_end_with_them(run_ranks) -> None:
    seen = run_ranks("fetch_loop.py")[0]

    assert seen["steps"] == 18
    assert seen["starts"] == [0, 1, 2, 0, 1, 2], "each data set's own, whether workers are kept or started anew"
    assert seen["between"] == [0]
    assert seen["longest_ns"] >= 3e8, "the slow sample, but for what the worker did of it during the steps"
    assert seen["copied"] == [2, 2]
    assert "exited unexpectedly" in seen["died"], "the loader raises, and training ends by itself"
    assert seen["after"] == 0
    assert seen["fetches"]["outside"] == 0 < seen["fetches"]["inside"], "those without a worker"
