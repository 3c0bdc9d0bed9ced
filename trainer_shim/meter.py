"""Observes one rank's training: the hooks of every engine end here, step and phase frames leave from here.

All methods run on the training thread. Those that hooks call are guarded: an error of ours costs a frame, never a step.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, Optional

from . import device_timing, timing, tokens
from .guard import guarded
from .interfaces import NoWatch, Watch
from .progress import Progress
from .scalars import ELSEWHERE, EngineFacts, host_number, put_facts, put_memory, put_scalars, readable
from .sight.gradients import Gradients
from .sight.losses import BLIND, LossSource
from .sight.outputs import Outputs

_Known = Optional[float]
MEMORY_PERIOD_NS = 5_000_000_000  # Memory moves over minutes; reading the allocator's statistics costs ~50 us.


class StepMeter:
    """Times, counts and reports the steps of one rank."""

    def __init__(self, progress: Progress, count: tokens.TokenCount) -> None:
        self.progress = progress
        self.watch: Watch = NoWatch()  # Until attach() has a real one: that needs a saver, which needs this meter.
        self.clock = timing.StepClock()
        self.count = count
        self.device: Optional[device_timing.DeviceTimer] = None
        self._directory_learner: Callable[[str, bool], None] = lambda *_: None  # Until there is a saver.
        self.overlapping = timing.Overlapping()
        self.tokens_total = 0
        self.tokens_known = True  # False: a checkpoint was loaded that does not say how many tokens went before it.
        self.announces_saves = True  # Only unannounced() clears it.
        self._loader_timed = False
        self.loss_is_share = False  # Micro-step losses arrive divided by their number: their sum is the mean.
        self._cold = True  # The next step compiles, allocates and fills caches.
        self._in_eval = False
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
        self.can_defer = True  # False: nothing shows when the next step begins.
        self._boundary_due = False
        self.evaluation_due = False  # What is saved now lacks the evaluation of its step.
        self._memory_due_ns = 0

    # -- what an engine's hooks tell once ---------------------------------------------------------------------------

    def defer_boundary(self) -> None:
        """The optimizer's end is not yet the step's end: a scheduler or zero_grad follows."""
        self._defers_boundary = True

    def time_device(self, device: Optional[device_timing.DeviceTimer]) -> None:
        """The model's device runs behind the host, and `device` times it. None: it does not."""
        self.device = device
        self.count.may_sum = None if device is None else device.may_record

    def time_loader(self) -> None:
        """The hooks time each wait for data exactly."""
        self._loader_timed = True

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
            self._enter_eval()
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
        self._mark("backward", timing.GAP)

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

    def _boundary(self) -> None:
        self._boundary_due = False
        clock, progress = self.clock, self.progress
        clock.switch(timing.HOLD)
        self.watch.at_boundary(progress.step)
        clock.switch(timing.GAP)
        progress.progress_seq += 1
        progress.last_hook = "boundary"
        progress.last_hook_ns = clock.since_ns

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
    def set_training(self, training: bool) -> None:
        """The engine was put into training or evaluation mode."""
        if training and self._in_eval:
            self._leave_eval()
        elif not training and not self._in_eval:
            self._enter_eval()

    def expect_evaluation(self, is_due: bool) -> None:
        self.evaluation_due = is_due

    @guarded()
    def before_evaluation(self) -> None:
        """The step's evaluation comes next, and its boundary behind that: what cannot wait is saved here."""
        left, self.evaluation_due = self.clock.switch(timing.HOLD), True
        self.watch.before_evaluation(self.progress.step)
        self.clock.switch(left)

    @guarded()
    def enter_phase(self, phase: str) -> int:
        """Enter a nested phase; returns the part to hand to exit_phase."""
        if phase == "eval" and self._boundary_due:
            self.before_evaluation()
            self.evaluation_due = False  # What is saved in it, or behind it, is the script's own.
        self.progress.push_phase(phase)
        self.watch.phase_changed()
        return self.clock.switch(timing.CHECKPOINT if phase == "checkpoint" else timing.EVAL)

    @guarded()
    def exit_phase(self, part: Optional[int], cold: bool) -> None:
        """Leave the innermost phase; `cold` = the next step is not like the others."""
        self.progress.pop_phase()
        self.watch.phase_changed()
        self._cold = self._cold or cold
        self.clock.switch(timing.GAP if part is None else part)

    @guarded()
    def resumed(self, step: int, tokens_total: Optional[int]) -> None:
        """Weights of absolute step `step` were loaded."""
        self.progress.step = step
        self._cold = True
        self.tokens_known = tokens_total is not None or step == 0
        if tokens_total is not None:
            self.tokens_total = tokens_total
        self.count.restart()
        self.watch.hello_field("resumed_step", step)

    @guarded()
    def enter_fetch(self) -> int:
        """A batch is asked for; returns the part to hand to exit_fetch."""
        self._loader_timed = True
        if self._boundary_due:
            self.watch.step_over(self.progress.step)
            self._boundary()
        left = self.clock.part
        self._mark("data", left if left in timing.FETCHES_INSIDE else timing.DATA)
        return left

    @guarded()
    def exit_fetch(self, part: Optional[int]) -> None:
        """The batch is here, or the epoch ended."""
        self._mark("data", part if part in timing.FETCHES_INSIDE else timing.GAP)

    def _take_candidate(self) -> None:
        loss = self.losses.take()
        if loss is not None:
            self.note_loss(loss)

    def _begin_step(self) -> None:
        if self._in_eval:
            self._leave_eval()
        progress = self.progress
        if not progress.in_step:
            progress.in_step = True
            if self._cold:
                progress.set_phase("compile")
                self.watch.phase_changed()

    @property
    def evaluating(self) -> bool:
        """True between steps, in evaluation or another phase outside training."""
        return self.clock.part == timing.EVAL

    def _enter_eval(self) -> None:
        if not self.evaluating:  # The script's own phase("eval") is around this one already.
            self._in_eval = True
            self.enter_phase("eval")

    def _leave_eval(self) -> None:
        self._in_eval = False
        self.exit_phase(timing.GAP, True)

    def _mark(self, hook: str, part: int) -> int:
        """The training thread passed `hook` and works on `part` from here on; returns the part it left."""
        clock = self.clock
        left = clock.switch(part)
        progress = self.progress
        progress.progress_seq += 1
        progress.last_hook = hook
        progress.last_hook_ns = clock.since_ns  # The same clock, read once.
        if self.device is not None:
            self._mark_device(self.device, part)
        return left

    def _mark_device(self, device: device_timing.DeviceTimer, part: int) -> None:
        device.mark(part)
        if device.in_flight:
            self.send_arrived()
        if device.captured and not self._cold:
            self._cold = True  # A graph is being captured in this step.
            self.progress.set_phase("compile")
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
        timing.put_seconds(fields, times, self._loader_timed, self._backward_seen, self._forward_seen)
        self.overlapping.put(fields, times)
        fields["progress_seq"] = progress.progress_seq
        if times.step_ns and self.clock.since_ns >= self._memory_due_ns:
            self._memory_due_ns = self.clock.since_ns + MEMORY_PERIOD_NS
            put_memory(fields)
        return fields
