"""Observes one rank's training: the hooks of every engine end here, step and phase frames leave from here.

All methods run on the training thread. Those that hooks call are guarded: an error of ours costs a frame, never a step.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, Optional

from . import device_timing, timing, tokens
from .guard import guarded
from .pauses import Pauses
from .progress import Progress
from .scalars import ELSEWHERE, EngineFacts, host_number, put_facts, put_memory, put_scalars, readable
from .sight.gradients import Gradients
from .sight.losses import BLIND, LossSource
from .sight.outputs import Outputs

_Known = Optional[float]
MEMORY_PERIOD_NS = 5_000_000_000  # Memory moves over minutes; reading the allocator's statistics costs ~50 us.


class StepMeter(Pauses):
    """Times, counts and reports the steps of one rank."""

    def __init__(self, progress: Progress, count: tokens.TokenCount) -> None:
        super().__init__(progress)
        self.count = count
        self._directory_learner: Callable[[str, bool], None] = lambda *_: None  # Until there is a saver.
        self.overlapping = timing.Overlapping()
        self.tokens_total = 0
        self.tokens_known = True  # False: a checkpoint was loaded that does not say how many tokens went before it.
        self.announces_saves = True  # Only unannounced() clears it.
        self.loss_is_share = False  # Micro-step losses arrive divided by their number: their sum is the mean.
        self._forward_seen = False
        self._backward_seen = False
        self._loss: Any = None
        self._losses = 0
        self._lossless = 0  # Backward calls without a readable loss.
        self._loss_ever = False
        self.losses = LossSource()
        self.outputs = Outputs(progress)
        self.gradients: Optional[Gradients] = None
        self._blind_steps_max = 0
        self._defers_boundary = False
        self._reports_backward = False
        self.can_defer = True  # False: nothing shows when the next step begins.
        self._memory_due_ns = 0

    # -- what an engine's hooks tell once ---------------------------------------------------------------------------

    def defer_boundary(self) -> None:
        """The optimizer's end is not yet the step's end: a scheduler or zero_grad follows."""
        self._defers_boundary = True

    def time_device(self, device: Optional[device_timing.DeviceTimer]) -> None:
        """The model's device runs behind the host, and `device` times it. None: it does not."""
        self.device = device
        self.count.may_sum = None if device is None else device.may_record

    def expect_backward(self) -> None:
        """Who calls enter_backward() calls exit_backward(), too."""
        self._reports_backward = True

    @contextlib.contextmanager
    def unannounced(self) -> Iterator[None]:
        """We save through hooked methods: that is not the script's own save, may be suspect, and may fail yet."""
        self.announces_saves = False
        try:
            yield
        finally:
            self.announces_saves = True

    def teach_directory(self, learner: Callable[[str, bool], None]) -> None:
        """The saver wants to know where the script saves by itself."""
        self._directory_learner = learner

    def watch_gradients(self, gradients: Gradients, blind_steps_max: int, is_share: bool = False) -> None:
        """The engine knows no norm, but `gradients` may. Nothing seen in so many steps ends the process; 0: never."""
        self.gradients, self.loss_is_share = gradients, is_share
        self._blind_steps_max = blind_steps_max

    def learn_directory(self, directory: str, is_loaded: bool = False) -> None:
        """The script saved there by itself, or loaded from there."""
        self._directory_learner(directory, is_loaded)

    # -- forward and backward -------------------------------------------------------------------------------------

    @guarded()
    def enter_forward(self, training: bool, args: Any, kwargs: Any) -> None:
        """A forward pass of the whole model begins; outside training it counts as evaluation."""
        if not training:
            if not self.evaluating:
                self._go_on_evaluating()
            self._forget_fetch()
            return
        if self._boundary_due:
            self._boundary()
        self._begin_step()
        self._forward_seen = True
        self.progress.forwards += 1
        if self.losses.holds:
            self._take_candidate()
        self.count.add(args, kwargs)
        self._mark("forward", timing.FORWARD)

    @guarded()
    def exit_forward(self, output: Any) -> None:
        """The forward pass ended; `output` may carry the loss."""
        if self.clock.part == timing.EVAL:
            self.end_pass()
            return
        self._mark("forward", timing.AFTER_FORWARD)
        if not self.losses.told:
            self.losses.after_forward(output)
        self.outputs.after_forward(output)

    @guarded()
    def enter_backward(self, loss: Any, is_share: bool = False) -> None:
        """A backward pass from `loss` (tensor, number or None) begins."""
        self._backward_seen = True
        if not self.losses.told:
            self.losses.tell()
        self.loss_is_share = is_share
        self.note_loss(loss)
        self._mark("backward", timing.BACKWARD)
        self.outputs.told(loss)

    @guarded()
    def exit_backward(self) -> None:
        """The backward pass ended."""
        self._mark("backward", timing.AFTER_BACKWARD)

    def enter_unreported_backward(self) -> bool:
        """As enter_backward(), where the loop tells nothing. False: who has told of it, or evaluates, tells its end.

        Neither a mark nor a guard where no device is timed: nothing here fails, and each is a percent of our cost.
        """
        clock = self.clock
        part = clock.part
        if part == timing.BACKWARD:
            return not self._reports_backward
        if part == timing.EVAL and self._in_eval and self.progress.in_step:
            self.leave_late()  # The loop has looked at its model between the two passes of the step.
        elif part in timing.FETCHES_INSIDE:
            return False
        if part == timing.AFTER_FORWARD and self.losses.is_returned:
            self._relabel(timing.GAP)  # The loss was there already: what lies between is the loop's own.
        self._backward_seen = True
        if self.device is None:
            clock.switch(timing.BACKWARD)
        else:
            self.enter_instruction("backward", timing.BACKWARD)
        return True

    def exit_unreported_backward(self) -> None:
        """As exit_backward()."""
        if self.device is None:
            self.clock.switch(timing.AFTER_BACKWARD)
        else:
            self.exit_backward()

    def note_loss(self, loss: Any) -> None:
        """Take one micro-step's loss without waiting for any device."""
        value = readable(loss, self.device is not None)
        if value is None:
            self._lossless += 1
        if value is None or value is ELSEWHERE:
            return
        self._loss = value if self._losses == 0 else self._loss + value
        self._losses += 1

    # -- pipeline instructions ------------------------------------------------------------------------------------

    @guarded()
    def begin_step(self) -> None:
        """A whole step begins; instructions report what is inside it."""
        self._begin_step()
        self._forward_seen = self._backward_seen = True
        self._mark("step", timing.OTHER)

    @guarded()
    def enter_instruction(self, hook: str, part: int) -> int:
        """One instruction begins; returns the part to hand to exit_instruction."""
        return self._mark(hook, timing.EVAL if self.evaluating else part)

    @guarded()
    def exit_instruction(self, hook: str, part: Optional[int]) -> None:
        """The instruction ended."""
        self._mark(hook, timing.OTHER if part is None else part)

    # -- optimizer step -------------------------------------------------------------------------------------------

    @guarded()
    def enter_optimizer(self, optimizer: Any = None) -> None:
        """The engine's step function was called, at a boundary or not. `optimizer`: its gradients are complete."""
        if self.clock.part == timing.AFTER_BACKWARD:
            self._relabel(timing.OPTIMIZER)  # What the loop did since is for this step: it clips, it unscales.
        elif self.clock.part == timing.EVAL and self._in_eval:
            self._leave_late()
        self._mark("step", timing.OPTIMIZER)
        if self.gradients is not None and optimizer is not None:
            self.gradients.before_step(optimizer)

    @guarded()
    def exit_optimizer(self) -> None:
        """The engine's step function returned."""
        self._mark("step", timing.GAP)

    def end_step(self, facts: EngineFacts) -> None:
        """An optimizer update (applied or skipped) is complete: report it. Called from guarded hooks."""
        if self.losses.holds:
            self._take_candidate()
        device, progress = self.device, self.progress
        times = self.clock.close()
        progress.step = facts.step
        progress.attempt_step += 1
        progress.in_step = False
        progress.end_passes()
        fields = self._fields(facts, times)
        loss, norm = self._mean_loss(), facts.grad_norm
        if norm is None and self.gradients is not None:
            norm, sample = self.gradients.take()
            if norm is None and sample is not None:
                norm, fields["grad_finite"] = sample, True  # It says no more than that.
        if device is None:
            norm = None if norm is None else host_number(norm)
            self._send(fields, loss, norm, self.count.nonpad)
        else:
            device.captured = False
            device.close_step(fields, loss, norm, self.count.nonpad)
            self.send_arrived()
        if self._blind_steps_max:
            self._insist(loss is not None or norm is not None)
        self._loss = None
        self._losses = self._lossless = 0
        self.can_defer = self._forward_seen or self._loader_timed
        self._forward_seen = self._backward_seen = False
        if self._cold:
            self._cold = False
            progress.set_phase("train")
            self.watch.phase_changed()

    @guarded()
    def boundary(self) -> None:
        """Between two steps: the watcher may hold this thread, save, and park it."""
        if self._defers_boundary and self.can_defer:
            self._boundary_due = True  # It comes with the next batch or forward pass.
            self.watch.step_over(self.progress.step)
        else:
            self._boundary()

    def send_arrived(self) -> None:
        """Send the frames whose device values are on the host by now."""
        assert self.device is not None, "only devices run late"
        for late in self.device.arrived():
            self._send(device_timing.completed(late), late.loss, late.norm, late.nonpad)

    def _send(self, fields: Dict[str, Any], loss: _Known, norm: _Known, nonpad: _Known) -> None:
        self.count.put_nonpad(fields, nonpad)
        if put_scalars(fields, loss, norm) is False and self.gradients is not None:
            self.gradients.doubt()
        self.watch.step_frame(fields)

    def _insist(self, is_seen: bool) -> None:
        """SystemExit after the first steps where neither a loss nor a gradient was seen: it was asked for."""
        if is_seen:
            self._blind_steps_max = 0
        elif self.progress.attempt_step >= self._blind_steps_max:
            raise SystemExit(BLIND % self._blind_steps_max)

    # -- around the steps -----------------------------------------------------------------------------------------

    @guarded()
    def resumed(self, step: int, tokens_total: Optional[int]) -> None:
        """Weights of absolute step `step` were loaded."""
        self.progress.step = step
        self.progress.progress_seq += 1  # A load passes no hook, and it has ended.
        self._cold = True
        self.tokens_known = tokens_total is not None or step == 0
        if tokens_total is not None:
            self.tokens_total = tokens_total
        self.count.restart()
        self.watch.hello_field("resumed_step", step)

    def _take_candidate(self) -> None:
        loss = self.losses.take()
        if loss is not None:
            self.note_loss(loss)

    def _begin_step(self) -> None:
        if self._in_eval:
            self._leave_for_step()
        self._cut_ns = 0
        progress = self.progress
        if not progress.in_step:
            progress.in_step = True
            if self._cold:
                progress.set_phase("compile")
                self.watch.phase_changed()

    # -- the frame ------------------------------------------------------------------------------------------------

    def _mean_loss(self) -> Any:
        if self._losses == 0 or self._lossless:  # A micro-step whose loss vanished would hide in the others' mean.
            return None
        return self._loss if self.loss_is_share else self._loss / self._losses

    def _fields(self, facts: EngineFacts, times: timing.StepTimes) -> Dict[str, Any]:
        progress = self.progress
        step_tokens = self.count.take()
        fields: Dict[str, Any] = {"step": facts.step, "attempt_step": progress.attempt_step}
        if step_tokens is not None:
            self.tokens_total += step_tokens
            fields["tokens"] = step_tokens
            if self.tokens_known:  # Else the governor, which heard the attempts before, counts on by step.
                fields["tokens_total"] = self.tokens_total
            self.count.put_own(fields)
        self._loss_ever = self._loss_ever or (self._losses > 0 and self.losses.is_certain)
        fields["loss_expected"] = self._loss_ever or self._lossless > 0
        put_facts(fields, facts)
        is_timed = self._loader_timed or self._loads > 0
        timing.put_seconds(fields, times, is_timed, self._backward_seen, self._forward_seen)
        self._loads = 0
        self.overlapping.put(fields, times)
        fields["progress_seq"] = progress.progress_seq
        if times.step_ns and self.clock.since_ns >= self._memory_due_ns:
            self._memory_due_ns = self.clock.since_ns + MEMORY_PERIOD_NS
            put_memory(fields)
        return fields
