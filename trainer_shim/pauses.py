"""What the training thread does beside forward, backward and optimizer: fetches of data, evaluation, saves, pauses.

The part of StepMeter that the loop's own order decides. All methods run on the training thread; those that hooks call
are guarded.
"""

from __future__ import annotations

from typing import Callable, Optional

from . import device_timing, timing
from .guard import guarded
from .interfaces import NoWatch, Watch
from .progress import Progress

NO_FETCH = (timing.GAP, 0, 0)  # Of fetches that follow each other: what they are charged to, nanoseconds, how many.
NO_PASS = (0, 0)  # Of an evaluation's last forward pass: when it ended, and what was charged to evaluations by then.


class Pauses:
    """Charges the time between the passes, and tells the phases.

    An evaluation that the script does not mark begins with the first forward pass that does not train, or with the
    fetch before it. It ends where the loop puts its model to training, if no batch of the training is there by then.
    Else its end is seen only later, with the next fetch or forward pass that trains, or with the end of the training:
    it was that of its last forward pass, and what lies behind is the loop's own. On a device that the host runs ahead
    of, a pass ends when it is launched: so far ahead, a few passes at most, the host does not get.
    """

    # Beyond 30 attributes in one dictionary Python looks each of them up by hash.
    __slots__ = (
        "_boundary_due",
        "_cold",
        "_cut_ns",
        "_fetched",
        "_has_batch",
        "_in_eval",
        "_loader_timed",
        "_loads",
        "_marks_eval",
        "_passed",
        "_trains",
        "clock",
        "device",
        "evaluation_due",
        "progress",
        "watch",
    )

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.watch: Watch = NoWatch()  # Until attach() has a real one: that needs a saver, which needs this meter.
        self.clock = timing.StepClock()
        self.device: Optional[device_timing.DeviceTimer] = None
        self.evaluation_due = False  # What is saved now lacks the evaluation of its step.
        self._trains: Optional[Callable[[], Optional[bool]]] = None
        self._loader_timed = False
        self._loads = 0  # Fetches for training from a loader of PyTorch's, since the last step.
        self._fetched = NO_FETCH
        self._cold = True  # The next step compiles, allocates and fills caches.
        self._in_eval = False
        self._passed = NO_PASS
        self._has_batch = (
            False  # Since the last forward pass of the evaluation a batch was fetched: of whom is not seen.
        )
        self._cut_ns = 0  # So much of an evaluation that has ended was the loop's own, unless it goes on.
        self._marks_eval = False  # The script says itself where it evaluates.
        self._boundary_due = False

    # -- what an engine's hooks tell once ---------------------------------------------------------------------------

    def time_loader(self) -> None:
        """The hooks time each wait for data exactly."""
        self._loader_timed = True

    def ask_mode(self, trains: Callable[[], Optional[bool]]) -> None:
        """`trains()` says what the script has put its model to: training, evaluation (False), or None: unclear."""
        self._trains = trains

    # -- fetches of data ------------------------------------------------------------------------------------------

    @guarded()
    def enter_fetch(self) -> int:
        """A batch is asked for; returns the part to hand to exit_fetch."""
        self._loader_timed = True
        if self._boundary_due:
            self.watch.step_over(self.progress.step)
            self._boundary()
        return self._enter_load()

    @guarded()
    def exit_fetch(self, part: Optional[int], has_batch: bool = True) -> None:
        """The batch is here, or (not `has_batch`) the epoch ended."""
        self._exit_load(part, has_batch)

    @guarded()
    def enter_load(self) -> int:
        """As enter_fetch(), of a loader that the script has not wrapped. The step's boundary waits for the forward."""
        left = self._enter_load()
        if left not in timing.FETCHES_INSIDE:
            self._loads += 1
        return left

    @guarded()
    def exit_load(self, part: Optional[int], has_batch: bool = True) -> None:
        """As exit_fetch()."""
        self._exit_load(part, has_batch)

    def _enter_load(self) -> int:
        if self._trains is not None:
            self._follow_mode(self._trains())
        left = self.clock.part
        if self.progress.last_hook != "data":
            self._fetched = NO_FETCH
        self._mark("data", left if left in timing.FETCHES_INSIDE else timing.DATA)
        return left

    def _exit_load(self, part: Optional[int], has_batch: bool) -> None:
        clock = self.clock
        self._has_batch = has_batch
        begun_ns = clock.since_ns
        left = self._mark("data", timing.GAP if part is None or part not in timing.FETCHES_INSIDE else part)
        was, before_ns, count = self._fetched
        took_ns = clock.since_ns - begun_ns
        self._fetched = (left, before_ns + took_ns, count + 1) if was == left else (left, took_ns, 1)

    def _follow_mode(self, trains: Optional[bool]) -> None:
        """The model's mode tells whose batch is fetched."""
        if self._in_eval and trains:
            self._leave_late()
        elif trains is False and self.progress.attempt_step and not self._marks_eval:
            self._enter_eval()

    def _forget_fetch(self) -> None:
        """What comes next is no fetch that follows the last one, which was the evaluation's."""
        self._fetched = NO_FETCH
        self._has_batch = False

    def _move_fetch(self, charged: int, part: int) -> None:
        """The fetch just before this forward pass was for it, whatever the model's mode was then."""
        was, took_ns, count = self._fetched
        spent = self.clock.spent
        if was == charged and self.progress.last_hook == "data" and spent[charged] >= took_ns:
            spent[charged] -= took_ns
            spent[part] += took_ns
            self._loads = max(0, self._loads + (count if part == timing.DATA else -count))

    # -- evaluation and other phases ------------------------------------------------------------------------------

    @property
    def evaluating(self) -> bool:
        """True between steps, in evaluation or another phase outside training."""
        return self.clock.part == timing.EVAL

    @guarded()
    def set_training(self, training: bool) -> None:
        """The engine was put into training or evaluation mode."""
        if training and self._in_eval and self._has_batch:
            self._leave_for_step()
        elif training and self._in_eval:
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
        if phase == "eval" and not self._in_eval:
            self._marks_eval = True
        if phase == "eval" and self._boundary_due:
            self.before_evaluation()
            self.evaluation_due = False  # What is saved in it, or behind it, is the script's own.
        self.progress.push_phase(phase)
        self.watch.phase_changed()
        return self.clock.switch(timing.CHECKPOINT if phase == "checkpoint" else timing.EVAL)

    @guarded()
    def exit_phase(self, part: Optional[int], cold: bool = False) -> None:
        """Leave the innermost phase; `cold` = the next step is not like the others."""
        self.progress.pop_phase()
        self.watch.phase_changed()
        self._cold = self._cold or cold
        self.clock.switch(timing.GAP if part is None else part)

    @guarded()
    def enter_own_save(self, is_announced: bool) -> Optional[int]:
        """The script saves by PyTorch's own means. None: what saves is known already, and has its phase.

        `is_announced`: it goes to a file, so that it is a phase.
        """
        if self.clock.part == timing.CHECKPOINT:
            return None
        if self._in_eval and self._trains is not None and self._trains():
            self._leave_late()
        return self.enter_phase("checkpoint") if is_announced else self.clock.switch(timing.CHECKPOINT)

    @guarded()
    def exit_own_save(self, part: Optional[int], is_announced: bool) -> None:
        """It has saved."""
        if part is not None and is_announced:
            self.exit_phase(part)
        elif part is not None:
            self.clock.switch(part)

    def expect_compilation(self) -> None:
        """The script compiles what it trains: the next step is not like the others."""
        self._cold = True

    @guarded()
    def end(self) -> None:
        """The training is over, and with it an evaluation that nobody has ended."""
        if self.device is not None:
            self.send_arrived()
        if self._in_eval:
            self._leave_late()

    def finish(self, reason: str, completed: bool) -> None:
        """As Watch.finish()."""
        self.end()
        self.watch.finish(reason, completed)

    def _enter_eval(self) -> None:
        if not self.evaluating:  # The script's own phase("eval") is around this one already.
            self._in_eval = True
            self._passed = NO_PASS
            self.enter_phase("eval")

    def _go_on_evaluating(self) -> None:
        """A loop that shuts gradients off around each pass alone looks as if it trained at each fetch between them."""
        spent, cut_ns = self.clock.spent, self._cut_ns
        self._move_fetch(timing.DATA, timing.EVAL)
        if cut_ns and spent[timing.GAP] >= cut_ns:
            spent[timing.GAP] -= cut_ns
            spent[timing.EVAL] += cut_ns
        self._enter_eval()

    @guarded()
    def end_pass(self) -> None:
        """A forward pass of an evaluation is over, and so may the evaluation be."""
        clock = self.clock
        if self._in_eval and clock.part == timing.EVAL:
            clock.switch(timing.EVAL)
            self._passed = (clock.since_ns, clock.spent[timing.EVAL])

    @guarded()
    def leave_late(self) -> None:
        """As _leave_late(), for what the step goes on with behind passes that did not train."""
        self._leave_late()

    def _leave_eval(self, over_ns: int = 0) -> None:
        """`over_ns`: it was over then."""
        self._in_eval = False
        self.progress.pop_phase(over_ns)
        self.watch.phase_changed()
        self.clock.switch(timing.GAP)

    def _leave_late(self, fetched_ns: int = 0) -> None:
        """An evaluation is over whose end nobody has told. Of what is charged to it, `fetched_ns` are a fetch's."""
        ended_ns, sure_ns = self._passed
        self._leave_eval(ended_ns)
        if not ended_ns:
            return  # By its fetches alone: no pass of it was seen.
        clock = self.clock
        spent = clock.spent
        beyond_ns = spent[timing.EVAL] - fetched_ns - (sure_ns if ended_ns >= clock.started_ns else 0)
        self._cut_ns = max(0, beyond_ns)
        spent[timing.EVAL] -= self._cut_ns
        spent[timing.GAP] += self._cut_ns

    def _leave_for_step(self) -> None:
        """As _leave_late(): what was fetched last is the next step's."""
        was, took_ns, _ = self._fetched
        self._leave_late(took_ns if was == timing.EVAL and self.progress.last_hook == "data" else 0)
        self._move_fetch(timing.EVAL, timing.DATA)

    # -- what both halves of the meter do -------------------------------------------------------------------------

    def _boundary(self) -> None:
        self._boundary_due = False
        clock, progress = self.clock, self.progress
        clock.switch(timing.HOLD)
        self.watch.at_boundary(progress.step)
        clock.switch(timing.GAP)
        progress.progress_seq += 1
        progress.last_hook = "boundary"
        progress.last_hook_ns = clock.since_ns

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

    def _relabel(self, part: int) -> None:
        """What the training thread does now turns out to be `part`, since the last mark."""
        self.clock.relabel(part)
        if self.device is not None:
            self.device.relabel(part)

    def _mark_device(self, device: device_timing.DeviceTimer, part: int) -> None:
        device.mark(part)
        if device.in_flight:
            self.send_arrived()
        if device.captured and not self._cold:
            self._cold = True  # A graph is being captured in this step.
            self.progress.set_phase("compile")
            self.watch.phase_changed()

    def send_arrived(self) -> None:
        """Send the frames whose device values are on the host by now."""
        raise NotImplementedError
