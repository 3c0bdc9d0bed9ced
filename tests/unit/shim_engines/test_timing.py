"""The step clock: exclusive parts that sum to the step, on a clock that the test holds."""

from __future__ import annotations

import pytest

from trainer_shim import timing
from trainer_shim.timing import StepClock, StepTimes, put_seconds

PARTS = (
    "GAP", "DATA", "FORWARD", "AFTER_FORWARD", "BACKWARD", "OPTIMIZER", "CHECKPOINT", "HOLD", "EVAL", "AFTER_BACKWARD",
    "BUBBLE",
)  # fmt: skip


class HandClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.at_ns = 1_000

    def __call__(self) -> int:
        return self.at_ns


def test_parts_are_exclusive_and_sum_to_the_step() -> None:
    hand = HandClock()
    clock = StepClock(hand)
    for part, spent_ns in (
        (timing.DATA, 5),
        (timing.FORWARD, 20),
        (timing.AFTER_FORWARD, 3),
        (timing.BACKWARD, 40),
        (timing.OPTIMIZER, 10),
    ):
        hand.at_ns += 1  # In whatever came before.
        clock.switch(part)
        hand.at_ns += spent_ns
    times = clock.close()

    assert times.step_ns == sum(times.spent) == 5 + 20 + 3 + 40 + 10 + 5
    assert times.spent[timing.GAP] == 1
    assert times.spent[timing.FORWARD] == 21, "what follows a part belongs to it until the next switch"


def test_a_closed_step_starts_the_next_one_at_zero_in_the_gap() -> None:
    hand = HandClock()
    clock = StepClock(hand)
    clock.add_comm(7)
    hand.at_ns += 50
    assert clock.close().comm_ns == 7
    hand.at_ns += 30
    times = clock.close()

    assert times.step_ns == 30
    assert times.spent[timing.GAP] == 30
    assert times.comm_ns == 0


@pytest.mark.parametrize("part", [timing.CHECKPOINT, timing.HOLD, timing.EVAL, timing.BUBBLE])
def test_a_collective_in_a_save_a_hold_an_evaluation_or_a_bubble_is_no_communication_of_the_training(part: int) -> None:
    clock = StepClock(HandClock())
    clock.switch(part)
    clock.add_comm(7)
    clock.switch(timing.BACKWARD)
    clock.add_comm(5)
    assert clock.close().comm_ns == 5


@pytest.mark.parametrize(
    ("then", "between_ns"), [(timing.OPTIMIZER, 2), (timing.FORWARD, 6)], ids=["it clips", "it goes on"]
)
def test_a_collective_behind_a_backward_pass_is_of_what_that_turns_out_to_be(then: int, between_ns: int) -> None:
    hand = HandClock()
    clock = StepClock(hand)
    clock.add_comm(2)  # In the gap.
    for part in (timing.FORWARD, timing.AFTER_FORWARD, timing.BACKWARD):
        clock.switch(part)
        clock.add_comm(100)
    hand.at_ns += 1
    clock.switch(timing.AFTER_BACKWARD)
    clock.add_comm(4)
    if then == timing.OPTIMIZER:
        clock.relabel(timing.OPTIMIZER)
    clock.switch(then)
    clock.add_comm(100)
    times = clock.close()
    assert (times.comm_ns, times.comm_between_ns) == (406, between_ns)
    assert clock.close().comm_between_ns == 0


def test_a_collective_behind_a_loss_that_the_model_returns_is_the_loops() -> None:
    clock = StepClock(HandClock())
    clock.switch(timing.AFTER_FORWARD)
    clock.add_comm(4)
    clock.relabel(timing.GAP)
    assert clock.close().comm_between_ns == 4


def test_what_overlaps_the_parts_is_put_until_it_is_ended() -> None:
    overlapping, fields = timing.Overlapping(), {}
    end = overlapping.add(lambda fields, times: fields.update(comm_s=times.comm_ns / 1e9))
    overlapping.put(fields, timing.StepTimes(100, [0] * timing.PARTS_TOTAL, 50))
    assert fields == {"comm_s": 5e-8}
    end()
    overlapping.put(fields, timing.StepTimes(100, [0] * timing.PARTS_TOTAL, 70))
    assert fields == {"comm_s": 5e-8}


def test_switch_returns_the_part_that_was_left() -> None:
    clock = StepClock(HandClock())

    assert clock.switch(timing.FORWARD) == timing.GAP
    assert clock.switch(timing.DATA) == timing.FORWARD


def told(*, loader_timed: bool = True, backward_seen: bool = True, **parts_us: int) -> dict[str, float]:
    spent = [0] * timing.PARTS_TOTAL
    for name, value in parts_us.items():
        spent[getattr(timing, name)] = value * 1_000
    fields: dict[str, float] = {}
    put_seconds(fields, StepTimes(sum(spent), spent, 0), loader_timed, backward_seen)
    return fields


def test_the_gap_is_data_wait_unless_a_loader_tells_it_exactly() -> None:
    bound = told(GAP=30, AFTER_BACKWARD=5, DATA=12, loader_timed=False)
    exact = told(GAP=30, AFTER_BACKWARD=5, DATA=12, loader_timed=True)
    assert (bound["data_s"], bound["data_bound"], bound.get("loop_s")) == (47e-6, True, None)
    assert (exact["data_s"], exact.get("data_bound"), exact["loop_s"]) == (12e-6, None, 35e-6)


def test_what_follows_the_forward_pass_is_backward_only_where_nobody_saw_one() -> None:
    unseen = told(FORWARD=2, AFTER_FORWARD=9, BACKWARD=1, backward_seen=False)
    seen = told(FORWARD=2, AFTER_FORWARD=9, BACKWARD=1, backward_seen=True)
    assert (unseen["forward_s"], unseen["backward_s"]) == (2e-6, 10e-6)
    assert (seen["forward_s"], seen["backward_s"]) == (11e-6, 1e-6)


def test_evaluation_has_a_part_of_its_own() -> None:
    fields = told(EVAL=100, OTHER=50)

    assert (fields.pop("step_s"), fields.pop("eval_s")) == (150e-6, 100e-6)
    assert set(fields.values()) == {0.0}
    assert "eval_s" not in told(OTHER=50)


def test_all_parts_but_other_are_in_the_frame_once() -> None:
    for loader_timed in (True, False):
        for backward_seen in (True, False):
            fields = told(
                loader_timed=loader_timed,
                backward_seen=backward_seen,
                **{name: 2**index for index, name in enumerate(PARTS)},
            )
            step_s = fields.pop("step_s")
            fields.pop("data_bound", None)
            assert round(sum(fields.values()) * 1e6) == round(step_s * 1e6) == 2 ** len(PARTS) - 1


def test_seconds_are_whole_microseconds() -> None:
    assert timing.seconds(1_234_567_891) == 1.234567
