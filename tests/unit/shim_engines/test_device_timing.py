"""The ring of device events, driven by a device that the test advances."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from trainer_shim import timing
from trainer_shim.device_timing import EVENTS_PER_STEP_MAX, STEPS_IN_FLIGHT_MAX, DeviceTimer, felt_data_wait
from trainer_shim.interfaces import NoWatch
from trainer_shim.meter import StepMeter
from trainer_shim.progress import Progress
from trainer_shim.scalars import EngineFacts
from trainer_shim.tokens import TokenCount


class Device:
    """Work is queued by the host and done when the test says so. Asking for what is not done fails the test."""

    def __init__(self) -> None:
        self.queued_ms = 0.0
        self.done_ms = 0.0
        self.events_made = 0
        self.values: dict[int, tuple] = {}
        self.capturing = False

    def work(self, ms: float) -> None:
        self.queued_ms += ms

    def catch_up(self, to_ms: float | None = None) -> None:
        self.done_ms = self.queued_ms if to_ms is None else to_ms

    def timer(self) -> DeviceTimer:
        return DeviceTimer(lambda: DeviceEvent(self), self, lambda: self.capturing)

    def put(self, slot, loss, norm, nonpad) -> None:
        self.values[slot] = (loss, norm, nonpad)

    def get(self, slot):
        return self.values[slot]


class DeviceEvent:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.at_ms: float | None = None
        device.events_made += 1

    def record(self) -> None:
        self.at_ms = self.device.queued_ms

    def query(self) -> bool:
        assert self.at_ms is not None
        return self.device.done_ms >= self.at_ms

    def elapsed_time(self, end) -> float:
        assert self.query(), "elapsed_time before the event is done would wait"
        assert end.query(), "elapsed_time before the event is done would wait"
        return end.at_ms - self.at_ms


def run_step(timer: DeviceTimer, device: Device, step: int, gap_ms: float = 2.0) -> None:
    device.work(gap_ms)
    for part, ms in ((timing.FORWARD, 10.0), (timing.BACKWARD, 20.0), (timing.OPTIMIZER, 5.0)):
        timer.mark(part)
        device.work(ms)
    timer.close_step({"step": step}, float(step), None)


def test_a_step_arrives_only_when_the_device_has_caught_up() -> None:
    device = Device()
    timer = device.timer()
    run_step(timer, device, 1)
    assert timer.arrived() == []
    device.catch_up(device.queued_ms - 0.5)
    assert timer.arrived() == [], "its last event is not done"
    device.catch_up()
    (late,) = timer.arrived()

    assert late.fields == {"step": 1}
    assert late.loss == 1.0
    assert late.norm is None
    assert late.parts_ns[timing.FORWARD] == 10_000_000
    assert late.parts_ns[timing.BACKWARD] == 20_000_000
    assert late.parts_ns[timing.OPTIMIZER] == 5_000_000


def test_the_gap_before_a_step_is_measured_on_the_device_and_parts_sum_to_it() -> None:
    device = Device()
    timer = device.timer()
    run_step(timer, device, 1)
    run_step(timer, device, 2, gap_ms=7.0)
    device.catch_up()
    second = timer.arrived()[1]

    assert second.parts_ns[timing.GAP] == 7_000_000
    assert second.step_ns == sum(second.parts_ns) == 42_000_000


def test_steps_arrive_in_order_and_events_are_used_again() -> None:
    device = Device()
    timer = device.timer()
    seen = []
    for step in range(1, 101):
        run_step(timer, device, step)
        if step % 3 == 0:
            device.catch_up()
        seen += [late.fields["step"] for late in timer.arrived()]
    device.catch_up()
    seen += [late.fields["step"] for late in timer.arrived()]

    assert seen == list(range(1, 101))
    assert device.events_made <= 4 * 4, "three steps in flight, four events each, and the open one"


def test_a_stuck_device_costs_its_own_values_and_bounded_memory() -> None:
    device = Device()
    timer = device.timer()
    late = []
    for step in range(1, STEPS_IN_FLIGHT_MAX + 4):
        run_step(timer, device, step)
        late += timer.arrived()

    assert [each.fields["step"] for each in late] == [1, 2, 3]
    assert not any(each.is_read for each in late)
    assert timer.in_flight == STEPS_IN_FLIGHT_MAX


def test_too_many_micro_steps_keep_the_loss_and_give_up_the_parts() -> None:
    device = Device()
    timer = device.timer()
    for _ in range(EVENTS_PER_STEP_MAX + 10):
        timer.mark(timing.FORWARD)
        device.work(1.0)
    timer.close_step({"step": 1}, 0.25, 3.0)
    device.catch_up()
    (late,) = timer.arrived()

    assert (late.loss, late.norm) == (0.25, 3.0)
    assert late.is_read
    assert late.parts_ns is None


def test_a_step_with_too_many_events_leaves_the_step_before_alone() -> None:
    device = Device()
    timer = device.timer()
    run_step(timer, device, 1)
    for _ in range(EVENTS_PER_STEP_MAX + 10):
        timer.mark(timing.FORWARD)
    timer.close_step({"step": 2}, 2.0, None)
    # The first step is still on the device while the next one records every event that the second has freed.
    for _ in range(EVENTS_PER_STEP_MAX):
        device.work(1.0)
        timer.mark(timing.FORWARD)
    timer.close_step({"step": 3}, 3.0, None)
    device.catch_up()
    first = timer.arrived()[0]

    assert first.fields == {"step": 1}
    assert first.step_ns == sum(first.parts_ns)
    assert first.parts_ns[timing.OPTIMIZER] == 5_000_000


def test_nothing_is_recorded_inside_a_graph_capture() -> None:
    device = Device()
    timer = device.timer()
    device.capturing = True
    timer.mark(timing.FORWARD)

    assert device.events_made == 0
    assert timer.captured


@pytest.mark.parametrize(("host_ns", "felt_ns"), [(100, 30), (20, 20), (0, 0)])
def test_a_slow_loader_behind_running_kernels_starves_nobody(host_ns: int, felt_ns: int) -> None:
    parts = [0] * timing.PARTS_TOTAL
    parts[timing.GAP], parts[timing.DATA] = 10, 20

    assert felt_data_wait(parts, host_ns) == felt_ns


class Kept(NoWatch):
    """Keeps frames and phases."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.frames: list[dict[str, Any]] = []
        self.phases: list[str] = []

    def step_frame(self, fields: dict[str, Any]) -> None:
        self.frames.append(fields)

    def phase_changed(self) -> None:
        self.phases.append(self.progress.phase)


