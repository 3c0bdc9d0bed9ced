"""The step meter without any framework: what each kind of step, pause and loss turns into."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from trainer_shim.engines.base import PositionSaver
from trainer_shim.interfaces import NoWatch
from trainer_shim.loader import wrap_loader
from trainer_shim.meter import StepMeter
from trainer_shim.phases import CURRENT, phase
from trainer_shim.progress import Progress
from trainer_shim.scalars import EngineFacts
from trainer_shim.tokens import TokenCount
from trainer_shim.wire import FRAMES, faults, head


class Kept(NoWatch):
    """Keeps frames, phases and boundaries."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.frames: list[dict[str, Any]] = []
        self.phases: list[str] = []
        self.boundaries: list[int] = []
        self.ends: list[int] = []  # Of steps whose boundary was still to come.
        self.evaluations: list[tuple[int, str]] = []  # Likewise, whose evaluation began, with the phase before it.

    def step_over(self, step: int) -> None:
        assert step not in self.boundaries
        self.ends.append(step)

    def before_evaluation(self, step: int) -> None:
        assert step not in self.boundaries
        self.evaluations.append((step, self.progress.phase))

    def step_frame(self, fields: dict[str, Any]) -> None:
        self.frames.append(fields)

    def phase_changed(self) -> None:
        self.phases.append(self.progress.phase)

    def at_boundary(self, step: int) -> None:
        self.boundaries.append(step)


class Scalar:
    """The part of a one-element CPU tensor that the shim touches."""

    is_cpu = True

    def __init__(self, value: float) -> None:
        self.value = value

    def detach(self) -> Scalar:
        return self

    def numel(self) -> int:
        return 1

    def item(self) -> float:
        return self.value


class FarScalar(Scalar):
    """On an accelerator that nobody can read without waiting."""

    is_cpu = False

    def item(self) -> float:
        raise AssertionError("this would synchronise the device")


@pytest.fixture
def meter() -> StepMeter:
    progress = Progress(threading.get_ident())
    made = StepMeter(progress, TokenCount(512, None, 1))
    made.watch = Kept(progress)
    return made


def train_step(meter: StepMeter, *losses: Any, facts: EngineFacts | None = None, is_share: bool = False) -> dict:
    for loss in losses:
        meter.enter_forward(True, (), {})
        meter.exit_forward(None)
        meter.enter_backward(loss, is_share)
        meter.exit_backward()
    meter.enter_optimizer()
    meter.exit_optimizer()
    meter.end_step(facts or EngineFacts(meter.progress.step + 1))
    meter.boundary()
    return meter.watch.frames[-1]


def test_a_step_frame_is_what_the_wire_allows(meter: StepMeter) -> None:
    facts = EngineFacts(7, applied=True, lr=1e-3, grad_norm=0.5, skipped_steps=0, loss_scale=256.0)
    frame = train_step(meter, Scalar(2.0), facts=facts)

    assert faults({**head("step", 0, 1), **frame}, FRAMES) == []
    assert set(frame) <= set(FRAMES["step"])
    assert (frame["step"], frame["attempt_step"], frame["loss"], frame["tokens_total"]) == (7, 1, 2.0, 512)
    assert meter.watch.boundaries == [7]


def test_the_loss_is_the_mean_of_micro_steps_or_the_sum_of_their_shares(meter: StepMeter) -> None:
    assert train_step(meter, Scalar(1.0), Scalar(4.0))["loss"] == 2.5
    assert train_step(meter, Scalar(0.5), Scalar(2.0), is_share=True)["loss"] == 2.5


@pytest.mark.parametrize("vanished", [None, "text", object()])
def test_a_loss_that_vanished_is_expected_and_absent(meter: StepMeter, vanished: Any) -> None:
    frame = train_step(meter, Scalar(1.0), vanished)

    assert frame["loss_expected"] is True
    assert "loss" not in frame, "the other micro-step's loss must not hide it"


def test_a_loss_on_a_device_that_cannot_be_read_is_neither_read_nor_called_vanished(meter: StepMeter) -> None:
    frame = train_step(meter, FarScalar(1.0))

    assert frame["loss_expected"] is False
    assert "loss" not in frame


def test_a_nan_is_a_loss(meter: StepMeter) -> None:
    frame = train_step(meter, Scalar(float("nan")))

    assert frame["loss"] != frame["loss"]


def test_a_norm_on_a_device_is_left_there(meter: StepMeter) -> None:
    facts = EngineFacts(1, grad_norm=FarScalar(1.0))

    assert "grad_norm" not in train_step(meter, Scalar(1.0), facts=facts)


def test_in_step_lasts_from_the_first_forward_to_the_end(meter: StepMeter) -> None:
    progress = meter.progress
    assert not progress.in_step
    meter.enter_forward(True, (), {})
    assert progress.in_step
    meter.exit_forward(None)
    meter.enter_backward(Scalar(1.0))
    meter.exit_backward()
    assert progress.in_step, "a micro-step's end is not the step's"
    meter.end_step(EngineFacts(1))
    assert not progress.in_step


