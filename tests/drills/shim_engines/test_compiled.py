"""A model that is compiled whole: attach() raises nothing into it, changes nothing, and sees it, in whatever order."""

from __future__ import annotations

from typing import Any

WARM = ("torch", "torch._dynamo.backends.debugging")
ENVIRON = {"TORCHDYNAMO_DISABLE": "0"}
COMPILED_MODEL = ("compiled, attached", "in place, attached", "attached, compiled", "attached, in place")
TOKENS = 4 * 16


def test_every_step_of_a_whole_graph_is_seen_in_whatever_order_it_is_attached(run_ranks) -> None:
    (report,) = run_ranks("compiled_loop.py", *COMPILED_MODEL, "attached, its optimizer compiled")
    for order, seen in report["orders"].items():
        _assert_trained_alike(order, seen)
        frames = seen["frames"]
        # Of the two scalars that one operation returns, the one that backward() starts from.
        assert [frame["loss"] for frame in frames] == seen["losses"], order
        assert [frame["tokens"] for frame in frames] == [TOKENS] * len(frames), order
        assert all(frame["forward_s"] > 0 for frame in frames), order
        assert seen["boundaries"] == [1, 2, 3, 4, 5], order
        assert seen["calls_after_close"] == 0, order


def test_a_forward_pass_within_a_compiled_function_is_unseen_and_its_steps_are_not(run_ranks) -> None:
    (report,) = run_ranks("compiled_loop.py", "attached, within a function")
    (seen,) = report["orders"].values()
    _assert_trained_alike("within", seen)
    for frame in seen["frames"]:
        assert frame["loss"] is not None
        # The gap between two steps holds the forward pass: to call it a wait for data would halt a healthy run.
        assert not {"forward_s", "loop_s", "tokens"} & frame.keys()
    # Nothing shows when the next step begins: a checkpoint is asked for at the end of each.
    assert seen["boundaries"] == [1, 2, 3, 4, 5, 6]


def test_an_update_within_a_whole_graph_is_unseen_rather_than_broken(run_ranks) -> None:
    (report,) = run_ranks("compiled_loop.py", "attached, an optimizer of its own within a function")
    (seen,) = report["orders"].values()
    assert seen["losses"] == seen["alone"]
    assert seen["frames"] == []
    assert seen["progress_seq"] > 0, "forward and backward passes are seen: it does not look hung"


def _assert_trained_alike(order: str, seen: dict[str, Any]) -> None:
    assert seen["losses"] == seen["alone"], order
    assert [frame["step"] for frame in seen["frames"]] == [1, 2, 3, 4, 5, 6], order