class DeviceLoss:
    """A one-element tensor on the device: reading it at once would wait."""

    is_cpu = False

    def __init__(self, value: float) -> None:
        self.value = value

    def detach(self) -> DeviceLoss:
        return self

    float = detach

    def numel(self) -> int:
        return 1

    def reshape(self, shape: tuple) -> DeviceLoss:
        return self

    def __add__(self, other: DeviceLoss) -> DeviceLoss:
        return DeviceLoss(self.value + other.value)

    def __truediv__(self, count: int) -> DeviceLoss:
        return DeviceLoss(self.value / count)


def metered(device: Device) -> StepMeter:
    progress = Progress(threading.get_ident())
    meter = StepMeter(progress, TokenCount(100, None, 1))
    meter.time_device(device.timer())
    meter.watch = Kept(progress)
    return meter


def train_step(meter: StepMeter, device: Device, step: int, *losses: float) -> None:
    for loss in losses:
        device.work(1.0)
        meter.enter_forward(True, (), {})
        device.work(10.0)
        meter.exit_forward(None)
        meter.enter_backward(DeviceLoss(loss))
        device.work(20.0)
        meter.exit_backward()
    meter.enter_optimizer()
    device.work(5.0)
    meter.exit_optimizer()
    meter.end_step(EngineFacts(step))


def test_a_frame_waits_for_its_values_and_no_step_waits_for_the_frame() -> None:
    device = Device()
    meter = metered(device)
    train_step(meter, device, 1, 2.0, 4.0)
    train_step(meter, device, 2, 6.0)
    assert meter.watch.frames == [], "the device has done nothing yet"
    device.catch_up()
    meter.enter_forward(True, (), {})  # Any hook of the next step brings them.
    first, second = meter.watch.frames

    assert (first["step"], first["loss"].value, second["loss"].value) == (1, 3.0, 6.0)
    assert first["device_timed"]
    assert (first["forward_s"], first["backward_s"], first["optimizer_s"]) == (0.02, 0.04, 0.005)
    assert second["step_s"] == 0.036
    assert "comm_s" not in first, "a launch time is no communication time"
    parts = ("data_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s")
    assert sum(second[part] for part in parts) <= second["step_s"]