def test_every_hook_moves_the_progress(meter: StepMeter) -> None:
    seen = [meter.progress.progress_seq]
    for hook in (
        lambda: meter.enter_forward(True, (), {}),
        lambda: meter.exit_forward(None),
        lambda: meter.enter_backward(Scalar(1.0)),
        meter.exit_backward,
        meter.enter_optimizer,
        meter.exit_optimizer,
        meter.boundary,
    ):
        hook()
        seen.append(meter.progress.progress_seq)

    assert seen == sorted(set(seen))


def test_the_first_step_is_compile_and_so_is_the_one_after_a_resume_and_none_after_an_evaluation(
    meter: StepMeter,
) -> None:
    train_step(meter, Scalar(1.0))
    train_step(meter, Scalar(1.0))
    meter.set_training(False)
    meter.enter_forward(False, (), {})
    meter.exit_forward(None)
    meter.set_training(True)
    train_step(meter, Scalar(1.0))
    meter.resumed(40, 1_000_000)
    frame = train_step(meter, Scalar(1.0))

    told = ["compile", "train", "eval", "train", "compile", "train"]
    assert meter.watch.phases == told
    assert (frame["step"], frame["attempt_step"], frame["tokens_total"]) == (41, 4, 1_000_512)


def test_a_checkpoint_of_the_scripts_own_does_not_say_what_went_before_and_nor_does_the_frame(
    meter: StepMeter,
) -> None:
    """The governor has heard the attempts before; a total that began anew at 0 would make waste of all progress."""
    meter.resumed(40, None)
    frame = train_step(meter, Scalar(1.0))
    assert (frame["step"], frame["tokens"], "tokens_total" in frame) == (41, 512, False)
    assert PositionSaver(meter).position()["tokens_total"] is None
    meter.resumed(40, 1_000_000)
    assert train_step(meter, Scalar(1.0))["tokens_total"] == 1_000_512


def test_a_forward_pass_without_training_counts_no_tokens_and_no_time_of_the_step(meter: StepMeter) -> None:
    train_step(meter, Scalar(1.0))
    meter.enter_forward(False, (), {})
    meter.exit_forward(None)
    frame = train_step(meter, Scalar(1.0))

    assert meter.watch.phases == ["compile", "train", "eval", "train"]
    assert frame["tokens_total"] == 2 * 512


def test_a_deferred_boundary_comes_before_the_next_batch_is_handed_out(meter: StepMeter) -> None:
    meter.defer_boundary()
    CURRENT.meter = meter
    try:
        batches = iter(wrap_loader([1, 2, 3]))
        next(batches)
        train_step(meter, Scalar(1.0))
        assert meter.watch.boundaries == [], "scheduler and zero_grad are still to come"
        next(batches)
        assert meter.watch.boundaries == [1]
        train_step(meter, Scalar(1.0))
        meter.enter_forward(True, (), {})
        assert meter.watch.boundaries == [1, 2], "without a wrapped loader, the next forward pass"
        assert meter.watch.ends == [1, 1, 2], "what a loop draws between two steps with a loader belongs to the first"
    finally:
        CURRENT.meter = None


@pytest.mark.parametrize("is_marked", [True, False], ids=["a phase", "a forward pass"])
def test_what_is_asked_for_may_be_saved_before_an_evaluation_of_the_loops_own(
    meter: StepMeter, is_marked: bool
) -> None:
    """Else its boundary comes behind that, and a halt would wait for it whatever is left of its grace."""
    meter.defer_boundary()
    CURRENT.meter = meter
    try:
        train_step(meter, Scalar(1.0))
        if is_marked:
            with phase("eval"):
                meter.enter_forward(False, (), {})
        else:
            meter.enter_forward(False, (), {})
        assert meter.watch.evaluations == [(1, "train")]
        assert meter.watch.boundaries == []
        meter.enter_forward(True, (), {})
        assert meter.watch.boundaries == [1]
    finally:
        CURRENT.meter = None


def test_a_loop_whose_forward_pass_is_not_seen_is_held_where_its_step_ends(meter: StepMeter) -> None:
    """A function around the model is compiled: no hook runs in it."""
    meter.defer_boundary()
    for step in (1, 2):
        meter.enter_optimizer()
        meter.exit_optimizer()
        meter.end_step(EngineFacts(step))
        meter.boundary()
    assert meter.watch.boundaries == [1, 2]
    assert not {"data_s", "forward_s", "backward_s"} & meter.watch.frames[-1].keys()


def test_phase_marks_its_block_and_an_unknown_name_is_idle(meter: StepMeter, capsys: pytest.CaptureFixture) -> None:
    CURRENT.meter = meter
    try:
        train_step(meter, Scalar(1.0))
        with phase("eval"):
            meter.enter_forward(False, (), {})
            meter.exit_forward(None)
        with phase("tokenising"):
            pass
    finally:
        CURRENT.meter = None

    assert meter.watch.phases == ["compile", "train", "eval", "train", "idle", "train"]
    assert "'tokenising' is not one of" in capsys.readouterr().err


def test_a_fault_of_ours_costs_a_line_and_no_step(meter: StepMeter, capsys: pytest.CaptureFixture) -> None:
    def broken(*_: Any) -> int:
        raise RuntimeError("not an integer")

    meter.count = TokenCount(None, broken, 1)
    for _ in range(5):
        frame = train_step(meter, Scalar(1.0))

    assert frame["step"] == 5
    assert frame["loss"] == 1.0
    assert "tokens" not in frame
    assert capsys.readouterr().err.count("training goes on") <= 1
