"""Communication and recomputation in frames, on two gloo ranks, beside what the loop's own timers say."""

from __future__ import annotations

from typing import Any

import pytest

WARM = ("torch",)
WARMUP = 2  # Buckets are rebuilt, memory is found.
NOISE_S = 0.01  # Of a step: gloo's threads take the processor between two looks at the clock.


def total(report: dict[str, Any], name: str) -> float:
    return float(sum(frame.get(name, 0.0) for frame in report["frames"][WARMUP:]))


def truth(report: dict[str, Any], name: str) -> float:
    return float(sum(each[name] for each in report["truths"][WARMUP:]))


@pytest.mark.parametrize(
    ("kind", "how"), [("plain", "slow"), ("ddp", "slow"), ("ddp", "micro"), ("around", "slow"), ("fsdp2", "slow")]
)
def test_a_step_waits_for_the_wire_and_for_who_comes_last(run_ranks, kind: str, how: str) -> None:
    fast, slow = reports = run_ranks("comm_loop.py", kind, how, ranks=2)
    for report in reports:
        steps = report["frames"][WARMUP:]
        assert all("comm_s" in frame for frame in steps)
        assert total(report, "comm_s") == pytest.approx(truth(report, "comm"), rel=0.1, abs=NOISE_S * len(steps))
        assert all(frame["comm_s"] <= frame["step_s"] for frame in steps)
        assert report["hooked"][0]
        assert report["after"] == [True] * 4
        assert "fault" not in report["log"]
    # The last to come waits for the wire alone, as slow as a busy machine makes it. What its peer waits longer, it
    # waits for it.
    waited = total(fast, "comm_s") - total(slow, "comm_s")
    assert waited == pytest.approx(truth(slow, "late"), rel=0.2)


def test_weights_that_are_averaged_now_and_then_are_communication_of_those_steps_alone(run_ranks) -> None:
    for report in run_ranks("comm_loop.py", "averaged", "slow", ranks=2):
        told = [frame.get("comm_s") for frame in report["frames"]]
        # What lies behind a step is of the next one's time.
        assert told[:3] == [None] * 3, "before the first one nobody knows whether any can be seen"
        assert told[3::2] == [0.0] * 3
        truth_s = [each["comm"] for each in report["truths"][3:-1:2]]
        assert told[4::2] == pytest.approx(truth_s, rel=0.1, abs=NOISE_S)
        for frame in report["frames"][4::2]:
            assert frame["comm_between_s"] == frame["comm_s"] <= frame["data_s"]
        assert not any("comm_between_s" in frame for frame in report["frames"][3::2])


@pytest.mark.parametrize("how", ["again", "reentrant"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_what_checkpointing_computes_again_is_part_of_the_backward_pass(run_ranks, kind: str, how: str) -> None:
    for report in run_ranks("comm_loop.py", kind, how, ranks=2):
        steps = report["frames"][WARMUP:]
        assert total(report, "recompute_s") == pytest.approx(truth(report, "again"), rel=0.2, abs=NOISE_S * len(steps))
        assert all(0 < frame["recompute_s"] <= frame["backward_s"] for frame in steps)
        assert report["hooked"][2:] == [True, True]
        assert report["after"] == [True] * 4


def test_nothing_is_claimed_where_nothing_was_computed_again(run_ranks) -> None:
    report = run_ranks("comm_loop.py", "plain", "even")[0]
    assert not any("recompute_s" in frame for frame in report["frames"])


def test_a_sharded_model_trains_the_same_way_attached_and_not(run_ranks) -> None:
    bare = run_ranks("comm_loop.py", "fsdp2", "bare", ranks=2)
    seen = run_ranks("comm_loop.py", "fsdp2", "even", ranks=2)
    assert [report["losses"] for report in bare] == [report["losses"] for report in seen]