def test_what_the_host_does_while_the_device_works_on_is_felt_by_nobody() -> None:
    """Two clocks, and still a partition: a save, an evaluation and a fetch are as long as the device stood idle."""
    device = Device()
    meter = metered(device)
    train_step(meter, device, 1, 1.0)
    for phase in ("checkpoint", "eval"):
        part = meter.enter_phase(phase)
        meter.clock.started_ns -= 10**9  # A second by the host, in which the device had a millisecond left to do.
        meter.clock.since_ns -= 10**9
        meter.exit_phase(part)
    train_step(meter, device, 2, 1.0)
    device.catch_up()
    meter.enter_forward(True, (), {})
    frame = meter.watch.frames[1]
    parts = ("data_s", "forward_s", "backward_s", "optimizer_s", "checkpoint_s", "hold_s", "eval_s", "loop_s")
    assert sum(frame.get(part, 0.0) for part in parts) <= frame["step_s"] == 0.036
    assert (frame["checkpoint_s"], frame.get("eval_s"), frame["data_s"]) == (0.001, None, 0.0)
    assert frame["data_bound"]
    assert "loop_s" not in frame


def test_a_stage_waits_for_others_as_long_as_its_device_does() -> None:
    """A receive is launched in no time; the device stands in it for 40 ms."""
    device = Device()
    meter = metered(device)
    train_step(meter, device, 1, 1.0)
    meter.begin_step()
    left = meter.enter_instruction("pipe:RecvGrad", timing.BUBBLE)
    device.work(40.0)
    meter.exit_instruction("pipe:RecvGrad", left)
    train_step(meter, device, 2, 1.0)
    device.catch_up()
    meter.enter_forward(True, (), {})
    assert "bubble_s" not in meter.watch.frames[0]
    assert meter.watch.frames[1]["bubble_s"] == 0.04


def test_an_offloaded_optimizer_takes_no_longer_than_the_device_saw_of_it() -> None:
    """The host waits a second for the backward pass, inside its call of the optimizer."""
    device = Device()
    meter = metered(device)
    meter.overlapping.add(lambda told, _: told.update(offload_s=1.0))
    train_step(meter, device, 1, 1.0)
    device.catch_up()
    meter.enter_forward(True, (), {})
    frame = meter.watch.frames[0]
    assert frame["offload_s"] == frame["optimizer_s"] < 1.0


def test_what_turns_out_to_be_another_part_is_so_on_the_device() -> None:
    device = Device()
    meter = metered(device)
    meter.enter_forward(True, (), {})
    meter.exit_forward(None)
    meter.enter_backward(DeviceLoss(1.0))
    device.work(20.0)
    meter.exit_backward()
    device.work(3.0)  # Clipping.
    meter.enter_optimizer()
    device.work(5.0)
    meter.end_step(EngineFacts(1))
    device.catch_up()
    meter.enter_forward(True, (), {})
    frame = meter.watch.frames[0]
    assert (frame["backward_s"], frame["optimizer_s"]) == (0.02, 0.008)


def test_a_stuck_device_is_not_a_vanished_loss() -> None:
    device = Device()
    meter = metered(device)
    for step in range(1, STEPS_IN_FLIGHT_MAX + 2):
        train_step(meter, device, step, 1.0)
    (frame,) = meter.watch.frames

    assert frame["loss_expected"] is False
    assert "loss" not in frame
    assert "device_timed" not in frame


def test_a_graph_capture_makes_the_step_compile_until_it_ends() -> None:
    device = Device()
    meter = metered(device)
    train_step(meter, device, 1, 1.0)
    device.capturing = True
    meter.enter_forward(True, (), {})
    device.capturing = False
    assert meter.progress.phase == "compile"
    train_step(meter, device, 2, 1.0)

    assert meter.watch.phases == ["compile", "train", "compile", "train"]


class DeviceMask:
    """An attention mask whose sum is known when the device has caught up."""

    is_cpu = False
    is_meta = False
    dtype = "torch.int64"

    def __init__(self, nonzero: int) -> None:
        self.shape = (2, 100)
        self.nonzero = nonzero

    def count_nonzero(self) -> int:
        return self.nonzero


def test_what_is_no_padding_comes_home_with_the_loss_and_not_out_of_a_capture() -> None:
    device = Device()
    meter = metered(device)
    meter.count = TokenCount(None, None, 2)
    meter.time_device(device.timer())
    batch = {"input_ids": DeviceMask(200), "attention_mask": DeviceMask(150)}
    for step, device.capturing in ((1, False), (2, True), (3, False)):
        device.work(1.0)
        meter.enter_forward(True, (), batch)
        meter.exit_forward(None)
        meter.end_step(EngineFacts(step))
        assert len(meter.watch.frames) == 0
    device.catch_up()
    device.capturing = False
    meter.enter_forward(True, (), {})
    assert [frame["tokens"] for frame in meter.watch.frames] == [400, 400, 400]
    assert [frame.get("tokens_nonpad") for frame in meter.watch.frames] == [300, None, 300]
